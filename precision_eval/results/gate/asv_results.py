"""Two commits, or two torch versions, in asv's results as the sides of the gate.

Conventions: result sets of the two names are paired where nothing but the thing compared differs: for commits the
machine and the environment, for torch versions the machine, the Python and the commit (the newest that has both).
Several pairs are compared as one family; their places then carry the environment.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from precision_eval.core.errors import ParameterError
from precision_eval.results.asv import AsvPoint, ResultSet, compared_hardware, read_results, status_of
from precision_eval.results.gate.sides import GateCell, GateFigure, Side, check_alike

Pair = tuple[ResultSet, ResultSet]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\+\w+)?")
_HASH = re.compile(r"[0-9a-f]{4,40}")


def is_torch_version(name: str) -> bool:
    """Say whether a name reads like ``2.13`` or ``2.13.0``."""
    return _VERSION.fullmatch(name) is not None


def sides_of_asv(base: str, head: str, *, folder: Path, machine: str | None = None) -> tuple[Side, Side]:
    """Read both sides from asv's results."""
    sets = read_results(folder, machine=machine)
    by_version = [_stands_for_a_version(name, sets) for name in (base, head)]
    if by_version[0] != by_version[1]:
        raise ParameterError(f"'{base}' and '{head}' are a commit and a torch version; give two of one kind")
    chosen = [_matching(name, sets, version=by_version[0]) for name in (base, head)]
    here = _one_machine(chosen[0], chosen[1], names=(base, head))
    sides = [[one for one in some if one.machine == here] for some in chosen]
    pairs = _same_commit(*sides, names=(base, head)) if by_version[0] else _same_environment(*sides, names=(base, head))
    for first, second in pairs:
        check_alike(_facts(first), _facts(second), names=(base, head))
    return tuple(side_of_sets(name, [pair[index] for pair in pairs]) for index, name in enumerate((base, head)))  # type: ignore[return-value]


def _stands_for_a_version(name: str, sets: Sequence[ResultSet]) -> bool:
    """Tell a torch version from a tag that reads like one: ``v0.1.0``."""
    return is_torch_version(name) and (_known_version(name, sets) is not None or _git_commit(name) is None)


def _known_version(name: str, sets: Sequence[ResultSet]) -> str | None:
    """Return the torch version with results that a name means, the last patch of ``2.13``; None where there is none."""
    match = _VERSION.fullmatch(name)
    assert match is not None
    wanted = tuple(int(part) for part in match.groups() if part is not None)
    known = {_numbers(one.torch_version): one.torch_version for one in sets}
    return known.get(max((numbers for numbers in known if numbers[: len(wanted)] == wanted), default=()))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _matching(name: str, sets: Sequence[ResultSet], *, version: bool) -> list[ResultSet]:
    """Return the sets that a name stands for."""
    if version:
        wanted = _known_version(name, sets)
        found = [one for one in sets if one.torch_version == wanted]
        known = ", ".join(dict.fromkeys(one.torch_version for one in sets))
    else:
        digits = name if _HASH.fullmatch(name) else _git_commit(name)
        found = [one for one in sets if digits and one.commit.startswith(digits)]
        known = ", ".join(dict.fromkeys(one.commit[:8] for one in sets))
    if not found:
        kind = "torch version" if version else "commit"
        raise ParameterError(f"there are no results of the {kind} '{name}'; there are some of {known}; run asv for it")
    commits = sorted({one.commit for one in found})
    if not version and len(commits) > 1:
        raise ParameterError(f"'{name}' may be {' or '.join(one[:12] for one in commits)}; give more digits")
    return found


def _git_commit(name: str) -> str | None:
    """Return the commit that git knows by a name, None where it knows none or is not there."""
    if name.startswith("-"):
        return None
    command = ["git", "--no-optional-locks", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _one_machine(base: Sequence[ResultSet], head: Sequence[ResultSet], *, names: tuple[str, str]) -> str:
    """Return the machine that has results of both."""
    ours, theirs = ({one.machine for one in some} for some in (base, head))
    common = sorted(ours & theirs)
    if not common:
        raise ParameterError(
            f"{names[0]} was measured on {', '.join(sorted(ours))} and {names[1]} on {', '.join(sorted(theirs))}; "
            "results of different machines are not compared: measure both on one"
        )
    if len(common) > 1:
        raise ParameterError(f"{', '.join(common)} have results of both; name one with --machine {common[0]}")
    return common[0]


def _same_environment(base: list[ResultSet], head: list[ResultSet], *, names: tuple[str, str]) -> list[Pair]:
    """Pair two commits' sets by environment."""
    by_name = {one.environment: one for one in head}
    pairs = [(one, by_name[one.environment]) for one in base if one.environment in by_name]
    if not pairs:
        ours, theirs = (", ".join(sorted({one.environment for one in some})) for some in (base, head))
        raise ParameterError(
            f"{names[0]} was measured in {ours} and {names[1]} in {theirs}: no environment has both; run asv in one "
            "environment for both commits"
        )
    return pairs


def _same_commit(base: list[ResultSet], head: list[ResultSet], *, names: tuple[str, str]) -> list[Pair]:
    """Pair two torch versions' sets by commit and Python, at the newest commit that has both."""
    pairs = [(one, two) for one in base for two in head if (one.commit, one.python) == (two.commit, two.python)]
    if not pairs:
        raise ParameterError(
            f"no commit was measured with torch {names[0]} and torch {names[1]} under one Python; run asv for both"
        )
    newest = max(one.date_ms for one, _ in pairs)
    pairs = [pair for pair in pairs if pair[0].date_ms == newest]
    pythons = [one.python for one, _ in pairs]
    if len(set(pythons)) < len(pythons):
        described = ", ".join(sorted(f"{one.environment} against {two.environment}" for one, two in pairs))
        raise ParameterError(f"torch {names[0]} and {names[1]} have several environments each ({described}); keep one")
    return pairs


def _facts(one: ResultSet) -> dict[str, str]:
    facts = {"machine": one.machine} | {f"machine's {name}": value for name, value in compared_hardware(one).items()}
    if one.cuda_build is not None:
        facts["build of torch"] = "CUDA" if one.cuda_build else "CPU"
    return facts


def side_of_sets(name: str, sets: Sequence[ResultSet]) -> Side:
    """Return one side of result files that are compared together; the caller has seen to it that they are alike."""
    several = len(sets) > 1
    figures = {}
    for one in sets:
        for point in one.points.values():
            environment = (one.python if is_torch_version(name) else one.environment) if several else ""
            place = GateCell(point.case, point.fix, point.mode, point.size, environment=environment)
            if point.state != "absent":
                figures[place, point.metric] = _figure(point)
    remarks = {
        "torch": " and ".join(dict.fromkeys(one.torch_version for one in sets)),
        "commit": " and ".join(dict.fromkeys(one.commit[:12] for one in sets)),
        "Python": " and ".join(dict.fromkeys(one.python for one in sets)),
        "machine": sets[0].machine,
    }
    return Side(name=name, facts=_facts(sets[0]), remarks=remarks, figures=figures)


def _figure(point: AsvPoint) -> GateFigure:
    identity = {"version of the benchmark": point.benchmark_version, "unit": point.unit}
    if point.metric == "status" and point.state == "measured":
        return GateFigure(state="measured", status=status_of(point), identity=identity)
    return GateFigure(
        state=point.state,
        value=point.value,
        samples=point.samples,
        unit=point.unit,
        identity=identity,
    )
