"""The documentation is built as a site without a warning, and reads without a network."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from audio_metrics.catalog import METRICS
from precision_eval.cases.systems import all_cases
from precision_eval.core.records import Record
from precision_eval.fixes.catalog import ALL_FIXES
from precision_eval.measure.registry import MEASURES
from tools import site
from tools.site_results import TRIALS
from validation.frame import Figure
from validation.plots import draw_found, shares_in

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
    audio = (built / "reference" / "audio.html").read_text(encoding="utf-8")
    assert all(metric.name in audio for metric in METRICS)
    registries = (built / "reference" / "registries.html").read_text(encoding="utf-8")
    names = [
        *(fix.id for fix in ALL_FIXES),
        *(case.id for case in all_cases()),
        *(measure.name for measure in MEASURES),
    ]
    assert all(f"<code>{name}</code>" in registries for name in names)
    assert 'href="dashboard.html"' in (built / "index.html").read_text(encoding="utf-8")
    assert {"dashboard.html", "dashboard.csv", "dashboard.json"} < {path.name for path in built.iterdir()}


def test_every_trial_and_every_study_has_its_plot(built):
    evidence, studies = ((built / f"{name}.html").read_text(encoding="utf-8") for name in ("evidence", "studies"))
    titles = re.findall(r"<h2[^>]*>([^<]+)", evidence)
    assert len(titles) > len(TRIALS)
    assert {title for title, _, _ in TRIALS} < set(titles)
    shown = re.findall(r'<img[^>]+src="([^"]+)"', evidence + studies)
    assert all((built / place).is_file() for place in shown)
    assert len(shown) > 25
    for name in (
        "latency",
        "divergence-survival",
        "overhead",
        "lengths",
        "sound-changes",
        "machine-4",
        "versions-drift",
    ):
        assert any(name in place for place in shown), name


def test_a_chart_of_shares_shows_what_was_found():
    assert shares_in("72.5 % [61.9, 81.1], 58 of 80") == pytest.approx((0.725, 0.619, 0.811))
    share, low, high = shares_in("exact in 1,353 of 1,353, largest 0 B")
    assert (share, low, high) == pytest.approx((1.0, 1353 / (1353 + 1.959964**2), 1.0))  # Wilson, by hand
    assert shares_in("mean 1.36 s") is None
    assert shares_in("5 of 3") is None
    figures = [Figure("one", "50.0 % [20.0, 80.0], 5 of 10", "≥ 90 %", False, {"asv": "0 of 10"}), Figure("two", "3 s")]
    (axes,) = draw_found(figures).axes
    assert [list(line.get_xdata()) for line in axes.lines[1:]] == [[0.2, 0.8], [0.5]]
    assert list(axes.lines[0].get_xdata()) == [0.0]
    assert draw_found(figures[1:]) is None


def test_the_page_of_errors_names_its_search_without_a_script(built):
    page = (built / "404.html").read_text(encoding="utf-8")
    assert re.search(r'<input[^>]+id="__search" aria-label="Search"', page)
    assert re.search(r'<div class="md-search" aria-label="Search"', page)


def test_nothing_is_fetched_from_elsewhere(built):
    for page in built.rglob("*.html"):
        fetched = re.findall(
            r"""<(?:script|link|img|iframe)[^>]+?(?:src|href)=["']?(https?:)?//""", page.read_text(encoding="utf-8")
        )
        assert fetched == [], page.name


def test_without_stored_pictures_it_is_small(built):
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
