"""The page over torch versions: its numbers are the history's, it needs nothing else, and it opens quickly."""

import html
import itertools
import re
from html.parser import HTMLParser

import browser
import made_history as made
import pytest
from html_reading import inline_scripts
from tools.torch_versions.publish_offline import remote_urls

from precision_eval.history.html_report import write_html
from precision_eval.history.text import headline, positions_of

PART = {
    "cases": ("metavoice-decode", "voice"),
    "fixes": ("as_shipped", "query_to_half", "full_float32", "upstream"),
    "positions": ("2.6.0", "2.9.1", "2.10.0", "2.13.0", "2.14.0"),
}


class Tables(HTMLParser):
    """Reads tables back: {caption: {(fix, quantity): [text of a cell]}}."""

    def __init__(self, text):
        super().__init__()
        self.tables, self._row, self._tag, self._fix = {}, [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self._rows = {}
        elif tag == "tr":
            self._row = []
        elif tag == "td":
            self._row.append("")
        self._tag = tag

    def handle_endtag(self, tag):
        if tag == "tr" and self._row:
            self._fix = self._row[0] or self._fix
            self._rows[self._fix, self._row[1]] = self._row[2:]
        self._tag = ""

    def handle_data(self, data):
        if self._tag == "caption":
            self.tables[data] = self._rows
        elif self._tag == "td":
            self._row[-1] += data


@pytest.fixture(scope="module")
def history():
    return made.made_history(**PART)


@pytest.fixture(scope="module")
def page(history, tmp_path_factory):
    return write_html(history, tmp_path_factory.mktemp("page"))


def same_numbers(text, history):
    """Hold every table of a page to the history; return how many cells were compared."""
    tables, count = Tables(text).tables, 0
    for name, table in [(one.case, table) for one in history.cases for table in one.tables]:
        rows = tables[f"{name}, {table.mode}, {table.size}"]
        for fix, metric in itertools.product(table.fixes, ("latency_ratio", "drift")):
            values = [table.cells[fix, name].values.get(metric) for name in history.positions]
            shown = rows.get((fix, metric.partition("_")[0]), ["–"] * len(values))
            found = [None if text == "–" else float(text.split()[0]) for text in shown]
            assert found == [value if value is None else pytest.approx(value, rel=5e-3) for value in values]
            count += len(values)
        for fix in table.fixes:
            statuses = [table.cells[fix, name].status for name in history.positions]
            shown = rows.get((fix, "status"), ["–"] * len(statuses))
            assert shown == [{None: "–", "not_applicable": "n/a"}.get(status, status) for status in statuses]
    return count


def test_the_numbers_are_the_storys(page, history):
    assert same_numbers(page.read_text(encoding="utf-8"), history) == 2 * 2 * 2 * 4 * 5


def test_a_wrong_number_would_be_noticed(page, history):
    text = page.read_text(encoding="utf-8")
    value = re.search(r">(0\.8\d+) ±", text).group(1)
    with pytest.raises(AssertionError):
        same_numbers(text.replace(f">{value} ±", ">0.9 ±", 1), history)


def test_it_is_one_file_that_loads_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert remote_urls(text) == []
    sources = re.findall(r'<(?:img|script|link)[^>]*(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert text.count("<img") == 2 + 2 * 2  # statuses by mode; drift and latency by case
    allowed, needed = inline_scripts(text)
    assert allowed == needed
    assert len(needed) == 1


def test_the_answer_comes_first_and_names_upstreams_change(page, history):
    text = page.read_text(encoding="utf-8")
    answer = text[text.index('id="answer"') : text.index('id="statuses"')]
    assert html.escape(headline(history)) in answer
    assert html.escape(made.MADE_UP.text) in answer  # escaped: its text holds a tag and an ampersand
    assert "<b>its own</b>" not in text
    assert 'href="https://example.org/pull/2"' in answer
    assert answer.index('id="at-2.10.0"') < answer.index('id="at-2.13.0"')
    assert "raised → passed" in answer
    assert "No change upstream is known for this" in answer


class TestAnswer:
    def test_changes_of_a_kind_become_one_line(self, history):
        first, second = positions_of(history)
        assert (first.name, first.since, first.count) == ("2.10.0", "2.9.1", 2)
        ((upstream, groups),) = first.explained
        assert upstream is made.MADE_UP
        (group,) = groups
        assert group.what == "query_to_half: latency ÷ full_float32"
        assert group.change == "×0.0296"
        assert group.where == "metavoice-decode and voice; eager"
        (status,) = second.unexplained
        assert (status.what, status.change) == ("as_shipped: status", "raised → passed")
        assert len(status.changes) == second.count == 4


@pytest.mark.browser
@pytest.mark.skipif(browser.find_chromium() is None, reason=browser.NO_BROWSER)
class TestInABrowser:
    @pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_it_opens_without_a_word_on_the_console(self, page, history, dark):
        visit = browser.visit(page.as_uri(), dark=dark, virtual_ms=1000)
        assert visit.console == ()
        assert visit.asked == ()
        assert same_numbers(visit.dom, history) == 160

    @pytest.mark.slow
    def test_dark_is_dark(self, page, tmp_path):
        from PIL import Image

        for dark, wanted in ((False, (255, 255, 255)), (True, (20, 20, 23))):
            browser.visit(page.as_uri(), dark=dark, screenshot=tmp_path / f"{dark}.png")
            with Image.open(tmp_path / f"{dark}.png") as image:
                assert image.convert("RGB").getpixel((3, 300)) == wanted
