"""The README's commands exist, and its links and those of the docs lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(set(re.findall(r"`(precision-eval [^`]+)`", README)))


def test_the_readme_names_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_parses(line):
    from precision_eval.cli.commands import command_named

    _, name, *arguments = shlex.split(line)
    assert command_named(name).make_context(name, arguments).params


def test_commands_in_the_blocks_of_the_guides_parse():
    from precision_eval.cli.commands import command_named

    lines = [
        (page.stem, line.partition("  #")[0].partition(" > ")[0])
        for page in sorted((ROOT / "docs").glob("*.md"))
        for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if line.startswith("precision-eval ") and "…" not in line
    ]
    assert len({page for page, _ in lines}) >= 6
    for page, line in lines:
        _, name, *arguments = shlex.split(line)
        assert command_named(name).make_context(name, arguments).params, (page, line)


def test_every_local_link_exists():
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", README)) <= targets


def test_the_table_of_fixes_is_the_registry():
    from precision_eval.fixes.catalog import FIXES

    section = README.split("## The fixes")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == [fix.id for fix in FIXES]


def test_it_can_be_read_in_minutes():
    assert README.count("\n") <= 150


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_link_of_the_docs_exists_and_no_block_is_empty(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    blocks = re.findall(r"<!-- ([\w.-]+):begin -->(.*?)<!-- \1:end -->", text, re.DOTALL)
    assert [name for name, inside in blocks if not inside.strip()] == []
