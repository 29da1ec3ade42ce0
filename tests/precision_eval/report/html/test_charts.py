"""Colours and marks on both papers, charts made from matplotlib's SVG, and numbers that name their origin."""

import re
from pathlib import Path

import html_reading as reading
import pytest
from markupsafe import Markup

from precision_eval.core.records import Record
from precision_eval.report import html
from precision_eval.report.drawing import FIX_STYLES, new_figure
from precision_eval.report.facts import Figure, pointer
from precision_eval.report.html.charts import series_at
from precision_eval.report.html.paper import (
    DARK,
    LIGHT,
    MARK_CONTRAST,
    TEXT_CONTRAST,
    contrast,
    palette_of,
    rules_of,
    svg_of,
    variables_in,
)

FIXES = tuple(FIX_STYLES)


@pytest.fixture(scope="module")
def chart():
    axes = new_figure(4.0, 3.0).subplots()
    axes.set(xlim=(0.0, 10.0), ylim=(1e-3, 1.0), yscale="log")
    axes.scatter([2.5], [1e-1], color="#0072B2", gid="mark kv_to_query")
    axes.plot([1.0, 2.0], [0.1, 0.2], color="#777777", gid="of kv_to_query")
    axes.text(4.0, 0.01, "12 <b>", color="#0072B2", gid="text kv_to_query")
    return svg_of(
        axes.figure,
        key="one",
        description="what it shows",
        kind="points",
        tips={"kv_to_query": "tip-1"},
        texts={"kv_to_query": Markup('<tspan data-v="12.0">12</tspan> &lt;b&gt;')},
    )


class TestEmbedding:
    def test_a_mark_is_named_and_lies_where_its_values_are(self, chart):
        root = reading.read(str(chart)).children[0]
        assert (root.attrs["id"], root.attrs["aria-label"], root.attrs["tabindex"]) == ("one", "what it shows", "0")
        (mark,) = root.of_class("mark")
        assert (mark.attrs["data-tip"], mark.attrs["data-fix"]) == ("tip-1", "kv_to_query")
        x, y = reading.place_of(mark)
        assert reading.scale_of(root.attrs["data-sx"])(2.5) == pytest.approx(x, abs=0.01)
        assert reading.scale_of(root.attrs["data-sy"])(1e-1) == pytest.approx(y, abs=0.01)
        assert len(root.having("data-fix", "kv_to_query")) == 3
        assert reading.ticks(root) > 4

    def test_words_are_replaced_and_nothing_leaks_into_the_report(self, chart):
        assert '<tspan data-v="12.0">12</tspan> &lt;b&gt;' in chart
        ids = re.findall(r'<g [^>]*id="', chart)
        assert ids == []
        assert "<style" not in chart
        assert not re.search(r"#[0-9a-fA-F]{6}", re.sub(r'(href="|url\()#\w+', "", chart))


class TestPaper:
    def test_contrast_by_hand(self):
        assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
        assert contrast("#777777", "#777777") == 1.0
        assert contrast("#ffffff", "#767676") == pytest.approx(4.54, abs=0.005)  # WCAG's well-known grey

    def test_every_fix_is_seen_on_both_papers(self):
        light, dark = palette_of(FIXES).style.split("@media")
        panels = re.findall(r"--panel: (#\w{6})", (Path(html.__file__).parent / "page_base.css").read_text())
        for rules, back, panel in zip((light, dark), (LIGHT, DARK), panels, strict=True):
            found = re.findall(r"\.f\d+\{--c:(#\w{6});--t:(#\w{6})\}", rules)
            assert len(found) == len(FIXES)
            assert min(contrast(mark, back) for mark, _ in found) >= MARK_CONTRAST
            assert min(contrast(name, back) for _, name in found) >= TEXT_CONTRAST
            assert min(contrast(name, panel) for _, name in found) >= 4.5  # WCAG's of small text

    def test_colours_of_charts_are_seen_on_both_papers(self):
        names = [f"--{kind}-{style.colour[1:].lower()}" for style in FIX_STYLES.values() for kind in "mt"]
        light, dark = rules_of([*names, "--m-ffffff", "--t-222222"]).split("@media")
        for rules, paper, plain in ((light, LIGHT, "#ffffff"), (dark, DARK, DARK)):
            found = dict(re.findall(r"(--[mt]-\w{6}):(#\w{6});", rules))
            assert found["--m-ffffff"] == plain
            assert contrast(found["--t-222222"], paper) >= 7
            hued = [name for name in names if name[-6:] not in ("000000", "8c8c8c", "9a9a9a")]
            least = {"m": MARK_CONTRAST, "t": TEXT_CONTRAST}
            assert all(contrast(found[name], paper) >= least[name[2]] for name in hued)
        assert variables_in("fill: var(--m-0072b2)") == ["--m-0072b2"]


class TestFigures:
    def test_pointer_by_hand(self):
        assert pointer("data", "ulp_quantiles", "0.5") == "/data/ulp_quantiles/0.5"
        assert pointer("a/b", "c~d", 3) == "/a~1b/c~0d/3"  # RFC 6901, section 3

    def test_origins_are_escaped(self):
        found = Figure(value=0.1 + 0.2, text="<0.3>", records=('a"b',), paths=("/data/x",))
        assert found.__html__() == (
            '<span data-v="0.30000000000000004" data-record="a&#34;b" data-path="/data/x">&lt;0.3&gt;</span>'
        )

    def test_a_series_keeps_the_places_of_its_values(self):
        record = Record(
            cell="w/f/eager@cpu:s#audio", case="w", case_digest="d", fix="f", role="fix", mode="eager",
            device="cpu", size="s", threads=1, measure="audio", status="passed", reason=None, wall_s=1.0,
            started_at="2026-01-01T00:00:00+00:00", environment="e",
            data={"a": {"series": {"time_s": [0, 1, 2, 3], "value": [1.0, None, 3.0, 4.0]}}},
        )  # fmt: skip
        found = series_at(record, "a", "series", value="value")
        assert found["i"] == [0, 2, 3]
        assert found["path"] == "/data/a/series/value"
        assert found["v"] == [1.0, 3.0, 4.0]
        assert series_at(record, "b", "series", value="value") is None
        assert series_at(None, "a", value="value") is None
