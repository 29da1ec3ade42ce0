"""``audio_metrics`` beside figures that others published, on signals that others made.

Figures and recordings are read from their authors' repositories at pinned commits, so that git's own hashes vouch for
them; clone them into one folder. Short examples of documentation are repeated here, with their place. A source that is
not there is said to be not tried, which is neither agreement nor the contrary::

    git clone https://github.com/ludlows/PESQ runs/published/PESQ
    # and mir-evaluation/mir_eval, librosa/librosa, google/visqol
    python -m validation published --set folder=runs/published
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import audio_metrics as am
from audio_metrics import METRICS, metric_by_name
from audio_metrics.perceptual import SCORERS
from audio_metrics.pitch import pitch_errors_of
from audio_metrics.spectra import mel_filter_bank
from precision_eval.core.errors import UnsupportedError
from validation.frame import Data, Experiment, Figure, Options, Trial

COMMITS = {
    "PESQ": "ecce1583757032178e4fd3487823ea7d68299e57",
    "mir_eval": "fe73b3533737814f83dbd9739f06e90f5f82f758",
    "librosa": "e95293d4",
    "visqol": "38d0b0163e441047d4429bf07ad09e5b9031d02c",
}
ORIGINS = {
    "PESQ": "ludlows/PESQ",
    "mir_eval": "mir-evaluation/mir_eval",
    "librosa": "librosa/librosa",
    "visqol": "google/visqol",
}
Read = Callable[[str], bytes]
"""A path in the check's repository → the file's content."""
_TOLERANT = 1e-9  # relative: half a unit of a published figure's last digit is no round number in binary


@dataclass(frozen=True, kw_only=True)
class Check:
    """`differences` yields, per published figure, ours less theirs; `digit` is the last digit that they published."""

    name: str
    metrics: tuple[str, ...]
    source: str
    digit: float
    differences: Callable[[Read], Iterable[float]]
    repository: str = ""
    module: str = ""

    def missing(self, folder: Path) -> str:
        """Why it cannot be tried, or nothing."""
        if self.repository and not (folder / self.repository).exists():
            return f"git clone https://github.com/{ORIGINS[self.repository]} {folder / self.repository}"
        if self.module and find_spec(self.module) is None:
            return f"pip install {self.module}"
        return ""


def _read_from(folder: Path, repository: str, path: str) -> bytes:
    command = ["git", "-C", str(folder / repository), "show", f"{COMMITS[repository]}:{path}"]
    found = subprocess.run(command, capture_output=True)
    if found.returncode:
        raise UnsupportedError(f"{path} of {ORIGINS[repository]}: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout


def _wav(content: bytes) -> tuple[np.ndarray, int]:
    import soundfile

    samples, rate_hz = soundfile.read(io.BytesIO(content), dtype="float64")
    return samples, int(rate_hz)


def _pesq_pairs(read: Read) -> Iterator[float]:
    """P.862's raw score, from MOS-LQO by the inverse of P.862.1; half of the pairs differ in length, as calls do."""
    for line in read("audio/conform/voipref_8k.txt").decode().splitlines()[1:]:
        *paths, rate_hz, score = line.split()
        pair = [_wav(read(f"audio/{path.rpartition('/')[2]}"))[0] for path in paths]
        score_lqo = SCORERS["pesq"](pair[0], pair[1], int(rate_hz))
        yield (4.6607 - np.log(4.0 / (score_lqo - 0.999) - 1.0)) / 1.4945 - float(score)


def _pesq_wide(read: Read) -> Iterator[float]:
    (reference, rate_hz), (estimate, _) = (_wav(read(f"audio/{name}.wav")) for name in ("speech", "speech_bab_0dB"))
    yield am.pesq(reference, estimate, sample_rate_hz=rate_hz) - 1.0832337141036987


def _documented(metric: Callable[..., float], *expected: tuple[int, float]) -> Callable[[Read], Iterator[float]]:
    """On 8000 samples of noise each, as torchmetrics' documentation draws them."""

    def differences(read: Read) -> Iterator[float]:
        import torch

        generator = torch.Generator().manual_seed(42)  # of its doctests
        estimate, reference = (torch.randn(8000, generator=generator).double().numpy() for _ in range(2))
        for sample_rate_hz, value in expected:
            yield metric(reference, estimate, sample_rate_hz=sample_rate_hz) - value

    return differences


_REFERENCE, _ESTIMATE = np.array([3.0, -0.5, 2.0, 7.0]), np.array([2.5, 0.0, 2.0, 8.0])


def _torchmetrics_ratios(read: Read) -> Iterator[float]:
    yield am.snr_db(_REFERENCE, _ESTIMATE) - 16.1805
    yield am.si_sdr_db(_REFERENCE, _ESTIMATE, zero_mean=False) - 18.4030
    yield am.si_sdr_db(_REFERENCE, _ESTIMATE, zero_mean=True) - 15.0918


def _pb_bss_ratios(read: Read) -> Iterator[float]:
    noise = np.random.RandomState(0).randn(100)  # the generator of the published figures
    for estimate, value in (
        (noise[::-1], -25.127672346460717),
        (noise + noise[::-1], 0.481070445785553),
        (noise + 0.5, 6.3704606032577304),
        (noise * 2 + 1, 6.3704606032577304),
    ):
        yield am.si_sdr_db(noise, np.ascontiguousarray(estimate), zero_mean=False) - value


def _melody(read: Read) -> Iterator[Any]:
    """Two tracks on the reference's times, by mir_eval's own resampling, and the published figures, ten times."""
    import json

    from mir_eval.melody import to_cent_voicing

    for number in range(10):
        texts = (read(f"tests/data/melody/{kind}{number:02d}.txt") for kind in ("ref", "est"))
        series = [np.loadtxt(io.BytesIO(text), comments="#").T for text in texts]
        voicing, cents, estimated_voicing, estimated_cents = to_cent_voicing(*series[0], *series[1])
        tracks = [
            np.where(voiced > 0, 10.0 * 2.0 ** (cent / 1200.0), np.nan)
            for voiced, cent in ((voicing, cents), (estimated_voicing, estimated_cents))
        ]
        yield pitch_errors_of(*tracks), voicing, json.loads(read(f"tests/data/melody/output{number:02d}.json"))


def _voicing(read: Read) -> Iterator[float]:
    for errors, voicing, published in _melody(read):
        voiced = float(np.mean(voicing > 0))
        wrong = (1 - published["Voicing Recall"]) * voiced + published["Voicing False Alarm"] * (1 - voiced)
        yield errors.value("voicing_decision_error") - wrong


def _overall(read: Read) -> Iterator[float]:
    """Overall accuracy takes 50 cents for a gross error; ours are counted so, from the same frames and cents."""
    for errors, _, published in _melody(read):
        wrong = errors.n_voicing_errors + int(np.count_nonzero(errors.cents >= 50.0))
        yield (1.0 - wrong / errors.n_frames) - published["Overall Accuracy"]


def _mel_filters(read: Read) -> Iterator[float]:
    """Filters from 0 Hz: of a band limit below half the rate, those of a lower rate's first bins."""
    from scipy.io import loadmat

    for number in range(1, 145):
        data = loadmat(io.BytesIO(read(f"tests/data/feature-melfb-{number:03d}.mat")))
        names = ("sr", "nfft", "nfilts", "fmin", "fmax", "htk")
        rate_hz, n_fft, n_bands, low_hz, high_hz, htk = (float(data[name].item()) for name in names)
        n_bins = 2 * high_hz * n_fft / rate_hz
        if low_hz or htk or n_bins % 2:
            continue
        ours = mel_filter_bank(round(2 * high_hz), round(n_bins), n_bands=round(n_bands))
        yield float(np.abs(ours - data["wts"][:, : ours.shape[1]]).max())


def _lags(read: Read) -> Iterator[float]:
    reference = np.array([2.0, 2.0, 1.0, 0.1, -3.0, 0.1, 1.0, 2.0, 2.0, 6.0, 8.0, 6.0, 2.0, 2.0])
    early = np.array([1.2, 0.1, -3.3, 0.1, 1.1, 2.2, 2.1, 7.1, 8.3, 6.8, 2.4, 2.2, 2.2, 2.1])
    late = np.array([2.0, 2.0, 2.0, 2.0, 1.0, 0.1, -3.0, 0.1, 1.0, 2.0, 2.0, 6.0, 8.0, 6.0])
    for estimate, lag in ((early, 2), (late, -2), (reference, 0)):  # theirs is positive where the estimate is early
        yield am.lag_s(reference, estimate, sample_rate_hz=8000, max_lag_s=5 / 8000) * 8000 + lag


def _visqol_speech(read: Read) -> Iterator[float]:
    """The judge's ViSQOL, as it is asked there; the pairs of the list that are of this mode and this mapping."""
    from precision_eval.measure.judges import visqol_model

    for reference, degraded, score in (
        ("clean_speech/CA01_01.wav", "clean_speech/transcoded_CA01_01.wav", 3.374505555111911),
        ("conformance_testdata_subset/guitar48_stereo.wav", "clean_speech/CA01_01.wav", 1.269675546824064),
        ("alignment/reference.wav", "alignment/degraded.wav", 1.357521678867611),
    ):
        pair = [_wav(read(f"testdata/{path}")) for path in (reference, degraded)]
        samples = [found if found.ndim == 1 else found.mean(axis=1) for found, _ in pair]
        yield float(visqol_model().measure_from_arrays(*samples, pair[0][1]).moslqo) - score


def _entropies(read: Read) -> Iterator[float]:
    yield am.token_entropy_bits(np.array([0, 1])) - 1.0
    yield am.token_entropy_bits(np.array([0] * 9 + [1])) - 0.46899559358928117


def _divergences(read: Read) -> Iterator[float]:
    """Theirs is the distance: the root, and in nats where no base is given."""
    for first, second, squared_bits in (
        ([0], [1], 1.0),
        ([0, 0], [0, 1], 0.46450140402245893**2 / np.log(2.0)),
        ([0], [0], 0.0),
    ):
        yield am.token_js_divergence(np.array(first), np.array(second)) - squared_bits


def _sens_example(read: Read) -> Iterator[float]:
    x, y = np.array([1, 2, 3, 4, 10, 12, 18]), np.array([9, 15, 19, 20, 45, 55, 78])
    for found, published in zip(am.theil_sen(x, y, confidence=0.93), (4.0, 3.71, 4.38), strict=True):
        yield found - published


_TM = "torchmetrics 1.9.0: its documentation"
CHECKS: tuple[Check, ...] = (
    Check(name="pesq, narrow band, raw score", metrics=("pesq",), digit=1e-3, differences=_pesq_pairs,
          repository="PESQ", module="pesq",
          source="ITU-T P.862: conformance pairs of VoIP at 8 kHz (voipref_8k.txt)"),
    Check(name="pesq, wide band", metrics=("pesq",), digit=1e-15, differences=_pesq_wide, repository="PESQ",
          module="pesq", source="ludlows/PESQ: pair and figure of its test"),
    Check(name="pesq of noise, both bands", metrics=("pesq",), digit=1e-4, module="pesq", source=_TM,
          differences=_documented(am.pesq, (8000, 2.2885), (16000, 1.6805))),
    Check(name="stoi of noise", metrics=("stoi",), digit=1e-3, module="pystoi", source=_TM,
          differences=_documented(am.stoi, (8000, -0.084))),
    Check(name="snr_db, si_sdr_db", metrics=("snr_db", "si_sdr_db"), digit=1e-4, source=_TM,
          differences=_torchmetrics_ratios),
    Check(name="si_sdr_db of noise", metrics=("si_sdr_db",), digit=1e-13, differences=_pb_bss_ratios,
          source="fgnt/pb_bss: documentation of si_sdr"),
    Check(name="voicing_decision_error", metrics=("voicing_decision_error",), digit=1e-15, differences=_voicing,
          repository="mir_eval", module="mir_eval", source="mir_eval: voicing recall and false alarms of ten melodies"),
    Check(name="f0_frame_error, at 50 cents", metrics=("f0_frame_error", "f0_error_cents"), digit=1e-15,
          differences=_overall, repository="mir_eval", module="mir_eval",
          source="mir_eval: overall accuracy of ten melodies"),
    Check(name="mel filters", metrics=("mel_mcd_db", "level_error_db"), digit=1e-14, differences=_mel_filters,
          repository="librosa", source="librosa: filters by MATLAB's fft2melmx (feature-melfb-*.mat)"),
    Check(name="lag_s, samples", metrics=("lag_s",), digit=1.0, differences=_lags, source="ViSQOL: xcorr_test.cc"),
    Check(name="the judge ViSQOL, MOS-LQO", metrics=(), digit=2e-4, differences=_visqol_speech, repository="visqol",
          module="visqol", source="ViSQOL 3.3.3: its conformance list, speech by exponential mapping, within 0.0001"),
    Check(name="token_entropy_bits", metrics=("token_entropy_bits",), digit=1e-15, differences=_entropies,
          source="scipy: documentation of entropy"),
    Check(name="token_js_divergence", metrics=("token_js_divergence",), digit=1e-15, differences=_divergences,
          source="scipy: documentation of jensenshannon"),
    Check(name="slope over a file, with its interval", metrics=(), digit=1e-2, differences=_sens_example,
          source="Sen (1968): his example as scipy's tests have it"),
)  # fmt: skip


def _trials(options: Options) -> list[Trial]:
    folder = Path(options["folder"])
    return [Trial(f"{check.name}{': not tried' * bool(check.missing(folder))}", check) for check in CHECKS]


def _run(todo: Iterator[Trial], options: Options) -> Iterator[Data]:
    folder = Path(options["folder"])
    for key, check, _ in todo:
        missing = check.missing(folder)
        read: Read = lambda path, check=check: _read_from(folder, check.repository, path)  # noqa: E731
        found = [] if missing else [float(value) for value in check.differences(read)]
        yield {"key": key, "name": check.name, "missing": missing, "differences": found}


def _summary(lines: list[Data], options: Options) -> Data:
    """One line of each check: that it was not tried counts where it never was."""
    tried = sorted(lines, key=lambda line: not line["missing"])  # untried first
    return {"checks": {line["name"]: {"missing": line["missing"], **_worst(line["differences"])} for line in tried}}


def _worst(differences: Sequence[float]) -> Data:
    return {"figures": len(differences), "largest": max(map(abs, differences), default=None)}


def _figures(content: Data) -> list[Figure]:
    return [_figure(check, content["checks"][check.name]) for check in CHECKS if check.name in content["checks"]]


def _figure(check: Check, found: Data) -> Figure:
    source = {"source": check.source + (f" at {COMMITS[check.repository][:8]}" if check.repository else "")}
    target = f"within half of {check.digit:g}"
    if found["missing"]:
        return Figure(check.name, f"not tried: {found['missing']}", target, None, source)
    largest = float("nan") if found["largest"] is None else found["largest"]
    text = f"largest difference {largest:.2g} in {found['figures']}"
    return Figure(check.name, text, target, largest <= 0.5 * check.digit * (1 + _TOLERANT), source)


def _notes(content: Data) -> list[str]:
    found = content["checks"]  # of results that are older than a check, without it
    covered = {
        name for check in CHECKS if check.name in found and not found[check.name]["missing"] for name in check.metrics
    }
    assert all(metric_by_name(name) for name in covered)
    others = [f"`{metric.name}`" for metric in METRICS if metric.name not in covered]
    return [f"No published figure was found that fits the definition of {len(others)} metrics: {', '.join(others)}."]


EXPERIMENT = Experiment(
    name="published",
    title="audio_metrics beside figures that others published",
    trials=_trials,
    run=_run,
    figures=_figures,
    summary=_summary,
    notes=_notes,
    settings={"folder": ("runs/published", "runs/published")},
)
