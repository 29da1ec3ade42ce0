"""One table of what is claimed, what was found, where, and by which command: the first thing on docs/validation.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from precision_eval.core.errors import RecordError
from precision_eval.core.files import read_json
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Code, MarkdownText, make_table, to_markdown
from validation.frame import Figure, experiment_by_name, figures_of
from validation.report import environments_of, stored_content

PROOF, PROOF_MACHINE = "proof/figures.json", "AMD EPYC"  # the only figures that are stored without their machine
MACHINES = {"AMD EPYC": "AMD EPYC", "Intel(R) Xeon(R)": "Intel Xeon"}
EVERY = "*"
"""In the place of a figure: how many of all met their targets."""


class Source(NamedTuple):
    """An experiment, where its figures are stored, the section of the page that has all of them, and its settings."""

    experiment: str
    file: str
    section: str
    settings: str = ""


class Claim(NamedTuple):
    """What is claimed, how the name of its figure begins, and where one of the figure's columns is meant, which."""

    words: str
    figure: str
    column: str = ""
    target: str = ""


_MEASURING = "latency-memory-and-the-cost-of-measuring"
_XEON = "Intel(R) Xeon(R) Processor, quiet: "
_GATE = "AMD EPYC, 5 processes, 5 s a cell, an earlier rule, cleared below 1 %: "
_NOISE = "real noise, 3 processes, steps in SD of a process"
_BLIND = "blind plants located, seventh set, first"

CLAIMS: dict[Source, tuple[Claim, ...]] = {
    Source("latency", PROOF, _MEASURING): (
        Claim("two equal calls told apart", "A/A false alarms, quiet"),
        Claim("the same, beside other work", "A/A false alarms, bursty"),
        Claim("a call slower by 1 % found", "flagged slower at +1 %, quiet"),
        Claim("a call slower by 0.5 % found", "flagged slower at +0.5 %, quiet"),
    ),
    Source("kinds", "kinds/kinds.jsonl", "on-another-processor"): (
        Claim("two equal calls told apart", f"{_XEON}equal calls told apart"),
        Claim("a call slower by 1 % found in 2 s", f"{_XEON}+1 % found"),
        Claim("equal short calls settled", f"{_XEON}equal calls below 1 ms"),
    ),
    Source("memory", PROOF, _MEASURING): (Claim("memory of a call, to the byte", "peak of a call, CPU"),),
    Source("overhead", PROOF, _MEASURING): (Claim("time of an observed call ÷ a plain one", "trace and probe on"),),
    Source("divergence", PROOF, _MEASURING): (
        Claim("step of first divergence foretold from teacher forcing, error", "mean absolute error of the predicted"),
    ),
    Source("doctor", "doctor.json", "the-doctor", " --set parts=seventh"): (
        Claim("faults in unseen code located", _BLIND),
        Claim("of these, those that raise nothing", _BLIND, "silent ones", "≥ 85 %"),
        Claim("careful twins left alone", _BLIND, "clean ones left alone", "all"),
    ),
    Source("choose", "choose/choose.json", "the-choice-of-a-fix"): (
        Claim("a choice made again agrees", "re-runs agree"),
    ),
    Source("gate", "gate/gate.jsonl", "the-regression-gate"): (
        Claim("unchanged code red, at any effort", "all unchanged gates"),
        Claim("2 % more work in one fix red", f"{_GATE}2 % more work"),
        Claim("1 % more work in one fix red", f"{_GATE}1 % more work"),
    ),
    Source("versions", "change-points.json", "change-points-over-versions"): (
        Claim("steps between versions found", f"steps found at their version, {_NOISE}"),
        Claim("false among reported steps", f"false among reports, {_NOISE}"),
    ),
    Source("sound", "sound/sound.json", "the-verdict-on-sound"): (
        Claim("runs of equal sound in which anything alarms", "A/A runs of"),
        Claim("known damage called worse", "control_rope_bfloat16 called worse"),
    ),
    Source("cost", "asv-cost.json", "what-asv-takes"): (
        Claim("all of asv's figures", "asv run --record-samples"),
        Claim("asv's quick look", "asv run --quick"),
    ),
}


def markdown(results: Path) -> str:
    """Return the table from the stored results; what missed its target is bold."""
    rows = []
    for source, claims in CLAIMS.items():
        figures, machine = _stored(source, results / source.file)
        for claim in claims:
            name, target, found, met = _found(claim, figures, source)
            words = MarkdownText(f"[{claim.words}](#{source.section})")
            where = machine or next((short for model, short in MACHINES.items() if name.startswith(model)), "both")
            command = Code(f"python -m validation {source.experiment}{source.settings}")
            found = "; ".join(found.split("; ")[:2])  # what follows stands in the section
            rows.append((words, target or MISSING, found if met else MarkdownText(f"**{found}**"), where, command))
    return to_markdown(make_table(("claim", "target", "found", "machine", "command"), rows))


def _stored(source: Source, path: Path) -> tuple[list[Figure], str]:
    """Return an experiment's stored figures and the machine; none where each figure names its own."""
    if source.file == PROOF:
        return [Figure(**row) for row in read_json(path)[source.experiment]], PROOF_MACHINE
    content = stored_content(source.experiment, path)
    figures = figures_of(experiment_by_name(source.experiment), content, path)
    if path.suffix == ".jsonl":
        return figures, ""
    return figures, ", ".join(dict.fromkeys(where["cpu"]["model"] for where in environments_of(content, path)))


def _found(claim: Claim, figures: list[Figure], source: Source) -> tuple[str, str, str, bool]:
    """Return the name of a claim's figure, its target, what was found, and whether that is as wanted."""
    if claim.figure == EVERY:
        judged = [figure.met for figure in figures if figure.met is not None]
        return "", "all", f"{sum(judged)} of {len(judged)}", all(judged)
    named = [figure for figure in figures if figure.name.startswith(claim.figure)]
    if len(named) != 1:
        raise RecordError(
            f"{source.file} has {len(named)} figures that begin with '{claim.figure}', expected one; name it anew in "
            "validation/summary.py"
        )
    figure = named[0]
    if claim.column:
        found, _, missed = figure.rivals[claim.column].partition(" (missed")
        return figure.name, claim.target, found, not missed
    return figure.name, figure.target, figure.found, figure.met is not False
