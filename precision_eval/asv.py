"""Benchmarks for somebody's own asv suite: a model of theirs under fixes, over their commits.

Conventions: a fix under which the model raises is a failed benchmark in asv, not a missing one. Benchmarks are named
``eager.FACTORY.METRIC``, by which ``gate`` and ``versions`` know them; a suite imports the two benchmarks of the build
too, so that its results say which torch ran.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import Version

from precision_eval.core.errors import PrecisionEvalError


class FixRaisedError(PrecisionEvalError, RuntimeError):
    """A model raises under a fix, or its output is not finite, so that there is no figure."""


def track_torch_version() -> int:
    """Return the version of torch as a number: major * 1000000 + minor * 1000 + patch."""
    import torch

    major, minor, patch, *_ = (*Version(torch.__version__).release, 0, 0)
    return major * 1_000_000 + minor * 1_000 + patch


def track_is_cuda_build() -> int:
    """Return 1 where torch was built with CUDA, else 0."""
    import torch

    return int(torch.version.cuda is not None)


def benchmarks_for(factory: str, fixes: Sequence[str] = ("full_float32", "float16", "bfloat16")) -> type:
    """Make a class of asv benchmarks: time, peak memory, drift and stored bytes of one call, per fix.

    On a GPU the time is that of a call launched from Python, to the end of its work; the device's own is one more.

    Parameters
    ----------
    factory : str
        Where a factory of ``(model, inputs)`` is written, ``package.module:function``. A module is found beside
        ``asv.conf.json`` too, above the suite that calls this.
    fixes : sequence of str
        Ids of shipped fixes, and where own ones are written.

    Returns
    -------
    type
        To be bound to a name in a module of the suite, such as ``Precision``.

    Examples
    --------
    >>> from precision_eval.asv import benchmarks_for
    >>> benchmarks_for("mypackage.loading:factory", fixes=["float16"]).params
    [['float16']]
    """
    _find_beside_configuration(sys._getframe(1).f_globals.get("__file__"))

    class OwnBenchmarks:
        params: ClassVar[list[list[str]]] = [list(fixes)]
        param_names: ClassVar[list[str]] = ["fix"]
        timeout = 900
        ready: Any

        def setup(self, fix: str) -> None:
            self.ready = _ReadyFix(factory, fix)

        def teardown(self, fix: str) -> None:
            self.ready.stack.close()

        def time_call(self, fix: str) -> None:
            self.ready.launch()

        def peakmem_call(self, fix: str) -> None:
            self.ready.launch()

        def track_device_time(self, fix: str) -> float:
            return math.nan if self.ready.device == "cpu" else _device_time_s(self.ready.call, self.ready.device)

        def track_drift(self, fix: str) -> Any:
            from precision_eval.studies.compare import compare

            ready = self.ready
            ready.stack.close()  # compare puts the fix in force itself
            cost = compare(
                {fix: ready.fixed}, *ready.inputs, baseline=fix, reference=ready.model, latency=False, memory=False
            )[fix]
            if cost.drift is None:
                raise FixRaisedError(f"no drift of {fix}: {cost.status}: {cost.reason}")
            return cost.drift

        def track_stored_bytes(self, fix: str) -> int:
            from precision_eval.fixes.storage import storage_bytes

            return storage_bytes(self.ready.fixed.model)

        track_device_time.unit = "seconds"  # type: ignore[attr-defined]
        track_drift.unit = "relative error"  # type: ignore[attr-defined]
        track_stored_bytes.unit = "bytes"  # type: ignore[attr-defined]

    return _named(OwnBenchmarks, factory)


class _ReadyFix:
    """A fix in force on a model, called once; `launch` is the call to the end of a GPU's work."""

    def __init__(self, factory: str, fix: str) -> None:
        from precision_eval.cases.own import own_case
        from precision_eval.fixes.outside import fixed

        own = own_case(factory)
        self.model, self.inputs = own.module(), own.arguments()
        named = len(self.inputs) == 1 and isinstance(self.inputs[0], dict)
        self.fixed, self.stack = fixed(self.model, fix), ExitStack()
        self.stack.enter_context(self.fixed.applied.agreeing())
        self.call = self.fixed.bound((), self.inputs[0]) if named else self.fixed.bound(self.inputs, {})
        self.device = next((str(tensor.device) for tensor in self.model.parameters() if tensor.is_cuda), "cpu")
        self.launch()

    def launch(self) -> None:
        self.call()
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize(self.device)


def _device_time_s(call: Callable[[], object], device: str) -> float:
    """Time a call on a GPU, captured as a graph; raises where it cannot be captured."""
    from precision_eval.measure.latency import compare_latency

    calls = {"first": call, "again": call}
    timed = compare_latency(calls, baseline="first", budget_s=0.5, device=device, graph=True, check=False)["again"]
    if not timed.clock.startswith("cuda-graph"):
        raise FixRaisedError(f"no device time: {'; '.join(timed.doubts)}")
    return timed.median_s


def _find_beside_configuration(suite: str | None) -> None:
    """Let imports find the folder of a suite's ``asv.conf.json``, after all else: asv runs in a folder of its own."""
    for folder in Path(suite).resolve().parents if suite else ():
        if (folder / "asv.conf.json").is_file() and str(folder) not in sys.path:
            sys.path.append(str(folder))
            return


def _named(suite: type, factory: str) -> type:
    """Name the benchmarks of a suite after its factory."""
    name = factory.replace("-", "_")  # asv reads what follows a dash as the number of a parameter
    for method in ("time_call", "peakmem_call", "track_device_time", "track_drift", "track_stored_bytes"):
        getattr(suite, method).benchmark_name = f"eager.{name}.{method}"
    return suite
