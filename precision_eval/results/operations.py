"""What torch's own operations do with mixed dtypes, per torch version: probes that complement the expectation table.

Conventions: on the CPU, float32 against a half of a few numbers; modes as in
:mod:`precision_eval.results.expectations`. An outcome is the output's dtype (``"float32"``) or ``"raised"``. Nothing
here is a case: these are the operations behind statuses that turn over with the version, and such as upstream names
that no case meets. Importing this loads no torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.core.files import read_json, worked_out_from, write_json
from precision_eval.core.formats import short
from precision_eval.core.formatting import MISSING
from precision_eval.core.table import Code, MarkdownText, Table
from precision_eval.explain.explanation import explain
from precision_eval.results.expectations import MODES, check_inductor, release, spans_of, version_key

OUTCOMES = Path(__file__).with_name("operations.json")
SCHEMA_VERSION = 1
RAISED = "raised"
OPERATIONS_TITLE = "What torch's own operations give, by version"
_MODE_TITLES = {
    "eager": "eager",
    "compiled-aot_eager": "compiled by aot_eager",
    "compiled-inductor": "compiled by Inductor",
}

Made = tuple[Callable[..., Any], tuple[Any, ...]]
Outcomes = dict[str, dict[str, str]]
"""By torch version, then by ``probe/mode``."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One operation on mixed dtypes."""

    id: str
    title: str
    make: Callable[[], Made]
    source: str


def _rms_norm() -> Made:
    import torch

    return torch.nn.RMSNorm(16), (torch.ones(2, 16, dtype=torch.float16),)


def _rms_norm_autocast() -> Made:
    import torch

    norm = torch.nn.RMSNorm(16)

    def call(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return norm(x)

    return call, (torch.ones(2, 16, dtype=torch.bfloat16),)


def _matmul_3d() -> Made:
    import torch

    return torch.matmul, (torch.ones(2, 4, 16), torch.ones(2, 16, 4, dtype=torch.float16))


PROBES = (
    Probe(
        id="rms-norm",
        title="`nn.RMSNorm` with a float32 weight, of float16",
        make=_rms_norm,
        source="nari-labs/dia #108, #113, #158",
    ),
    Probe(
        id="rms-norm-autocast",
        title="`nn.RMSNorm` with a float32 weight, of bfloat16, under autocast in bfloat16",
        make=_rms_norm_autocast,
        source="pytorch #174824",
    ),
    Probe(
        id="matmul-3d",
        title="`matmul` of three dimensions, float32 by float16",
        make=_matmul_3d,
        source="pytorch #172183",
    ),
)


def run_probes(modes: Sequence[str] = MODES, *, probes: Iterable[Probe] = PROBES) -> dict[str, str]:
    """Run every probe in every mode, in this process."""
    if "compiled-inductor" in modes:
        check_inductor()
    return {f"{probe.id}/{mode}": _outcome(probe, mode) for probe in probes for mode in modes}


def _outcome(probe: Probe, mode: str) -> str:
    import warnings

    import torch

    function, arguments = probe.make()
    backend = mode.partition("-")[2]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of mixed dtypes, which are the point
        try:
            if backend:
                torch._dynamo.reset()
                function = torch.compile(function, backend=backend)
            return short(function(*arguments).dtype)
        except Exception as error:
            if explain(f"{type(error).__name__}: {error}").sentence is None:
                raise  # not about dtypes, so no outcome
            return RAISED


def load_outcomes(path: Path = OUTCOMES) -> Outcomes:
    """Read what was recorded, oldest torch first; a missing file is empty."""
    if not path.exists():
        return {}
    content = read_json(path)
    with worked_out_from(path, remedy="restore it, or record anew"):
        if content["schema_version"] != SCHEMA_VERSION:
            raise RecordError(f"{path} has schema {content['schema_version']}, expected {SCHEMA_VERSION}; record anew")
        columns = {str(v): {str(key): str(what) for key, what in c.items()} for v, c in content["columns"].items()}
        return {version: columns[version] for version in sorted(columns, key=version_key)}


def save_outcomes(outcomes: Mapping[str, Mapping[str, str]], path: Path = OUTCOMES) -> None:
    """Write outcomes as strict JSON, in a fixed order."""
    columns = {version: dict(sorted(outcomes[version].items())) for version in sorted(outcomes, key=version_key)}
    write_json(path, {"schema_version": SCHEMA_VERSION, "columns": columns})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probes; compare them with what is recorded, or record them. Return the exit code."""
    name = "python -m precision_eval.results.operations"
    parser = argparse.ArgumentParser(prog=name, description="Probes torch's operations with mixed dtypes.")
    parser.add_argument("--record", action="store_true", help="record the outcomes for the torch at hand")
    parser.add_argument("--table", type=Path, default=OUTCOMES, help="JSON file of outcomes; the package's own")
    chosen = parser.parse_args(arguments)
    try:
        import torch

        version, recorded, observed = release(str(torch.__version__)), load_outcomes(chosen.table), run_probes()
        if chosen.record:
            save_outcomes({**recorded, version: observed}, chosen.table)
            print(f"recorded for torch {version}: {len(observed)} outcomes")
            return 0
        if version not in recorded:
            raise ParameterError(f"nothing is recorded for torch {version}; record it: {name} --record")
    except PrecisionEvalError as error:
        print(error, file=sys.stderr)
        return 2
    differing = {key: what for key, what in observed.items() if recorded[version].get(key) != what}
    for key, what in differing.items():
        print(f"{key}: {what}, recorded: {recorded[version].get(key, 'nothing')}")
    print(f"torch {version}: {len(observed) - len(differing)} of {len(observed)} outcomes as recorded")
    return 1 if differing else 0


def operations_table(outcomes: Outcomes | None = None) -> Table:
    """Return the output dtype of each probed operation over the recorded torch versions, one column per mode."""
    outcomes = load_outcomes() if outcomes is None else outcomes
    rows = []
    for probe in PROBES:
        cells = []
        for mode in _MODE_TITLES:
            key = f"{probe.id}/{mode}"
            found = [(version, column[key]) for version, column in outcomes.items() if key in column]
            same = len({what for _, what in found}) == 1
            cells.append(f"{found[0][1]} in each" if same else spans_of(found) or MISSING)
        rows.append((Code(probe.id), MarkdownText(probe.title), *cells, probe.source))
    return Table(
        title=OPERATIONS_TITLE,
        columns=("probe", "operation", *_MODE_TITLES.values(), "upstream"),
        rows=tuple(rows),
        kinds=("passed",) * len(rows),
        notes=(
            MarkdownText(
                f"The output's dtype on the CPU, recorded for torch {', '.join(outcomes)}; "
                "`python -m precision_eval.results.operations` probes the torch at hand."
            ),
            MarkdownText(
                "No case here makes that product of mixed dtypes. Not run on CUDA, where `rms_norm` under autocast "
                "returns float32 from 2.12 on by pytorch #174824."
            ),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
