"""The main job over and over, with a fault at a random time: what is lost, left over, leaked or printed.

A round is one run folder. The same command is given in it until it has ended by itself, each time but the last with one
fault drawn from the round's seed. Nothing in the run knows of it: signals come from outside, limits are those of the
operating system. One round of ten keeps one process instead, which evaluates again and again while its
workers are killed, and watches its memory, handles and threads grow.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

import precision_eval
from precision_eval.core.files import PARTIAL
from validation.frame import Data, Experiment, Figure, Options, Trial, each

_ROOT = str(Path(precision_eval.__file__).parents[1])
_MARK = "PRECISION_EVAL_SOAK"
"""Variable of the environment by which every process of a round is known, whoever its parent has become."""

ORPHAN_LIMIT_S = 2.0
_COMMAND_LIMIT_S = 1200.0
"""Far beyond any of them, for a machine that does much else."""

_UNCLEAN = re.compile(
    r"Traceback \(most|Fatal Python|Aborted|Exception ignored|leaked semaphore|internal error|^Process "
)

_ATTENTION = (
    *("--case", "attention-decode", "--size", "tiny", "--measure", "trace,drift,memory,latency"),
    *("--budget", "0.05", "--processes", "1"),
)

JOBS: Mapping[str, tuple[str, ...]] = {
    "attention": _ATTENTION,
    "compiled": (*("--case", "attention-decode", "--size", "tiny", "--mode", "compiled", "--measure", "trace,drift"),),
    "voice": (
        *("--case", "voice", "--minutes", "0.02", "--streams", "2", "--steps", "10"),
        *("--measure", "teacher_forced_drift,divergence"),
    ),
}
"""What is run, by name."""

SIGNALS: Mapping[str, tuple[int, str, tuple[int, ...]]] = {
    "kill_parent": (signal.SIGKILL, "parent", (-9,)),
    "ctrl_c": (signal.SIGINT, "group", (130,)),
    "hang_up": (signal.SIGHUP, "group", (-1, 129)),
    "terminate": (signal.SIGTERM, "parent", (143,)),
    "kill_worker": (signal.SIGKILL, "worker", (3,)),
    "kill_any": (signal.SIGKILL, "any", (-9, 3)),
    "hung_worker": (signal.SIGSTOP, "worker", (3,)),
}
"""Kind to: signal, who gets it, the exit codes that it may lead to beside 0, where the command was done before.

*Any* is any process of the round: the command, a lane, a fork server, a worker or what watches over them.
"""

LIMITS: Mapping[str, tuple[int, ...]] = {"full_disk": (2, 3), "memory_limit": (2, 3), "read_only": (2,)}
"""Kind to the exit codes that it may lead to beside 0."""

CLOCK = "clock_steps"
KINDS = (*SIGNALS, *LIMITS, CLOCK)

_STEPPING = "from validation.robustness.injector import step_the_clock\nstep_the_clock()\n"


def play(job: str, seed: int, kinds: Sequence[str], faults: int) -> Data:
    """Give a command with one fault after another, then without; return what was broken."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        lost, problems, orphans = 0, [], 0
        ends: Counter[str] = Counter()
        for number in range(faults + 1):
            kind = str(rng.choice(kinds)) if number < faults else ""
            before = _records(folder / "run")
            code, output, living = _give(JOBS[job], folder, kind, rng)
            lost += sum((Counter(before) - Counter(_records(folder / "run"))).values())
            orphans += len(living)
            ends[f"{kind or 'undisturbed'}: {code}"] += 1
            where = f"{job}/{seed} {number} {kind or 'undisturbed'}"
            if code not in (0, *_codes(kind)):
                problems.append(f"{where}: exit {code}: {' '.join(output.split())[-300:]}")
            problems += [f"{where}: left over {one}" for one in living]
            if unclean := _UNCLEAN.search(output):
                problems.append(f"{where}: printed {output[unclean.start() :][:300]!r}")
        records = [json.loads(line) for line in _records(folder / "run")]
        passed = Counter((record["cell"], record["environment"]) for record in records if record["status"] == "passed")
        files = [path.name for path in (folder / "run").rglob(f"*{PARTIAL}")]
        files += _left_in(folder / "tmp")
        problems += [f"{job}/{seed}: {left} was left" for left in files]
    return {
        "faults": faults,
        "lost": lost,
        "doubled": passed.total() - len(passed),
        "orphans": orphans,
        "files": len(files),
        "problems": problems,
        "ends": dict(ends),
    }


def _codes(kind: str) -> tuple[int, ...]:
    return SIGNALS[kind][2] if kind in SIGNALS else LIMITS.get(kind, ())


def _give(job: Sequence[str], folder: Path, kind: str, rng: np.random.Generator) -> tuple[int | None, str, list[str]]:
    """Give the command once with a fault; return its exit code, what it printed, and who outlived it by two seconds."""
    run_dir, scratch = folder / "run", folder / "tmp"
    scratch.mkdir(exist_ok=True)
    words = ["run", *job, "--fix", "full_float32,query_to_half", "--device", "cpu", "--workers", "2"]
    words += ["--timeout", "60" if kind == "hung_worker" else "600", "--out", str(run_dir)]
    paths = [str(_stepping_clock(folder)), _ROOT] if kind == CLOCK else [_ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(scratch), _MARK: str(folder)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a full disk cuts bytecode short, and the next import fails on it
    with (folder / "output").open("w+b") as output, _hindered(kind, run_dir, rng) as hinder:
        process = subprocess.Popen(
            [sys.executable, "-m", "precision_eval.cli", *words],
            env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: _prepare(hinder),
        )  # fmt: skip
        try:
            if kind in SIGNALS:
                _send(kind, process, folder, rng)
            code: int | None = process.wait(_COMMAND_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
        except BaseException:  # Ctrl-C: no group of the terminal holds it
            process.kill()
            raise
        living = _living(folder)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return code, text, living


def _stepping_clock(folder: Path) -> Path:
    """Return a folder from which every Python takes a wall clock that jumps an hour ahead and back."""
    place = folder / "clock"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_STEPPING, encoding="utf-8")
    return place


def _send(kind: str, process: subprocess.Popen[bytes], folder: Path, rng: np.random.Generator) -> None:
    """Send the signal of a kind at a random time, early and late ones alike."""
    number, whom, _ = SIGNALS[kind]
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(float(rng.exponential(8.0)) + (0.3 if whom != "group" else 1.0))
        return
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if whom == "group":
            os.killpg(process.pid, number)
        elif whom == "parent":
            process.send_signal(number)
        elif victims := [one for one in _of(folder) if whom == "any" or os.getpgid(one.pid) == one.pid != process.pid]:
            victims[int(rng.integers(len(victims)))].send_signal(number)


@contextlib.contextmanager
def _hindered(kind: str, run_dir: Path, rng: np.random.Generator) -> Iterator[Callable[[], object]]:
    """Yield what limits a command from its start, and take away the right to write for its time."""
    if kind == "full_disk":  # no file grows beyond a size, which fails as a full disk does
        size = int(rng.choice([0, 500, 4_000, 40_000, 400_000]))
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    elif kind == "memory_limit":
        size = int(rng.uniform(0.7, 4.0) * 2**30)
        yield lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))
    elif kind == "read_only":
        run_dir.mkdir(exist_ok=True)
        run_dir.chmod(0o555)
        yield _obey_permissions
        run_dir.chmod(0o755)
    else:
        yield lambda: None


def _prepare(hinder: Callable[[], object]) -> None:
    """Let signals act in the new process, which nohup and a shell's background hand down ignored; then hinder it."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    hinder()


def _obey_permissions() -> None:
    """Give up root's right to write anywhere."""
    if os.geteuid() == 0 and platform.system() == "Linux":
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def _of(folder: Path) -> list[psutil.Process]:
    """Return the living processes of a round."""
    marked = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                marked.append(process)
    return marked


def _living(folder: Path) -> list[str]:
    """Name the processes of a round that live two seconds after the command, and end them."""
    end_s = time.monotonic() + ORPHAN_LIMIT_S
    while (left := _of(folder)) and time.monotonic() < end_s:
        time.sleep(0.05)
    names = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline())[-200:])
            process.kill()
    return names


def _left_in(scratch: Path) -> list[str]:
    """Name what is left for temporary files, but for the compiler's cache, which is meant to stay."""
    return [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor_")]


def _records(run_dir: Path) -> list[bytes]:
    """Return the whole lines of the records."""
    path = run_dir / "records.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [line for line in lines if line.startswith(b"{")]


_PARENT = """
import contextlib, gc, json, sys, tempfile, threading, psutil
from precision_eval import evaluate
from precision_eval.core.workers import WorkerCrashedError
me = psutil.Process()
def kill(stop):
    while not stop.wait(3.0):
        for child in me.children(recursive=True):
            try:
                if child.pid == __import__("os").getpgid(child.pid):
                    child.kill()
                    break
            except (psutil.Error, ProcessLookupError):
                pass
for turn in range(int(sys.argv[1])):
    stop = threading.Event()
    killer = threading.Thread(target=kill, args=(stop,), daemon=True)
    killer.start()
    with tempfile.TemporaryDirectory() as out, contextlib.suppress(WorkerCrashedError):  # it asked about the device
        evaluate("attention-decode", fixes=("query_to_half",), out=out, device="cpu", quick=True, measures=("trace",))
    stop.set()
    killer.join()
    gc.collect()
    print(json.dumps({"bytes": me.memory_info().rss, "handles": me.num_fds(), "threads": me.num_threads()}), flush=True)
"""


def watch_parent(turns: int) -> Data:
    """Evaluate again and again in one process whose workers are killed; return its growth from the second turn on."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        environment = {**os.environ, "PYTHONPATH": _ROOT, "TMPDIR": name, _MARK: name}
        words = [sys.executable, "-c", _PARENT, str(turns)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=name)
        living = _living(Path(name))
        files = _left_in(Path(name))
    turns_seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    problems = [] if done.returncode == 0 else [f"exit {done.returncode}: {' '.join(done.stderr.split())[-300:]}"]
    problems += [f"left over {one}" for one in living] + [f"{one} was left" for one in files]
    line: Data = {"faults": 0, "lost": 0, "orphans": len(living), "files": len(files), "problems": problems}
    if len(turns_seen) > 2:
        first, last = turns_seen[1], turns_seen[-1]
        line |= {"growth": last["bytes"] / first["bytes"] - 1, "handles": last["handles"] - first["handles"]}
        line |= {"threads": last["threads"] - first["threads"], "turns": len(turns_seen)}
    return line


def _trials(options: Options) -> list[Trial]:
    jobs = options["jobs"]
    return [
        Trial(f"parent/{number}", None)
        if number % 10 == 3
        else Trial(f"{jobs[number % len(jobs)]}/{number}", (jobs[number % len(jobs)], number, options["kinds"], 4))
        for number in range(options["rounds"])
    ]


_COUNTED = {
    "lost": "finished cells lost",
    "doubled": "finished cells recorded twice",
    "orphans": "processes left over after 2 s",
    "files": "files leaked",
}


def _summary(lines: list[Data], options: Options) -> Data:
    """Count over all rounds."""
    ends: Counter[str] = sum((Counter(line.get("ends", {})) for line in lines), Counter())
    return {
        "rounds": len(lines),
        "faults": sum(line["faults"] for line in lines),
        **{key: sum(line.get(key, 0) for line in lines) for key in _COUNTED},
        "problems": [problem for line in lines for problem in line["problems"]],
        "ends": {end: ends[end] for end in sorted(ends)},
        "parents": [{key: line[key] for key in ("growth", "handles", "turns")} for line in lines if "growth" in line],
    }


def _figures(content: Data) -> list[Figure]:
    """Show the counts, and how the processes that evaluate again and again have grown at most."""
    problems, parents = content["problems"], content["parents"]
    where = f"{content['faults']} faults in {content['rounds']} rounds"
    counts = {text: content[key] for key, text in _COUNTED.items() if key in content}
    figures = [Figure(f"{text}, {where}", str(count), "0", not count) for text, count in counts.items()]
    figures.append(
        Figure("commands that ended or printed otherwise than promised", str(len(problems)), "0", not problems)
    )
    if parents:
        turns = sum(parent["turns"] for parent in parents)
        growth, handles = (max(parent[key] for parent in parents) for key in ("growth", "handles"))
        of = f"of one process, the most of {len(parents)} over {turns} evaluations whose workers are killed"
        figures.append(Figure(f"growth of memory {of}", f"{growth:+.1%}", "≤ +5 %", growth <= 0.05))
        figures.append(Figure(f"growth of handles {of}", f"{handles:+d}", "0", handles <= 0))
    ends = "; ".join(f"{end} × {count}" for end, count in content["ends"].items())
    return [*figures, Figure("exit codes by fault (0: done before it came)", ends)] if ends else figures


EXPERIMENT = Experiment(
    name="soak",
    title="the main job over and over with a fault at a random time; --limit-s says for how long",
    trials=_trials,
    run=each(lambda spec: watch_parent(6) if spec is None else play(*spec)),
    figures=_figures,
    summary=_summary,
    settings={"rounds": (20, 1000), "kinds": (KINDS, KINDS), "jobs": (tuple(JOBS), tuple(JOBS))},
)
