"""The threat model names tests that exist; every dependency has its reason."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED = TEST.findall((ROOT / "docs" / "threats.md").read_text(encoding="utf-8"))


def test_every_line_of_the_threat_model_has_a_test():
    lines = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| what ")]
    assert len(rows) > 10
    assert all(len(TEST.findall(row)) == 1 for row in rows)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_test_of_the_threat_model_exists(path, name):
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    needed = {re.match(r"[\w-]+", need)[0] for group in groups for need in group}
    table = (
        (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").split("|---|---|---|")[1].partition("\n\n")[0]
    )
    assert needed == set(
        re.findall(r"[a-z][\w-]+", " ".join(re.findall(r"^\| (?:\*[^*]+:\* )?([^|]+)\|", table, re.M)))
    )
