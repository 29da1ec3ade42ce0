"""Make references.json: what torchmetrics says of signals that the tests can make again.

It is no dependency of this package; install it beside it and run this file from its folder:

    pip install torchmetrics && python make_references.py

Signals are float64.
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
import torchmetrics.functional.audio as tm
from conftest import make_padded_pair


def waveform():
    x, y = (torch.from_numpy(samples) for samples in make_padded_pair())
    return {
        "si_sdr_db": float(tm.scale_invariant_signal_distortion_ratio(y, x)),
        "si_sdr_zero_mean_db": float(tm.scale_invariant_signal_distortion_ratio(y, x, zero_mean=True)),
        "snr_db": float(tm.signal_noise_ratio(y, x)),
    }


if __name__ == "__main__":
    found = {
        "versions": {name: version(name) for name in ("torchmetrics", "torch")},
        "waveform": waveform(),
    }
    path = Path(__file__).with_name("references.json")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(path.read_text())
