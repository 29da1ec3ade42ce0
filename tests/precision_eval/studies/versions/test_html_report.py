"""The page over torch versions: its numbers are the history's, it needs nothing else, and it opens quickly."""

import html
import re
from html.parser import HTMLParser

import browser
import made_history as made
import pytest

from precision_eval.results.asv import read_results
from precision_eval.studies.versions.history import history_of
from precision_eval.studies.versions.html_report import write_html
from precision_eval.studies.versions.text import headline, positions_of
from tools.torch_versions.publish_offline import remote_tags

PART = {
    "cases": ("metavoice-decode", "voice"),
    "fixes": ("as_shipped", "query_to_half", "full_float32", "upstream"),
    "positions": ("2.6.0", "2.9.1", "2.10.0", "2.13.0", "2.14.0"),
}


class Tables(HTMLParser):
    """Reads the tables of figures back: {table: {fix: [cell]}}, a cell a number or a text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.ids, self._cells, self._head, self._tag = {}, [], None, "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "table":
            self._rows = self.tables.setdefault(attrs.get("data-table", ""), {})
        elif tag == "tr":
            self._cells, self._head = [], ""
        elif tag == "td":
            self._cells.append(float(attrs["data-v"]) if "data-v" in attrs else "")
        self._tag = tag

    def handle_endtag(self, tag):
        if tag == "tr" and self._cells:
            self._rows[self._head] = self._cells
        self._tag = ""

    def handle_data(self, data):
        if self._tag == "th" and not self._cells:
            self._head += data
        elif self._tag == "td" and self._cells[-1] == "":
            self._cells[-1] = data


@pytest.fixture(scope="module")
def history():
    return made.made_history(**PART)


@pytest.fixture(scope="module")
def page(history, tmp_path_factory):
    return write_html(history, tmp_path_factory.mktemp("page"))


def expected(history, read):
    """{(case, mode, size): {fix: [number, letter or ""]}} from the history itself."""
    letters = {"raised": "R", "non_finite": "N", "not_applicable": "–", None: ""}
    return {
        (one.case, table.mode, table.size): {
            fix: [read(table.cells[fix, name]) or letters[table.cells[fix, name].status] for name in history.positions]
            for fix in table.fixes
        }
        for one in history.cases
        for table in one.tables
    }


def same_numbers(text, history):
    """Hold every table of a page to the history; return how many cells were compared."""
    tables, count = Tables(text).tables, 0
    readers = {name: lambda c, name=name: c.values.get(name) for name in ("latency_ratio", "drift", "peak_bytes")}
    for metric, read in readers.items():
        for place, rows in expected(history, read).items():
            shown = tables["|".join((*place, metric))]
            assert list(shown) == list(rows)
            for fix, cells in rows.items():
                assert shown[fix] == [pytest.approx(v, rel=1e-8) if isinstance(v, float) else v for v in cells]
                count += len(cells)
    return count


def test_the_numbers_are_the_storys(page, history):
    assert same_numbers(page.read_text(encoding="utf-8"), history) == 3 * 2 * 2 * 4 * 5


def test_a_wrong_number_would_be_noticed(page, history):
    text = page.read_text(encoding="utf-8")
    value = re.search(r'data-v="(0\.8\d+)"', text).group(1)
    with pytest.raises(AssertionError):
        same_numbers(text.replace(f'data-v="{value}"', 'data-v="0.9"', 1), history)


def test_it_is_one_file_that_loads_nothing(page):
    text = page.read_text(encoding="utf-8")
    assert remote_tags(text) == ()
    sources = re.findall(r'<(?:img|script|link)[^>]*(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert text.count("<img") == 2 + 2 * 2  # statuses by mode; drift and latency by case


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


def test_cells_are_framed_where_something_changed(page, history):
    text = page.read_text(encoding="utf-8")
    ratio, drift = (
        text.partition(f'data-table="voice|eager|tiny|{metric}"')[2].partition("</table>")[0]
        for metric in ("latency_ratio", "drift")
    )
    assert len(re.findall(r'class="[^"]* changed"', ratio)) == 2  # query_to_half at 2.10, as_shipped passes at 2.13
    assert len(re.findall(r'class="[^"]* changed"', drift)) == 1


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


def test_a_story_told_from_result_files(tmp_path):
    """From asv's files to the page: the change that was put into them stands in its answer."""
    import made_versions as files

    name = "eager.metavoice_decode.track_{}"
    runs = [
        files.Run(
            torch=version,
            values={
                name.format("drift"): {("kv_to_query", "tiny"): drift, ("as_shipped", "tiny"): files.NOT_APPLICABLE},
                name.format("status"): {("kv_to_query", "tiny"): 1.0, ("as_shipped", "tiny"): 2.0},
            },
        )
        for version, drift in (("2.8.0", 8e-6), ("2.9.0", 8e-6), ("2.10.0", 1e-6))
    ]
    (tmp_path / "results").mkdir()
    history = history_of(read_results(files.write_runs(tmp_path / "results", runs)))
    text = write_html(history, tmp_path / "page").read_text(encoding="utf-8")
    assert "0 statuses turned over and 1 metric changed, at 1 of 2 steps" in text
    assert "8.00e-6 → 1.00e-6, ×0.125" in text
    tables = Tables(text).tables
    assert tables["metavoice-decode|eager|tiny|drift"] == {"as_shipped": ["R"] * 3, "kv_to_query": [8e-6, 8e-6, 1e-6]}
    assert remote_tags(text) == ()


@pytest.mark.browser
@pytest.mark.skipif(browser.find_chromium() is None, reason=browser.NO_BROWSER)
class TestInABrowser:
    @pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_it_opens_without_a_word_on_the_console(self, page, history, dark):
        visit = browser.visit(page.as_uri(), dark=dark, virtual_ms=1000)
        assert visit.console == ()
        assert visit.asked == ()
        assert same_numbers(visit.dom, history) == 240

    @pytest.mark.slow
    def test_dark_is_dark(self, page, tmp_path):
        from PIL import Image

        for dark, wanted in ((False, (255, 255, 255)), (True, (20, 20, 23))):
            browser.visit(page.as_uri(), dark=dark, screenshot=tmp_path / f"{dark}.png")
            with Image.open(tmp_path / f"{dark}.png") as image:
                assert image.convert("RGB").getpixel((3, 300)) == wanted
