import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Annotation, Text
from rich.console import Console

from precision_eval.core.files import PARTIAL
from precision_eval.fixes.catalog import ALL_FIXES, FIXES
from precision_eval.report.drawing import label_line_ends, new_figure, save, spread
from precision_eval.report.figures.bars import draw_memory
from precision_eval.report.figures.over_time import draw_drift, running_median
from precision_eval.report.figures.tradeoff import draw_tradeoff
from precision_eval.report.writer import write_report
from precision_eval.results.choose.comparing import value_front
from precision_eval.results.reading import load_run

FIGURES = {
    "tradeoff-attention-decode-metavoice-eager-cpu",
    "tradeoff-voice-default-eager-cpu",
    "memory-attention-decode-metavoice-eager-cpu",
    "memory-voice-default-eager-cpu",
    "drift-voice-default-eager-cpu",
    "survival-voice-default-eager-cpu",
}


@pytest.fixture
def console():
    return Console(width=120, file=io.StringIO())


def test_a_run_gives_every_file(synthetic, tmp_path, console):
    run = synthetic(tmp_path, minutes=0.2)
    run.attention("attention-decode", "metavoice", "eager")
    run.voice()
    (tmp_path / f".report-killed.0{PARTIAL}").mkdir()
    files = write_report(run.write(), console=console)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(PARTIAL)] == []
    assert [path.name for path in files[:3]] == ["report.md", "results.csv", "report.html"]
    assert {path.stem for path in files if path.suffix == ".png"} == FIGURES
    assert {path.stem for path in files if path.suffix == ".svg"} == FIGURES
    for path in files:
        if path.suffix == ".png":
            pixels = imread(path)
            assert min(pixels.shape[:2]) > 400
            assert np.ptp(pixels[..., :3]) > 0.5
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert all(f"(figures/{stem}.png)" in report for stem in FIGURES)
    assert "How to read this" in console.file.getvalue()


def test_dollars_of_a_name_are_no_formula_and_powers_are(tmp_path):
    figure = new_figure(3, 2)
    axes = figure.add_subplot()
    axes.set_yscale("log")
    axes.plot([1, 2], [1e-6, 1.0], label="$x_{$")
    axes.legend(title="$x_{$ \x1b[2J")
    svg = save(figure, tmp_path, "a/../$x_{$")[1].read_text(encoding="utf-8")
    assert svg.count("$x_{$") == 2
    assert "mathdefault" not in re.sub("<!--.*?-->", "", svg)


def test_the_same_records_give_the_same_bytes(synthetic, tmp_path, console):
    contents = []
    for folder in ("a", "b"):
        run = synthetic(tmp_path / folder)
        run.attention("attention-decode", "dia", "eager")
        files = write_report(run.write(), console=console)
        contents.append({path.name: path.read_bytes() for path in files if path.suffix in (".svg", ".csv")})
    assert contents[0] == contents[1]


def test_missing_measures_leave_figures_out(synthetic, tmp_path, console):
    run = synthetic(tmp_path)
    run.add("voice", "default", "eager", "as_shipped", "trace", status="raised", reason="no")
    run.add("voice", "default", "eager", "float16", "latency", run.latency(1.2, "float16"))
    files = write_report(run.write(), console=console)
    assert [path.name for path in files] == ["report.md", "results.csv", "report.html"]


@pytest.mark.parametrize("spacing", [0.001, 0.02, 0.5])
def test_labels_of_the_trade_off_do_not_cover_each_other(synthetic, tmp_path, spacing):
    run = synthetic(tmp_path)
    for i, fix in enumerate(fix.id for fix in FIXES):
        run.add("w", "s", "eager", fix, "latency", run.latency(1 + spacing * i, fix))
        run.add("w", "s", "eager", fix, "drift", {"relative_error": 1e-3 * (1 + spacing) ** i})
    loaded = load_run(run.write())
    figure = draw_tradeoff(loaded, loaded.sections[0])
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    labels = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    assert len(labels) == len(FIXES)
    boxes = [Text.get_window_extent(label, renderer) for label in labels]  # without the leader line
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(("clock", "label"), [("cuda-graph-warm", "device time ratio"), ("cuda-warm", "latency ratio")])
def test_the_axis_of_speed_names_the_clock(synthetic, tmp_path, clock, label):
    run = synthetic(tmp_path)
    run.add("w", "s", "eager", "float16", "latency", run.latency(0.8, "float16") | {"clock": clock})
    run.add("w", "s", "eager", "float16", "drift", {"relative_error": 1e-3})
    loaded = load_run(run.write())
    assert draw_tradeoff(loaded, loaded.sections[0]).axes[0].get_xlabel().startswith(f"{label} to full_float32")


def test_error_bars_are_the_recorded_intervals(synthetic, tmp_path):
    run = synthetic(tmp_path)
    data = run.latency(0.8, "float16") | {"ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.95}
    run.add("voice", "d", "eager", "float16", "latency", data)
    drift = run.voice_drift(1e-3)
    run.add("voice", "d", "eager", "float16", "teacher_forced_drift", drift)
    loaded = load_run(run.write())
    axes = draw_tradeoff(loaded, loaded.sections[0]).axes[0]
    (container,) = axes.containers
    _, _, (horizontal, vertical) = container
    assert np.allclose(horizontal.get_segments()[0][:, 0], [0.7, 0.95])
    expected = [drift["relative_error_low"], drift["relative_error_high"]]
    assert np.allclose(vertical.get_segments()[0][:, 1], expected)


def test_memory_bars_are_storage_and_peak(synthetic, tmp_path):
    run = synthetic(tmp_path)
    memory = {"allocated_peak_bytes": 2 * 2**20, "storage_bytes": 6 * 2**20}
    run.add("w", "s", "eager", "float16", "memory", memory)
    loaded = load_run(run.write())
    axes = draw_memory(loaded, loaded.sections[0]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [6.0, 2.0]
    assert axes.get_xlabel() == "MiB"


def test_drift_keeps_every_recorded_step(full_run):
    run = load_run(full_run)
    section = next(s for s in run.sections if s.case == "voice" and s.mode == "eager")
    axes = draw_drift(run, section).axes[0]
    row = next(row for row in section.rows if row.fix == "float16")
    steps = row.errors.series.relative_error
    assert any(np.array_equal(line.get_ydata(), steps) for line in axes.lines)
    assert axes.get_yscale() == "log"


def test_running_median_by_hand():
    assert running_median(np.array([1.0, 9.0, 2.0, 3.0]), window=3).tolist() == [5.0, 2.0, 3.0, 2.5]
    assert running_median(np.array([4.0, 1.0]), window=1).tolist() == [4.0, 1.0]


def test_spread_moves_only_what_collides():
    assert spread([10.0, 50.0], step=5.0, low=0.0, high=100.0) == [10.0, 50.0]
    assert spread([10.0, 11.0, 12.0], step=5.0, low=0.0, high=100.0) == [10.0, 15.0, 20.0]
    assert spread([99.0, 98.0], step=5.0, low=0.0, high=100.0) == [100.0, 95.0]


def test_leaders_end_at_their_own_label_and_cross_no_other():
    figure = new_figure(8, 4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    figure.draw_without_rendering()
    label_line_ends(
        axes, [(0.0, f"condition {i}, 64 of 64 diverged", "#000000") for i in range(6)] + [(0.8, "x", "#f00")]
    )
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    labels = list(axes.texts)
    boxes = [Text.get_window_extent(label, renderer) for label in labels]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    for label, box in zip(labels, boxes, strict=True):
        ends = label.arrow_patch.get_transform().transform_path(label.arrow_patch.get_path()).vertices
        assert ends[:, 0].max() <= box.x0
        assert box.y0 < ends[ends[:, 0].argmax(), 1] < box.y1
        assert ends[:, 0].min() >= axes.get_window_extent(renderer).x1 - 0.5


def crowded(synthetic, tmp_path):
    """Return the records of every fix of the catalog; each later one of a group is slower and farther off."""
    run = synthetic(tmp_path)
    for i, fix in enumerate(fix.id for fix in ALL_FIXES):
        run.add("w", "s", "eager", fix, "latency", run.latency(1 + 0.02 * i, fix))
        run.add("w", "s", "eager", fix, "drift", {"relative_error": 1e-4 * 1.1 ** (30 - i if i < 9 else i)})
    return load_run(run.write())


def test_among_many_fixes_those_on_the_front_are_named(synthetic, tmp_path):
    loaded = crowded(synthetic, tmp_path)
    axes = draw_tradeoff(loaded, loaded.sections[0]).axes[0]
    labels = {text.get_text() for text in axes.texts if isinstance(text, Annotation)}
    assert labels == {row.fix for row in value_front(loaded.sections[0])}
