"""Peak memory of the fused pass beyond what is there after imports, in a process of its own.

Resident memory, from after ``import audio_metrics, soundfile`` to the peak of the first comparison of the
process, so tables, plans of the transform and everything that is loaded late count. On Linux the peak is set back
before; elsewhere it is that of the process.
"""

from __future__ import annotations

import resource
from pathlib import Path

from precision_eval.core.workers import call_isolated
from validation.audio.ratio import Ratio

_PROCESSES = 5
_STATUS = Path("/proc/self/status")


def _resident_bytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {field}")


def _measure(paths: list[str]) -> int:
    import soundfile  # noqa: F401 - its memory is not the comparison's

    from audio_metrics import compare_files

    if not _STATUS.exists():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        compare_files(*paths)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # bytes on macOS
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets VmHWM back
    before = _resident_bytes("VmRSS")
    compare_files(*paths)
    return _resident_bytes("VmHWM") - before


def extra_bytes(paths: tuple[Path, Path]) -> int:
    """Measure one pair in a fresh process."""
    return int(call_isolated(_measure, [str(path) for path in paths], start="spawn"))


def figures(short: tuple[Path, Path], long: tuple[Path, Path]) -> list[Ratio]:
    """Peak extra memory of a pair of one hour, and as a ratio to that of a pair of one minute."""
    found = {
        name: sorted(extra_bytes(pair) for _ in range(_PROCESSES)) for name, pair in (("short", short), ("long", long))
    }
    middle = _PROCESSES // 2
    short_bytes, long_bytes = found["short"][middle], found["long"][middle]
    return [
        Ratio(
            name="peak memory beyond imports, 1 h pair",
            value=long_bytes / 1e6,
            low=found["long"][0] / 1e6,
            high=found["long"][-1] / 1e6,
            most=16.0,
            rounds=_PROCESSES,
            unit="MB",
        ),
        Ratio(
            name="peak memory beyond imports, 1 h ÷ 1 min",
            value=long_bytes / short_bytes,
            low=found["long"][0] / found["short"][-1],
            high=found["long"][-1] / found["short"][0],
            most=1.05,
            rounds=_PROCESSES,
            note=f"1 min: {short_bytes / 1e6:.1f} MB",
        ),
    ]
