"""Figures over torch versions: every cell, line, frame and ring is where the history has it."""

import made_history as made
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from precision_eval.history.plots import draw_drift, draw_latency, draw_statuses

PART = {"cases": ("metavoice-decode",), "fixes": ("as_shipped", "query_to_half", "dynamo_fallback", "float16")}


@pytest.fixture
def history():
    return made.made_history(**PART)


def texts(axes):
    """Text of each cell by (row, column)."""
    return {(round(text.get_position()[1]), round(text.get_position()[0])): text.get_text() for text in axes.texts}


def frames(axes):
    """(row, column) of each frame."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    return {(round(p.get_y() + p.get_height() / 2), round(p.get_x() + p.get_width() / 2)) for p in found}


def test_a_drift_cell_holds_its_number_or_the_letter_of_its_status(history):
    axes = draw_drift(history, history.cases[0]).axes
    eager, compiled = texts(axes[0]), texts(axes[1])
    assert [eager[0, column] for column in range(10)] == ["R"] * 7 + ["2.0e-7"] * 3
    assert [eager[2, column] for column in range(10)] == ["–"] * 10
    assert compiled[2, 0] == "2.0e-4"
    assert eager[3, 0] == "N"
    assert eager[3, 1] == "8.2e-4"


def test_a_status_cell_holds_its_letter_and_what_was_not_run_is_blank():
    history = made.made_history(cases=("dia-decode", "voice"), fixes=("upstream", "float16"))
    figure = draw_statuses(history, mode="eager")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["dia-decode, tiny", "voice, tiny"]
    found = texts(figure.axes[0])
    assert [found.get((0, column)) for column in range(10)] == ["P"] * 8 + [None, "P"]
    assert found[1, 0] == "N"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["P = passed", "N = not finite"]


def test_frames_and_rings_are_where_something_changed(history):
    assert frames(draw_statuses(history, mode="eager").axes[0]) == {(0, 7)}
    assert frames(draw_drift(history, history.cases[0]).axes[0]) == set()
    rings = [line for line in draw_latency(history, history.cases[0]).axes[0].lines if line.get_markersize() == 10]
    assert sum(line.get_xdata().size for line in rings) == 1
    assert [round(float(x)) for line in rings for x in line.get_xdata()] == [4]


def test_a_latency_line_is_the_storys_ratios_and_intervals(history):
    (case,) = history.cases
    figure = draw_latency(history, case)
    axes, table = figure.axes[0], case.tables[0]
    lines = [line for line in axes.lines if line.get_linestyle() == "-" and line.get_xdata().size == 10]
    drawn = {tuple(np.nan_to_num(line.get_ydata())) for line in lines}
    wanted = {
        tuple(table.cells[fix, name].ratio or 0.0 for name in history.positions)
        for fix in ("as_shipped", "query_to_half", "float16")
    }
    assert drawn == wanted
    parts = [part for bars in axes.collections for part in bars.get_segments() if len(part)]  # one per version
    cell = table.cells["query_to_half", "2.6.0"]
    assert any(tuple(part[:, 1]) == pytest.approx(cell.ratio_interval) for part in parts)
    names = [text.get_text() for text in axes.texts]
    assert sorted(names) == ["as_shipped", "float16", "query_to_half"]
