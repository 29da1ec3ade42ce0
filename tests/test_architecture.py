"""The direction of imports, the registries and the size of files, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("audio_metrics", "precision_eval")
MOST_LINES = 450

# A room may import rooms of lower rank, and rooms of its own rank; see the README's architecture section.
RANK = {
    "errors": 0,
    "formats": 0,
    "fixes": 1,
    "from_outside": 2,
    "voice": 2,
    "cases": 2,
    "zoo": 2,
    "statistics": 3,
    "measure": 4,
    "record": 5,
    "environment": 5,
    "experiment": 5,
    "decide": 6,
    "shown": 7,
    "loading": 7,
    "expectations": 6,
    "versions": 6,
    "claims": 7,
    "proof": 8,
    "report": 7,
    "doctor": 7,
    "messages": 5,
    "tracking": 5,
    "gate": 7,
    "memory_plan": 7,
    "sweep": 7,
    "costs": 8,
    "page": 8,
    "sensitivity": 8,
    "cli": 9,
    "__init__": 10,
    "__main__": 10,
}


def source_files(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def is_typing_only(node):
    name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", None)
    return name == "TYPE_CHECKING"


def imports_of(source, package):
    """Yield the dotted names that `source`, a module of `package`, imports when it runs, lazily ones included."""
    pending = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and is_typing_only(node):
            pending.extend(node.orelse)
            continue
        pending.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def package_of(path):
    return ".".join(path.relative_to(ROOT).parent.parts)


def room_of(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def wrong_way(name, source, package):
    """Return the imports of a module of precision_eval that point to a room of higher rank."""
    home = room_of(name)
    found = []
    for imported in imports_of(source, package):
        if imported.split(".")[0] != "precision_eval":
            continue
        target = room_of(imported)
        if RANK.get(target, 0) > RANK.get(home, 0):
            found.append(f"{name} imports {imported}")
    return found


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_audio_metrics_knows_nothing_of_precision_or_torch():
    for path in source_files("audio_metrics"):
        tops = {name.split(".")[0] for name in imports_of(path.read_text(encoding="utf-8"), package_of(path))}
        assert not tops & {"precision_eval", "torch", "torchaudio", "benchmarks"}, path


def test_rooms_import_one_way():
    wrong = []
    for path in source_files("precision_eval"):
        wrong += wrong_way(module_name(path), path.read_text(encoding="utf-8"), package_of(path))
    assert wrong == []


def test_packages_do_not_import_their_users():
    for path in [path for package in PACKAGES for path in source_files(package)]:
        tops = {name.split(".")[0] for name in imports_of(path.read_text(encoding="utf-8"), package_of(path))}
        assert not tops & {"benchmarks", "tests", "pytest", "asv"}, path


@pytest.mark.parametrize(
    "source",
    [
        "from precision_eval.report import write_report",
        "def late():\n    import precision_eval.cli",
        "from ..cli import main",
        "from .. import report",
    ],
)
def test_the_reader_of_imports_catches_a_planted_one(source):
    assert wrong_way("precision_eval.fixes.catalog", source, "precision_eval.fixes")


def test_the_reader_of_imports_lets_the_right_way_pass():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from precision_eval.cli import main\n"
    assert not wrong_way("precision_eval.fixes.catalog", source, "precision_eval.fixes")
    assert not wrong_way("precision_eval.results.data", "from ..fixes.catalog import FIXES", "precision_eval.report")


def test_every_room_has_a_rank():
    rooms = {room_of(module_name(path)) for path in source_files("precision_eval")}
    assert rooms <= set(RANK), rooms - set(RANK)


def test_no_file_is_too_long():
    folders = (*PACKAGES, "benchmarks", "tests")
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in source_files(folder)
    }
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_every_module_opens_with_its_conventions():
    bare = [
        module_name(path)
        for package in PACKAGES
        for path in source_files(package)
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert bare == []


def test_no_case_file_is_missing_from_the_registry():
    from precision_eval.cases.systems import CASES

    described = set()
    for path in source_files("precision_eval/cases"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in (call for call in calls if getattr(call.func, "id", None) == "Case"):
            described |= {word.value.value for word in call.keywords if word.arg == "id"}
    assert {case.id for case in CASES} == described


def test_registries_name_each_thing_once():
    from precision_eval.cases.systems import CASES, all_cases
    from precision_eval.fixes.catalog import FIXES
    from precision_eval.measure.registry import MEASURES

    for names in ([fix.id for fix in FIXES], [w.id for w in all_cases()], [measure.name for measure in MEASURES]):
        assert len(names) == len(set(names))
    known = {measure.name for measure in MEASURES}
    for case in CASES:
        assert set(case.measures) <= known, case.id


def test_every_measure_points_to_a_function_that_exists():
    from precision_eval.measure.registry import MEASURES

    for measure in MEASURES:
        module, _, function = measure.place.partition(":")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert function in defined | imported, measure.name


@pytest.mark.parametrize(
    "statement",
    [
        "import audio_metrics",
        "import precision_eval",
        "import precision_eval; precision_eval.FIXES; precision_eval.CASES; precision_eval.write_report",
        "import precision_eval.measure.registry",
    ],
)
def test_importing_loads_no_torch(statement):
    heavy = ("torch", "scipy", "matplotlib", "librosa", "numba")
    names = heavy if "precision_eval" in statement else ("torch",)
    assert loaded_after(statement, names) == "[]"


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['precision-eval', '--help']\n"
        "from precision_eval.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert loaded_after(code, ("torch", "scipy", "matplotlib", "librosa", "numba", "numpy")) == "[]"


def loaded_after(code, names):
    script = f"{code}\nimport sys\nprint([n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_public_names_are_lazy_and_complete():
    import precision_eval

    for name in precision_eval.__all__:
        assert getattr(precision_eval, name) is not None
    assert sorted(precision_eval.__all__) == dir(precision_eval)
    with pytest.raises(AttributeError, match="has no attribute 'fixes_by_id'; it has: Assessment"):
        _ = precision_eval.fixes_by_id
