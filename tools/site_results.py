"""Two pages of the site that results fill: every trial of the instrument as a plot, and every study with its figures.

Figures are those of the report, of the sweeps and of the trials, drawn when the site is built, or as they are stored;
tables are the figures' own. Files are named by their place on the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from precision_eval.core.files import read_json
from precision_eval.core.table import make_table, to_markdown
from precision_eval.report.drawing import new_figure, save
from precision_eval.report.figures.bars import change_panel
from precision_eval.report.figures.tradeoff import draw_tradeoff
from precision_eval.results.machines import merged
from precision_eval.results.reading import load_run
from precision_eval.results.sound import SOUND_METRICS
from validation.frame import Figure, experiment_by_name
from validation.plots import draw_found
from validation.report import stored_content

HERE = "pictures"
_CASE = "attention-decode"

TRIALS: tuple[tuple[str, str, str], ...] = (
    ("Four kinds of call, one after another and beside other work", "kinds", "kinds/kinds.jsonl"),
    ("The doctor on planted faults", "doctor", "doctor.json"),
    ("The choice of a fix", "choose", "choose/choose.json"),
    ("The gate between two versions in one session", "paired-gate", "paired-gate/paired-gate.jsonl"),
    ("The gate on asv's results", "gate", "gate.json"),
    ("Change points over versions", "versions", "change-points.json"),
    ("The verdict on sound", "sound", "sound/sound.json"),
    ("The audio metrics", "audio", "audio-bench.json"),
    ("Beside figures that others published", "published", "published/published.json"),
    ("Claims of the suite", "claims", "claims.json"),
    ("Hostile files and random commands", "attack", "attack.json"),
    ("Faults at any time", "soak", "soak.json"),
    ("Four lanes beside one", "lanes", "lanes/lanes.json"),
)
"""Title, experiment, and the file that its trials are stored in."""


def result_pages(results: Path) -> dict[str, str | bytes]:
    """Return both pages and their pictures: {place: content}."""
    pictures: dict[str, bytes] = {}
    pages = {"evidence.md": _evidence(results, pictures), "studies.md": _studies(results, pictures)}
    return {**pages, **pictures}


def _picture(pictures: dict[str, bytes], figure: Any, stem: str, words: str) -> str:
    """Draw a figure and return the Markdown that shows it."""
    with TemporaryDirectory() as folder:
        (svg,) = save(figure, Path(folder), stem, as_png=False)
        pictures[f"{HERE}/{svg.name}"] = _lighter(svg.read_text(encoding="utf-8")).encode()
    return f"![{words}]({HERE}/{svg.name})"


def _lighter(svg: str) -> str:
    """Write a drawing in half the bytes: one font family, hundredths of a point, no indentation."""
    svg = re.sub(r"font-family: [^;\"]+", "font-family: sans-serif", svg)
    return re.sub(r"\s*\n\s*", " ", re.sub(r"(\d\.\d\d)\d+", r"\1", svg))


def _evidence(results: Path, pictures: dict[str, bytes]) -> str:
    parts = [_EVIDENCE]
    for number, (title, figures, stored) in enumerate(_trials(results)):
        parts.append(f"## {title}")
        drawn = draw_found([figure for figure in figures if figure.met is not None] or figures)
        if drawn is not None:
            parts.append(_picture(pictures, drawn, f"trial-{number:02d}", f"{title}: shares found, with intervals"))
        parts += [f"![{path.stem}](results/proof/{path.name})" for path in stored]
        parts.append(f"<details markdown><summary>{len(figures)} figures</summary>\n\n{_table(figures)}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def _trials(results: Path) -> Iterator[tuple[str, list[Figure], list[Path]]]:
    """Yield title, figures and stored plots of every trial that results hold."""
    for name, rows in read_json(results / "proof" / "figures.json").items():
        title = experiment_by_name(name).title
        plots = sorted((results / "proof").glob(f"{name}*.png"))
        yield f"{title[0].upper()}{title[1:]}", [Figure(**row) for row in rows], plots
    for title, name, file in TRIALS:
        yield title, experiment_by_name(name).figures(stored_content(name, results / file)), []


def _table(figures: Iterable[Figure]) -> str:
    met = {True: "yes", False: "**no**", None: ""}
    rows = [(figure.name, figure.target, figure.found, met[figure.met]) for figure in figures]
    return to_markdown(make_table(("figure", "target", "found", "met"), rows))


def _studies(results: Path, pictures: dict[str, bytes]) -> str:
    blocks = {
        "hardware": _hardware(results / "machines", pictures),
        "versions": _versions(results / "torch-versions", pictures),
        "sound": _sound(results / "cpu", pictures),
    }
    return _STUDIES.format(**{name: "\n\n".join(lines) for name, lines in blocks.items()})


def _hardware(folder: Path, pictures: dict[str, bytes]) -> Iterator[str]:
    """The trade-off at decode on each machine."""
    for number, machine in enumerate(merged(sorted(path for path in folder.iterdir() if path.is_dir())).machines):
        groups = [group for group in machine.groups if (group.case, group.mode) == (_CASE, "eager")]
        figure = draw_tradeoff(_CASE, machine.name, groups)
        yield _picture(pictures, figure, f"machine-{number}", f"{_CASE} on {machine.name}: drift against speed")


def _versions(folder: Path, pictures: dict[str, bytes]) -> Iterator[str]:
    """Drift and latency of one case over torch versions."""
    from precision_eval.history.plots import drawings
    from precision_eval.history.versions import history_of
    from precision_eval.results.asv import read_results

    for stem, case, figure in drawings(history_of(read_results(folder), cases=(_CASE,))):
        if case:  # of all cases together: the statuses, which the results have as a table
            yield _picture(pictures, figure, f"versions-{stem}", f"{stem.replace('-', ' of ', 1)}, by torch version")


def _sound(folder: Path, pictures: dict[str, bytes]) -> Iterator[str]:
    """How far each metric of sound is from the reference's, with noise floor and controls."""
    run = load_run(folder)
    group = next(group for group in run.sections if group.case == "voice" and group.mode == "eager")
    rows = [row for row in (*run.comparators(group, "sound"), *group.curing) if row.sound and row.sound.metrics]
    known: Mapping[str, Any] = rows[0].sound.metrics if rows[0].sound else {}
    metrics = [metric for metric in SOUND_METRICS if metric.name in known and not metric.only_against]
    figure = new_figure(9.5, 0.9 + 0.3 * len(rows) * ((len(metrics) + 1) // 2))
    grid = figure.subplots((len(metrics) + 1) // 2, 2, squeeze=False).flatten()
    for axes, metric in zip(grid, metrics, strict=False):
        change_panel(axes, replace(metric, margin=known[metric.name].margin), rows)
    for axes in grid[len(metrics) :]:
        axes.set_axis_off()
    yield _picture(pictures, figure, "sound-changes", "change of each metric of sound from the reference, by fix")


_EVIDENCE = """# Evidence: every trial

A *trial* tries the instrument on something whose truth is known: two equal calls, a call made slower by a known
amount, a planted fault. Each chart shows the shares that such trials found: a filled dot is precision-eval,
hollow marks are other tools on the same trials, bars are 95 % intervals. Green met its target, orange missed
it; where no figure has a target, all are grey. Below each chart stand all figures, also those without a target
and those that are no shares. What they mean, and on which machines they were found:
[how far the measuring can be trusted](validation.md) and [limits](limits.md). `make validation` makes them again.
"""

_STUDIES = """# Studies

What the fixes cost under other hardware, lengths and torch versions, which layers lose the digits, and what is
heard. Each figure is of one machine, named beside it; every number lies in the [dashboard](dashboard.html) too.

## By hardware

The same fixes on the same tensors. A ratio is to that machine's own float32, left is faster: which fix is
fastest turns over from processor to processor. More: [several machines](fleet.md), [all
ratios](results/machines/machines.md).

{hardware}

## By length

Casting the query or casting the cache: where one overtakes the other, as the cache grows.

![time of two casts by length of the cache](results/sweep/lengths.png)

Drift and bytes of caches in 8 bits, at up to 131,072 positions.

![drift of 8-bit caches by length](results/lengths/lengths.png)

More: [results](results.md).

## By torch version

What a release of torch changed: which fix cures, its drift, its time.

{versions}

## By layer

Drift that each part of the model adds where it alone is stored in half precision.

![drift that each part of the voice adds alone, float16](results/sensitivity/figures/voice-float16.png)

![drift that each part of Dia's decoder adds alone, bfloat16](results/sensitivity/figures/dia-decoder-bfloat16.png)

More: [sensitivity](sensitivity.md).

## What is heard

The voice in short streams: how far each metric moves from the float32 reference. Up to the dashed line counts
as no worse; the noise floor is the reference with other noise, the controls are damaged on purpose.

{sound}

![distance of each fix's sound to the reference over ten minutes](results/cpu/figures/audio-voice-default-eager-cpu.png)

![share of streams that still say what the reference says](results/cpu/figures/survival-voice-default-eager-cpu.png)
"""
