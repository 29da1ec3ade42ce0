"""The documentation is built as a site without a warning, and reads without a network."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precision_eval.core.records import Record
from tools import site

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_of_the_docs_is_there_and_so_is_what_the_code_fills(built):
    pages = {page.relative_to(built).as_posix() for page in built.rglob("*.html")}
    assert {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} < pages
    assert {"index.html", "CHANGELOG.html", "reference/python.html", "reference/commands.html"} < pages
    python = (built / "reference" / "python.html").read_text(encoding="utf-8")
    import precision_eval

    assert all(f"{name}" in python for name in precision_eval.__all__ if name[0].islower() and "_by_" not in name)
    commands = (built / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f"precision-eval {name}" in commands for name in ("run", "doctor", "gate", "choose"))
    assert "Exit codes: 0 done" in commands
    records = (built / "reference" / "records.html").read_text(encoding="utf-8")
    assert all(re.search(rf"\b{field.name}\b", records) for field in dataclasses.fields(Record))
    assert 'href="dashboard.html"' in (built / "index.html").read_text(encoding="utf-8")
    assert {"dashboard.html", "dashboard.csv", "dashboard.json"} < {path.name for path in built.iterdir()}


def test_nothing_is_fetched_from_elsewhere(built):
    for page in built.rglob("*.html"):
        fetched = re.findall(
            r"""<(?:script|link|img|iframe)[^>]+?(?:src|href)=["']?(https?:)?//""", page.read_text(encoding="utf-8")
        )
        assert fetched == [], page.name


def test_without_pictures_and_data_it_is_small(built):
    sizes = [path.stat().st_size for path in built.rglob("*") if path.is_file() and "results" not in path.parts]
    assert sum(sizes) < 5_000_000


def test_links_lead_to_the_same_file_on_the_site():
    text = "see [a](docs/dia.md#cost), [code](pyproject.toml) and ![b](results/cpu/figures/tradeoff-voice-cpu.png)"
    assert site.for_site(text, "README.md") == (
        "see [a](dia.md#cost), code and ![b](results/cpu/figures/tradeoff-voice-cpu.png)"
    )
    assert site.for_site("[a](../README.md#start) [b](dia.md)", "docs/limits.md") == "[a](index.md#start) [b](dia.md)"
    assert site.for_site("[a](../../docs/dia.md)", "results/proof/report.md") == "[a](../../dia.md)"
    assert site.for_site("[a](missing.md)", "docs/dia.md") == "[a](missing.md)"  # which the strict build refuses
