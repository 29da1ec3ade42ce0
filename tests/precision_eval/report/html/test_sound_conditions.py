"""Which sounds are taken: whole, as recorded, in order; the rest is named with what is wrong and how to mend it."""

import hashlib
import io
import json
import math

import made_sound as made
import numpy as np
import pytest
import soundfile

from precision_eval.report.html.sound.conditions import ORIGINAL, groups_of
from precision_eval.results.reading import load_run


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


_CLAIMS_A_TERABYTE = _npy(np.zeros((10, 4), np.uint8)).replace(b"(10, 4), }        ", b"(1000000000000,4)}", 1)


@pytest.fixture
def run_dir(tmp_path):
    made.made_run(tmp_path)
    return tmp_path


def group_of(run_dir):
    (group,) = groups_of(load_run(run_dir))
    return group


def sounds_of(run_dir):
    return {sound.label: sound for sound in group_of(run_dir).sounds}


def reason_of(run_dir, label):
    (reason,) = (one.reason for one in group_of(run_dir).unheard if one.label == label)
    return reason


def test_the_order_and_what_raised(run_dir):
    group = group_of(run_dir)
    assert [s.label for s in group.sounds] == ["reference", "kv_to_query", "full_float32", "noise_floor", ORIGINAL]
    assert group.title == "voice · default · cpu"
    assert group.duration_s == 12.0
    assert reason_of(run_dir, "as_shipped") == f"not synthesised, raised: {made.RAISED.removeprefix('RuntimeError: ')}"


def test_identical_samples_in_different_files_are_found(run_dir):
    group, sounds = group_of(run_dir), sounds_of(run_dir)
    files = [(run_dir / "audio" / f"{name}.wav").read_bytes() for name in ("reference", "full_float32")]
    assert files[0] != files[1]
    assert group.first_alike(sounds["full_float32"]).label == "reference"
    assert group.first_alike(sounds["kv_to_query"]).label == "kv_to_query"


def test_one_other_sample_is_not_identical(tmp_path):
    sound = made.speech(2.0)
    other = sound.copy()
    other[20_000] += np.float32(1e-7)
    made.add(tmp_path, "reference", sound, made.tokens(2.0))
    made.add(tmp_path, "full_float32", other, made.tokens(2.0))
    sounds = sounds_of(tmp_path)
    assert sounds["reference"].digest != sounds["full_float32"].digest


def test_when_the_tokens_leave_the_reference(run_dir):
    sounds = sounds_of(run_dir)
    assert sounds["kv_to_query"].leaves_s == 300 / 50  # frame 300 of 50 a second
    assert sounds["noise_floor"].leaves_s == 0.0
    assert math.isinf(sounds["full_float32"].leaves_s)
    assert sounds[ORIGINAL].leaves_s is None


def test_the_recording_starts_after_the_prompt_and_ends_with_the_run(run_dir):
    original = sounds_of(run_dir)[ORIGINAL]
    assert original.n_samples == 12 * made.RATE_HZ
    # the made reference is the recording from 6 s on; the prompt has 4 s
    (run_dir / "records.jsonl").unlink()
    made.add(run_dir, "reference", made.speech(12.0, 4.0), made.tokens(12.0))
    sounds = sounds_of(run_dir)
    assert sounds["reference"].digest == sounds[ORIGINAL].digest


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.unlink(), "audio/kv_to_query.wav is missing; the command that made the run makes it again"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-4000]),
            r"has \d+ bytes, its header promises \d+; it is torn: write",
        ),
        (lambda path: path.write_bytes(b""), "not a readable audio file"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
            r"audio/kv_to_query.wav is not the file that was measured \(its SHA-256 is not the record's\); the command",
        ),
        (
            lambda path: soundfile.write(path, made.speech(3.0), made.RATE_HZ, subtype="FLOAT"),
            r"lasts 3\.000 s, its record says 12\.000 s; the command",
        ),
        (
            lambda path: soundfile.write(path, np.zeros((192_000, 2)), made.RATE_HZ, subtype="FLOAT"),
            "has 2 channels; expected 1",
        ),
    ],
    ids=["missing", "cut", "empty", "changed", "short", "stereo"],
)
def test_a_file_that_cannot_be_used_is_named_and_the_rest_goes_on(run_dir, harm, said):
    import re

    harm(run_dir / "audio" / "kv_to_query.wav")
    reason = reason_of(run_dir, "kv_to_query")
    assert re.search(said, reason), reason
    assert "audio/kv_to_query.wav" in reason
    assert str(run_dir) not in reason
    assert set(sounds_of(run_dir)) == {"reference", "full_float32", "noise_floor", ORIGINAL}


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY\x01\x00", _npy(np.zeros((5, 3), np.uint8)), _npy(np.zeros(5)), _CLAIMS_A_TERABYTE],
    ids=["empty", "cut", "other codebooks", "no tokens", "claims a terabyte"],
)
def test_tokens_that_are_none_cost_only_when_they_leave(run_dir, content):
    path = run_dir / "audio" / "kv_to_query.npy"
    before, now = (hashlib.sha256(bytes_).hexdigest() for bytes_ in (path.read_bytes(), content))
    path.write_bytes(content)
    records = run_dir / "records.jsonl"
    records.write_text(records.read_text().replace(before, now))
    sounds = sounds_of(run_dir)
    assert sounds["kv_to_query"].leaves_s is None
    assert sounds["noise_floor"].leaves_s == 0.0


def test_a_sample_that_is_not_finite_cannot_be_played(tmp_path):
    made.add(tmp_path, "reference", made.speech(2.0), made.tokens(2.0))
    bad = made.speech(2.0).copy()
    bad[8000] = np.nan
    made.add(tmp_path, "bfloat16", bad, made.tokens(2.0))
    assert "not finite at 0.500 s" in reason_of(tmp_path, "bfloat16")


@pytest.mark.parametrize("way", ["absolute", "upwards", "link"])
def test_a_file_outside_the_run_is_refused_by_name(run_dir, tmp_path_factory, way):
    outside = tmp_path_factory.mktemp("elsewhere") / "secret.wav"
    (run_dir / "audio/kv_to_query.wav").rename(outside)
    name = {
        "absolute": str(outside),
        "upwards": f"../{outside.parent.name}/secret.wav",
        "link": "audio/kv_to_query.wav",
    }[way]
    if way == "link":
        (run_dir / name).symlink_to(outside)
    path = run_dir / "records.jsonl"
    text = path.read_text().replace('"audio/kv_to_query.wav"', json.dumps(name))
    path.write_text(text)
    assert (run_dir / name).is_file()
    assert name in reason_of(run_dir, "kv_to_query")
    assert "outside the run's folder" in reason_of(run_dir, "kv_to_query")
    assert "kv_to_query" not in sounds_of(run_dir)
