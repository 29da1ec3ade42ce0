"""Two trees of source to compare, and the modules of both in one process under the same names.

Conventions: a side is named by a commit of the repository that the working directory is in, or by a folder. Commits are
checked out as worktrees in a temporary folder, which is removed however a block ends; the user's checkout is never
touched and no hook runs. While a tree is *active*, imports find its files first; when it is left, its modules are taken
out of ``sys.modules`` again. What lies in the interpreter's folders of installed packages is shared by both trees, and
a tree with a compiled extension, of which a process has one, is refused.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import signals_raise

_PACKAGE = Path(__file__).resolve().parents[1]
_GIT = ("git", "--no-optional-locks", "-c", f"core.hooksPath={os.devnull}")


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """One side's source.

    `name` is as given, with the commit where it is one; imports and relative files are found from `start` in `root`;
    `origin` is the top of the user's own checkout, from which nothing may be imported unless it is this very tree.
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
    names, top = {"base": base, "head": head}, _top(Path.cwd())
    commits = {role: None if top is None else _commit_of(top, name) for role, name in names.items()}
    for role, name in names.items():
        if commits[role] is None and not (name and Path(name).is_dir()):
            raise ParameterError(_unknown(role, name, top))
    changes_are_a_side = any(commits[role] is None and _top(Path(name)) == top for role, name in names.items())
    if top is not None and not changes_are_a_side:
        for role, name in names.items():
            _check_clean(role, name, commits[role], top)
    folder = Path(tempfile.mkdtemp(prefix="precision-eval-gate-")).resolve()
    with signals_raise():
        try:
            yield (
                _tree("base", base, commits["base"], folder, top),
                _tree("head", head, commits["head"], folder, top),
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if top is not None:
                for role in names:  # twice forced: git locks a worktree whose checkout was stopped
                    _git("worktree", "remove", "--force", "--force", str(folder / role), folder=top)


def _tree(role: str, name: str, commit: str | None, folder: Path, top: Path | None) -> SourceTree:
    if commit is None or top is None:
        start = Path(name).resolve()
        return SourceTree(role=role, name=name, root=_top(start) or start, start=start, origin=top)
    root = folder / role
    added = _git("worktree", "add", "--detach", "--quiet", str(root), commit, folder=top)
    if added.returncode:
        reason = (added.stderr.strip().splitlines() or ["git gave no reason"])[-1]
        raise ParameterError(f"{role} '{name}' cannot be checked out: {reason}; repair the repository")
    start = root / Path.cwd().relative_to(top)
    if not start.is_dir():
        raise ParameterError(f"{role} '{name}' has no folder {Path.cwd().relative_to(top)}; run gate in another folder")
    return SourceTree(role=role, name=f"{name} ({commit[:8]})", root=root, start=start, origin=top)


def _git(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LC_ALL": "C"}
    return subprocess.run([*_GIT, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _top(folder: Path) -> Path | None:
    path = _git("rev-parse", "--show-toplevel", folder=folder).stdout.strip() if shutil.which("git") else ""
    return Path(path).resolve() if path else None


def _commit_of(folder: Path, name: str) -> str | None:
    if name.startswith("-"):
        return None
    commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", folder=folder).stdout.strip()
    return commit if commit.isalnum() else None  # of a range, git names several


def _unknown(role: str, name: str, top: Path | None) -> str:
    if not name:
        return f"{role} is empty, as of a variable that is not set; give a commit or a folder"
    if top is not None:
        return (
            f"{role} '{name}' is no folder and no commit of {top}; fetch it (git fetch --unshallow in a shallow clone) "
            f"and give a branch, tag or hash that `git log` knows, such as origin/{name}"
        )
    if not shutil.which("git"):
        return f"{role} '{name}' is no folder, and git, which knows commits, is not installed; give two folders"
    reason = _git("rev-parse", "--show-toplevel", folder=Path.cwd()).stderr.strip().partition("\n")[0]
    return f"{role} '{name}' is no folder, and here is no repository to read: {reason}; give two folders"


def _check_clean(role: str, name: str, commit: str | None, top: Path) -> None:
    """Refuse a commit that is checked out here with changes that it does not hold: they would not be measured."""
    if commit is None or commit != _commit_of(top, "HEAD"):
        return
    status = _git("status", "--porcelain", "--untracked-files=no", folder=top).stdout.splitlines()
    if status:
        raise ParameterError(
            f"{role} '{name}' is checked out with changes that are not committed ({len(status)} files, {status[0][3:]} "
            f"the first); commit them, or give the folder itself, --{role} ."
        )


class ModuleTree:
    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.modules: dict[str, ModuleType] = {}
        self._hidden: dict[str, ModuleType] = {}
        self._known: set[str] = set()  # loaded before this tree was
        self._root = str(tree.root.resolve())
        self._shared = tuple(folder for folder in _shared_folders() if not _is_inside(self._root, folder))
        self._paths = self._search_paths()
        self._path = self._paths  # and the shared entries, once the tree has been active
        self._names = {name for folder in self._paths for name in _top_level_names(Path(folder))}
        for library in {"torch", "numpy"} & self._names:
            raise ParameterError(
                f"{tree.title} has its own {library}, and a process can load only one; give a folder without it"
            )

    def sources(self) -> dict[str, str]:
        """Return the syntax of each module of this tree by its file; comments and line numbers are not in it."""
        files = sorted({place for module in self.modules.values() for place in _places(module)})
        return {
            os.path.relpath(file, self._root): ast.dump(ast.parse(Path(file).read_bytes()))
            for file in files
            if file.endswith(".py")
        }

    @contextmanager
    def active(self) -> Iterator[None]:
        """Import, build and call what is of this tree; what is imported meanwhile is sorted by its place."""
        before, path, folder = dict(sys.modules), list(sys.path), Path.cwd()
        self._known |= before.keys()
        self._hidden = {name: module for name, module in before.items() if name.partition(".")[0] in self._names}
        for name in self._hidden:
            del sys.modules[name]
        sys.modules.update(self.modules)
        self._path = [*self._paths, *(entry for entry in path if not self._is_foreign(entry or os.curdir))]
        sys.path[:] = self._path
        importlib.invalidate_caches()
        os.chdir(self.tree.start)
        try:
            yield
        finally:
            new = [name for name, module in list(sys.modules.items()) if module is not before.get(name)]
            self._keep([name for name in new if self._is_own(name)])
            self._take_out()
            os.chdir(folder)
            sys.path[:] = path
        self._check()

    @contextmanager
    def switched(self) -> Iterator[None]:
        """Call what was built before: as :meth:`active`, within microseconds, for blocks that are timed."""
        count, path = len(sys.modules), sys.path[:]
        sys.modules.update(self.modules)
        sys.path[:] = self._path
        added = len(sys.modules) - count
        try:
            yield
        finally:
            if len(sys.modules) - added != count:  # a call imported something late
                self._keep([name for name in sys.modules if name not in self._known and self._is_own(name)])
            sys.path[:] = path
            self._take_out()

    def _take_out(self) -> None:
        for name in self.modules:
            sys.modules.pop(name, None)
        sys.modules.update(self._hidden)

    def _keep(self, names: list[str]) -> None:
        for name in names:
            module = self.modules[name] = sys.modules[name]
            if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
                module.__path__ = _places(module)  # fixed: a namespace package's own would follow sys.path

    def _is_own(self, name: str) -> bool:
        """Whether a loaded module is of this tree, or of no place that both trees share."""
        parent = name.rpartition(".")[0]
        if name.partition(".")[0] in self._names or (parent in sys.modules and self._is_own(parent)):
            return True
        return any(not _is_inside(place, *self._shared) for place in _places(sys.modules[name]))

    def _check(self) -> None:
        """Refuse what cannot be loaded twice, and what came from another tree."""
        for name, place in ((name, place) for name, module in self.modules.items() for place in _places(module)):
            if place.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
                raise ParameterError(
                    f"{self.tree.title} has a compiled extension, {name}, and a process can load only one version; run "
                    "each side into a folder of its own and compare by `precision-eval report BASE HEAD`"
                )
            if self._is_foreign(place):
                raise ParameterError(
                    f"{self.tree.title} imports {name} from {place}, your own checkout, as it holds none itself; "
                    "give sides that both hold it"
                )

    def _is_foreign(self, place: str) -> bool:
        """Whether a place is in the user's checkout although the tree is another one."""
        origin, place = self.tree.origin, os.path.realpath(place)
        is_in_checkout = origin is not None and _is_inside(place, str(origin)) and not _is_inside(place, self._root)
        return is_in_checkout and not _is_inside(place, *self._shared)

    def _search_paths(self) -> list[str]:
        """Return where imports look: start, root, ``src``, and folders of the checkout that are on the path."""
        root, start, origin = self.tree.root, self.tree.start, self.tree.origin
        places = [start, start / "src", root, root / "src"]
        for entry in map(os.path.realpath, filter(None, sys.path)):
            if origin is not None and Path(entry).is_relative_to(origin) and not _is_inside(entry, *self._shared):
                places.append(root / Path(entry).relative_to(origin))
        return list(dict.fromkeys(str(place) for place in places if place.is_dir()))


def _shared_folders() -> tuple[str, ...]:
    names = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    names |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple({form for name in names if name for form in (name, os.path.realpath(name))} | {str(_PACKAGE)})


def _is_inside(place: str, *folders: str) -> bool:
    return place.startswith(tuple(folder + os.sep for folder in folders)) or place in folders


def _top_level_names(folder: Path) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.suffix == ".py":
            yield entry.stem
        elif (entry / "__init__.py").is_file():
            yield entry.name


def _places(module: ModuleType) -> list[str]:
    """Return the file of a module; of a package without one, its folders; none where it was made by code."""
    file = getattr(module, "__file__", None)
    try:
        places = [file] if file else list(getattr(module, "__path__", ()))
    except KeyError:  # a part of a namespace package that is not loaded
        return []
    return [place for place in places if os.path.isabs(place)]  # noqa: PTH117 - torch.ops calls its file _ops.py
