"""The dashboard: every stored result once, complete without its script, picked and sorted with it."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from precision_eval.results.machines import merged
from tests.support.browser import NO_BROWSER, find_chromium, visit
from tools.dashboard import dashboard, runs_in

RESULTS = Path(__file__).resolve().parents[1] / "results"
PICK = """
<script>
const one = (name) => [...document.querySelectorAll("select")].find((select) => select.dataset.column === name);
const shown = () => [...document.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
const drifts = () => shown().map((row) => row.cells[10].textContent);
one("fix").value = "bfloat16";
one("fix").dispatchEvent(new Event("change"));
const fixes = new Set(shown().map((row) => row.cells[6].textContent.replace("≈ ", "")));
document.querySelectorAll("th button")[10].click();
const rising = drifts();
document.querySelectorAll("th button")[10].click();
const count = document.getElementById("count").textContent;
const hidden = heads.filter((head) => head.hidden).map((head) => head.textContent);
document.title = JSON.stringify([[...fixes], rising, drifts(), location.hash, count, hidden]);
</script>
"""


@pytest.fixture(scope="module")
def written():
    return dashboard(RESULTS)


def test_page_csv_and_json_hold_the_same_fixes_of_every_machine(written):
    data = json.loads(written["dashboard.json"])
    lines = list(csv.DictReader(io.StringIO(written["dashboard.csv"])))
    assert len(data) == len(lines) == written["dashboard.html"].count("<tr") - 1
    expected = [
        (machine.facts["hardware"], group.case, row.fix, row.drift and row.drift.value)
        for machine in merged(runs_in(RESULTS)).machines
        for group in machine.groups
        if not group.fault
        for row in group.fixes
    ]
    found = [(row["hardware"], row["case"], row["fix"], row["drift"]) for row in data]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert [line["time_ratio"] for line in lines] == [str(row["time_ratio"] or "") for row in data]


def test_it_is_light_and_runs_one_script_that_its_policy_names(written):
    page = written["dashboard.html"]
    assert sum(len(text.encode()) for text in written.values()) < 2_000_000
    assert page.count("<script") == 1
    assert re.search(r"script-src 'sha256-[\w+/=]+'", page)
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason=NO_BROWSER)
def test_rows_are_picked_and_sorted_with_what_has_no_figure_last(written, tmp_path):
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", written["dashboard.html"])  # for PICK
    (tmp_path / "page.html").write_text(page.replace("</body>", f"{PICK}</body>"), encoding="utf-8")
    seen = visit((tmp_path / "page.html").as_uri())
    fixes, rising, falling, address, count, hidden = json.loads(re.search(r"<title>(.*?)</title>", seen.dom)[1])
    assert (fixes, address, hidden) == (["bfloat16"], "#fix=bfloat16", ["fix"])
    assert count.startswith(f"{len(rising)} of ")
    numbers = [[float(text) for text in column if text != "–"] for column in (rising, falling)]
    assert numbers[0] == sorted(numbers[0]) == numbers[1][::-1] != []
    assert all(set(column[len(numbers[0]) :]) <= {"–"} for column in (rising, falling))
    unchanged = tmp_path / "unchanged.html"
    unchanged.write_text(written["dashboard.html"], encoding="utf-8")
    visited = visit(f"{unchanged.as_uri()}#mode=compiled")
    assert visited.console == ()
    assert re.search(r"\d+ of \d+ rows", visited.dom)
