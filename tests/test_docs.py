"""Links of the README and of the docs lead somewhere, and the commands that they show exist."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GENERATED = ("index.md", "CHANGELOG.md", "CONTRIBUTING.md", "reference/")
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
