"""What ``torch-sweep`` does: per torch version an environment, then asv in it, a few classes of benchmarks at a time.

asv stores the results of a run at its end; so a run measures some minutes' worth, and an interruption costs no more
than that. Nothing is watched or redrawn while asv measures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from precision_eval.cli.application import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.results.asv import Visit, read_visits, visit_times
from precision_eval.studies.tracking.definitions import PROCESS_VARIABLE
from tools.torch_versions import sweep_plan as plan
from tools.torch_versions.environments import (
    BUILD_VARIABLE,
    Installer,
    Note,
    TorchEnvironment,
    build_environment,
    build_for_here,
    cache_folder,
    find_installer,
    read_note,
    serves,
)
from tools.torch_versions.sweep_notes import cost_kept, keep_note, note_visit, order_of, put_back_lost, unfinished
from tools.torch_versions.sweep_plan import Configuration

EXIT_INCOMPLETE = 1
ROUNDS = 3  # as many as a session has processes: the same samples, spread over time
DISCOVER = "just-discover"  # asv's word for: list the benchmarks, measure none


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for; None leaves a place to the configuration."""

    config: Path = Path("asv.versions.json")
    versions: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    results: Path | None = None
    environments: Path | None = None
    torch_build: str = "auto"
    keep: bool = True
    commit: str = "HEAD"
    machine: str | None = None
    attributes: tuple[str, ...] = ()
    plan_only: bool = False
    rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a request comes to on this machine."""

    configuration: Configuration
    versions: tuple[str, ...]
    python: str
    base: Path
    results: Path
    build: str
    installer: Installer
    commit: str
    machine: str
    request: Request

    @property
    def rounds(self) -> int:
        """How often the versions are visited for the latencies."""
        return self.request.rounds or (ROUNDS if self.request.keep else 1)

    def note(self, version: str) -> Note | None:
        """Return what a finished environment says of itself."""
        return read_note(self.environment(version))

    def environment(self, version: str) -> TorchEnvironment:
        """Return what a version asks for."""
        return TorchEnvironment(version=version, python=self.python, root=self.configuration.root, base=self.base)

    def files(self, version: str, build: str | None = None) -> tuple[Path, ...]:
        """Return a version's result files on this machine."""
        name = plan.environment_name(version, self.python)
        files = plan.result_files(self.results, commit=self.commit, name=name, machine=self.machine)
        note = self.note(version)
        there = note.build if note is not None and serves(note, self.build) else self.build
        plan.check_build(files, build or there)
        return files

    def missing(self, version: str) -> tuple[str, ...] | None:
        """Return the chosen benchmarks that have no result yet; None where asv never listed any."""
        files = self.files(version)
        if plan.read_benchmarks(self.results) is None:
            return None
        return tuple(sorted({*plan.missing_benchmarks(self.known(), files), *self.turned(version)[0]}))

    def known(self) -> dict[str, str]:
        """Return the chosen benchmarks, name → version."""
        return plan.select_benchmarks(plan.read_benchmarks(self.results) or {}, self.request.bench)

    def turned(self, version: str) -> tuple[dict[str, int], tuple[str, ...]]:
        """Return the latencies that lack rounds, with the rounds they have, and those measured otherwise."""
        if self.rounds == 1:
            return {}, ()
        where = {"machine": self.machine, "commit": self.commit}
        noted = visit_times(read_visits(self.results), environment=plan.environment_name(version, self.python), **where)
        return unfinished(self.known(), self.files(version), noted, rounds=self.rounds)

    @property
    def log(self) -> Path:
        """What asv printed."""
        return self.base / "asv.log"


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


def torch_sweep_command(request: Request) -> None:
    """Install, measure, and say what became of each version."""
    console = Console(highlight=False)
    sweep = plan_sweep(request)
    show_plan(sweep, console)
    if request.plan_only:
        return
    try:
        tally = run_sweep(sweep, lambda text: console.print(text, markup=False, soft_wrap=True))
    except KeyboardInterrupt:
        console.print("Stopped. What was measured is kept; the same command goes on from there.")
        sys.exit(EXIT_INTERRUPTED)
    show_tally(tally, sweep, console)
    sys.exit(tally.exit_code)


def plan_sweep(request: Request) -> Sweep:
    """Work a request out without installing anything."""
    configuration = plan.read_configuration(request.config)
    if importlib.util.find_spec("asv") is None:
        raise ParameterError("asv is not installed; pip install -e '.[dev]' in the checkout")
    if request.results is not None and request.results.exists() and not request.results.is_dir():
        raise ParameterError(f"--results {request.results} is a file; give a folder")
    versions = plan.choose_versions(request.versions, configuration.versions)
    if any(not re.fullmatch(r"\w+=\S+", attribute) for attribute in request.attributes):
        raise ParameterError(f"--attribute {' '.join(request.attributes)}: give each as name=value, such as rounds=1")
    # a pattern that is none gets no further
    plan.select_benchmarks({"": ""}, [f"{pattern}|" for pattern in request.bench])
    if request.rounds is not None and request.rounds < 1:
        raise ParameterError(f"--rounds {request.rounds}: give 1 or more")
    if not request.keep and (request.rounds or 1) > 1:
        raise ParameterError(
            f"--rounds {request.rounds} comes back to every environment, which --remove-environments removes; "
            "give --keep-environments, or --rounds 1"
        )
    installer = find_installer()
    return Sweep(
        configuration=configuration,
        versions=versions,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        base=(request.environments or configuration.place("env_dir")).resolve(),
        results=(request.results or configuration.place("results_dir")).resolve(),
        build=build_for_here(request.torch_build, installer),
        installer=installer,
        commit=_commit(configuration.root, request.commit),
        machine=plan.machine_name(request.machine, plan.known_machines(machine_file())),
        request=request,
    )


def _commit(root: Path, revision: str) -> str:
    """Return the hash of a revision."""
    found = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise ParameterError(f"--commit {revision} is no commit of {root}; asv installs the packages from a commit")
    return found.stdout.strip()


def run_sweep(sweep: Sweep, say: Callable[[str], None]) -> Tally:
    """Go through the versions; one that fails does not stop the others."""
    tally = Tally()
    total = len(sweep.versions)
    listed = False
    waiting: list[str] = []
    for number, version in enumerate(sweep.versions, start=1):
        title = f"[{number}/{total}] torch {version}"
        if (listed or read_note(sweep.environment(version)) is None) and sweep.missing(version) == ():
            say(f"{title}: measured already")
            tally.finished.append(version)
            continue
        try:
            note = _install(sweep, version, lambda text, title=title: say(f"{title}: {text}"))  # type: ignore[misc]
            sweep.files(version, note.build)  # what came may not be the build that was asked for
        except PrecisionEvalError as error:
            tally.not_installed[version] = str(error)
            print(f"precision-eval: {'' if version in str(error) else f'torch {version}: '}{error}", file=sys.stderr)
            continue
        keep_note(sweep.results, note)
        started = time.monotonic()
        folder = sweep.environment(version).folder
        with cost_kept(sweep.results, version=version, commit=sweep.commit, folder=folder, on_disk=note.bytes):
            trouble = _measure(sweep, version, lambda text, title=title: say(f"{title}: {text}"), list_first=not listed)  # type: ignore[misc]
        listed = listed or plan.read_benchmarks(sweep.results) is not None
        if trouble:
            tally.incomplete[version] = trouble
            say(f"{title}: {trouble}")
        elif sweep.turned(version)[0]:
            waiting.append(version)
        else:
            tally.finished.append(version)
            say(f"{title}: complete after {time.monotonic() - started:.0f} s")
        if not sweep.request.keep:
            shutil.rmtree(sweep.environment(version).folder, ignore_errors=True)
            shutil.rmtree(_own_cache(sweep), ignore_errors=True)
    _rounds(sweep, waiting, tally, say)
    return tally


def _rounds(sweep: Sweep, versions: Sequence[str], tally: Tally, say: Callable[[str], None]) -> None:
    """Measure the latencies of versions in turn, and say what became of them."""

    def run(version: str, pattern: str, number: int) -> str:
        code, output = _asv(sweep, _configuration_file(sweep, version), pattern, number)
        return f"{last_words(output)} (all of it: {sweep.log})" if code == EXIT_INCOMPLETE else ""

    listed = plan.read_benchmarks(sweep.results) is not None
    known = [version for version in sweep.versions if listed and version not in tally.not_installed]
    if said := measured_otherwise(sweep, known):
        say(said)
    trouble = measure_in_turn(sweep, versions, run, say)
    tally.incomplete |= trouble
    tally.finished += [version for version in versions if version not in trouble]
    tally.finished.sort(key=sweep.versions.index)


def _own_cache(sweep: Sweep) -> Path:
    return sweep.base / "uv-cache"


def _install(sweep: Sweep, version: str, say: Callable[[str], None]) -> Note:
    """Make the environment; where it is not to stay, neither does what uv would keep of it in its cache."""
    environ = dict(os.environ)
    if not sweep.request.keep:
        environ |= {"UV_CACHE_DIR": str(_own_cache(sweep)), "PIP_NO_CACHE_DIR": "1"}
    environment = sweep.environment(version)
    note = build_environment(environment, build=sweep.build, installer=sweep.installer, say=say, environ=environ)
    size = plan.gigabytes(note.bytes)
    say(f"{note.torch_version} ({note.build}), numpy {note.numpy}, {size}, made in {note.seconds:.0f} s")
    return note


def _measure(sweep: Sweep, version: str, say: Callable[[str], None], *, list_first: bool) -> str:
    """Run asv for each class with something missing; return what went wrong, "" where nothing did."""
    path = _configuration_file(sweep, version)
    if list_first or plan.read_benchmarks(sweep.results) is None:
        say("listing the benchmarks")
        code, output = _asv(sweep, path, DISCOVER)
        if code or plan.read_benchmarks(sweep.results) is None:
            return f"asv cannot list the benchmarks: {last_words(output)} (all of it: {sweep.log})"
    in_turn = sweep.turned(version)[0]
    now = [name for name in sweep.missing(version) or () if name not in in_turn]
    waiting = plan.runs(now, plan.read_durations(sweep.results))
    failed: list[str] = []
    for number, names in enumerate(waiting, start=1):
        classes = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
        say(f"{classes} ({number}/{len(waiting)})")
        code, output = _asv(sweep, path, plan.selection(names))
        left = set(names) & set(sweep.missing(version) or ())
        if left and code == EXIT_INCOMPLETE:  # asv's own failure: it would be the same for the others
            return f"{classes}: {last_words(output)} (all of it: {sweep.log})"
        failed += sorted(left)
    if failed:
        return f"{len(failed)} benchmarks failed in every case: {', '.join(failed)} (all of it: {sweep.log})"
    return ""


def _configuration_file(sweep: Sweep, version: str) -> Path:
    """Write asv's configuration of one version."""
    path = sweep.base / f"asv-torch{version}.json"
    content = plan.configuration_for(
        sweep.configuration, version, python=sweep.python, base=sweep.base, results=sweep.results
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _asv(sweep: Sweep, configuration: Path, pattern: str, turn: int = 0) -> tuple[int, str]:
    """Run asv in one environment; return its exit code (2: a case failed) and what it printed."""
    python_path = os.pathsep.join(filter(None, (str(sweep.configuration.root), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": python_path, BUILD_VARIABLE: sweep.build}
    know_machine(sweep.machine, environ, configuration)
    words = ["run", "--config", str(configuration), f"{sweep.commit}^!", "--bench", pattern]
    words += ["--record-samples", "--no-pull", "--show-stderr", "--machine", sweep.machine]
    if turn:
        environ[PROCESS_VARIABLE] = str(turn - 1)
        words[-2:-2] = ["--append-samples"] if turn > 1 else []
    words += [word for attribute in sweep.request.attributes for word in ("--attribute", attribute)]
    return _logged([sys.executable, "-m", "asv", *words], environ, sweep)


def _logged(command: Sequence[str], environ: dict[str, str], sweep: Sweep) -> tuple[int, str]:
    done = subprocess.run(
        command, env=environ, cwd=sweep.base, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    with sweep.log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    return done.returncode, done.stdout


def machine_file() -> Path:
    """Return asv's file of machines."""
    return Path.home() / ".asv-machine.json"


def know_machine(name: str, environ: dict[str, str], configuration: Path) -> None:
    """Let asv note this machine down, with what it finds, unless it did before; it would ask at the terminal."""
    path = machine_file()
    if name in plan.known_machines(path):
        return
    words = [sys.executable, "-m", "asv", "machine", "--config", str(configuration), "--yes", "--machine", name]
    done = subprocess.run(words, env=environ, cwd=configuration.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecordError(f"asv cannot note this machine down: {last_words(done.stdout + done.stderr)}; see {path}")


def last_words(output: str) -> str:
    """Return the end of what asv printed, in one line."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|fail", line, re.IGNORECASE)]
    return "; ".join((errors or lines)[-2:])[:400] or "it ended without a word"


Run = Callable[[str, str, int], str]
"""Measures in a version what a pattern finds, in a round; returns asv's last words where it broke off, else ""."""


def measure_in_turn(sweep: Sweep, versions: Sequence[str], run: Run, say: Callable[[str], None]) -> dict[str, str]:
    """Visit versions round after round until each latency has a sample of every round."""
    trouble: dict[str, str] = {}
    failed: dict[str, set[str]] = {version: set() for version in versions}
    for number in range(1, sweep.rounds + 1):
        for version in order_of(versions, number):
            if version in trouble:
                continue
            lacking, _ = sweep.turned(version)
            wanted = {name for name, done in lacking.items() if done < number} - failed[version]
            if not wanted:
                continue
            say(f"round {number} of {sweep.rounds}: torch {version}, {_count(len(wanted))}")
            words = _visit(sweep, version, number, wanted, run)
            after, _ = sweep.turned(version)
            failed[version] |= {name for name in wanted if name in after and after[name] < number}
            if words:
                trouble[version] = words
    return trouble | {
        version: f"{_count(len(names))} failed: {', '.join(sorted(names))} (all of it: {sweep.log})"
        for version, names in failed.items()
        if names and version not in trouble
    }


def _count(number: int) -> str:
    return f"{number} benchmark{'' if number == 1 else 's'} of latency"


def _visit(sweep: Sweep, version: str, number: int, wanted: Iterable[str], run: Run) -> str:
    """Measure one version in one round; return asv's last words where it broke off."""
    environment, versions = sweep.environment(version), sweep.known()
    on_disk = getattr(sweep.note(version), "bytes", 0)
    with cost_kept(sweep.results, version=version, commit=sweep.commit, folder=environment.folder, on_disk=on_disk):
        for names in plan.runs(wanted, plan.read_durations(sweep.results)):
            visit = Visit(
                machine=sweep.machine,
                commit=sweep.commit,
                environment=plan.environment_name(version, sweep.python),
                round=number,
                at_s=round(time.time(), 3),
                benchmarks={name: versions[name] for name in names},
            )
            note_visit(sweep.results, visit)
            before = {path: path.read_text(encoding="utf-8") for path in sweep.files(version)}
            words = run(version, plan.selection(names), number)
            for path, text in before.items():
                put_back_lost(path, text, names)
            if words:
                return words
    return ""


def measured_otherwise(sweep: Sweep, versions: Iterable[str]) -> str:
    """Say that latencies are there which no round is on record for; "" where there are none."""
    names = sorted({version for version in versions if sweep.turned(version)[1]})
    if not names or sweep.rounds == 1:
        return ""
    return (
        f"Latencies of torch {', '.join(names)} were measured before, each version in one session; they stay as they "
        "are. Another --results measures them in turn."
    )


def show_plan(sweep: Sweep, console: Console) -> None:
    """Print versions, disk and state; refuse what does not fit."""
    table = Table("torch", "environment", "on disk", "still to measure", box=None, header_style="bold")
    needed: list[int] = []
    for version in sweep.versions:
        note, left = sweep.note(version), sweep.missing(version)
        measure = (
            "all" if left is None else f"{len(left)} benchmark{'s' if len(left) > 1 else ''}" if left else "nothing"
        )
        if note is not None:
            table.add_row(version, f"there ({note.torch_version}, {note.build})", plan.gigabytes(note.bytes), measure)
        elif left == ():
            table.add_row(version, "not needed", "", measure)
        else:
            size = plan.expected_bytes(version, sweep.build, shared=sweep.installer.uv is not None, first=not needed)
            needed.append(size)
            table.add_row(version, f"to install ({sweep.build}, {sweep.installer.name})", plan.gigabytes(size), measure)
    console.print(table)
    free = shutil.disk_usage(_existing(sweep.base)).free
    peak = plan.check_room(needed, free=free, where=sweep.base, keep=sweep.request.keep)
    _check_cache(sweep, needed)
    console.print(
        f"Needs at most {plan.gigabytes(peak)} of {plan.gigabytes(free)} free at {sweep.base}; "
        f"results of commit {sweep.commit[:8]} go to {sweep.results / sweep.machine}",
        soft_wrap=True,
    )
    if sweep.rounds > 1:
        console.print(f"Latencies are measured in {sweep.rounds} rounds, the versions in turn, a process each.")
    if _changed(sweep.configuration.root):
        console.print(
            "Packages have changes that are not committed: asv installs them as of the commit.", style="yellow"
        )


def _existing(place: Path) -> Path:
    """Return the nearest folder that is there."""
    return next(one for one in (place, *place.parents) if one.exists())


def _check_cache(sweep: Sweep, needed: Sequence[int]) -> None:
    """Refuse where uv's cache lies on a disk of its own, without room: nothing is shared by links then."""
    cache = cache_folder(sweep.installer) if sweep.request.keep else None  # else it lies beside the environments
    if cache is None:
        return
    place, beside = _existing(cache), _existing(sweep.base)
    if place.stat().st_dev != beside.stat().st_dev:
        plan.check_cache_room(needed, free=shutil.disk_usage(place).free, where=cache)


def _changed(root: Path) -> bool:
    words = ["git", "-C", str(root), "status", "--porcelain", "--", "precision_eval", "audio_metrics"]
    return bool(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())


def show_tally(tally: Tally, sweep: Sweep, console: Console) -> None:
    """Print what became of the versions."""
    console.print(f"{len(tally.finished)} of {len(sweep.versions)} torch versions measured; results in {sweep.results}")
    for version, reason in (*tally.not_installed.items(), *tally.incomplete.items()):
        console.print(f"not complete: torch {version}: {reason.removeprefix(f'torch {version}: ')}", soft_wrap=True)
    if tally.exit_code:
        console.print("The same command tries again what is missing, and nothing else.")
