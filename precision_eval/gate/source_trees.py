"""Trees of source to compare, and the modules of several of them in one process, under the same names.

Conventions: a side is named by a commit (branch, tag, hash, ``HEAD``) of the repository that the working directory is
in, or by a folder. The user's checkout is never touched: worktrees lie in a temporary folder for the time of a block,
no hook runs, and what was made is removed however the block ends. What cannot be checked out is one
:class:`~precision_eval.core.errors.ParameterError`.

While a tree is *active*, imports find its files first, and modules that it has imported before are in ``sys.modules``;
when it is left, they are taken out again. What lies in the interpreter's own folders of installed packages (torch,
numpy) is shared by all trees. A tree may hold a package that this process has loaded from elsewhere, this one included:
its own copy is used while it is active. A compiled extension has one state for a whole process, so a tree that holds
one is refused.
"""

from __future__ import annotations

import importlib
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

_OWN = Path(__file__).resolve().parents[1]
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
    here, names = Path.cwd(), {"base": base, "head": head}
    top = _top(here)
    commits = {role: None if top is None else commit_of(top, name) for role, name in names.items()}
    for role, name in names.items():
        if commits[role] is None and not (name and Path(name).is_dir()):
            raise ParameterError(_unknown(role, name, top))
    as_it_stands = any(commits[role] is None and _top(Path(name)) == top for role, name in names.items())
    if top is not None and not as_it_stands:  # else the changes are the other side
        for role, name in names.items():
            _check_clean(role, name, commits[role], top)
    folder = Path(tempfile.mkdtemp(prefix="precision-eval-gate-")).resolve()
    with signals_raise():
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
    env = os.environ | {"LC_ALL": "C"}  # its reasons are read, in English
    return subprocess.run([*_GIT, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)


def _top(folder: Path) -> Path | None:
    found = _run("rev-parse", "--show-toplevel", folder=folder) if shutil.which("git") else None
    return Path(found.stdout.strip()).resolve() if found and found.returncode == 0 and found.stdout.strip() else None


def commit_of(folder: Path, name: str) -> str | None:
    """Return the commit that git knows by a name, None where it knows none or is not there."""
    if name.startswith("-") or not shutil.which("git"):
        return None
    found = _run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", folder=folder).stdout.strip()
    return found if found.isalnum() else None  # of a range, git names what it leaves out


def _unknown(role: str, name: str, top: Path | None) -> str:
    """Say why there is no such side, and what to do."""
    if not name:
        return f"{role} is empty, as of a variable that is not set; give a commit or a folder"
    start = f"{role} '{name}' is no folder"
    if top is None:
        return f"{start}, and {_without_git(Path.cwd())}"
    if commit_of(top, f"origin/{name}"):
        return f"{start} and no commit here; origin/{name} is one: give --{role} origin/{name}"
    if _run("rev-parse", "--is-shallow-repository", folder=top).stdout.strip() == "true":
        return f"{start}, and this clone is shallow and does not hold it; run git fetch --unshallow first"
    return f"{start} and no commit of {top}; fetch it, or give a branch, tag or hash that `git log` knows"


def _without_git(folder: Path) -> str:
    """Say why git knows nothing of a folder, and what to do."""
    if not shutil.which("git"):
        return "git is not installed, which knows commits; install it, or give two folders"
    reason = next(iter(_run("rev-parse", "--show-toplevel", folder=folder).stderr.splitlines()), "")
    if "dubious ownership" in reason:
        return f"git reads nothing of another user's {folder}; run git config --global --add safe.directory {folder}"
    if "work tree" in reason:
        return f"{folder} is a bare repository; run it in a checkout"
    return f"{folder} is in no git repository; give two folders, or run it in your repository"


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


class ModuleTree:
    """The modules of one tree."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.modules: dict[str, ModuleType] = {}
        self._hidden: dict[str, ModuleType] = {}
        self._known: set[str] = set()  # loaded before the tree was, so none of its own
        self._root = str(tree.root.resolve())
        self._shared = tuple(folder for folder in _shared_folders() if not _is_inside(self._root, folder))
        self._paths = self._own_paths()
        self._path = self._paths  # and what all trees share, once it has been active
        self._names = {name for folder in self._paths for name in _top_level_names(Path(folder))}
        for library in ("torch", "numpy"):
            if library in self._names:
                raise ParameterError(
                    f"{tree.title} holds a {library} of its own, of which a process has one; give a folder without it, "
                    "such as `pip install --no-deps --target`, or compare two run folders"
                )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Import, build and call what is of this tree; sorts out whatever was imported meanwhile."""
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
            self._take_out(before)
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
                late = [name for name in sys.modules if name not in self._known and self._is_own(name)]
                self._keep(late)
            sys.path[:] = path
            for name in self.modules:
                sys.modules.pop(name, None)
            sys.modules.update(self._hidden)

    def _take_out(self, before: dict[str, ModuleType]) -> None:
        new = [name for name, module in list(sys.modules.items()) if module is not before.get(name)]
        self._keep([name for name in new if self._is_own(name)])
        for name in self.modules:
            sys.modules.pop(name, None)
        sys.modules.update(self._hidden)

    def _keep(self, names: list[str]) -> None:
        """Take modules as this tree's; a namespace package's path is fixed, as it would follow ``sys.path``."""
        for name in names:
            module = self.modules[name] = sys.modules[name]
            if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
                module.__path__ = _places(module)

    def _is_own(self, name: str) -> bool:
        """Whether a loaded module is of this tree, or of no place that all trees share."""
        parent = name.rpartition(".")[0]
        if name.partition(".")[0] in self._names or (parent in sys.modules and self._is_own(parent)):
            return True
        return any(not _is_inside(place, *self._shared) for place in _places(sys.modules[name]))

    def _check(self) -> None:
        """Refuse what cannot be loaded twice, and what came from another tree."""
        for name, module in self.modules.items():
            for place in _places(module):
                if place.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
                    raise ParameterError(
                        f"{self.tree.title} holds a compiled extension, {name}, of which a process has one version; "
                        "measure each side by `precision-eval run` and compare the two run folders"
                    )
                if self._is_foreign(place):
                    raise ParameterError(
                        f"{self.tree.title} imports {name} from {place}, your own checkout, as it holds none itself; "
                        "give sides that both hold it"
                    )

    def _is_foreign(self, place: str) -> bool:
        """Whether a place is in the user's checkout although the tree is another one."""
        origin, place = self.tree.origin, os.path.realpath(place)
        inside = origin is not None and _is_inside(place, str(origin)) and not _is_inside(place, self._root)
        return inside and not _is_inside(place, *self._shared)

    def _own_paths(self) -> list[str]:
        """Return where imports look: the start, the root, ``src``, and what is installed from the user's checkout."""
        root, start, origin = self.tree.root, self.tree.start, self.tree.origin
        places = [start, start / "src", root, root / "src"]
        if origin is not None:
            installed = [folder for folder in _editable_folders() if folder.is_relative_to(origin)]
            places += [
                root / folder.relative_to(origin)
                for folder in installed
                if not _is_inside(str(folder), *self._shared)  # an environment that lies in the checkout
            ]
        return list(dict.fromkeys(str(place) for place in places if place.is_dir()))


def _shared_folders() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of this one."""
    names = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    names |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple({form for name in names if name for form in (name, os.path.realpath(name))} | {str(_OWN)})


def _is_inside(place: str, *folders: str) -> bool:
    return place.startswith(tuple(folder + os.sep for folder in folders)) or place in folders


def _editable_folders() -> list[Path]:
    """Return what ``pip install -e`` has put on the path, by a line in a .pth file or by setuptools' finder."""
    folders = [Path(entry).resolve() for entry in sys.path if entry]
    for name, module in list(sys.modules.items()):
        mapping = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        if isinstance(mapping, dict):
            folders += [Path(place).resolve().parent for place in mapping.values()]
    return folders


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
