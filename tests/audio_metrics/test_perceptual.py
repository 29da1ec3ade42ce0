import importlib.util
import sys
import types

import numpy as np
import pytest

import audio_metrics as am
from audio_metrics.perceptual import segment_scores
from audio_metrics.signal import ArraySource

FS = 16000


def sources(*signals, fs=FS):
    return [ArraySource(signal, sample_rate_hz=fs, name=name) for signal, name in zip(signals, "re", strict=True)]


@pytest.fixture
def backends(monkeypatch):
    """Stand-ins with the libraries' signatures that score by the estimate's mean, and a list of their calls."""
    calls = []

    def stoi(x, y, fs_sig, extended=False):
        calls.append(("stoi", len(x), fs_sig, extended))
        return float(np.mean(y))

    def pesq(fs, ref, deg, mode="wb", on_error=None):
        calls.append(("pesq", len(ref), fs, mode, on_error))
        return float(np.mean(deg))

    monkeypatch.setitem(sys.modules, "pystoi", types.SimpleNamespace(stoi=stoi))
    errors = types.SimpleNamespace(RETURN_VALUES=1)
    monkeypatch.setitem(sys.modules, "pesq", types.SimpleNamespace(pesq=pesq, PesqError=errors))
    return calls


def test_what_the_libraries_are_given(backends):
    x = np.full(FS, 0.1)
    am.stoi(x, x, sample_rate_hz=FS)
    am.pesq(x, x, sample_rate_hz=FS)
    am.pesq(x[:8000], x[:8000], sample_rate_hz=8000)
    assert backends == [
        ("stoi", FS, FS, False), ("pesq", FS, FS, "wb", 1), ("pesq", 8000, 8000, "nb", 1)
    ]  # fmt: skip
    with pytest.raises(am.AudioParameterError, match="24000; PESQ is defined at 8000 and 16000 Hz: resample both"):
        am.pesq(x, x, sample_rate_hz=24000)


def test_segments_without_a_score(backends):
    x = np.full(40 * FS, 0.1)
    y = x.copy()
    y[: 10 * FS] = 0.0
    y[15 * FS] = np.nan
    y[20 * FS : 30 * FS] = -0.5  # the stand-in answers -0.5, as pesq answers -1 where there is no utterance
    _, scores = segment_scores(*sources(x, y), "pesq")
    np.testing.assert_array_equal(np.isnan(scores), [False, True, True, False])
    assert scores[0] == -np.inf
    with pytest.raises(am.UndefinedMetricError, match="the estimate lacks enough speech in window 0"):
        am.pesq(x, np.zeros_like(x), sample_rate_hz=FS)
    with pytest.raises(am.AudioParameterError, match="estimate: sample 240000 is not finite"):
        am.stoi(x, y, sample_rate_hz=FS)


def test_too_little_speech_for_stoi_is_no_score(monkeypatch):
    import warnings

    def stoi(x, y, fs_sig, extended=False):
        warnings.warn("Not enough STFT frames to compute intermediate intelligibility measure", RuntimeWarning, 2)
        return 1e-5

    monkeypatch.setitem(sys.modules, "pystoi", types.SimpleNamespace(stoi=stoi))
    x = np.full(FS, 0.1)
    with pytest.raises(am.UndefinedMetricError, match="no window has enough speech"):
        am.stoi(x, x, sample_rate_hz=FS)


@pytest.mark.parametrize(("name", "module"), [("stoi", "pystoi"), ("pesq", "pesq")])
def test_a_missing_library_is_an_error_that_names_the_extra(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    x = np.full(FS, 0.1)
    message = rf"{name} needs {module}, which is not installed; install it, or the extra 'perceptual'"
    with pytest.raises(am.BackendError, match=message):
        am.metric_by_name(name).function(x, x, sample_rate_hz=FS)
    with pytest.raises(ImportError, match="perceptual"):
        am.compare(x, x, sample_rate_hz=FS, metrics=(name,))
    assert am.metric_by_name(name).extra == "perceptual"


@pytest.mark.parametrize(
    ("name", "module", "low", "high"), [("stoi", "pystoi", 0.9, 1.0 + 1e-9), ("pesq", "pesq", 1.0, 4.65)]
)
def test_with_the_real_library_or_without(speech, name, module, low, high):
    x = speech(12, 1)
    y = x + 1e-3 * np.random.default_rng(0).standard_normal(len(x))
    function = am.metric_by_name(name).function
    if importlib.util.find_spec(module) is None:
        with pytest.raises(am.BackendError, match="perceptual"):
            function(x, y, sample_rate_hz=FS)
    else:
        assert low <= function(x, y, sample_rate_hz=FS) <= function(x, x, sample_rate_hz=FS) <= high
