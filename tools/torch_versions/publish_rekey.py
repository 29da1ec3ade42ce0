"""asv's results of one commit under many torch versions, rewritten as one commit per torch version.

Conventions: asv draws a metric against commits, and compares commits. So a throw-away git repository gets one empty,
dated and tagged commit per torch release (``v2.13.0``, in order of versions, at the day of the release), and each
result file is given to the commit of its torch version, in one environment that all of them share. Only keys are
rewritten; values, samples and intervals stay as asv stored them. The repository depends on versions and dates alone,
so its commits have the same hashes everywhere. Importing this loads neither torch nor numpy.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, RecordError, UnsupportedError
from precision_eval.results.asv import ResultSet, check_one_machine
from precision_eval.results.expectations import version_key

BUILDS = ("cpu", "cuda")
NEWEST = "newest"
REPOSITORY = "releases"
BRANCH = "main"
RESULTS = "results"
_TORCH = ("torch", "pip+torch")
_BY = "precision-eval"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which results of a folder to take where there are several for a torch version.

    Attributes
    ----------
    machine : str or None
        As asv names it; None where there is one.
    commit : str or None
        Its first characters, or ``"newest"``: for each version the newest; None where there is one.
    build : str or None
        ``"cpu"`` or ``"cuda"``; None where all are of one kind.
    environment : str or None
        Glob over asv's names of environments.
    """

    machine: str | None = None
    commit: str | None = None
    build: str | None = None
    environment: str | None = None


def choose(sets: Sequence[ResultSet], choice: Choice) -> tuple[ResultSet, ...]:
    """Return one result set per torch version, by version.

    Raises
    ------
    ParameterError
        Nothing is left, or what is left mixes machines, builds, Pythons or commits, or has a version twice; the message
        names the option that decides.
    """
    if choice.build not in (None, *BUILDS):
        raise ParameterError(f"build '{choice.build}' is none; expected {' or '.join(BUILDS)}")
    left = [one for one in sets if _wanted(one, choice)]
    if not left:
        found = ", ".join(sorted({f"{one.machine}: {one.commit[:8]} {one.environment}" for one in sets})) or "nothing"
        raise ParameterError(f"no result is left of {found}; loosen --machine, --commit, --build or --environment")
    check_one_machine(left)
    _refuse_mix("builds of torch", {_build(one): one for one in left if one.cuda_build is not None}, "--build cpu")
    _refuse_mix("Pythons", {one.python: one for one in left}, "--environment '*py3.11*'")
    if choice.commit == NEWEST:
        left = _newest(left)
    _refuse_mix(
        "commits",
        {one.commit[:8]: one for one in left} if choice.commit is None else {},
        f"--commit {max(left, key=lambda one: one.date_ms).commit[:8]}, or --commit {NEWEST} for each version's newest",
    )
    left.sort(key=lambda one: version_key(one.torch_version))
    for version, group in groupby(left, key=lambda one: one.torch_version):
        names = [f"{one.commit[:8]}-{one.environment}" for one in group]
        if len(names) > 1:
            raise ParameterError(
                f"torch {version} has {len(names)} results: {', '.join(names)}; "
                "one is needed: name it with --environment GLOB, --commit or --build, or remove the other files"
            )
    return tuple(left)


def _wanted(one: ResultSet, choice: Choice) -> bool:
    return (
        choice.machine in (None, one.machine)
        and (choice.commit in (None, NEWEST) or one.commit.startswith(str(choice.commit)))
        and (choice.build is None or _build(one) == choice.build)
        and (choice.environment is None or fnmatchcase(one.environment, choice.environment))
    )


def _build(one: ResultSet) -> str:
    return {True: "cuda", False: "cpu", None: "unknown"}[one.cuda_build]


def _refuse_mix(what: str, kinds: Mapping[str, ResultSet], remedy: str) -> None:
    if len(kinds) > 1:
        examples = ", ".join(f"{name} ({one.environment})" for name, one in sorted(kinds.items()))
        raise ParameterError(f"the results are of {len(kinds)} {what}: {examples}; take one: {remedy}")


def _newest(sets: Sequence[ResultSet]) -> list[ResultSet]:
    """Return the sets of each version's newest commit."""
    newest: dict[str, ResultSet] = {}
    for one in sorted(sets, key=lambda one: one.date_ms):
        newest[one.torch_version] = one
    return [one for one in sets if one.commit == newest[one.torch_version].commit]


@dataclass(frozen=True, kw_only=True)
class Rekeyed:
    """What :func:`rekey` wrote."""

    folder: Path
    environment: str
    commits: Mapping[str, str]
    notes: tuple[str, ...]


def rekey(sets: Sequence[ResultSet], folder: Path, *, dates: Mapping[str, date]) -> Rekeyed:
    """Write result files and repository, one commit per torch version."""
    undated = [one.torch_version for one in sets if one.torch_version not in dates]
    if undated:
        raise ParameterError(
            f"no release date of torch {', '.join(undated)} is known; add it to "
            f"precision_eval/studies/versions/upstream.json "
            "(the day of the release on pypi.org), or take other results with --environment"
        )
    contents = [_load(one.source) for one in sets]
    benchmarks = _benchmarks(sets[0].source.parent.parent / "benchmarks.json")
    days = {one.torch_version: dates[one.torch_version] for one in sets}
    commits = _make_repository(folder / REPOSITORY, days)
    environment = f"torch-versions-py{sets[0].python}"
    same, notes = _common(contents)
    home = folder / RESULTS / sets[0].machine
    home.mkdir(parents=True)
    for one, content in zip(sets, contents, strict=True):
        commit = commits[one.torch_version]
        moment = _noon(days[one.torch_version])
        content |= same | {"commit_hash": commit, "env_name": environment, "date": int(moment.timestamp() * 1000)}
        (home / f"{commit[:8]}-{environment}.json").write_text(json.dumps(content), encoding="utf-8")
    (home / "machine.json").write_bytes((sets[0].source.parent / "machine.json").read_bytes())
    (folder / RESULTS / "benchmarks.json").write_text(json.dumps(benchmarks), encoding="utf-8")
    notes += _other_definitions(contents, benchmarks)
    return Rekeyed(folder=folder, environment=environment, commits=commits, notes=tuple(notes))


def _load(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}; run the command again, or asv for that version") from error
    return content


def _benchmarks(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RecordError(
            f"{path} is missing, and asv publishes nothing without it; run `asv run --bench just-discover` there, "
            "or take it from the folder that the results were copied from"
        )
    return _load(path)


def _common(contents: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Return params, requirements and variables that all files share; what differs would split the graphs."""
    same: dict[str, Any] = {}
    notes = []
    for field in ("params", "requirements", "env_vars"):
        holders = [dict(content.get(field) or {}) for content in contents]
        names = sorted({name for holder in holders for name in holder if name not in _TORCH})
        values = {name: [holder.get(name) for holder in holders] for name in names}
        shared = {name: found[0] for name, found in values.items() if all(value == found[0] for value in found)}
        same[field] = shared
        for name in names:
            if name not in shared:
                found = sorted({str(value) for value in values[name]})
                notes.append(f"{name} is not the same in all results ({', '.join(found)}) and is no axis of the graphs")
    return same, list(dict.fromkeys(notes))


def _other_definitions(contents: Sequence[Mapping[str, Any]], benchmarks: Mapping[str, Any]) -> list[str]:
    """Say which benchmarks asv will leave out: those that ``benchmarks.json`` lacks or defines otherwise."""
    other: Counter[str] = Counter()
    for content in contents:
        place = content["result_columns"].index("version")
        for name, row in content["results"].items():
            current = benchmarks.get(name, {}).get("version")
            if current is not None and len(row) > place and row[place] not in (None, current):
                other[name] += 1
    lacking = sorted({name for content in contents for name in content["results"] if name not in benchmarks})
    notes = [
        f"{name}: {count} of {len(contents)} versions measured another definition of it and are not drawn"
        for name, count in sorted(other.items())
    ]
    return notes + ([f"not in benchmarks.json and not drawn: {', '.join(lacking)}"] if lacking else [])


def _noon(day: date) -> datetime:
    return datetime.combine(day, time(12), tzinfo=UTC)


def _make_repository(path: Path, days: Mapping[str, date]) -> dict[str, str]:
    """Make one empty commit and one tag per version; return the hashes."""
    path.mkdir(parents=True)
    _git(path, "init", "--quiet", f"--initial-branch={BRANCH}")
    commits = {}
    for version, day in days.items():
        moment = _noon(day).isoformat()
        dated = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
        _git(path, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", f"torch {version}", **dated)
        _git(path, "tag", f"v{version}")
        commits[version] = _git(path, "rev-parse", "HEAD")
    return commits


def _git(path: Path, *words: str, **variables: str) -> str:
    """Run git in a repository, by no configuration but its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CEILING_DIRECTORIES": str(path.parent)}
    people = {f"GIT_{role}_{what}": _BY for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=path,
            env=inherited | own | people | variables,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise UnsupportedError(
            "git is not installed, and asv reads versions from a git repository; install it"
        ) from error
    if done.returncode:
        raise UnsupportedError(f"git {words[0]} failed in {path}: {done.stderr.strip()}; git 2.28 or newer is needed")
    return done.stdout.strip()
