"""Make references.json: what auraloss and torchmetrics say of signals that the tests can make again.

The libraries are no dependencies of this package; install them beside it and run this file from its folder:

    pip install auraloss torchmetrics && python make_references.py

Signals are float64. auraloss pads by half a transform at each end, which here holds zeros; its floor sits on the
magnitude's square before division by the window's energy.
"""

import json
from importlib.metadata import version
from pathlib import Path

import auraloss
import torch
import torchmetrics.functional.audio as tm
from conftest import make_padded_pair

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


if __name__ == "__main__":
    found = {
        "versions": {name: version(name) for name in ("auraloss", "torchmetrics", "torch")},
        "spectral": spectral(),
        "waveform": waveform(),
    }
    path = Path(__file__).with_name("references.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path.read_text())
