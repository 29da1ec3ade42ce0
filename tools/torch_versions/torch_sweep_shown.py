"""What ``torch-sweep`` prints before and after it measures: versions, disk and state; what became of each version."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tools.torch_versions.installing import cache_folder
from tools.torch_versions.sweep_room import check_cache_room, check_room, expected_bytes, gigabytes

if TYPE_CHECKING:
    from tools.torch_versions.torch_sweep import Sweep, Tally


def show_plan(sweep: Sweep, console: Console) -> None:
    """Print versions, disk and state; refuse what does not fit."""
    table = Table("torch", "environment", "on disk", "still to measure", box=None, header_style="bold")
    needed: list[int] = []
    for version in sweep.versions:
        note, left = sweep.note(version), sweep.missing(version)
        measure = (
            "all" if left is None else f"{len(left)} benchmark{'s' if len(left) > 1 else ''}" if left else "nothing"
        )
        if note is not None:
            table.add_row(version, f"there ({note.torch_version}, {note.build})", gigabytes(note.bytes), measure)
        elif left == ():
            table.add_row(version, "not needed", "", measure)
        else:
            size = expected_bytes(version, sweep.build, shared=sweep.installer.uv is not None, first=not needed)
            needed.append(size)
            table.add_row(version, f"to install ({sweep.build}, {sweep.installer.name})", gigabytes(size), measure)
    console.print(table)
    free = shutil.disk_usage(_existing(sweep.base)).free
    peak = check_room(needed, free=free, where=sweep.base, keep=sweep.request.keep)
    _check_cache(sweep, needed)
    console.print(
        f"Needs at most {gigabytes(peak)} of {gigabytes(free)} free at {sweep.base}; "
        f"results of commit {sweep.commit[:8]} go to {sweep.results / sweep.machine}",
        soft_wrap=True,
    )
    if sweep.rounds > 1:
        console.print(f"Latencies are measured in {sweep.rounds} rounds, the versions in turn, a process each.")
    if _changed(sweep.configuration.root):
        console.print(
            "Packages have changes that are not committed: asv installs them as of the commit.", style="yellow"
        )


def _existing(place: Path) -> Path:
    """Return the nearest folder that is there."""
    return next(one for one in (place, *place.parents) if one.exists())


def _check_cache(sweep: Sweep, needed: Sequence[int]) -> None:
    """Refuse where uv's cache lies on a disk of its own, without room: nothing is shared by links then."""
    cache = cache_folder(sweep.installer) if sweep.request.keep else None  # else it lies beside the environments
    if cache is None:
        return
    place, beside = _existing(cache), _existing(sweep.base)
    if place.stat().st_dev != beside.stat().st_dev:
        check_cache_room(needed, free=shutil.disk_usage(place).free, where=cache)


def _changed(root: Path) -> bool:
    words = ["git", "-C", str(root), "status", "--porcelain", "--", "precision_eval", "audio_metrics"]
    return bool(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())


def show_tally(tally: Tally, sweep: Sweep, console: Console) -> None:
    """Print what became of the versions."""
    console.print(f"{len(tally.finished)} of {len(sweep.versions)} torch versions measured; results in {sweep.results}")
    for version, reason in (*tally.not_installed.items(), *tally.incomplete.items()):
        console.print(f"not complete: torch {version}: {reason.removeprefix(f'torch {version}: ')}", soft_wrap=True)
    if tally.exit_code:
        console.print("The same command tries again what is missing, and nothing else.")
