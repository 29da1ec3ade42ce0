"""What BASE and HEAD name: two run folders, or two commits or torch versions in asv's results."""

from __future__ import annotations

from pathlib import Path

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.results.gate.asv_results import is_torch_version, sides_of_asv
from precision_eval.results.gate.run_folders import RECORDS, side_of_run
from precision_eval.results.gate.sides import Side, check_alike

DEFAULT_RESULTS = Path(".asv/results")


def open_sides(base: str, head: str, *, results: Path | None, machine: str | None = None) -> tuple[Side, Side]:
    """Read both sides, and refuse those that are not alike."""
    folders = [(Path(name) / RECORDS).is_file() for name in (base, head)]
    if all(folders):
        sides = side_of_run(Path(base), name=base), side_of_run(Path(head), name=head)
        check_alike(sides[0].facts, sides[1].facts, names=(base, head))
        return sides
    if any(folders):
        other = head if folders[0] else base
        raise RecordError(f"{other} is no run folder, the other side is one; give a folder that holds {RECORDS}")
    for name in (base, head):
        if _reads_like_a_folder(name):
            raise RecordError(
                f"{name} holds no {RECORDS}; give a run folder, or a commit or torch version of asv's results"
            )
    folder = results or DEFAULT_RESULTS
    if not folder.is_dir():
        raise RecordError(
            f"{base} and {head} are no run folders, and there are no results of asv in {folder}; name asv's "
            "results_dir with --results"
        )
    if base == head and not is_torch_version(base):
        raise ParameterError(f"'{base}' is given twice; give two commits, two torch versions or two run folders")
    return sides_of_asv(base, head, folder=folder, machine=machine)


def _reads_like_a_folder(name: str) -> bool:
    path = Path(name)
    return path.is_dir() or path.is_file() or name.startswith(("./", "../", "/", "runs/"))
