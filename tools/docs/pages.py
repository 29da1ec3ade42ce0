"""Writes the blocks of ``docs/`` that results fill, so that their numbers are regenerated and never typed.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; everything outside is left byte for byte. On a
system's page the names are cases.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.files import TrialFile
from precision_eval.core.formatting import MISSING, fixed, join
from precision_eval.core.table import make_table, markdown_text, to_markdown
from precision_eval.report.findings import narrow_cache_sentence, sound_sentences
from precision_eval.report.tables import audio_table, cost_table, streams_table
from precision_eval.report.text import environment_line, environment_markdown, findings
from precision_eval.results.machines import MachineComparison, merged
from precision_eval.results.reading import Run, load_run
from precision_eval.studies.sensitivity.report import answer, contest_markdown
from tools.docs.systems import ENVIRONMENT, system_markdown
from tools.docs.versions import versions_markdown
from validation import candidates, lengths, summary
from validation.report import reported_markdown, stored_markdown

FIGURES_SHOWN = ("tradeoff-", "audio-")
SYSTEM_PAGES = ("cogvideo-t5.md", "dia.md", "imaginairy.md", "metavoice-t4.md", "metavoice.md")
PAGES = ("candidates.md", "gpu.md", "results.md", "validation.md", "sensitivity.md", "whisper.md", *SYSTEM_PAGES)
_SWEEP_SECTIONS = ("Where the order turns", "Which cast is faster")
_PROCESSES = re.compile(r"^Doubt about .*: in (\d+) of (\d+) processes: ")
_MARKER = re.compile(r"<!-- ([\w.-]+):begin -->")


def _stored(experiment: str, *, without: str = "") -> Callable[[Path, Path], str]:
    return lambda source, page: stored_markdown(experiment, source, without=without)


def _judged(experiment: str, *, without: str = "") -> Callable[[Path, Path], str]:
    """The figures that have a target."""
    return lambda source, page: stored_markdown(experiment, source, judged_only=True, without=without)


def _table(table: Callable[[list[dict[str, Any]]], str]) -> Callable[[Path, Path], str]:
    """An experiment's own tables of its trials."""
    return lambda source, page: table(TrialFile(source).read()) if source.exists() else "Not measured."


# Name of a block → what it is made from, below the folder of results, and how.
BLOCKS: dict[str, tuple[str, Callable[[Path, Path], str]]] = {
    "results": ("cpu", lambda source, page: results_markdown(load_run(source), relative_to=page.parent)),
    "machines": ("machines", lambda source, page: machines_markdown(source)),
    "sweep": ("sweep", lambda source, page: sweep_markdown(source, relative_to=page.parent)),
    "versions": ("torch-versions", lambda source, page: versions_markdown(source, relative_to=page.parent)),
    "sensitivity": ("sensitivity", lambda source, page: sensitivity_markdown(source, relative_to=page.parent)),
    "voice": ("voice-quality.json", lambda source, page: voice_markdown(source)),
    "heard-voice": ("cpu", lambda source, page: heard_markdown(source)),
    "summary": ("", lambda source, page: summary.markdown(source)),
    "proof": ("proof/figures.json", lambda source, page: reported_markdown(source)),
    "claims": ("claims.json", _stored("claims")),
    "audio": ("audio-bench.json", _judged("audio")),
    "doctor": ("doctor.json", _judged("doctor")),
    "caches-metavoice": ("caches/metavoice", lambda source, page: fixes_markdown(source)),
    "caches-dia": ("caches/dia", lambda source, page: fixes_markdown(source)),
    "caches-voice": ("caches/voice", lambda source, page: fixes_markdown(source)),
    "caches-voices": ("caches/voices", lambda source, page: fixes_markdown(source)),
    "caches-whisper-words": ("caches/whisper", lambda source, page: fixes_markdown(source)),
    "candidates-summary": ("candidates", lambda source, page: candidates_markdown(source)),
    "caches-whisper": ("candidates/whisper/candidates.jsonl", _table(candidates.table)),
    "lengths": ("lengths/lengths.jsonl", _table(lengths.table)),
    "written": ("written.json", _stored("written")),
    "sound": ("sound/sound.json", _stored("sound")),
    "published": ("published/published.json", _stored("published")),
    "kinds": ("kinds/kinds.jsonl", _judged("kinds")),
    "paired-gate": ("paired-gate/paired-gate.jsonl", _stored("paired-gate", without="cleared below 0.5 %")),
    "gate": ("gate.json", _stored("gate")),
    "change-points": ("change-points.json", _judged("versions")),
    "choose": ("choose/choose.json", _stored("choose")),
    "attack": ("attack.json", _stored("attack")),
    "soak": ("soak.json", _stored("soak")),
    "gpu": ("gpu", lambda source, page: fixes_markdown(source)),
    "asv-cost": ("asv-cost.json", _stored("cost")),
}


def results_markdown(run: Run, *, relative_to: Path) -> str:
    """Return findings, tables and main figures of what a run cures; what several tables note stands once below."""
    place = Path(os.path.relpath(run.directory, relative_to)).as_posix()
    cured = {section.title: section for section in run.sections if section.curing}
    parts = [f"From the records in `{place}`. {environment_line(run.environment)}".strip()]
    said = [(title, sentences) for title, sentences in findings(run) if title in cured]
    parts.append("\n".join(f"- **{title}.** {' '.join(sentences)}" for title, sentences in said))
    every = [(cost_table(section), audio_table(run, section)) for section in cured.values()]
    tables = [table for pair in every for table in pair if table is not None]
    counts = Counter(note for table in tables for note in table.notes)
    shared = [note for note, count in counts.items() if count > 1]
    for table in tables:
        notes = tuple(note for note in table.notes if note not in shared and not _is_of_few(note))
        parts.append(to_markdown(replace(table, notes=notes), heading=True))
    lines = [markdown_text(note) for note in shared]
    if rest := [section for section in run.sections if section.title not in cured]:
        tried = join(list(dict.fromkeys(row.fix for section in rest for row in section.fixes)))
        titles = "; ".join(section.title for section in rest)
        lines.append(f"Measured of {tried} alone, none of which cures: {titles}.")
    lines.append(f"All tables, and doubts of single processes: [{place}/report.md]({place}/report.md).")
    parts.append("\n".join(f"- {line}" for line in lines))
    drawn = sorted((run.directory / "figures").glob("*.png"))
    shown = [path for path in drawn if path.name.startswith(FIGURES_SHOWN)]
    parts += [f"![{path.stem}]({Path(os.path.relpath(path, relative_to)).as_posix()})" for path in shown]
    return "\n\n".join(part for part in parts if part)


def _is_of_few(note: str) -> bool:
    """Whether a doubt is of no more than half of the processes."""
    found = _PROCESSES.search(note)
    return found is not None and 2 * int(found[1]) <= int(found[2])


def heard_markdown(source: Path) -> str:
    """Return what each metric and judge heard of each fix of a run; says so where there is none."""
    if not source.exists():
        return "Not measured."
    run = load_run(source)
    tables = [to_markdown(table, heading=True) for section in run.sections if (table := streams_table(run, section))]
    return "\n\n".join([*tables, environment_line(run.environment)])


def fixes_markdown(source: Path) -> str:
    """Return a table of fixes per case of a run, what a narrow cache costs and what is heard; or that there is none."""
    if not source.exists():
        return "Not measured."
    run, parts = load_run(source), []
    for section in run.sections:
        said = " ".join(filter(None, (narrow_cache_sentence(section), *sound_sentences(run, section))))
        table = cost_table(section)
        parts += [said, *([to_markdown(table, heading=True)] if table else [])]
    return "\n\n".join(filter(None, [*parts, environment_markdown(run)]))


def candidates_markdown(folder: Path) -> str:
    """Return all candidates over all cases, Whisper's too, and by which commit each case was measured."""
    paths = sorted(folder.rglob("*.jsonl"))
    rows = [row for path in paths for row in TrialFile(path).read()]
    return f"{candidates.summary(rows)}\n\n{candidates.provenance(rows, *(path.parent for path in paths))}"


def voice_markdown(path: Path) -> str:
    """Return what ``precision-eval check-voice --out`` stored."""
    stored = json.loads(path.read_text(encoding="utf-8"))

    def mean(group: str, part: str) -> str:
        return f"{100 * sum(heard[part] for heard in stored[group]) / len(stored[group]):.1f} %"

    speakers = len(stored["free_running"])
    groups = (("the voice, free-running", "free_running"), ("original tokens, resynthesised", "resynthesised"))
    parts = ("value", "first_third", "last_third")
    rows = [(name, *(mean(group, part) for part in parts)) for name, group in groups]
    lines = [
        f"Phonemes right, {speakers} speakers × {stored['minutes']:g} minutes:",
        to_markdown(make_table(("speech", "whole", "first third", "last third"), rows)),
        f"Mean of all speakers: {stored['mean_gap_points']:.1f} points below the original through the same codec and "
        f"vocoder. Speaker 0, whose untouched speech ships: {stored['gap_points']:.1f} points below that. Lost from "
        f"the first third to the last, less what the script itself loses: {stored['decline_points']:.1f} points.",
    ]
    return "\n\n".join(lines)


def sweep_markdown(folder: Path, *, relative_to: Path) -> str:
    """Return what ``precision-eval sweep`` found: its crossings and findings, the figure, and where the rest stands."""
    place = Path(os.path.relpath(folder, relative_to)).as_posix()
    sections = (folder / "summary.md").read_text(encoding="utf-8").split("\n## ")[1:]
    shown = [text.split("\n", 1)[1].strip() for text in sections if text.startswith(_SWEEP_SECTIONS)]
    return "\n\n".join(
        [*shown, f"![lengths]({place}/lengths.png)", f"Every ratio: [{place}/summary.md]({place}/summary.md)."]
    )


def sensitivity_markdown(folder: Path, *, relative_to: Path) -> str:
    """Return what ``precision-eval sensitivity`` found: the answer, contests, a figure per map, where the rest is."""
    summary = json.loads((folder / "sensitivity.json").read_text(encoding="utf-8"))
    place = Path(os.path.relpath(folder, relative_to)).as_posix()
    lines = [*(f"- {sentence}" for sentence in answer(summary)), "", *map(contest_markdown, summary["contests"])]
    for name in (f"{one['target']}-{one['format']}" for one in summary["maps"]):
        lines.append(f"![drift that each site adds alone, {name}]({place}/figures/{name}.png)\n")
    return "\n".join([*lines, f"Every map and search, with its checks: [sensitivity.md]({place}/sensitivity.md)."])


def replaced(text: str, name: str, content: str, *, page: Path) -> str:
    """Return the text with what stands between the markers of `name` replaced."""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    begin, end = text.find(first), text.find(last)
    if text.count(first) != 1 or text.count(last) != 1 or end < begin:
        raise ParameterError(f"{page} must hold {first} and then {last}, once each; add these two lines")
    return f"{text[: begin + len(first)]}\n{content}\n{text[end:]}"


def machines_markdown(folder: Path) -> str:
    """Return one row per processor and torch version: what is fastest there and what slowest, case by case."""
    runs = merged(sorted(path for path in folder.iterdir() if path.is_dir()))
    rows = [(own.name, *(_ends(comparison, own.name) for comparison in runs.comparisons)) for own in runs.machines]
    return to_markdown(make_table(("machine", *(comparison.title for comparison in runs.comparisons)), rows))


def _ends(comparison: MachineComparison, machine: str) -> str:
    """Say which fix is fastest on a machine, or not told apart from it, and which slowest: time over the baseline's."""
    times = {row.fix: row.time.value for row in comparison.groups[machine].curing if row.time is not None}
    if not times:
        return MISSING
    texts = {fix: f"{fix} ({fixed(value, decimals=2)})" for fix, value in times.items()}
    slowest = max(times, key=times.__getitem__)
    return f"{' ≈ '.join(map(texts.__getitem__, comparison.fastest(machine)))}; slowest {texts[slowest]}"


def page_text(page: Path, results: Path) -> str:
    """Return a page with every block made anew from a folder of results."""
    text = page.read_text(encoding="utf-8")
    names = _MARKER.findall(text)
    if not names:
        raise ParameterError(f"{page} has no markers; put <!-- NAME:begin --> and <!-- NAME:end --> in it")
    is_case = [name for name in names if name != ENVIRONMENT]
    systems = cache(lambda: load_run(results / "systems"))
    for name in names:
        if name in BLOCKS:
            source, make = BLOCKS[name]
            content = make((results / source).resolve(), page.resolve())
        else:
            content = system_markdown(systems(), name, is_case)
        text = replaced(text, name, content, page=page)
    return text


def write_page(page: Path, results: Path) -> bool:
    """Fill every pair of markers of a page from a folder of results; say whether anything changed."""
    text = page_text(page, results)
    if text == page.read_text(encoding="utf-8"):
        return False
    page.write_text(text, encoding="utf-8")
    return True


def write_docs(pages: Sequence[Path], results: Path) -> None:
    """Write the blocks of pages and say what became of each."""
    for page in pages:
        print(f"{page}: {'written' if write_page(page, results) else 'already up to date'}")
