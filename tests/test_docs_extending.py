"""docs/extending.md does what it says: its blocks, put where it puts them, give a case, a fix and a measure."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from programs import printed_by

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"<!-- (file|import|append): (\S+)(?: (\w+))? -->\n```python\n(.*?)```", re.S)
MOST_LINES = 10


def blocks():
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def appended(source, registry, entry):
    """Return a module's source with an entry before the end of one of its literal tuples."""
    for node in ast.parse(source).body:
        target = getattr(node, "target", None)
        if isinstance(node, ast.AnnAssign) and isinstance(target, ast.Name) and target.id == registry:
            lines = source.splitlines(keepends=True)
            return "".join([*lines[: node.end_lineno - 1], entry, *lines[node.end_lineno - 1 :]])
    raise AssertionError(f"no literal tuple {registry}")


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Return a copy of the packages with the page's blocks in place; the voice's data are linked, not copied."""
    root = tmp_path_factory.mktemp("extended")
    for package in ("precision_eval", "audio_metrics", "benchmarks"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__", "data"))
    (root / "precision_eval" / "cases" / "voice" / "data").symlink_to(
        ROOT / "precision_eval" / "cases" / "voice" / "data"
    )
    for kind, place, registry, text in blocks():
        path = root / place
        if kind == "file":
            assert not path.exists()
            path.write_text(text, encoding="utf-8")
        elif kind == "import":
            source = path.read_text(encoding="utf-8")
            path.write_text(source.replace("\n__all__", f"\n{text}\n__all__", 1), encoding="utf-8")
        else:
            path.write_text(appended(path.read_text(encoding="utf-8"), registry, text), encoding="utf-8")
    return root


def python(root, *arguments):
    return printed_by(*arguments, cwd=root, PYTHONPATH=str(root))


def test_nothing_on_the_page_is_more_than_ten_lines_of_work():
    kinds = {}
    for kind, place, registry, text in blocks():
        code = re.sub(r'^""".*?"""\n', "", text, flags=re.S)
        lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
        kinds[kind, place, registry] = len(lines)
    assert len(kinds) == 7
    assert {place: lines for place, lines in kinds.items() if lines > MOST_LINES} == {}


def test_an_entry_is_put_inside_the_tuple_that_is_named():
    source = "A: tuple[int, ...] = (\n    1,\n)\nB: tuple[int, ...] = (\n    2,\n)\n"
    assert appended(source, "B", "    3,\n").endswith("    2,\n    3,\n)\n")
    with pytest.raises(AssertionError, match="no literal tuple C"):
        appended(source, "C", "    3,\n")


@pytest.mark.slow
def test_the_new_case_fix_and_measure_run(extended):
    # a case names its measures; this one is given the new one as the page says
    path = extended / "precision_eval" / "cases" / "systems" / "cross_attention.py"
    path.write_text(path.read_text().replace("measures=MEASURES", 'measures=(*MEASURES, "largest")'))
    arguments = "run --case cross-attention --fix as_shipped,bfloat16_cast_in --measure trace,drift,largest"
    python(extended, "-m", "precision_eval.cli", *arguments.split(), "--out", "out")
    found = {}
    for line in (extended / "out" / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record["fix"], record["measure"]] = record
    assert found["as_shipped", "trace"]["status"] == "raised"
    assert found["bfloat16_cast_in", "trace"]["status"] == "passed"
    assert 1e-4 < found["bfloat16_cast_in", "drift"]["data"]["relative_error"] < 0.1
    assert 0 < found["bfloat16_cast_in", "largest"]["data"]["largest"] < 100


@pytest.mark.slow
def test_the_new_figure_becomes_a_benchmark(extended):
    code = (
        "import os\n"
        "from benchmarks.generator import classes_of\n"
        "made = classes_of('eager', 'eager')['cross_attention']\n"
        "os.makedirs('figures', exist_ok=True)\nos.chdir('figures')\n"
        "print('bfloat16_cast_in' in made.params[0], made().track_rms_ratio('bfloat16_cast_in', 'tiny'))"
    )
    has_fix, ratio = python(extended, "-c", code).split()
    assert has_fix == "True"
    assert 0.1 < float(ratio) < 100.0
