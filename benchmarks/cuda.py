"""Every case, every fix, eager on an NVIDIA GPU: ``cuda.<case>.<metric>``, from the registries; nothing without one."""

from __future__ import annotations

import shutil

from benchmarks.generator import classes_of

if shutil.which("nvidia-smi") is not None:
    globals().update(classes_of("cuda", __name__))
