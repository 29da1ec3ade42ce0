"""Trees of source to compare: folders as they stand, or commits checked out into git worktrees for the time of a block.

Conventions: a side is named by a commit (branch, tag, hash, ``HEAD``) of the repository that the working directory is
in, or by a folder. The user's checkout is never touched: worktrees lie in a temporary folder, no hook runs, and what
was made is removed however the block ends. What cannot be checked out is one
:class:`~precision_eval.core.errors.ParameterError`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import terminated_as_exit

_GIT = ("git", "--no-optional-locks", "-c", f"core.hooksPath={os.devnull}")
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """One side's source.

    Attributes
    ----------
    role : str
        ``"base"`` or ``"head"``.
    name : str
        As given, with the commit where it is one: ``main (1a2b3c4d)``.
    root : Path
        Top of the tree.
    start : Path
        Where in the tree the command was given; imports and relative files are found from there.
    origin : Path or None
        Top of the user's own checkout, from which nothing may be imported unless it is this very tree.
    """

    role: str
    name: str
    root: Path
    start: Path
    origin: Path | None

    @property
    def title(self) -> str:
        """For messages: ``base main (1a2b3c4d)``."""
        return f"{self.role} {self.name}"


@contextmanager
def source_trees(base: str, head: str) -> Iterator[tuple[SourceTree, SourceTree]]:
    """Yield both sides' trees; worktrees that were made for them are removed."""
    here = Path.cwd()
    top = _top(here)
    commits = {role: None if top is None else commit_of(top, name) for role, name in (("base", base), ("head", head))}
    for role, name in (("base", base), ("head", head)):
        if commits[role] is None and not Path(name).is_dir():
            raise ParameterError(_unknown(role, name, top))
    if top is not None:
        for role, name in (("base", base), ("head", head)):
            _check_clean(role, name, commits[role], top)
    folder = Path(tempfile.mkdtemp(prefix="precision-eval-gate-")).resolve()
    with terminated_as_exit():
        try:
            yield (
                _tree("base", base, commits["base"], folder, top, here),
                _tree("head", head, commits["head"], folder, top, here),
            )
        finally:
            _remove(folder, top)


def _tree(role: str, name: str, commit: str | None, folder: Path, top: Path | None, here: Path) -> SourceTree:
    if commit is None or top is None:
        start = Path(name).resolve()
        return SourceTree(role=role, name=name, root=_top(start) or start, start=start, origin=top)
    root = folder / role
    made = _run("worktree", "add", "--detach", "--quiet", str(root), commit, folder=top)
    if made.returncode:
        raise ParameterError(f"{role} '{name}' cannot be checked out: {_last_line(made.stderr)}; mend the repository")
    start = root / here.relative_to(top)
    if not start.is_dir():
        raise ParameterError(f"{role} '{name}' has no folder {here.relative_to(top)}; give the command from another")
    return SourceTree(role=role, name=f"{name} ({commit[:8]})", root=root, start=start, origin=top)


def _remove(folder: Path, top: Path | None) -> None:
    """Remove what was checked out, also where a checkout was stopped halfway, which git keeps locked."""
    shutil.rmtree(folder, ignore_errors=True)
    if top is not None:
        for role in ("base", "head"):
            _run("worktree", "remove", "--force", "--force", str(folder / role), folder=top)


def _run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_GIT, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def _top(folder: Path) -> Path | None:
    found = _run("rev-parse", "--show-toplevel", folder=folder) if shutil.which("git") else None
    return Path(found.stdout.strip()).resolve() if found and found.returncode == 0 and found.stdout.strip() else None


def commit_of(folder: Path, name: str) -> str | None:
    """Return the commit that git knows by a name, None where it knows none or is not there."""
    if name.startswith("-") or not shutil.which("git"):
        return None
    found = _run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", folder=folder)
    return found.stdout.strip() or None


def _unknown(role: str, name: str, top: Path | None) -> str:
    """Say why there is no such side, and what to do."""
    start = f"{role} '{name}' is no folder"
    if top is None:
        return f"{start}, and {Path.cwd()} is in no git repository; give two folders, or run it in your repository"
    if commit_of(top, f"origin/{name}"):
        return f"{start} and no commit here; origin/{name} is one: give --{role} origin/{name}"
    if _run("rev-parse", "--is-shallow-repository", folder=top).stdout.strip() == "true":
        return f"{start}, and this clone is shallow and does not hold it; run git fetch --unshallow first"
    return f"{start} and no commit of {top}; fetch it, or give a branch, tag or hash that `git log` knows"


def _check_clean(role: str, name: str, commit: str | None, top: Path) -> None:
    """Refuse a commit that is checked out here with changes that it does not hold: they would not be measured."""
    if commit is None or commit != commit_of(top, "HEAD"):
        return
    status = _run("status", "--porcelain", "--untracked-files=no", folder=top).stdout.splitlines()
    if status:
        files = ", ".join(line[3:] for line in status[:_MOST_NAMED]) + (", …" if len(status) > _MOST_NAMED else "")
        raise ParameterError(
            f"{role} '{name}' is checked out with changes that are not committed ({files}); commit them, or give the "
            f"folder itself, --{role} ."
        )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["git gave no reason"])[-1]
