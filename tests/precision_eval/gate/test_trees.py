"""Two source trees in one process, and the git worktrees that they are checked out into."""

import importlib
import sys

import pytest
from repositories import git

from precision_eval.core.errors import ParameterError
from precision_eval.gate.source_trees import ModuleTree, SourceTree, source_trees


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def tree_of(folder, role="base", origin=None):
    return ModuleTree(SourceTree(role=role, name=folder.name, root=folder, start=folder, origin=origin))


KERNELS = """from .amount import VALUE

def late():
    from . import later
    return later.VALUE
"""


def package(value, prefix=""):
    return {
        f"{prefix}kernels/__init__.py": KERNELS,
        f"{prefix}kernels/amount.py": f"VALUE = {value}\n",
        f"{prefix}kernels/later.py": f"VALUE = {value}\n",
        f"{prefix}tool.py": "import kernels\n\nVALUE = kernels.VALUE\n",
    }


@pytest.mark.parametrize("prefix", ["", "src/"])
def test_two_trees_hold_modules_of_the_same_names(tmp_path, prefix):
    trees = [tree_of(written(tmp_path / str(value), package(value, prefix))) for value in (1, 2)]
    loaded = []
    for tree in trees:
        with tree.active():
            loaded.append(importlib.import_module("tool"))
    assert [module.VALUE for module in loaded] == [1, 2]
    assert not {"tool", "kernels", "kernels.amount"} & set(sys.modules)
    for value, tree in enumerate(trees, start=1):
        with tree.switched():
            assert sys.modules["kernels"].late() == value  # imported by a call, of the tree that is switched to
        assert "kernels.later" in tree.modules
        with tree.active():
            assert importlib.import_module("tool") is loaded[value - 1]
    assert "kernels.later" not in sys.modules


def test_a_package_of_this_process_is_put_aside(tmp_path):
    import precision_eval.core.errors as ours

    tree = tree_of(
        written(tmp_path / "tree", {"precision_eval/__init__.py": "", "precision_eval/own.py": "VALUE = 3\n"})
    )
    path, before = list(sys.path), dict(sys.modules)
    with tree.active():
        assert importlib.import_module("precision_eval.own").VALUE == 3
        assert importlib.import_module("precision_eval").__file__.startswith(str(tmp_path))
    assert sys.path == path
    assert sys.modules == before
    assert sys.modules["precision_eval.core.errors"] is ours


LATE = "from {package} import part\n\nVALUE = part.VALUE\n\ndef late():\n    {late}\n    return later.VALUE\n"
LAYOUTS = {  # files, the module that is asked for, and how a call imports another one late
    "a folder without __init__": ("spread", "", "spread.case", "import spread.later as later"),
    "below src": ("src/spread", "", "spread.case", "import spread.later as later"),
    "two levels": ("spread/wide", "", "spread.wide.case", "from spread.wide import later"),
    "a package below such a folder": ("spread/wide", "__init__.py", "spread.wide.case", "from . import later"),
    "relative": ("spread", "", "spread.case", "from . import later"),
    "beside it": ("", "", "case", "import later"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_of_their_tree_and_never_of_the_checkout(tmp_path, monkeypatch, layout):
    folder, init, module, late = LAYOUTS[layout]
    package = folder.removeprefix("src/").replace("/", ".")
    before = set(sys.modules)
    for value in (3, 1, 2):  # the first is the checkout itself, whose modules must not be taken for a tree's
        files = {"part": f"VALUE = {value}", "later": f"VALUE = {value}"}
        text = (
            LATE.format(package=package, late=late)
            if package
            else LATE.replace("from {package} ", "").format(late=late)
        )
        files |= {"case": text} | ({"__init__": ""} if init else {})
        written(tmp_path / str(value), {f"{folder}/{name}.py".lstrip("/"): text for name, text in files.items()})
    checkout = tmp_path / "3"
    monkeypatch.syspath_prepend(str(checkout / "src" if folder.startswith("src") else checkout))
    trees = {value: tree_of(tmp_path / str(value), origin=checkout) for value in (1, 2)}
    loaded = {}
    for value, tree in trees.items():
        with tree.active():
            loaded[value] = importlib.import_module(module)
    assert {value: one.VALUE for value, one in loaded.items()} == {1: 1, 2: 2}
    for value in (2, 1):
        with trees[value].switched():
            assert loaded[value].late() == value
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in ("spread", "case", "part", "later")}


def test_a_namespace_that_an_installed_package_shares_is_whole_in_each_tree(tmp_path, monkeypatch):
    installed = written(tmp_path / "installed", {"spread/common.py": "VALUE = 7\n"})
    monkeypatch.syspath_prepend(str(installed))
    for value in (1, 2):
        text = "import spread.common\nfrom spread import part\n\nVALUE = part.VALUE, spread.common.VALUE\n"
        tree = tree_of(written(tmp_path / str(value), {"spread/part.py": f"VALUE = {value}\n", "spread/case.py": text}))
        tree._shared = (*tree._shared, str(installed))
        with tree.active():
            assert (value, 7) == importlib.import_module("spread.case").VALUE


def test_what_is_not_in_the_tree_is_not_taken_from_the_checkout(tmp_path, monkeypatch):
    checkout = written(tmp_path / "checkout", {"kernels.py": "VALUE = 1\n", "only_here.py": ""})
    older = written(tmp_path / "older", {"kernels.py": "VALUE = 0\n"})
    monkeypatch.syspath_prepend(str(checkout))
    tree = tree_of(older, origin=checkout)
    with tree.active():
        assert importlib.import_module("kernels").VALUE == 0
        with pytest.raises(ModuleNotFoundError, match="only_here"):
            importlib.import_module("only_here")


def test_what_an_import_hook_takes_from_the_checkout_is_refused(tmp_path):
    checkout = written(tmp_path / "checkout", {"kernels.py": ""})
    tree = tree_of(written(tmp_path / "older", {"tool.py": ""}), origin=checkout)
    spec = importlib.util.spec_from_file_location("kernels", checkout / "kernels.py")
    with pytest.raises(ParameterError, match=r"base older imports kernels from .*checkout"), tree.active():
        sys.modules["kernels"] = importlib.util.module_from_spec(spec)
    assert "kernels" not in sys.modules


def test_a_compiled_extension_is_refused(tmp_path):
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    tree = tree_of(written(tmp_path / "tree", {f"fast{suffix}": ""}))
    module = type(sys)("fast")
    module.__file__ = str(tmp_path / "tree" / f"fast{suffix}")
    with pytest.raises(ParameterError, match="has a compiled extension, fast"), tree.active():
        sys.modules["fast"] = module


def test_a_torch_of_its_own_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="has its own torch"):
        tree_of(written(tmp_path / "tree", {"torch/__init__.py": ""}))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = written(tmp_path / "repository", {"case.py": "VALUE = 1\n", "deep/inside.py": ""})
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=one")
    written(folder, {"case.py": "VALUE = 2\n"})
    git(folder, "commit", "--quiet", "--all", "--message=two")
    monkeypatch.chdir(folder)
    return folder


def worktrees(folder):
    return git(folder, "worktree", "list").splitlines()


def test_commits_are_checked_out_and_removed(repository, monkeypatch):
    monkeypatch.chdir(repository / "deep")
    with source_trees("main~1", "HEAD") as (base, head):
        assert [(tree.root / "case.py").read_text() for tree in (base, head)] == ["VALUE = 1\n", "VALUE = 2\n"]
        assert base.start == base.root / "deep"
        assert head.title == f"head HEAD ({git(repository, 'rev-parse', 'HEAD')[:8]})"
        assert len(worktrees(repository)) == 3
    assert len(worktrees(repository)) == 1
    assert not base.root.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ParameterError, SystemExit])
def test_worktrees_are_removed_however_it_ends(repository, error):
    def stop(tree):
        git(repository, "worktree", "lock", str(tree.root))  # as git leaves one whose checkout was stopped
        raise error

    with pytest.raises(error), source_trees("HEAD~1", "HEAD") as (base, _):
        stop(base)
    assert len(worktrees(repository)) == 1
    assert not base.root.parent.exists()


def test_the_folder_as_it_stands_may_hold_changes(repository):
    written(repository, {"case.py": "VALUE = 3\n"})
    with source_trees("HEAD~1", ".") as (_, head):
        assert (head.root, head.start) == (repository, repository)
    with (
        pytest.raises(ParameterError, match=r"'HEAD' is checked out with changes .*case\.py.*--head \."),
        source_trees("HEAD~1", "HEAD"),
    ):
        pass


@pytest.mark.parametrize("base", ["HEAD", "main"])
def test_the_commit_that_is_checked_out_is_compared_with_its_changes(repository, base):
    written(repository, {"case.py": "VALUE = 3\n"})
    with source_trees(base, ".") as trees:
        assert [(tree.root / "case.py").read_text() for tree in trees] == ["VALUE = 2\n", "VALUE = 3\n"]
    with pytest.raises(ParameterError, match=f"base '{base}' is checked out with changes"), source_trees(base, "/"):
        pass


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("", "base is empty, as of a variable that is not set"),
        ("trunk", r"base 'trunk' is no folder and no commit of .*; fetch it .* such as origin/trunk"),
        ("main~1..main", r"base 'main~1\.\.main' is no folder and no commit"),
        ("HEAD:case.py", "base 'HEAD:case.py' is no folder and no commit"),
        ("--help", "base '--help' is no folder and no commit"),
    ],
)
def test_a_name_that_is_no_one_commit_is_refused(repository, base, message):
    with pytest.raises(ParameterError, match=message), source_trees(base, "HEAD"):
        pass


def test_why_git_reads_nothing_is_said(repository, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        with pytest.raises(ParameterError, match=r"no repository to read: .*dubious"), source_trees("main", "HEAD"):
            pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ParameterError, match="git, which knows commits, is not installed"), source_trees("main", "b"):
        pass


def test_comments_are_no_change_of_a_trees_source(tmp_path):
    texts = {"a": "VALUE = 1\n", "b": "# said\n\nVALUE = 1  # again\n", "c": "VALUE = 2\n"}
    sources = {}
    for name, text in texts.items():
        tree = tree_of(written(tmp_path / name, {"case.py": text, "unused.py": f"{name} = 1\n"}))
        with tree.active():
            importlib.import_module("case")
        sources[name] = tree.sources()
    assert sources["a"] == sources["b"] != sources["c"]


def test_folders_need_no_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with source_trees("a", "b") as (base, head):
        assert [tree.root.name for tree in (base, head)] == ["a", "b"]
    with (
        pytest.raises(ParameterError, match=r"'main' is no folder, and here is no repository to read: .*not a git"),
        source_trees("main", "b"),
    ):
        pass
