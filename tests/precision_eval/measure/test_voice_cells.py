"""The voice's cells for real: trained weights, a few frames, files in a run's folder."""

import resource
from pathlib import Path

import numpy as np
import pytest
import soundfile
from made_cells import cell as made_cell

from precision_eval.cases.voice.codec import SAMPLE_RATE_HZ
from precision_eval.core.cells import Options
from precision_eval.core.files import intact
from precision_eval.measure.registry import run_cell
from precision_eval.measure.shipped_voice import spoken_script
from precision_eval.measure.voice import _wav_path

OPTIONS = Options(minutes=0.06, streams=2, steps=12, seed=0)
SHORT = Options(minutes=0.02, streams=2, steps=12, seed=0)
MESSAGE = "Expected query, key, and value to have the same dtype"


def outcome(run_dir: Path, measure: str, fix: str, *, options: Options = OPTIONS):
    (found,) = run_cell(made_cell(measure, fix, case="voice", size="default", options=options), run_dir).outcomes
    return found


def passed(run_dir: Path, measure: str, fix: str, *, options: Options = OPTIONS) -> dict:
    found = outcome(run_dir, measure, fix, options=options)
    assert found.status == "passed", found.reason
    return found.data


def _flip_a_byte(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("case", ["voice", "cases.py:factory"])
def test_files_of_two_devices_in_one_folder_have_two_names(tmp_path: Path, case: str) -> None:
    cells = [made_cell("synthesis", "autocast", case=case, device=device) for device in ("cpu", "cuda:0", "cuda:1")]
    names = {_wav_path(cell, tmp_path, fix).name for cell in cells for fix in ("autocast", "reference")}
    assert len(names) == 6


@pytest.mark.parametrize("measure", ["teacher_forced_drift", "streams", "synthesis"])
def test_as_shipped_raises_in_every_measure_and_leaves_no_file(tmp_path: Path, measure: str) -> None:
    found = outcome(tmp_path, measure, "as_shipped")
    assert found.status == "raised"
    assert MESSAGE in found.reason
    assert not list(tmp_path.rglob("as_shipped*"))
    assert not list(tmp_path.rglob("*partial*"))


def test_drift_is_bit_for_bit_repeatable(tmp_path: Path) -> None:
    """Once with the reference's logits computed, once with them read from the run's folder, once in another folder."""
    first = passed(tmp_path / "a", "teacher_forced_drift", "kv_to_query")
    assert passed(tmp_path / "a", "teacher_forced_drift", "kv_to_query") == first
    assert passed(tmp_path / "b", "teacher_forced_drift", "kv_to_query") == first
    assert first["max_abs_logit"] > 0
    assert (first["streams"], first["steps"]) == (2, 12)


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], _flip_a_byte])
def test_damaged_reference_logits_are_computed_again(tmp_path: Path, damage) -> None:
    first = passed(tmp_path, "teacher_forced_drift", "full_float32")
    (path,) = (tmp_path / "streams").glob("reference-logits*")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert passed(tmp_path, "teacher_forced_drift", "full_float32") == first
    assert np.load(path)["logits"].shape[0] == 12


def test_files_are_named_in_the_record_with_their_hash(tmp_path: Path) -> None:
    tokens = passed(tmp_path, "streams", "full_float32")["files"]
    audio = passed(tmp_path, "synthesis", "full_float32", options=SHORT)["files"]
    assert [file["path"] for file in (*tokens, *audio)] == [
        "streams/full_float32.npy",
        "audio/full_float32.wav",
        "audio/full_float32.npy",
    ]
    assert intact(tmp_path, tokens)
    assert intact(tmp_path, audio)


@pytest.mark.parametrize("free_bytes", [0, 1000, 30_000])
def test_a_full_disk_is_no_result_of_the_fix_and_leaves_no_file(tmp_path: Path, free_bytes: int) -> None:
    """None, the header, or some of the samples of a WAV fit."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, limit[1]))
    try:
        found = outcome(tmp_path, "synthesis", "full_float32", options=SHORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert found.status == "crashed"
    assert "the suite failed, not the fix" in found.reason
    assert str(tmp_path) not in found.reason
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_reference_logits_of_other_steps_are_not_reused(tmp_path: Path) -> None:
    passed(tmp_path, "teacher_forced_drift", "full_float32")
    longer = outcome(tmp_path, "teacher_forced_drift", "full_float32", options=Options(streams=2, steps=20))
    assert longer.data["steps"] == 20
    assert len(list((tmp_path / "streams").glob("reference-logits*"))) == 2


def test_divergence_against_the_reference_and_the_null(tmp_path: Path) -> None:
    for condition in ("reference", "noise_floor", "full_float32"):
        assert passed(tmp_path, "streams", condition)["shape"] == [12, 2, 4]
    assert passed(tmp_path, "divergence", "full_float32")["diverged"] == 0
    assert passed(tmp_path, "divergence", "noise_floor")["diverged"] == 2


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    for condition in ("reference", "noise_floor", "bfloat16"):
        passed(run_dir, "synthesis", condition)
    return run_dir


def test_the_same_condition_speaks_the_same_twice(tmp_path: Path) -> None:
    for name in "ab":
        passed(tmp_path / name, "synthesis", "bfloat16", options=SHORT)
    first, again = (np.load(tmp_path / name / "audio" / "bfloat16.npy") for name in "ab")
    np.testing.assert_array_equal(first, again)


def test_audio_beside_reference_and_null(spoken: Path) -> None:
    itself = passed(spoken, "audio", "reference")["against_reference"]
    assert itself["log_spectral_distance_db"]["mean"] == 0.0
    noise_floor = passed(spoken, "audio", "noise_floor")["against_reference"]["mel_mcd_db"]
    assert noise_floor["ratio_to_null"] == pytest.approx(1.0)
    fix = passed(spoken, "audio", "bfloat16")
    assert 0 < fix["against_reference"]["mel_mcd_db"]["ratio_to_null"] < 1
    assert 2 < fix["against_original"]["mel_mcd_db"]["mean"] < 8
    assert fix["phoneme_accuracy"]["value"] > 0.8
    assert fix["phoneme_accuracy"]["original"] > 0.9


def test_the_wrong_script_is_not_recognised(spoken: Path) -> None:
    """Planted fault: accuracy against a script that starts 40 frames later must collapse."""
    from precision_eval.cases.voice.recogniser import Recogniser

    audio, _ = soundfile.read(spoken / "audio" / "reference.wav", dtype="float32")
    recogniser = Recogniser.load("recogniser.safetensors")
    assert recogniser.phoneme_accuracy(audio, spoken_script(180)).value > 0.8
    assert recogniser.phoneme_accuracy(audio, spoken_script(220)[40:]).value < 0.3


def test_audio_that_is_not_finite_makes_the_cell_non_finite(tmp_path: Path) -> None:
    sound = 0.1 * np.random.default_rng(0).standard_normal(2 * SAMPLE_RATE_HZ).astype(np.float32)
    broken = np.where(np.arange(len(sound)) < SAMPLE_RATE_HZ, sound, np.nan).astype(np.float32)
    (tmp_path / "audio").mkdir()
    for name, samples in (("reference", sound), ("noise_floor", sound[::-1]), ("float16", broken)):
        soundfile.write(tmp_path / "audio" / f"{name}.wav", samples, SAMPLE_RATE_HZ, subtype="FLOAT")
    found = outcome(tmp_path, "audio", "float16")
    assert found.status == "non_finite"
    assert found.reason == f"estimate has {SAMPLE_RATE_HZ} samples that are not finite"
