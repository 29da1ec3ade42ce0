"""Which torch measured: a number that sorts as its versions do, and whether it is a CUDA build."""

from __future__ import annotations

import re

from precision_eval.core.errors import ParameterError


def torch_version_number(version: str) -> int:
    """Turn a version into a number."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise ParameterError(f"torch version '{version}'; expected three numbers first, such as 2.13.0")
    major, minor, patch = (int(part) for part in found.groups())
    if minor > 999 or patch > 999:
        raise ParameterError(f"torch version '{version}'; minor and patch are expected below 1000")
    return major * 1_000_000 + minor * 1_000 + patch


def is_cuda_build() -> int:
    """Return 1 where the installed torch was built with CUDA, whether or not a GPU is there, else 0."""
    import torch

    return int(torch.version.cuda is not None)
