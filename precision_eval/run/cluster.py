"""Cells on a dask cluster: any executor of ``concurrent.futures`` takes calls, and each runs in a process of its own.

Conventions: the unit is a cell, and a timed cell holds every fix of a case and mode, so what is compared shares a node.
A node has to be like the first one, since records name one environment; another is refused. The run's folder is shared
by all nodes.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from precision_eval.core.environment import usable_cores
from precision_eval.core.errors import ParameterError, PrecisionEvalError, unknown_name
from precision_eval.core.formatting import one_line
from precision_eval.core.workers import WorkerError, call_isolated
from precision_eval.run.executor import IsolatedExecutor, environment_seen_by
from precision_eval.run.resources import memory_limit_bytes

# What differs between GPUs of one machine, or by a few pages between machines of one kind.
_MAY_DIFFER = ("memory_bytes", "variables")

# Workers may start processes. Their environment stays as it is, as dask would change the C library's allocator and
# OpenMP's threads.
_DASK_SETTINGS = {
    "distributed.worker.daemon": False,
    "distributed.nanny.pre-spawn-environ": {},
}


@dataclass(frozen=True, kw_only=True)
class NodeLimits:
    """What a node needs to run calls of a run; `environment` is that of the first node."""

    device: str
    preload: tuple[str, ...]
    timeout_s: float | None = None
    environment: dict[str, Any] | None = None


class ClusterExecutor(Executor):
    """Hands each call to another executor, whose worker runs it in a process of its own."""

    def __init__(self, executor: Executor, limits: NodeLimits) -> None:
        self.executor = executor
        self.limits = limits

    def expect(self, environment: dict[str, Any]) -> None:
        """Refuse nodes that differ from this environment from now on."""
        self.limits = replace(self.limits, environment=environment)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call out."""
        return self.executor.submit(run_on_node, self.limits, fn, args, kwargs)


def run_on_node(limits: NodeLimits, function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Run a call in a process of its own, on the node that this is."""
    if multiprocessing.current_process().daemon:
        raise ParameterError(
            "workers of this cluster cannot start processes; start them with DASK_DISTRIBUTED__WORKER__DAEMON=False"
        )
    isolated = _isolated(limits.device, limits.preload, limits.timeout_s)
    if limits.environment is not None:
        _check_node(limits.environment, _environment(isolated, limits.device))
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)  # what a call raises is a result
    future = isolated.submit(function, *arguments, **keywords)
    error = future.exception()
    if isinstance(error, WorkerError) and isinstance(error.__cause__, PrecisionEvalError):
        raise error.__cause__  # a cause can be lost on the way back
    return future.result()


@functools.lru_cache(maxsize=4)
def _isolated(device: str, preload: tuple[str, ...], timeout_s: float | None) -> IsolatedExecutor:
    return IsolatedExecutor(timeout_s=timeout_s, memory_limit_bytes=memory_limit_bytes(device), preload=preload)


@functools.lru_cache(maxsize=4)
def _environment(isolated: IsolatedExecutor, device: str) -> dict[str, Any]:
    return environment_seen_by(isolated, device)


def _check_node(expected: dict[str, Any], environment: dict[str, Any]) -> None:
    names = [name for name in expected if name not in _MAY_DIFFER and expected[name] != environment.get(name)]
    if names:
        raise ParameterError(
            f"node {os.uname().nodename} differs from the first in {', '.join(names)}; use nodes of one kind, or give "
            "each kind its own --out and compare them with precision-eval report"
        )


@contextmanager
def open_cluster(name: str, limits: NodeLimits, *, threads: int) -> Iterator[tuple[ClusterExecutor, int]]:
    """Yield an executor over ``dask`` (this machine) or ``dask:ADDRESS``, and how many calls it runs at a time."""
    kind, _, address = name.partition(":")
    if kind != "dask":
        raise unknown_name("executor", kind, ("dask",))
    client = _connect(name, address, limits.device, threads)
    try:
        yield ClusterExecutor(client.get_executor(pure=False), limits), max(1, sum(client.nthreads().values()))
    finally:
        client.close()
        if client.cluster is not None:
            client.cluster.close()


def _connect(name: str, address: str, device: str, threads: int) -> Any:
    try:
        import dask
        import distributed
    except ImportError as error:
        raise ParameterError(
            "--set executor=dask needs distributed, which is not installed; pip install 'precision-eval[dask]'"
        ) from error
    dask.config.set(_DASK_SETTINGS)
    try:
        return distributed.Client(address or _local_cluster(distributed, device, threads))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"--set executor={name}: {one_line(str(error))}; start a scheduler there, or give --set executor=dask"
        ) from error


def _local_cluster(distributed: Any, device: str, threads: int) -> Any:
    """Return a cluster of this machine: a worker per GPU, or per `threads` cores."""
    if device == "cpu":
        count = max(1, usable_cores() // threads)
        return distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = (
        visible.split(",") if visible else [str(number) for number in range(call_isolated("torch.cuda:device_count"))]
    )
    options = [{"nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": name}} for name in names]
    workers = {number: {"cls": distributed.Nanny, "options": option} for number, option in enumerate(options)}
    return distributed.SpecCluster(
        scheduler={"cls": distributed.Scheduler, "options": {"dashboard": False}}, workers=workers
    )
