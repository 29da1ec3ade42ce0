"""Writes the result tables of a run into a README, so that its numbers are regenerated and never typed.

``python -m tools.readme.blocks RUN_DIR [--claims FILE] [--voice FILE] [--proof FILE] [--sweep DIR] [--audio
FILE] [--versions DIR] [--doctor FILE] [--gate FILE] [--change-points FILE] [--choose FILE] [--asv-cost FILE]`` replaces
what stands between ``<!-- results:begin -->`` and ``<!-- results:end -->``, and likewise for the others by their names;
everything outside is left byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from precision_eval.core.errors import ParameterError, PrecisionEvalError
from precision_eval.report.tables import audio_table, cost_table
from precision_eval.report.text import environment_line, findings, markdown_table
from precision_eval.results.data import Run, load_run
from tools.readme.costs import asv_cost_markdown
from tools.readme.trials import change_points_markdown, choose_markdown, gate_markdown
from tools.readme.versions import versions_markdown
from validation.tables import proofs_markdown

FIGURES_SHOWN = ("tradeoff-", "audio-")
_SWEEP_SECTIONS = ("Where the order turns", "Which cast is faster")


def results_markdown(run: Run, *, relative_to: Path) -> str:
    """Return findings, tables and main figures of a run as Markdown."""
    place = Path(os.path.relpath(run.directory, relative_to)).as_posix()
    parts = [f"From the records in `{place}`. {environment_line(run)}".strip()]
    parts.append("\n".join(f"- **{title}.** {' '.join(sentences)}" for title, sentences in findings(run)))
    for section in run.sections:
        for table in (cost_table(section), audio_table(run, section)):
            if table is not None:
                parts.append(markdown_table(table, heading=True))
    drawn = sorted((run.directory / "figures").glob("*.png"))
    shown = [path for path in drawn if path.name.startswith(FIGURES_SHOWN)]
    parts += [f"![{path.stem}]({Path(os.path.relpath(path, relative_to)).as_posix()})" for path in shown]
    return "\n\n".join(part for part in parts if part)


def claims_markdown(path: Path) -> str:
    """Return the table of claims that ``precision-eval claims --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = ["| claim | target | found | met |", "|---|---|---|---|"]
    rows += [
        f"| {row['claim']} | {row['target']} | {row['found']} | {'yes' if row['met'] else '**no**'} |"
        for row in stored["claims"]
    ]
    return "\n".join(rows)


def voice_markdown(path: Path) -> str:
    """Return what ``precision-eval check-voice --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))

    def mean(group: str, part: str) -> str:
        return f"{100 * sum(heard[part] for heard in stored[group]) / len(stored[group]):.1f} %"

    speakers = len(stored["free_running"])
    rows = [
        f"Phonemes right, {speakers} speakers × {stored['minutes']:g} minutes:",
        "",
        "| speech | whole | first third | last third |",
        "|---|---|---|---|",
    ]
    for name, group in (
        ("the voice, free-running", "free_running"),
        ("original tokens, resynthesised", "resynthesised"),
    ):
        rows.append(f"| {name} | {' | '.join(mean(group, part) for part in ('value', 'first_third', 'last_third'))} |")
    rows += [
        "",
        f"Mean of all speakers: {stored['mean_gap_points']:.1f} points below the original through the same codec and "
        f"vocoder. Speaker 0, whose untouched speech ships: {stored['gap_points']:.1f} points below that. Lost from "
        f"the first third to the last, less what the script itself loses: {stored['decline_points']:.1f} points.",
    ]
    return "\n".join(rows)


def sweep_markdown(folder: Path, *, relative_to: Path) -> str:
    """Return what ``precision-eval sweep`` found: its crossings and findings, the figure, and where the rest stands."""
    place = Path(os.path.relpath(folder, relative_to)).as_posix()
    sections = (folder / "summary.md").read_text(encoding="utf-8").split("\n## ")[1:]
    shown = [text.split("\n", 1)[1].strip() for text in sections if text.startswith(_SWEEP_SECTIONS)]
    return "\n\n".join(
        [*shown, f"![lengths]({place}/lengths.png)", f"Every ratio: [{place}/summary.md]({place}/summary.md)."]
    )


def audio_markdown(path: Path) -> str:
    """Return the figures with a target that ``python -m validation.audio --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = ["| figure | target | found | met |", "|---|---|---|---|"]
    for row in (row for part in stored.values() if isinstance(part, list) for row in part if row["met"] is not None):
        target = f"≥ {row['least']:.3g}" if row["most"] is None else f"≤ {row['most']:.3g}"
        found, low, high = (f"{row[name]:.3g}" for name in ("value", "low", "high"))
        interval = "" if low == high else f" [{low}, {high}]"
        rows.append(
            f"| {row['name']} | {target} {row['unit']} | {found}{interval} | {'yes' if row['met'] else '**no**'} |"
        )
    return "\n".join(rows)


def doctor_markdown(path: Path) -> str:
    """Return the figures that ``python -m validation.doctor --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    rows = ["| figure | target | found | met |", "|---|---|---|---|"]

    def row(name: str, target: str, found: str, is_met: bool | None) -> None:
        met = "–" if is_met is None else "yes" if is_met else "**no**"
        rows.append(f"| {name} | {target} | {found} | {met} |")

    for half in ("settled on", "held out"):
        one = stored["plants"][half]
        low, high = (f"{100 * one[end]:.1f}" for end in ("low", "high"))
        found = f"{one['located']} of {one['total']}, {100 * one['share']:.1f} % [{low}, {high}]"
        row(
            f"planted faults located to module and line, {half}", f"≥ {100 * one['target']:.0f} %", found, one["is_met"]
        )
        hits, silent = one["located_beyond_traceback"], one["beyond_traceback"]
        share = f", {100 * hits / silent:.1f} %" if silent else ""
        row(f"of these, where no traceback points there already, {half}", "–", f"{hits} of {silent}{share}", None)
    clean = stored["clean"]
    row("clean models called faulty", "0", f"{clean['alarms']} of {clean['total']}", clean["alarms"] == 0)
    for one in (one for one in stored["cost"] if one["observing"] == "dtypes and values"):  # as ``examine`` observes
        name = f"observed ÷ plain forward of {one['forward_ms']:.3g} ms, {one['dtype']}"
        row(name, "≤ 3", f"{one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}]", one["is_met"])
    return "\n".join(rows)


def write_block(readme: Path, name: str, content: str) -> bool:
    """Replace what stands between ``<!-- name:begin -->`` and ``<!-- name:end -->``."""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    text = readme.read_text(encoding="utf-8")
    begin, end = text.find(first), text.find(last)
    if text.count(first) != 1 or text.count(last) != 1 or end < begin:
        raise ParameterError(f"{readme} must hold {first} and then {last}, once each; add these two lines")
    new = f"{text[: begin + len(first)]}\n{content}\n{text[end:]}"
    if new == text:
        return False
    readme.write_text(new, encoding="utf-8")
    return True


def update_readme(readme: Path, run: Run) -> bool:
    """Replace the results in `readme` by those of `run`; see :func:`write_block`."""
    return write_block(readme, "results", results_markdown(run, relative_to=readme.resolve().parent))


def _blocks(relative_to: Path) -> dict[str, Callable[[Path], str]]:
    """Return what makes each block beside the results of a file or folder; its name is the option's."""
    return {
        "claims": claims_markdown,
        "voice": voice_markdown,
        "proof": proofs_markdown,
        "audio": audio_markdown,
        "sweep": lambda folder: sweep_markdown(folder.resolve(), relative_to=relative_to),
        "doctor": doctor_markdown,
        "versions": lambda folder: versions_markdown(folder.resolve(), relative_to=relative_to),
        "gate": gate_markdown,
        "change-points": change_points_markdown,
        "choose": choose_markdown,
        "asv-cost": asv_cost_markdown,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.readme.blocks", description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path, help="folder of a run, with records.jsonl")
    parser.add_argument("--claims", type=Path, help="file of `precision-eval claims --out`")
    parser.add_argument("--voice", type=Path, help="file of `precision-eval check-voice --out`")
    parser.add_argument("--proof", type=Path, help="figures.json of `precision-eval prove`")
    parser.add_argument("--sweep", type=Path, help="folder of `precision-eval sweep`")
    parser.add_argument("--audio", type=Path, help="file of `python -m validation.audio --out`")
    parser.add_argument("--versions", type=Path, help="folder of `precision-eval torch-sweep`")
    parser.add_argument("--doctor", type=Path, help="file of `python -m validation.doctor --out`")
    parser.add_argument("--gate", type=Path, help="file of `python -m validation.gate --out`")
    parser.add_argument("--change-points", type=Path, help="file of `python -m validation.versions.trials --out`")
    parser.add_argument("--choose", type=Path, help="file of `python -m validation.choose --out`")
    parser.add_argument("--asv-cost", type=Path, help="file of `python -m validation.cost --out`")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    chosen = parser.parse_args(arguments)
    try:
        changed = update_readme(chosen.readme, load_run(chosen.run_dir.resolve()))
        for name, make in _blocks(chosen.readme.resolve().parent).items():
            place = getattr(chosen, name.replace("-", "_"))
            if place:
                changed |= write_block(chosen.readme, name, make(place))
    except (PrecisionEvalError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{chosen.readme}: {'written' if changed else 'already up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
