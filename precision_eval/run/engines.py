"""Executors that run each cell elsewhere, in a fresh process there: lanes of this machine, dask, Ray, Slurm.

Conventions: an engine brings a call to a node and its answer back; how it is isolated, limited and timed there is this
package's (:func:`on_node`). The unit is a cell, and a timed cell holds every fix of a case and mode with all its
processes, so what is compared shares a node. A node has to be like the first one; another is refused. A result is kept
in the run's folder, which all nodes share, until it is recorded, so that neither a call that an engine repeats nor the
command given again measures it twice.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

from precision_eval.core.cells import Outcome
from precision_eval.core.environment import usable_cores
from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError, unknown_name
from precision_eval.core.files import locked, read_json, write_json, written_whole
from precision_eval.core.formatting import duration_long, one_line
from precision_eval.core.targets import first_line
from precision_eval.core.workers import WorkerCrashedError, WorkerStoppedError
from precision_eval.measure.isolation import IsolationError
from precision_eval.measure.registry import CellResult, run_cell
from precision_eval.run.executor import IsolatedExecutor, environment_seen_by
from precision_eval.run.lanes import LocalLanes, lanes_of

FOLDER = "engine"
"""Folder in a run's for what nodes have measured and is not recorded yet."""

IDLE_S = 30.0
"""How long a job of Slurm waits for a further call."""

SERVES_S, ASKS_MIN = 3 * 3600.0, 240
"""How long a job of Slurm takes calls, and the minutes that it asks for, which leave an hour for the last one."""

JOB_NAME = "precision-eval"
SQUEUE_S = 5.0
"""How often Slurm is asked which jobs there are."""

POLL_S = 0.2
"""How often jobs look for calls, and the command for answers."""

CLOCKS_APART_S = 60.0
"""From where on the clock of a node is said to be off."""

ANSWER_S = 30.0
"""How long a cluster may take to answer at its address; Ray's own client would try for ever, or end this process."""

TRIES = 3
"""How often a call is handed out whose worker the engine loses, before it counts as crashed."""


@dataclass(frozen=True, kw_only=True)
class NodeCall:
    """A call, its limits, the environment it expects, and where its result is kept."""

    function: Callable[..., Any] = print
    arguments: tuple[Any, ...] = ()
    device: str
    preload: tuple[str, ...]
    timeout_s: float | None = None
    memory_share: float | None = None
    expected: Mapping[str, Any] | None = None
    kept: Path | None = None


@dataclass(frozen=True)
class NodeAnswer:
    """What a call returned or failed with, and by which node's clock."""

    value: Any
    node: str
    at_s: float


class Engine(Protocol):
    """What runs a call on some node."""

    lanes: int

    def run(self, function: Callable[[NodeCall], Any], call: NodeCall) -> Any:
        """Return what the call returns there; any error means that the node was lost."""

    def close(self) -> None:
        """Give everything up."""


def on_node(call: NodeCall) -> NodeAnswer:
    """Run a call in a process of its own, on the node that this is."""
    return NodeAnswer(_value_of(call), os.uname().nodename, time.time())


def _value_of(call: NodeCall) -> Any:
    """Return what a call returns, or the error as one."""
    try:
        if multiprocessing.current_process().daemon:
            raise ParameterError("workers of this cluster may start no process; start them with worker.daemon: false")
        isolated = _isolated(call.timeout_s, call.memory_share, call.preload)
        if call.expected is not None:
            _check_node(call.expected, _environment(isolated, call.device))
        if call.kept is None:
            return isolated.submit(call.function, *call.arguments).result()
        with locked(call.kept.with_suffix(".lock")):
            if call.kept.exists():
                content = read_json(call.kept)
                return CellResult(**content | {"outcomes": tuple(Outcome(**one) for one in content["outcomes"])})
            result = isolated.submit(call.function, *call.arguments).result()
            write_json(call.kept, asdict(result), indent=None)
            return result
    except PrecisionEvalError as error:  # not every engine brings an error back as what it was, or its cause
        refusal = IsolationError if call.kept else ParameterError
        return error.__cause__ if isinstance(error.__cause__, refusal) else error
    except OSError as error:
        if call.kept is None or error.filename is None:
            raise
        return RecordError(
            f"node {os.uname().nodename} cannot use {error.filename}: {error.strerror}; give an --out that is the same "
            "folder on every node and may be written there"
        )


@functools.lru_cache(maxsize=4)
def _isolated(timeout_s: float | None, memory_share: float | None, preload: tuple[str, ...]) -> IsolatedExecutor:
    import psutil

    limit = None if memory_share is None else int(psutil.virtual_memory().available * memory_share)
    return IsolatedExecutor(timeout_s=timeout_s, memory_limit_bytes=limit, preload=preload)


@functools.lru_cache(maxsize=4)
def _environment(isolated: IsolatedExecutor, device: str) -> dict[str, Any]:
    return environment_seen_by(isolated, device)


def _check_node(expected: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a node unlike the one that the run began on; a few pages of memory more make no other."""
    names = [
        name for name in expected if name != "memory_bytes" and _lasting(expected[name]) != _lasting(own.get(name))
    ]
    if abs(expected["memory_bytes"] - own["memory_bytes"]) > 0.01 * expected["memory_bytes"]:
        names.append("memory_bytes")
    if names:
        raise ParameterError(
            f"node {os.uname().nodename} differs from the first in {', '.join(names)}; ask the engine for nodes of one "
            "kind, give each kind its own --out, and put them side by side with precision-eval merge"
        )


def _lasting(part: Any) -> Any:
    """Return a part of an environment without the number of the GPU, which is the lane's."""
    return {k: v for k, v in part.items() if k != "CUDA_VISIBLE_DEVICES"} if isinstance(part, dict) else part


class EngineExecutor(Executor):
    """A ``concurrent.futures`` executor over an engine: as many calls at a time as it has lanes.

    `limits` is the pattern of every call.
    """

    def __init__(self, engine: Engine, limits: NodeCall) -> None:
        self.engine = engine
        self.limits = limits
        self._kept_in: Path | None = None
        self._purpose = ""
        self._threads = ThreadPoolExecutor(engine.lanes, thread_name_prefix="engine")
        self._stopped = threading.Event()
        self.clocks_apart: dict[str, str] = {}  # a line by node

    def begin(
        self, environment: Mapping[str, Any], device: str, *, memory_share: float | None, purpose: str, run_dir: Path
    ) -> int:
        """Hold every node to an environment from now on, and keep results; `purpose` is what they depend on besides
        the cell. Return the number of lanes.
        """
        self.limits = replace(self.limits, expected=environment, device=device, memory_share=memory_share)
        self._kept_in, self._purpose = run_dir.resolve() / FOLDER, purpose
        self._kept_in.mkdir(parents=True, exist_ok=True)
        return self.engine.lanes

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call out."""
        kept = None
        if fn is run_cell and self._kept_in is not None:
            cell, run_dir, *rest = args
            args = (cell, run_dir.resolve(), *rest)
            kept = self._kept_in / f"{hashlib.sha256(f'{cell}{self._purpose}'.encode()).hexdigest()[:32]}.json"
        call = replace(self.limits, function=functools.partial(fn, **kwargs), arguments=args, kept=kept)
        return self._threads.submit(self._run, call)

    def _run(self, call: NodeCall) -> Any:
        lost = "nothing"
        for _ in range(TRIES):
            sent_s = time.time()
            try:
                answer = self.engine.run(on_node, call)
            except Exception as error:  # each engine has its own for a node that is gone
                if self._stopped.is_set():
                    raise WorkerStoppedError("stopped before it had answered") from error
                lost = f"{type(error).__name__}: {first_line(error)}"
                continue
            if not isinstance(answer, NodeAnswer):
                raise ParameterError(
                    f"a node answers with {type(answer).__name__}, as another version of precision-eval does; install "
                    "one version on all, or give each its own --out and merge"
                )
            self._compare_clocks(answer, sent_s)
            if isinstance(answer.value, PrecisionEvalError):
                raise answer.value
            return answer.value
        raise WorkerCrashedError(f"the engine lost the worker {TRIES} times: {lost}")

    def _compare_clocks(self, answer: NodeAnswer, sent_s: float) -> None:
        """Note a node that answers before it was asked, or later than now."""
        ahead_s, behind_s = answer.at_s - time.time(), sent_s - answer.at_s
        if max(ahead_s, behind_s) > CLOCKS_APART_S:
            apart = f"{duration_long(ahead_s)} ahead" if ahead_s > 0 else f"{duration_long(behind_s)} or more behind"
            self.clocks_apart[answer.node] = (
                f"the clock of node {answer.node} is {apart}: the times of day in its records are its own, durations "
                "are right, nothing else depends on it; set its clock"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what runs; where all is recorded, that is nothing."""
        self._stopped.set()
        self.engine.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def forget(self) -> None:
        """Remove what nodes have kept, once it is recorded."""
        if self._kept_in is not None:
            shutil.rmtree(self._kept_in, ignore_errors=True)


def engine_named(name: str, *, device: str, threads: int, run_dir: Path, workers: int | None) -> Engine:
    """Return an engine: ``local:LANES``, ``dask``, ``ray`` or ``slurm``, these with ``:ADDRESS`` or none."""
    kind, _, place = name.partition(":")
    gpus = int(device == "cuda")
    if device.startswith("cuda:") or (device == "auto" and Path("/dev/nvidiactl").exists()):
        raise ParameterError(f"--executor {name} chooses the GPU itself, and --device is {device}; give cuda or cpu")
    if kind == "local":
        return LocalLanes(lanes_of(place, device=device, threads=threads))
    known: dict[str, Callable[[], Engine]] = {
        "dask": lambda: Dask(place, threads=threads, gpus=gpus),
        "ray": lambda: Ray(place, threads=threads, gpus=gpus),
        "slurm": lambda: Submitit(place, threads=threads, gpus=gpus, logs=run_dir / "logs" / "slurm", at_once=workers),
    }
    if kind not in known:
        raise unknown_name("executor", kind, ("local", *known))
    try:
        return known[kind]()
    except PrecisionEvalError:
        raise
    except Exception as error:  # each engine has its own where nobody answers, and Ray a bare one
        here = "slurm:local" if kind == "slurm" else kind if place else "local:1"
        raise ParameterError(
            f"--executor {name}: {one_line(str(error))}; run it where that answers, or try {here} on this machine"
        ) from error


def _required(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ParameterError(
            f"--executor {extra} needs {module}, which is not installed; pip install 'precision-eval[{extra}]'"
        ) from error


def _answered(function: Callable[[], Any]) -> Any:
    """Call what may never return, in a thread that is then left to itself."""
    future: Future[Any] = Future()

    def answer() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - it goes on in the caller
            future.set_exception(error)

    threading.Thread(target=answer, daemon=True).start()
    try:
        return future.result(ANSWER_S)
    except TimeoutError:
        raise ConnectionError(f"no answer within {ANSWER_S:g} s") from None


class Dask:
    """Workers of a dask cluster: one at an address, or processes of this machine."""

    def __init__(self, address: str, *, threads: int, gpus: int) -> None:
        distributed = _required("distributed", "dask")
        importlib.import_module("dask").config.set({"distributed.worker.daemon": False})
        self.resources = {"GPU": gpus} if gpus else None
        here = {"n_workers": max(1, usable_cores() // threads), "threads_per_worker": 1, "dashboard_address": None}
        self.client = distributed.Client(address) if address else distributed.Client(processes=True, **here)
        self.lanes = max(1, sum(self.client.nthreads().values()))

    def run(self, function: Callable[[NodeCall], Any], call: NodeCall) -> Any:
        """Run a call on any worker; dask itself hands it out again where one dies."""
        return self.client.submit(function, call, pure=False, resources=self.resources).result()

    def close(self) -> None:
        """Cancel what runs and leave the cluster."""
        self.client.close()
        if self.client.cluster is not None:
            self.client.cluster.close()


class Ray:
    """Workers of a Ray cluster: one at an address, or processes of this machine."""

    def __init__(self, address: str, *, threads: int, gpus: int) -> None:
        before = signal.getsignal(signal.SIGTERM)
        self.ray = _required("ray", "ray")
        quiet = {"log_to_driver": False, "include_dashboard": False, "logging_level": logging.ERROR}
        begin = functools.partial(self.ray.init, address=address or None, **quiet)
        _ = _answered(begin) if address else begin()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own would end the command with a code that is none of ours
        limited = self.ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=TRIES)
        self.remote = functools.cache(limited)  # made once: for another function Ray starts other workers
        self.lanes = max(1, int(self.ray.cluster_resources().get("CPU", 1)) // threads)

    def run(self, function: Callable[[NodeCall], Any], call: NodeCall) -> Any:
        """Run a call on any worker."""
        return self.ray.get(self.remote(function).remote(call))

    def close(self) -> None:
        """Leave the cluster, which ends what runs."""
        self.ray.shutdown()


class Submitit:
    """Jobs of Slurm, or with the address ``local`` of this machine, to try it out.

    A job loads torch, which takes seconds, so it serves one call after the other until none has come for a while: calls
    and answers are files of a folder that all nodes share, and a call is whose job has renamed it.
    """

    def __init__(self, cluster: str, *, threads: int, gpus: int, logs: Path, at_once: int | None) -> None:
        submitit = _required("submitit", "slurm")
        logs.mkdir(parents=True, exist_ok=True)
        logs.chmod(0o700)  # what jobs and this command read here are pickles
        self.executor = submitit.AutoExecutor(folder=logs.resolve(), cluster=cluster or "slurm")
        asked = {"gpus_per_node": gpus} if gpus else {}  # a cluster without GPUs refuses none of them
        self.executor.update_parameters(name=JOB_NAME, cpus_per_task=threads, timeout_min=ASKS_MIN, **asked)
        self.lanes = at_once or (16 if self.executor.cluster == "slurm" else 1)
        self.folder = logs.resolve() / f"calls-{uuid.uuid4().hex}"
        self.folder.mkdir(parents=True)
        self._jobs: dict[str, Any] = {}
        self._calls = self._barren = 0
        self._over: set[str] = set()
        self._looked_s = self._asked_s = 0.0
        self._queued: set[str] = set()
        self._changed = threading.Lock()

    def run(self, function: Callable[[NodeCall], Any], call: NodeCall) -> Any:
        """Have a job run a call; a job more is started where fewer run than there are calls."""
        path = self.folder / f"{uuid.uuid4().hex}.call"
        answer = path.with_suffix(".answer")
        with self._changed:
            self._calls += 1
            barren = self._barren
        try:
            _write(path, (function, call))
            while not answer.exists():
                self._start_jobs()
                taken = next(self.folder.glob(f"{path.stem}.by-*"), None)
                job = None if taken is None else self._jobs.get(taken.suffix.removeprefix(".by-"))
                if self.lanes == 0 or (job is None and self._barren - barren >= TRIES):
                    raise OSError("no job took it; see the logs of the jobs")
                if job is not None and self._ended(job) and not answer.exists():
                    raise OSError(f"job {job.job_id} ended with it; see its log")
                _look_again(self.folder)
            return pickle.loads(answer.read_bytes())  # noqa: S301 - our own job's bytes
        finally:
            with self._changed:
                self._calls -= 1

    def _start_jobs(self) -> None:
        """Once a second, start jobs while fewer run than there are calls."""
        with self._changed:
            if time.monotonic() < self._looked_s + 1.0:
                return
            self._ask_slurm()
            for name in [name for name, job in self._jobs.items() if name not in self._over and self._ended(job)]:
                self._over.add(name)
                self._barren += next(self.folder.glob(f"*.by-{name}"), None) is None
            for _ in range(min(self._calls, self.lanes) - len(self._jobs) + len(self._over)):
                name = uuid.uuid4().hex
                self._jobs[name] = self.executor.submit(serve_calls, self.folder, name)
                self._queued.add(self._jobs[name].job_id)
            self._looked_s = time.monotonic()

    def _ended(self, job: Any) -> bool:
        """Say whether a job is over: of Slurm's by squeue, which tells at once, also where nothing is accounted."""
        return job.job_id not in self._queued if self.executor.cluster == "slurm" else bool(job.done())

    def _ask_slurm(self) -> None:
        """Now and then, ask which jobs there are; where nobody answers, what is known stands."""
        if self.executor.cluster == "slurm" and time.monotonic() > self._asked_s + SQUEUE_S:
            asked = ["squeue", "--noheader", "--format=%A", f"--name={JOB_NAME}"]
            told = subprocess.run(asked, capture_output=True, text=True, check=False)
            self._queued = set(told.stdout.split()) if told.returncode == 0 else self._queued
            self._asked_s = time.monotonic()

    def close(self) -> None:
        """Cancel what runs or waits."""
        with self._changed:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.lanes = 0  # what still asks gives up
        for job in self._jobs.values():
            job.cancel(check=False)


def serve_calls(folder: Path, name: str) -> None:
    """Answer the calls of a folder until none has come for a while, or the folder or the time is gone; a job's work."""
    ending = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: ending.set())  # the job is about to be ended, with all that it runs
    for path in folder.glob(f"*.by-{name}"):  # taken before Slurm put this job into the queue again
        if not path.with_suffix(".answer").exists():
            path.rename(path.with_suffix(".call"))
    until_s = time.monotonic() + IDLE_S
    end_s = time.monotonic() + SERVES_S
    while time.monotonic() < min(until_s, end_s) and folder.exists() and not ending.is_set():
        for path in sorted(folder.glob("*.call")):
            own = path.with_suffix(f".by-{name}")
            try:
                path.rename(own)
            except FileNotFoundError:  # another job's by now
                continue
            function, call = pickle.loads(own.read_bytes())  # noqa: S301 - our own command's bytes
            answer = function(call)
            if not ending.is_set():  # what the end has broken is no result, and another job's to do
                _write(path.with_suffix(".answer"), answer)
            until_s = time.monotonic() + IDLE_S
            break
        else:
            _look_again(folder)


def _write(path: Path, content: Any) -> None:
    with written_whole(path) as partial:
        partial.write_bytes(pickle.dumps(content))


def _look_again(folder: Path) -> None:
    """Let a moment pass; then see what other nodes have written, which network file systems show late."""
    time.sleep(POLL_S)
    with suppress(OSError):
        folder.chmod(folder.stat().st_mode)
