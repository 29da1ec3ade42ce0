"""Make references.json: what auraloss, torchmetrics and mir_eval say of signals that the tests can make again.

The libraries are no dependencies of this package; install them beside it and run this file from its folder:

    pip install auraloss torchmetrics mir_eval && python make_references.py

Signals are float64. auraloss pads by half a transform at each end, which here holds zeros; its floor sits on the
magnitude's square before division by the window's energy.
"""

import json
from importlib.metadata import version
from pathlib import Path

import auraloss
import mir_eval
import numpy as np
import torch
import torchmetrics.functional.audio as tm
from conftest import make_padded_pair, make_pitch_tracks

RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))


def spectral():
    x, y = (torch.from_numpy(samples)[None, None] for samples in make_padded_pair())
    sizes = {}
    for n_fft, hop, window in RESOLUTIONS:
        loss = auraloss.freq.STFTLoss(fft_size=n_fft, hop_size=hop, win_length=window, output="full")
        loss.window = loss.window.double()
        parts = loss(y, x)
        sizes[str(n_fft)] = {"convergence": float(parts[1]), "log_l1": float(parts[2])}
    whole = auraloss.freq.MultiResolutionSTFTLoss()
    for part in whole.stft_losses:
        part.window = part.window.double()
    return {"resolutions": sizes, "multi_resolution": float(whole(y, x))}


def waveform():
    x, y = (torch.from_numpy(samples) for samples in make_padded_pair())
    return {
        "si_sdr_db": float(tm.scale_invariant_signal_distortion_ratio(y, x)),
        "si_sdr_zero_mean_db": float(tm.scale_invariant_signal_distortion_ratio(y, x, zero_mean=True)),
        "snr_db": float(tm.signal_noise_ratio(y, x)),
    }


def pitch():
    reference, estimate = make_pitch_tracks()
    time_s = np.arange(len(reference)) * 0.01
    tracks = [np.where(np.isnan(track), 0.0, track) for track in (reference, estimate)]
    ref_voicing, ref_cent, est_voicing, est_cent = mir_eval.melody.to_cent_voicing(time_s, tracks[0], time_s, tracks[1])
    recall, false_alarm = mir_eval.melody.voicing_measures(ref_voicing, est_voicing)
    n_voiced = float(ref_voicing.sum())
    both = (ref_voicing > 0) & (est_voicing > 0)
    gross_up = 1200 * np.log2(1.2)  # the tracks hold no gross error downwards between 0.8 and 1 / 1.2
    arguments = (ref_voicing, ref_cent, est_voicing, est_cent)
    within = mir_eval.melody.raw_pitch_accuracy(
        ref_voicing[both], ref_cent[both], est_voicing[both], est_cent[both], cent_tolerance=gross_up
    )
    return {
        "voicing_decision_error": ((1 - recall) * n_voiced + false_alarm * (len(ref_voicing) - n_voiced))
        / len(ref_voicing),
        "gross_pitch_error": 1 - float(within),
        "f0_frame_error": 1 - float(mir_eval.melody.overall_accuracy(*arguments, cent_tolerance=gross_up)),
        "f0_error_cents": float(np.median(np.abs(est_cent[both] - ref_cent[both]))),
    }  # fmt: skip


if __name__ == "__main__":
    found = {
        "versions": {name: version(name) for name in ("auraloss", "torchmetrics", "mir_eval", "torch")},
        "spectral": spectral(),
        "waveform": waveform(),
        "pitch": pitch(),
    }
    path = Path(__file__).with_name("references.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path.read_text())
