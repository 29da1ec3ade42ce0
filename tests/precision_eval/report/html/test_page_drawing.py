"""Scales, ticks, labels, shapes and colours of the page's charts."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.transforms import Bbox

from precision_eval.core.drawing import _LOOKS
from precision_eval.core.records import Record
from precision_eval.report.html.figures import Figure, combined, pointer
from precision_eval.report.html.lines import series_at
from precision_eval.report.html.looks import DARK, LIGHT, MARK_CONTRAST, TEXT_CONTRAST, contrast, marker, palette_of
from precision_eval.report.html.svg import (
    LINE_PX,
    Frame,
    Scale,
    axes,
    end_labels,
    labelled,
    padded,
    path_of,
    text_width,
)

FIXES = tuple(_LOOKS)


class TestScale:
    def test_by_hand(self):
        even = Scale(low=0.0, high=10.0, start=100.0, end=200.0)
        assert even(2.5) == 125.0
        decades = Scale(low=1e-4, high=1.0, start=300.0, end=100.0, log=True)
        assert decades(1e-2) == pytest.approx(200.0)
        assert decades.text == "log 0.0001 1.0 300.0 100.0"

    @pytest.mark.parametrize("log", [False, True])
    def test_ends_are_ends(self, log):
        scale = Scale(low=0.3, high=70.0, start=11.0, end=97.0, log=log)
        assert (scale(0.3), scale(70.0)) == (pytest.approx(11.0), pytest.approx(97.0))

    def test_ticks_by_hand(self):
        assert Scale(low=0.0, high=10.0, start=0, end=1).ticks == (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
        assert Scale(low=-0.05, high=0.06, start=0, end=1).ticks == (-0.05, -0.025, 0.0, 0.025, 0.05)
        assert Scale(low=2e-4, high=0.2, start=0, end=1, log=True).ticks == pytest.approx((1e-3, 1e-2, 1e-1))
        assert Scale(low=0.8, high=6.0, start=0, end=1, log=True).ticks == (1.0, 2.0, 5.0)
        assert Scale(low=1.02, high=1.04, start=0, end=1, log=True).ticks == (1.02, 1.025, 1.03, 1.035, 1.04)

    @pytest.mark.parametrize(("low", "high"), [(1e-13, 3e2), (0.5, 0.7), (3.0, 5000.0), (1e-7, 1.1e-7)])
    def test_ticks_lie_within_and_are_two_or_more(self, low, high):
        for log in (False, True):
            ticks = Scale(low=low, high=high, start=0, end=1, log=log).ticks
            assert 2 <= len(ticks) <= 9
            slack = 1e-8 * (low if log else high - low)
            assert all(low - slack <= tick <= high + 1e-8 * high for tick in ticks)

    def test_padded(self):
        assert padded(0.0, 10.0, share=0.1) == (-1.0, 11.0)
        assert padded(1.0, 1.0, share=0.1, least=0.4) == (0.8, 1.2)
        assert padded(1e-3, 1e-1, share=0.5, log=True) == pytest.approx((1e-4, 1.0))


def test_small_ticks_are_written_short():
    frame = Frame(width=400, height=300)
    text = axes(frame, frame.x(0.0, 0.01), frame.y(1e-7, 1e-2, log=True), x_title="x", y_title="y")
    ticks = re.findall(r'class="tick"[^>]*>([^<]*)<', text)
    assert "2e-3" in ticks or "0.002" in ticks
    assert {"1e-7", "1e-3"} <= set(ticks)


def boxes_of(text):
    names = re.findall(r'<text class="name[^"]*" x="([-\d.]+)" y="([-\d.]+)">([^<]*)<', text)
    return [(float(x), float(y) - LINE_PX + 4, float(x) + text_width(t), float(y) + 4) for x, y, t in names]


def overlap(first, second):
    return min(first[2], second[2]) > max(first[0], second[0]) and min(first[3], second[3]) > max(first[1], second[1])


def test_names_of_close_marks_keep_apart_and_inside():
    rng = np.random.default_rng(3)
    frame = Bbox([[60.0, 12.0], [414.0, 296.0]])
    for _ in range(20):
        middle = rng.uniform((150, 80), (330, 230))
        points = [
            (*(middle + rng.normal(scale=9, size=2)), name, "f0") for name in ("query_to_half", "float16", "autocast")
        ]
        marks = [(x - 8, y - 8, x + 8, y + 8) for x, y, _, _ in points]
        boxes = boxes_of(labelled(points, radii_px=[8.0] * 3, frame=frame))
        assert len(boxes) == 3
        pairs = [(a, b) for i, a in enumerate(boxes) for b in (*boxes[i + 1 :], *marks)]
        assert not any(overlap(a, b) for a, b in pairs)
        assert all(box[0] >= 60 and box[2] <= 414 and box[1] >= 12 and box[3] <= 296 for box in boxes)


def test_names_at_ends_of_lines_keep_apart_and_in_order():
    frame = Frame(width=600, height=300, right=150)
    ends = [(100.0, "a", "f0"), (101.0, "b", "f1"), (99.0, "c", "f2"), (290.0, "d", "f3")]
    text = end_labels(ends, x=frame.x(0, 1), y=frame.y(0, 1))
    heights = {t: float(y) for y, t in re.findall(r'y="([\d.]+)">(\w)<', text)}
    assert heights["c"] < heights["a"] < heights["b"] < heights["d"]
    placed = sorted(heights.values())
    assert min(np.diff(placed)) >= LINE_PX - 0.11
    assert placed[-1] <= 300 - 44 + 4


def test_a_pen_is_lifted():
    assert path_of([(0, 0), (1, 2), None, (3, 4), (5, 6)]) == "M0.0 0.0L1.0 2.0M3.0 4.0L5.0 6.0"


class TestLooks:
    def test_contrast_by_hand(self):
        assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
        assert contrast("#777777", "#777777") == 1.0
        assert contrast("#ffffff", "#767676") == pytest.approx(4.54, abs=0.005)  # WCAG's well-known grey

    def test_every_fix_is_seen_on_both_papers(self):
        light, dark = palette_of(FIXES).style.split("@media")
        for rules, paper in ((light, LIGHT), (dark, DARK)):
            found = re.findall(r"\.f\d+\{--c:(#\w{6});--t:(#\w{6})\}", rules)
            assert len(found) == len(FIXES)
            assert min(contrast(mark, paper) for mark, _ in found) >= MARK_CONTRAST
            assert min(contrast(name, paper) for _, name in found) >= TEXT_CONTRAST

    def test_marks_differ_in_shape(self):
        """Controls share a colour and the dashes tell them apart; no two fixes share a shape."""
        shapes = [str(marker(name, 0.0, 0.0, 5.0)) for name in FIXES]
        assert len(set(shapes)) == len(shapes)
        assert all(math.isfinite(float(number)) for shape in shapes for number in re.findall(r"-?\d+\.\d+", shape))

    def test_an_unknown_fix_has_a_look(self):
        assert "polygon" in marker("of my own", 1.0, 2.0, 3.0)
        assert palette_of(("a", "b", "a")).names == ("a", "b")


class TestFigures:
    def test_pointer_by_hand(self):
        assert pointer("data", "ulp_quantiles", "0.5") == "/data/ulp_quantiles/0.5"
        assert pointer("a/b", "c~d", 3) == "/a~1b/c~0d/3"  # RFC 6901, section 3

    def test_origins_are_escaped(self):
        found = Figure(value=0.1 + 0.2, text="<0.3>", records=('a"b',), paths=("/data/x",))
        assert found.__html__() == (
            '<span data-v="0.30000000000000004" data-record="a&#34;b" data-path="/data/x">&lt;0.3&gt;</span>'
        )

    def test_sum_and_difference(self):
        one, two = (Figure(value=v, text="", records=(c,), paths=("/p",)) for v, c in ((5.0, "a"), (2.0, "b")))
        assert combined("sum", one, two, write=str).value == 7.0
        less = combined("difference", one, two, write=str)
        assert (less.value, less.text, less.records) == (3.0, "3.0", ("a", "b"))
        assert 'data-record="a b" data-path="/p /p" data-op="difference"' in less.attributes

    def test_a_series_keeps_the_places_of_its_values(self):
        record = Record(
            cell="w/f/eager@cpu:s#audio", case="w", case_digest="d", fix="f", role="fix", mode="eager",
            device="cpu", size="s", threads=1, measure="audio", status="passed", reason=None, wall_s=1.0,
            started_at="2026-01-01T00:00:00+00:00", environment="e",
            data={"a": {"series": {"time_s": [0, 1, 2, 3], "value": [1.0, None, 3.0, 4.0]}}},
        )  # fmt: skip
        found = series_at(record, "a", "series", value="value")
        assert found.index == (0, 2, 3)
        assert found.path == "/data/a/series/value"
        assert found.value.tolist() == [1.0, 3.0, 4.0]
        assert series_at(record, "b", "series", value="value") is None
        assert series_at(None, "a", value="value") is None


def test_importing_it_loads_neither_torch_nor_numpy():
    code = "import sys, precision_eval.report.html; print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
