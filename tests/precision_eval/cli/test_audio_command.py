"""``precision-eval audio`` as a user meets it: table, JSON, figure, progress, and every bad input in one line."""

import json

import numpy as np
import pytest
import soundfile
import typer

from audio_metrics import compare_files, inspect_file
from audio_metrics.errors import AudioMetricsError
from precision_eval.cli.audio import audio as audio_command
from precision_eval.cli.audio import check_plot_path
from precision_eval.core.errors import ParameterError
from precision_eval.core.formatting import significant, title_of
from precision_eval.report.figures.pair import MAX_COLUMNS, Spectrograms

FS = 16000


def sound(seconds=4.0, seed=0, *, fs=FS):
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * fs)) / fs
    voice = sum(np.sin(2 * np.pi * 130 * k * t) / k for k in range(1, 12))
    return (0.05 * (1.2 + np.sin(2 * np.pi * 1.3 * t)) * (voice + 0.2 * rng.standard_normal(len(t)))).astype(np.float32)


@pytest.fixture
def wav(tmp_path):
    def write(name, samples, *, fs=FS, **options):
        path = tmp_path / name
        soundfile.write(path, samples, fs, subtype=options.pop("subtype", "FLOAT"), **options)
        return path

    return write


@pytest.fixture
def files(wav):
    """A reference, the same with noise 40 dB down, and with other noise 20 dB down."""
    reference = sound()
    noise = np.random.default_rng(1).standard_normal((2, len(reference))).astype(np.float32) * reference.std()
    return (
        wav("reference.wav", reference),
        wav("estimate.wav", reference + 0.01 * noise[0]),
        wav("null.wav", reference + 0.1 * noise[1]),
    )


def command(reference, estimate, *, noise_floor=None, as_json=False, plot=None):
    audio_command(reference, estimate, noise_floor=noise_floor, as_json=as_json, plot=plot)


def test_the_tables_hold_every_metric_with_unit_direction_and_course(files, capsys):
    reference, estimate, noise_floor = files
    command(reference, estimate, noise_floor=noise_floor)
    shown = capsys.readouterr().out
    found = compare_files(reference, estimate, null_path=noise_floor)
    for name, summary in found.summaries.items():
        (row, course) = [line for line in shown.splitlines() if line.strip().startswith(title_of(name))]
        assert significant(summary.whole_file) in row
        assert significant(summary.worst) in row
        assert significant(found.ratio_to_null[name]) in row
        assert significant(summary.slope_per_min) in course
    assert "mel MCD ↓" in shown
    assert "SI-SDR ↑" in shown
    assert "SNR ↑" in shown
    assert "40.0" in shown
    assert "another sound from (t_div) s never" in " ".join(shown.split())
    assert "! 4.0 s are under 60 s" in shown


def test_json_is_strict_and_says_what_the_library_says(files, program):
    reference, estimate, noise_floor = files
    code, out, err = program("audio", reference, estimate, "--noise-floor", noise_floor, "--json")
    found = json.loads(out, parse_constant=lambda word: pytest.fail(word))
    expected = compare_files(reference, estimate, null_path=noise_floor).to_dict()
    assert found["comparison"]["mel_mcd_db"] == expected["mel_mcd_db"]
    assert found["comparison"]["ratio_to_null"] == expected["ratio_to_null"]
    assert found["files"]["noise floor"] == {"path": str(noise_floor), "format": "FLOAT"}
    assert set(found["signals"]) == {"reference", "estimate"}
    assert (code, err) == (0, "")


def test_equal_files_are_infinite_and_not_a_crash(files, capsys):
    command(files[0], files[0])
    shown = capsys.readouterr().out
    assert "∞" in shown
    assert "equal bit for bit" in shown
    command(files[0], files[0], as_json=True)
    assert json.loads(capsys.readouterr().out)["comparison"]["snr_db"]["whole_file"] is None


def test_the_figure_is_written_and_repeats(files, tmp_path, capsys):
    (tmp_path / "again").mkdir()
    paths = [tmp_path / name for name in ("pair.svg", "again/pair.svg", "pair.png")]
    for path in paths:
        command(*files[:2], plot=path)
    first, second, image = (path.read_bytes() for path in paths)
    assert first == second
    assert (first[:5], image[:4]) == (b"<?xml", b"\x89PNG")
    assert f"figure: {paths[1]}" in capsys.readouterr().out


def test_silence_and_nan_are_flagged_with_their_time_and_drawn(wav, tmp_path, capsys):
    samples = sound(6)
    samples[2 * FS : 3 * FS] = 0
    estimate = samples.copy()
    estimate[4 * FS + 100] = np.nan
    plot = tmp_path / "pair.png"
    with pytest.raises(typer.Exit) as ended:
        command(wav("r.wav", samples), wav("e.wav", estimate), plot=plot)
    assert ended.value.exit_code == 1
    shown = capsys.readouterr().out
    assert "1 windows of 1 s are digital silence in both" in shown
    assert "First at 0:02.0." in shown
    assert "stimate has 1 samples that are not finite" in shown
    assert "First at 0:04.0." in shown
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("rate", "sample rates differ: reference {mono} 16000 Hz, estimate {other} 24000 Hz; add --resample"),
        ("missing", "estimate: no file at {other}; check the path"),
    ],
)
def test_bad_input_names_both_sides_and_the_remedy(other, message, wav, tmp_path, refused):
    """What the library itself refuses is held by its own tests."""
    mono = wav("mono.wav", sound())
    wav("rate.wav", sound(fs=24000), fs=24000)
    estimate, plot = tmp_path / f"{other}.wav", tmp_path / "pair.png"
    refused(message.format(mono=mono, other=estimate), "audio", mono, estimate, "--plot", plot)
    assert not plot.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("pair.pdf", r"ends in '\.pdf'; expected \.png or \.svg"), ("folder.png", "is a folder; give the name of a file")],
)
def test_a_figure_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ParameterError, match=message):
        check_plot_path(tmp_path / name)


def test_a_long_file_fits_the_picture_and_no_power_is_lost(wav):
    path = wav("long.wav", np.tile(sound(4, fs=8000), 30), fs=8000)
    picture = Spectrograms()
    compare_files(path, path, on_block=picture.add)
    assert picture.power.shape[2] == MAX_COLUMNS
    samples = soundfile.read(path)[0]
    frames = np.lib.stride_tricks.sliding_window_view(samples, 340)[::85]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(340) / 340)
    power = np.abs(np.fft.rfft(frames * window)) ** 2 / np.sum(window**2)
    column = np.arange(len(frames)) * MAX_COLUMNS // len(frames)
    expected = np.array([power[column == c].mean(axis=0) for c in (0, 1, 400, 799)])
    found = picture.power[1][:, [0, 1, 400, 799]].T
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-9)


def test_the_first_line_and_the_exit_code(files, wav, capsys, program):
    command(*files[:2])
    assert capsys.readouterr().out.startswith("no fault found")
    broken = sound()
    broken[FS:] = np.nan
    code, out, _ = program("audio", files[0], wav("broken.wav", broken))
    assert code == 1
    assert out.startswith("FAILED: estimate has 48000 samples that are not finite, from 0:01.0")


def test_other_lengths_rates_and_channels(files, wav, program):
    reference = soundfile.read(files[0], dtype="float32")[0]
    noise = np.random.default_rng(3).standard_normal(592).astype(np.float32)
    late = wav("late.wav", np.concatenate([1e-3 * noise, reference]))
    code, out, _ = program("audio", files[0], late)
    assert (code, out.split(";")[0]) == (
        1,
        "DIFFERS: the estimate is 592 samples longer, 37 ms late, noise at its start",
    )
    code, out, _ = program("audio", files[0], late, "--align", "lag")
    assert (code, out.split(";")[0]) == (
        0,
        "WARNING: the estimate is 592 samples longer, 37 ms late, noise at its start",
    )
    other = wav("other.wav", np.stack([np.repeat(reference, 2)] * 2, axis=1), fs=2 * FS)
    code, _, err = program("audio", files[0], other)
    assert (code, err.count("\n"), "add --mono" in err) == (2, 1, True)
    code, _, err = program("audio", files[0], other, "--mono")
    assert (code, err.count("\n"), "add --resample" in err) == (2, 1, True)
    assert program("audio", files[0], other, "--mono", "--resample")[1].splitlines()[2].startswith("estimate: ")
    assert program("audio", other, "--mono")[0] == 0


def test_one_file_is_inspected(files, capsys):
    command(files[0], None)
    text = capsys.readouterr().out
    assert text.startswith("no fault found")
    assert "spectral centroid" in text
    command(files[0], None, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["rms_dbfs"] == inspect_file(files[0]).rms_dbfs
    with pytest.raises(ParameterError, match="--plot is for a pair of files"):
        command(files[0], None, plot=files[0].with_suffix(".png"))


def test_folders_are_compared_by_name_worst_first(tmp_path, capsys):
    reference = sound(2.0)
    noise = np.random.default_rng(0).standard_normal(len(reference)).astype(np.float32)
    folders = tmp_path / "r", tmp_path / "e"
    for folder in folders:
        (folder / "deep").mkdir(parents=True)
    cases = {"good": 1e-4, "bad": 1e-2, "deep/dead": np.nan}
    for name, level in cases.items():
        soundfile.write(folders[0] / f"{name}.wav", reference, FS, subtype="FLOAT")
        soundfile.write(folders[1] / f"{name}.wav", reference + np.float32(level) * noise, FS, subtype="FLOAT")
    soundfile.write(folders[0] / "short.flac", reference, FS)
    soundfile.write(folders[1] / "short.wav", reference[:-5], FS, subtype="FLOAT")
    soundfile.write(folders[1] / "alone.wav", reference, FS, subtype="FLOAT")
    with pytest.raises(typer.Exit) as ended:
        command(*folders)
    assert ended.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 pairs: 1 failed, 2 doubtful, 1 files without a partner"
    order = [line.split()[0] for line in lines if line.strip().startswith(("good", "bad", "deep", "short"))]
    assert order == ["deep/dead", "bad", "short", "good"]
    assert any("alone.wav" in line for line in lines[-2:])
    with pytest.raises(typer.Exit):
        command(*folders, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {pair["name"] for pair in found["pairs"]} == {"short", *cases}
    with pytest.raises(AudioMetricsError, match="no file name occurs in both"):
        command(folders[0] / "deep", folders[1].parent / "r")
