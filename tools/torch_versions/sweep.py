"""What ``torch-sweep`` does: per torch version an environment, then asv in it, a few classes of benchmarks at a time.

asv stores the results of a run at its end, so a run measures some minutes' worth and an interruption costs no more.
Latencies come last, in rounds: every torch version once, then every version again, each visit timing one process whose
sample asv appends. What differs from one session to the next is then among a version's samples and not only between
versions. A line of ``rounds.jsonl`` is written as a visit begins; how many rounds are done is what asv's file says.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psutil
from packaging.version import Version
from rich.console import Console

from precision_eval.cli.application import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.core.files import claimed, read_json, worked_out_from, write_json, written_whole
from precision_eval.core.table import make_table, print_table
from precision_eval.history.tracking import METRICS, PROCESS_VARIABLE
from precision_eval.results.asv import ROUNDS_NAME, Visit, read_visits, visit_times
from tools.torch_versions.environments import (
    BUILD_VARIABLE,
    Note,
    TorchEnvironment,
    build_environment,
    build_for_here,
    read_note,
    serves,
)
from tools.torch_versions.sweep_notes import NOTES_NAME, append, cost_kept, read_content, read_lines, result_rows

EXIT_INCOMPLETE = 1
LEAST = Version("2.6")
ROUNDS = 3  # as many as a session has processes: the same samples, spread over time
RUN_S = 180.0  # an interruption costs no more than about this, or one class of benchmarks
DISCOVER = "just-discover"  # asv's word for: list the benchmarks, measure none
TURNED = tuple(metric.method for metric in METRICS if metric.samples)
RESERVE_BYTES = 1_000_000_000  # kept free for downloads under way, asv's checkouts and the results
OTHER_BYTES = 600_000_000  # numpy, scipy, numba, librosa, ...: once, as uv shares them
TORCH_BYTES = {"cpu": 800_000_000, "slim": 1_800_000_000, "cuda": 7_000_000_000}
"""What a torch takes at most, as installed on x86-64 Linux under Python 3.11, versions 2.6 to 2.15."""
_PLACES = ("repo", "benchmark_dir", "env_dir", "results_dir", "html_dir")

Say = Callable[[str], None]


class DiskSpaceError(PrecisionEvalError, OSError):
    """What is about to be installed does not fit."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is asked for, worked out for this machine."""

    configuration: Mapping[str, Any]
    versions: tuple[str, ...]
    python: str
    base: Path
    results: Path
    build: str
    commit: str
    machine: str
    bench: tuple[str, ...]
    attributes: tuple[str, ...]
    keep: bool
    rounds: int

    @property
    def root(self) -> Path:
        """The project."""
        return Path(self.configuration["repo"])

    @property
    def log(self) -> Path:
        """What asv printed."""
        return self.base / "asv.log"

    def environment(self, version: str) -> TorchEnvironment:
        """Return what a version asks for."""
        return TorchEnvironment(version=version, python=self.python, root=self.root, base=self.base)

    def name(self, version: str) -> str:
        """Return asv's name of a version's environment, which its result files carry."""
        return f"torch-py{self.python}-torch{version}"

    def file(self, version: str) -> Path:
        """Return asv's result file of a version on this machine."""
        return self.results / self.machine / f"{self.commit[:8]}-{self.name(version)}.json"

    def benchmarks(self) -> dict[str, str] | None:
        """Return name → definition of the chosen benchmarks; None where asv never listed any."""
        path = self.results / "benchmarks.json"
        if not path.is_file():
            return None
        with worked_out_from(path, remedy="remove it, asv writes its list of benchmarks anew"):
            listed = {name: str(one["version"]) for name, one in read_json(path).items() if isinstance(one, dict)}
        found = any if self.bench else all  # without patterns, every name is chosen
        chosen = {name: one for name, one in listed.items() if found(re.search(words, name) for words in self.bench)}
        if not chosen:
            raise ParameterError(f"--bench {' '.join(self.bench)} finds none of {len(listed)} benchmarks")
        return chosen

    def lacking(self, version: str) -> dict[str, int]:
        """Return the latencies that lack rounds, with those they have; samples of one session are left alone."""
        if self.rounds == 1:
            return {}
        where = {"machine": self.machine, "commit": self.commit, "environment": self.name(version)}
        noted, rows, lacking = visit_times(read_visits(self.results), **where), result_rows(self.file(version)), {}
        for name, definition in (self.benchmarks() or {}).items():
            if name.rpartition(".")[2] in TURNED:
                of_today = rows.get(name, {}).get("version") == definition
                samples = rows[name].get("samples") or () if of_today else ()
                done = max((len(case) for case in samples if case), default=0)
                if done < self.rounds and (not done or (name, definition) in noted):
                    lacking[name] = done
        return lacking

    def missing(self, version: str) -> tuple[str, ...] | None:
        """Return the chosen benchmarks that lack a result or rounds; None where asv never listed any."""
        known = self.benchmarks()
        if known is None:
            return None
        rows, lacking = result_rows(self.file(version)), self.lacking(version)
        return tuple(sorted(n for n, one in known.items() if n in lacking or not _is_measured(rows.get(n, {}), one)))

    def check_build(self, version: str, build: str) -> None:
        """Refuse a result file of another build of torch: asv would merge what it measures into it."""
        content = read_content(self.file(version))
        found = content["build"] if content else build
        if found != build:
            which = f"with the build {found} of torch" if found else "without saying with which build of torch"
            other = f", or --torch-build {found}" if found else ""
            raise ParameterError(
                f"{self.file(version)} was measured {which} and {build} is asked for; asv would mix the two: give "
                f"another --results{other}"
            )


def _is_measured(row: Mapping[str, Any], definition: str) -> bool:
    values = row.get("result")
    return row.get("version") == definition and isinstance(values, list) and any(one is not None for one in values)


@dataclass(kw_only=True)
class Tally:
    """What became of each version."""

    not_installed: dict[str, str] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 where all is measured, 2 where a version could not be installed, 1 where a benchmark failed."""
        return EXIT_BAD_INPUT if self.not_installed else EXIT_INCOMPLETE if self.incomplete else 0


# ---- before anything starts


def plan_sweep(
    config: Path,
    *,
    versions: Sequence[str] = (),
    bench: Sequence[str] = (),
    results: Path | None = None,
    environments: Path | None = None,
    torch_build: str = "auto",
    keep: bool = True,
    commit: str = "HEAD",
    machine: str | None = None,
    attributes: Sequence[str] = (),
    rounds: int | None = None,
) -> Sweep:
    """Work out what is asked for without installing anything; None leaves a choice to the configuration."""
    configuration, known = read_configuration(config)
    if importlib.util.find_spec("asv") is None:
        raise ParameterError("asv is not installed; pip install -e '.[dev]' in the checkout")
    if results is not None and results.exists() and not results.is_dir():
        raise ParameterError(f"--results {results} is a file; give a folder")
    if any(not re.fullmatch(r"\w+=\S+", attribute) for attribute in attributes):
        raise ParameterError(f"--attribute {' '.join(attributes)}: give each as name=value, such as rounds=1")
    for pattern in bench:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ParameterError(f"--bench {pattern!r} is no regular expression: {error}") from error
    if not keep and (rounds or 1) > 1:
        raise ParameterError(
            f"--rounds {rounds} comes back to every environment, which --remove-environments removes; "
            "give --keep-environments, or --rounds 1"
        )
    machines = [name for name in known_machines() if name != "version"]
    return Sweep(
        configuration=configuration,
        versions=choose_versions(versions, known),
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        base=(environments or Path(configuration["env_dir"])).resolve(),
        results=(results or Path(configuration["results_dir"])).resolve(),
        build=build_for_here(torch_build),
        commit=_commit(Path(configuration["repo"]), commit),
        machine=machine or (machines[0] if len(machines) == 1 else platform.node()),  # as asv would name it
        bench=tuple(bench),
        attributes=tuple(attributes),
        keep=keep,
        rounds=rounds or (ROUNDS if keep else 1),
    )


def read_configuration(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read ``asv.versions.json``: its content with places made absolute, and its torch versions."""
    if not path.is_file():
        raise ParameterError(f"{path} is no file; run in a checkout of the project, or name its configuration")
    raw = read_json(path)
    with worked_out_from(path, remedy='expected asv\'s places and "matrix": {"req": {"torch": ["2.8.0", …]}}'):
        versions = sorted(raw["matrix"]["req"]["torch"], key=Version)
        places = {key: str((path.resolve().parent / raw[key]).resolve()) for key in _PLACES}
        return {**raw, **places}, [versions[0], *versions[1:]]


def choose_versions(asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the versions to sweep, in order, each once; ``2.8`` is its last patch that is known."""
    chosen = set()
    for version in asked or known:
        if not re.fullmatch(r"\d+(\.\d+){1,2}", version):
            raise ParameterError(f"{version!r} is no torch version; give some such as 2.8.0, or 2.8 for its last patch")
        if Version(version) < LEAST:
            raise ParameterError(f"torch {version} is older than {LEAST}, the oldest supported")
        patches = [version] if version.count(".") > 1 else [one for one in known if one.startswith(f"{version}.")]
        if not patches:
            raise ParameterError(f"no patch of torch {version} is configured; name one, such as {version}.0")
        chosen.add(max(patches, key=Version))
    return tuple(sorted(chosen, key=Version))


def known_machines() -> dict[str, Any]:
    """Return the machines that asv's own file, ``~/.asv-machine.json``, names; none where there is no such file."""
    path = Path.home() / ".asv-machine.json"
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise RecordError(f"{path} is not asv's; remove it, asv writes it anew")
    return content


def _commit(root: Path, revision: str) -> str:
    """Return the hash of a revision."""
    words = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ParameterError(f"--commit {revision} is no commit of {root}; asv installs the packages from a commit")
    return found.stdout.strip()


def show_plan(sweep: Sweep, console: Console) -> None:
    """Print versions, disk and state; refuse what does not fit."""
    rows: list[tuple[str, ...]] = []
    needed: list[int] = []
    for version in sweep.versions:
        note, left = read_note(sweep.environment(version)), sweep.missing(version)
        sweep.check_build(version, note.build if note and serves(note, sweep.build) else sweep.build)
        measure = "all" if left is None else f"{len(left)}" if left else "none"
        state, size = "not needed", 0
        if note is not None:
            state, size = f"there ({note.torch_version}, {note.build})", note.bytes
        elif left != ():
            state = f"to install ({sweep.build})"
            needed.append(size := TORCH_BYTES[sweep.build] + OTHER_BYTES * (not needed))
        rows.append((version, state, gigabytes(size) if size else "", measure))
    print_table(make_table(("torch", "environment", "on disk", "benchmarks to measure"), rows), console)
    place = next(one for one in (sweep.base, *sweep.base.parents) if one.exists())
    free, peak = shutil.disk_usage(place).free, check_room(needed, free=shutil.disk_usage(place).free, sweep=sweep)
    notes = [
        f"Needs at most {gigabytes(peak)} of {gigabytes(free)} free at {sweep.base}; "
        f"results of commit {sweep.commit[:8]} go to {sweep.results / sweep.machine}"
    ]
    if sweep.rounds > 1:
        notes.append(f"Latencies are measured in {sweep.rounds} rounds, the versions in turn, a process each.")
    words = ["git", "-C", str(sweep.root), "status", "--porcelain", "--", "precision_eval", "audio_metrics"]
    if subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip():
        notes.append("Packages have changes that are not committed: asv installs them as of the commit.")
    for note_text in notes:
        console.print(note_text, markup=False, soft_wrap=True)


def check_room(needed: Sequence[int], *, free: int, sweep: Sweep) -> int:
    """Return what the sweep needs at its fullest, or refuse."""
    peak = (sum(needed) if sweep.keep else max(needed)) + RESERVE_BYTES if needed else 0
    if peak > free:
        one = f"give --remove-environments ({gigabytes(max(needed) + RESERVE_BYTES)} at a time), "
        raise DiskSpaceError(
            f"{len(needed)} environments need {gigabytes(peak)}, {gigabytes(free)} are free at {sweep.base}; "
            f"{one if sweep.keep and len(needed) > 1 else ''}name fewer --versions, or another disk with --environments"
        )
    return peak


def gigabytes(size: int) -> str:
    """Return a size in GB (10^9 bytes)."""
    return f"{size / 1e9:.1f} GB"


# ---- measuring


def torch_sweep_command(sweep: Sweep, *, plan_only: bool = False) -> None:
    """Install, measure, and say what became of each version."""
    console = Console(highlight=False, markup=False)
    show_plan(sweep, console)
    if plan_only:
        return
    try:
        with claimed(sweep.base):
            tally = run_sweep(sweep, lambda text: console.print(text, soft_wrap=True))
    except KeyboardInterrupt:
        console.print("Stopped. What was measured is kept; the same command goes on from there.")
        sys.exit(EXIT_INTERRUPTED)
    console.print(f"{len(tally.finished)} of {len(sweep.versions)} torch versions measured; results in {sweep.results}")
    for version, reason in (*tally.not_installed.items(), *tally.incomplete.items()):
        console.print(f"not complete: torch {version}: {reason.removeprefix(f'torch {version}: ')}", soft_wrap=True)
    if tally.exit_code:
        console.print("The same command tries again what is missing, and nothing else.")
    sys.exit(tally.exit_code)


def run_sweep(sweep: Sweep, say: Say) -> Tally:
    """Go through the versions, then through the rounds of latencies; one that fails does not stop the others."""
    tally, listed = Tally(), False
    for number, version in enumerate(sweep.versions, start=1):

        def tell(text: str, title: str = f"[{number}/{len(sweep.versions)}] torch {version}") -> None:
            say(f"{title}: {text}")

        if (listed or read_note(sweep.environment(version)) is None) and sweep.missing(version) == ():
            tell("measured already")
            continue
        try:
            note = _install(sweep, version, tell)
            sweep.check_build(version, note.build)  # what came may not be the build that was asked for
        except PrecisionEvalError as error:
            tally.not_installed[version] = str(error)
            print(f"precision-eval: {'' if version in str(error) else f'torch {version}: '}{error}", file=sys.stderr)
            continue
        if (line := {**asdict(note), "stubs": list(note.stubs)}) not in read_lines(sweep.results / NOTES_NAME):
            append(sweep.results / NOTES_NAME, line)
        with cost_kept(sweep.results, version=version, commit=sweep.commit, **_on_disk(sweep, version, note)):
            trouble = _measure(sweep, version, tell, list_first=not listed)
        listed = listed or sweep.benchmarks() is not None
        if trouble:
            tally.incomplete[version] = trouble
            tell(trouble)
        if not sweep.keep:
            shutil.rmtree(sweep.environment(version).folder, ignore_errors=True)
            shutil.rmtree(sweep.base / "uv-cache", ignore_errors=True)
    known = [version for version in sweep.versions if version not in tally.not_installed]
    tally.incomplete |= measure_in_turn(sweep, [one for one in known if one not in tally.incomplete], say)
    tally.finished = [version for version in known if version not in tally.incomplete]
    return tally


def _on_disk(sweep: Sweep, version: str, note: Note | None) -> dict[str, Any]:
    return {"folder": sweep.environment(version).folder, "on_disk": note.bytes if note else 0}


def _install(sweep: Sweep, version: str, say: Say) -> Note:
    """Make the environment; where it is not to stay, neither does what uv would keep of it in its cache."""
    environ = dict(os.environ)
    if not sweep.keep:
        environ |= {"UV_CACHE_DIR": str(sweep.base / "uv-cache")}
    environment = sweep.environment(version)
    note = build_environment(environment, build=sweep.build, say=say, environ=environ)
    size = gigabytes(note.bytes)
    say(f"{note.torch_version} ({note.build}), numpy {note.numpy}, {size}, made in {note.seconds:.0f} s")
    return note


def _measure(sweep: Sweep, version: str, say: Say, *, list_first: bool) -> str:
    """Run asv for each class with something missing but rounds; return what went wrong, "" where nothing did."""
    if list_first or sweep.benchmarks() is None:
        say("listing the benchmarks")
        code, output = _asv(sweep, version, DISCOVER)
        if code or sweep.benchmarks() is None:
            return f"asv cannot list the benchmarks: {last_words(output)} (all of it: {sweep.log})"
    now = set(sweep.missing(version) or ()) - sweep.lacking(version).keys()
    failed: list[str] = []
    for names in runs(now, read_durations(sweep.results)):
        classes = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
        say(classes)
        code, output = _asv(sweep, version, selection(names))
        left = set(names) & set(sweep.missing(version) or ())
        if left and code == EXIT_INCOMPLETE:  # asv's own failure: it would be the same for the others
            return f"{classes}: {last_words(output)} (all of it: {sweep.log})"
        failed += sorted(left)
    if failed:
        return f"{len(failed)} benchmarks failed in every case: {', '.join(failed)} (all of it: {sweep.log})"
    return ""


def read_durations(results: Path) -> dict[str, float]:
    """Return the seconds that each benchmark took, at most, in any result file of a folder."""
    rows = [item for path in results.glob("*/*-torch-py*.json") for item in result_rows(path).items()]
    taken = sorted((row["duration"], name) for name, row in rows if isinstance(row.get("duration"), int | float))
    return {name: seconds for seconds, name in taken}


def runs(names: Iterable[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Split benchmarks into runs of asv, of whole classes, as far as their time is known to be short."""
    classes: dict[str, list[str]] = {}
    for name in sorted(names):
        classes.setdefault(name.rpartition(".")[0], []).append(name)
    made: list[list[str]] = []
    open_s = RUN_S
    for members in classes.values():
        takes = sum(seconds.get(name, RUN_S) for name in members)
        if open_s + takes > RUN_S:
            made.append([])
            open_s = 0.0
        made[-1] += members
        open_s += takes
    return made


def selection(names: Iterable[str]) -> str:
    """Return the regular expression by which asv takes these benchmarks and no others."""
    return rf"^({'|'.join(re.escape(name) for name in names)})(\(|$)"


def measure_in_turn(sweep: Sweep, versions: Sequence[str], say: Say) -> dict[str, str]:
    """Visit versions round after round until each latency has a sample of every round; return what went wrong."""
    trouble: dict[str, str] = {}
    failed: dict[str, set[str]] = {version: set() for version in versions}
    for number, version in _turns(sweep.rounds, versions):
        wanted = {name for name, done in sweep.lacking(version).items() if done < number} - failed[version]
        if wanted and version not in trouble:
            say(f"round {number} of {sweep.rounds}: torch {version}, latencies: {len(wanted)}")
            if words := _visit(sweep, version, number, wanted):
                trouble[version] = f"{words} (all of it: {sweep.log})"
            after = sweep.lacking(version)
            failed[version] |= {name for name in wanted if after.get(name, number) < number}
    return {
        version: f"latencies failed: {', '.join(sorted(names))} (all of it: {sweep.log})"
        for version, names in failed.items()
        if names
    } | trouble


def _turns(rounds: int, versions: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield round and version; every second round goes back, so that a steady drift of the machine cancels."""
    for number in range(1, rounds + 1 if rounds > 1 else 1):
        for version in versions if number % 2 else reversed(versions):
            yield number, version


def _visit(sweep: Sweep, version: str, number: int, wanted: Iterable[str]) -> str:
    """Measure one version in one round; return asv's last words where it broke off."""
    known, path, note = sweep.benchmarks() or {}, sweep.file(version), read_note(sweep.environment(version))
    where = {"machine": sweep.machine, "commit": sweep.commit, "environment": sweep.name(version)}
    with cost_kept(sweep.results, version=version, commit=sweep.commit, **_on_disk(sweep, version, note)):
        for names in runs(wanted, read_durations(sweep.results)):
            of_today = {name: known[name] for name in names}
            visit = Visit(**where, round=number, at_s=round(time.time(), 3), benchmarks=of_today)
            append(sweep.results / ROUNDS_NAME, asdict(visit))
            before = read_content(path)
            code, output = _asv(sweep, version, selection(names), number)
            put_back_lost(path, before, names)
            if code == EXIT_INCOMPLETE:
                return last_words(output)
    return ""


def put_back_lost(path: Path, before: Mapping[str, Any], names: Iterable[str]) -> None:
    """Put back what a failed visit cost: where a case fails, asv drops the samples that it had from earlier rounds."""
    new, lost = read_content(path), False
    for name in names if before and new else ():
        old, later = (content["rows"].get(name, {}).get("samples") or () for content in (before, new))
        if any(case and not now for case, now in zip_longest(old, later)):
            new["results"][name], lost = before["results"][name], True
    if lost and before["result_columns"] == new["result_columns"]:
        kept = {name: value for name, value in new.items() if name not in ("rows", "build")}
        with written_whole(path) as partial:
            partial.write_text(json.dumps(kept), encoding="utf-8")  # asv's NaN is no strict JSON


def _asv(sweep: Sweep, version: str, pattern: str, turn: int = 0) -> tuple[int, str]:
    """Run asv in one environment; return its exit code (2: a case failed) and what it printed."""
    configuration = sweep.base / f"asv-torch{version}.json"
    one = {"pythons": [sweep.python], "matrix": {"req": {"torch": [version]}}}
    places = {"env_dir": str(sweep.base), "results_dir": str(sweep.results)}
    write_json(configuration, {**sweep.configuration, **one, **places})
    python_path = os.pathsep.join(filter(None, (str(sweep.root), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": python_path, BUILD_VARIABLE: sweep.build}
    if sweep.machine not in known_machines():  # asv would ask at the terminal
        words = ["machine", "--config", str(configuration), "--yes", "--machine", sweep.machine]
        code, output = _logged(sweep, environ, *words)
        if code:
            raise RecordError(f"asv cannot note this machine down: {last_words(output)}; see {sweep.log}")
    words = ["run", "--config", str(configuration), f"{sweep.commit}^!", "--bench", pattern, "--record-samples"]
    words += ["--append-samples"] if turn > 1 else []
    words += ["--no-pull", "--show-stderr", "--machine", sweep.machine]
    words += [word for attribute in sweep.attributes for word in ("--attribute", attribute)]
    return _logged(sweep, {**environ, PROCESS_VARIABLE: str(turn - 1)} if turn else environ, *words)


def _logged(sweep: Sweep, environ: dict[str, str], *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "asv", *words]
    heard: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=environ, cwd=sweep.base, **heard) as asv:
        try:
            output = asv.communicate()[0]
        except BaseException:  # Ctrl-C and SIGTERM: what asv has started is in groups of its own
            _kill_with_all_below(asv.pid)
            raise
    with sweep.log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{output}\n")
    return asv.returncode, output


def _kill_with_all_below(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                one.kill()


def last_words(output: str) -> str:
    """Return the end of what asv printed, in one line."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|fail", line, re.IGNORECASE)]
    return "; ".join((errors or lines)[-2:])[:400] or "it ended without a word"
