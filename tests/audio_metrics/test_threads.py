from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import audio_metrics as am

CODE = """
import numpy as np, audio_metrics as am
rng = np.random.default_rng(0)
x = 0.1 * rng.standard_normal(20 * 16000)
result = am.compare(x, x + 1e-3 * rng.standard_normal(len(x)), sample_rate_hz=16000)
print(repr(sorted(result.to_dict().items())))
"""


def test_bits_do_not_depend_on_the_number_of_threads():
    """BLAS splits a large product by threads; none here is large enough for it to start any."""
    printed = set()
    for threads in ("1", "4"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads)
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=Path(am.__file__).parent.parent,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
