"""Links of the README and of the docs lead somewhere, and the commands that they show exist."""

import re
import shlex
import tomllib
import types
import warnings
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = ("index.md", "CHANGELOG.md", "CONTRIBUTING.md", "reference/")
REPORTS = tomllib.loads((ROOT / "docs/reports/answers.toml").read_text(encoding="utf-8"))["case"]
BLOCK = re.compile(r"<!-- ([\w.-]+):begin -->(.*?)<!-- \1:end -->", re.DOTALL)


def anchors_of(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere_and_no_block_is_empty(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors_of(target), link
    assert [name for name, inside in BLOCK.findall(text) if not inside.strip()] == []


BRITISH = re.compile(
    r"\b\w*(?:behaviour|colour|normalis|quantis|synthesise|recognis|optimis|neighbour|summaris|minimis|favour)\w*"
    r"|\b(?:grey|centred?|artefacts?)\b"
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.stem)
def test_the_spelling_is_american(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    prose = re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.M | re.S)
    assert BRITISH.findall(prose) == []


def shown_commands():
    lines = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
            lines += [(page.stem, line.partition("  #")[0].partition(" > ")[0]) for line in block.splitlines()]
        if page.stem == "README":
            lines += [(page.stem, line) for line in re.findall(r"`(precision-eval [^`]+)`", text)]
    return [(page, line) for page, line in lines if line.startswith("precision-eval ") and "…" not in line]


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_every_command_that_is_shown_parses(page, line):
    from precision_eval.cli.commands import command_named

    _, name, *arguments = shlex.split(line)
    assert command_named(name).make_context(name, arguments).params


def test_make_targets_and_pages_of_the_site_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())} <= targets
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = [page for section in yaml.safe_load(lines) for value in section.values() for page in leaves(value)]
    written = [page for page in named if not page.startswith(GENERATED)]
    assert [page for page in written if not (ROOT / "docs" / page).exists()] == []
    assert {page.name for page in PAGES if page.parent.name == "docs"} <= set(named)


def leaves(value):
    if isinstance(value, str):
        return [value]
    return [leaf for entry in value for part in entry.values() for leaf in leaves(part)]


def test_every_test_that_the_threats_name_exists():
    text = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", text)
    assert named
    for path, function in named:
        assert f"def {function}" in (ROOT / path).read_text(encoding="utf-8"), (path, function)


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case["id"])
def test_every_report_names_its_source_and_its_set(case):
    assert case["set"] == ("held" if int(case["id"]) % 2 else "open")
    assert case["expected_exit"] in ("fault", "no fault")
    assert case["must_name"]
    assert ("file" in case) != ("text" in case)
    if "file" in case:
        repository, number = re.search(r"github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)", case["source"]).groups()
        text = (ROOT / "docs/reports" / case["file"]).read_text(encoding="utf-8")
        assert text.startswith(f"# {repository}#{number}: ")


def call_case(text):
    module = types.ModuleType("report")
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        exec(compile(text, "report", "exec"), module.__dict__)
        model, inputs = module.factory()
        with torch.no_grad():
            return model(*inputs)


def has_symptom(text, mended_output, tolerance):
    try:
        output = call_case(text)
    except (IndexError, RuntimeError, ValueError):
        return True
    return not torch.allclose(output.double(), mended_output.double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", [case for case in REPORTS if "fix" in case], ids=lambda case: case["id"])
def test_the_fix_of_a_report_removes_its_symptom(case):
    text = mended = (ROOT / "docs/reports" / case["file"]).read_text(encoding="utf-8")
    for old, new in case["fix"]:
        assert mended.count(old) == 1
        mended = mended.replace(old, new)
    output = call_case(mended)
    assert torch.isfinite(output).all()
    costs_only = case["kind"] in ("cost", "declared")
    assert has_symptom(text, output, 0 if case["kind"] == "training" else 0.1) != costs_only
