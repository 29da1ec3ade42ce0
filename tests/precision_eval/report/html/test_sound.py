"""Which recordings are played: those in the folder that are what was measured; the rest is named with what is wrong."""

import base64
import io

import made_sound as made
import numpy as np
import pytest
import soundfile

from audio_metrics.signal import ArraySource
from precision_eval.report.html import sound
from precision_eval.report.html.sound import level_columns, sound_sections
from precision_eval.results.reading import load_run


@pytest.fixture
def run_dir(tmp_path):
    made.made_run(tmp_path, seconds=4.0)
    return tmp_path


def recordings(run_dir):
    (section,) = sound_sections(load_run(run_dir))
    return {recording.name: recording for recording in section.recordings}


def test_every_recording_has_a_picture_and_its_samples(run_dir):
    found = recordings(run_dir)
    assert list(found) == ["reference", "as_shipped", "kv_to_query", "full_float32", "noise_floor"]
    assert found["as_shipped"].why_not.startswith("not synthesized, raised: Expected query")
    assert found["full_float32"].same_as == "reference"
    assert found["full_float32"].source == found["full_float32"].picture == ""
    kept = found["kv_to_query"]
    assert kept.picture.startswith("data:image/png;base64,")
    content = base64.b64decode(kept.source.removeprefix("data:audio/flac;base64,"))
    played, rate = soundfile.read(io.BytesIO(content))
    written, _ = soundfile.read(run_dir / kept.wav)
    assert rate == made.RATE_HZ
    assert np.abs(played - np.clip(written, -1.0, 1.0)).max() <= 2.0**-15


def test_beyond_the_limit_players_need_the_folder(run_dir, monkeypatch):
    monkeypatch.setattr(sound, "LARGEST_BYTES", 1000)
    assert recordings(run_dir)["kv_to_query"].source == "audio/kv_to_query.wav"


def test_what_is_not_the_file_that_was_measured_is_not_played(run_dir):
    (run_dir / "audio" / "noise_floor.wav").unlink()
    path = run_dir / "audio" / "kv_to_query.wav"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    found = recordings(run_dir)
    assert "is missing" in found["noise_floor"].why_not
    assert "SHA-256" in found["kv_to_query"].why_not
    assert found["kv_to_query"].source == ""


def test_a_path_out_of_the_folder_is_not_read(run_dir):
    records = run_dir / "records.jsonl"
    records.write_text(records.read_text().replace("audio/kv_to_query.wav", "../kv_to_query.wav"))
    (run_dir.parent / "kv_to_query.wav").write_bytes(b"")
    assert "outside the run's folder" in recordings(run_dir)["kv_to_query"].why_not


def test_a_tone_is_loudest_in_its_own_band():
    rate_hz, tones = 16_000, (300.0, 3000.0)
    time_s = np.arange(2 * rate_hz) / rate_hz
    first, second = (
        level_columns(ArraySource(0.3 * np.sin(2 * np.pi * tone * time_s), sample_rate_hz=rate_hz, name="tone"))
        for tone in tones
    )
    assert first.shape[0] == 80
    assert np.isfinite(first).all()
    assert 0 < first.mean(axis=1).argmax() < second.mean(axis=1).argmax() < 80
