"""The direction of imports, names and sizes, read from the source; what the imports of the entry points load."""

import ast
import functools
from collections import defaultdict
from pathlib import Path

import networkx
import pytest
from programs import printed_by

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("audio_metrics", "precision_eval")
MOST_LINES_OF_A_FUNCTION = 50

FLOORS = (
    ("core",),
    ("fixes",),
    ("cases", "trace", "explain"),
    ("measure", "stats"),
    ("run",),
    ("results",),
    ("report", "doctor", "history", "studies", "gate"),
    ("evaluation",),
    ("cli",),
    ("__init__", "__main__", "asv", "pytest_plugin"),
)
"""Rooms of ``precision_eval``, lowest first; a room imports its own floor and the floors below it."""

# What has not been mended yet. These lists may only shrink.
CIRCULAR = frozenset({})
"""Modules that import each other, lazily or through their package."""

LONG = frozenset()
"""Functions that are longer."""


def source_files(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def nodes_of(path):
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(nodes, package):
    """Yield (module, name) for all that a module in `package` imports: lazily and for typing alike."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            yield from ((module, alias.name) for alias in node.names)


def package_of(path):
    return ".".join(path.relative_to(ROOT).parent.parts)


def tops_of(path):
    return {module.split(".")[0] for module, _ in imports_of(nodes_of(path), package_of(path))}


def floor_of(room):
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def upward_imports(module, nodes, package):
    """Return the imports of a module of precision_eval that point to a higher floor."""
    targets = set()
    for imported, name in imports_of(nodes, package):
        if imported.split(".")[0] == "precision_eval":
            own_room = floor_of(name) is not None and imported == "precision_eval"
            targets.add(name if own_room else room_of(imported))
    return {f"{module} imports {room}" for room in targets if (floor_of(room) or 0) > floor_of(room_of(module))}


def test_rooms_import_downwards():
    wrong = set()
    for path in source_files("precision_eval"):
        wrong |= upward_imports(module_name(path), nodes_of(path), package_of(path))
    assert wrong == set()


@pytest.mark.parametrize(
    "source",
    [
        "from precision_eval.report import write_report",
        "def late():\n    import precision_eval.cli",
        "from ..cli import main",
        "from .. import report",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from precision_eval.cli.commands import main\n",
    ],
)
def test_the_reader_of_imports_catches_a_planted_one(source):
    nodes = list(ast.walk(ast.parse(source)))
    assert upward_imports("precision_eval.fixes.catalog", nodes, "precision_eval.fixes")
    assert not upward_imports("precision_eval.cli.run", nodes, "precision_eval.cli")


def test_only_report_and_cli_print_and_draw():
    writers = {"rich", "jinja2", "matplotlib"}
    allowed = ("precision_eval.report", "precision_eval.cli", "precision_eval.core.table")  # a table writes itself
    wrong = [
        name
        for path in source_files("precision_eval")
        if tops_of(path) & writers and not (name := module_name(path)).startswith(allowed)
    ]
    assert wrong == []


def test_results_run_nothing():
    rooms = {"measure", "run", "trace", "doctor", "gate", "studies", "evaluation"}
    for path in source_files("precision_eval/results"):
        imported = {room_of(module) for module, _ in imports_of(nodes_of(path), package_of(path))}
        assert not imported & rooms, path
        assert not tops_of(path) & {"torch", "subprocess", "multiprocessing", "concurrent"}, path


def test_every_room_has_a_floor():
    rooms = {room_of(module_name(path)) for path in source_files("precision_eval")}
    assert {room for room in rooms if floor_of(room) is None} == set()


def test_packages_know_nothing_of_their_users():
    users = {"benchmarks", "validation", "tools", "tests", "pytest", "asv"}
    readers = {"pytest_plugin.py": {"pytest"}, "asv_results.py": {"asv"}, "versions.py": {"asv"}}
    for path in source_files(*PACKAGES):
        assert not tops_of(path) & users - readers.get(path.name, set()), path
    for path in source_files("audio_metrics"):
        assert not tops_of(path) & {"precision_eval", "torch", "torchaudio"}, path


def test_no_modules_import_each_other_in_a_circle():
    together = {module for modules in circles(import_graph()) for module in modules}
    assert together - CIRCULAR == set()


def test_a_planted_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def import_graph():
    """Module → modules of both packages that it imports."""
    paths = {module_name(path): path for path in source_files(*PACKAGES)}
    graph = {}
    for module, path in paths.items():
        pairs = imports_of(nodes_of(path), package_of(path))
        names = {f"{base}.{name}" if f"{base}.{name}" in paths else base for base, name in pairs}
        graph[module] = (names & paths.keys()) - {module, *PACKAGES}
    return graph


def circles(graph):
    components = networkx.strongly_connected_components(networkx.DiGraph(graph))
    return sorted(sorted(modules) for modules in components if len(modules) > 1)


def test_rooms_of_one_floor_import_one_way():
    graph = defaultdict(set)
    for module, imported in import_graph().items():
        if module.startswith("precision_eval."):
            graph[room_of(module)] |= {room_of(other) for other in imported if not other.startswith("audio_metrics")}
    assert circles({room: others - {room} for room, others in graph.items()}) == []


def modules_by_class(package):
    modules = defaultdict(list)
    for path in source_files(package):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(module_name(path))
    return modules


@pytest.mark.parametrize("package", PACKAGES)  # audio_metrics stands alone, so both have a ParameterError
def test_a_class_name_is_given_once(package):
    assert {name: modules for name, modules in modules_by_class(package).items() if len(modules) > 1} == {}


def test_functions_are_short():
    long = {}
    for path in source_files(*PACKAGES):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                lines = node.end_lineno - node.lineno - len(docstring.splitlines())
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long[f"{module_name(path)}.{node.name}"] = lines
    assert long.keys() - LONG == set()


def test_every_module_says_what_it_is():
    assert [module_name(path) for path in source_files(*PACKAGES) if not ast.get_docstring(nodes_of(path)[0])] == []


def test_no_case_file_is_missing_from_the_registry():
    from precision_eval.cases.systems import CASES

    words = [
        word.value
        for path in source_files("precision_eval/cases")
        for call in nodes_of(path)
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) in ("Case", "replace")
        for word in call.keywords
        if word.arg == "id"
    ]
    described = {word.value for word in words if isinstance(word, ast.Constant)}
    assert {case.id for case in CASES} == described


def test_registries_name_each_thing_once():
    from precision_eval.cases.systems import CASES
    from precision_eval.fixes.catalog import FIXES
    from precision_eval.measure.registry import MEASURES

    for names in ([fix.id for fix in FIXES], [case.id for case in CASES], [one.name for one in MEASURES]):
        assert len(names) == len(set(names))
    known = {measure.name for measure in MEASURES}
    for case in CASES:
        assert set(case.measures) <= known, case.id


def test_every_measure_points_to_a_function_that_exists():
    from precision_eval.measure.registry import MEASURES

    for measure in MEASURES:
        module, _, function = measure.place.partition(":")
        tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        assert function in defined | imported, measure.name


HEAVY = ("torch", "scipy", "matplotlib", "librosa", "numba")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (
            "import audio_metrics",
            ("torch", "librosa", "numba", "scipy.stats", "matplotlib", "soundfile", "precision_eval"),
        ),
        (
            "import precision_eval; precision_eval.FIXES; precision_eval.CASES; precision_eval.write_report\n"
            "import precision_eval.measure.registry, precision_eval.history.tracking\n"
            "import precision_eval.cases.systems as systems; systems.CASES",
            HEAVY,
        ),
        ("import precision_eval.report", ("torch", "matplotlib")),
    ],
    ids=["audio_metrics", "public names, registries and cases", "report"],
)
def test_importing_loads_nothing_heavy(code, names):
    script = f"{code}\nimport sys\nprint([n for n in {names!r} if n in sys.modules])"
    assert printed_by("-c", script).strip().splitlines()[-1] == "[]"


def test_public_names_are_lazy_and_complete():
    import precision_eval

    for name in precision_eval.__all__:
        assert getattr(precision_eval, name) is not None
    assert sorted(precision_eval.__all__) == dir(precision_eval)
    with pytest.raises(AttributeError, match="has no attribute 'fixes_by_id'; it has: CASES"):
        _ = precision_eval.fixes_by_id
