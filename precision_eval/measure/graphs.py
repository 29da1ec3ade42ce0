"""The device's time of a call: captured once as a CUDA graph and replayed, so that no Python runs between its kernels.

Conventions: a call is captured inside its candidate's block, so casts at call sites act at capture, and the replay has
no block. Warm-up and capture run on a side stream, inputs stay where they are, and each graph has a memory pool of its
own. Where a capture is refused, its reason names the last line of the model's code that took part, and the time is the
sum of the kernels' times, or, where no profiler sees kernels, the launched time. This module loads torch when used.
"""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from precision_eval.core.cells import is_out_of_memory
from precision_eval.core.errors import CandidateError, UnsupportedError
from precision_eval.core.formatting import shortened
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.candidates import is_tensor, leaves_of, relative_distance, same_bits
from precision_eval.measure.placement import NOTHING_MOVES, Draws, values_carried
from precision_eval.measure.timers import Cache, CudaTimer, LaunchedTimer, Samples, Timer, check_cuda, collector_off
from precision_eval.stats.paired import PairedRatio

_WARM_UPS = 3
_LONGEST_REASON = 300
_PACKAGE = Path(__file__).resolve().parents[1]
_MODELS = _PACKAGE / "cases"
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = tuple(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib"))

_TWIN = "\0twin"  # cannot collide with a candidate's name

Ratios = dict[str, PairedRatio]
# Compares candidates, and the baseline's copy, on one timer for so many seconds, in places that may be drawn anew.
Compare = Callable[[Mapping[str, Candidate], Candidate | None, Timer, float, Draws | None], Ratios]


class Replay:
    """The replay of a captured call, which is captured again where its tensors have moved."""

    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay: Callable[[], object] | None = replay

    def __call__(self) -> object:
        assert self.replay is not None
        return self.replay()


@dataclass(frozen=True)
class Graph:
    """A captured candidate: its replay, doubts where that is not the call, and how long the capture took."""

    candidate: Candidate
    doubts: tuple[str, ...]
    replay: Replay
    capture_s: float


class CaptureRefusedError(UnsupportedError):
    """A call cannot be captured as a CUDA graph; the message says which line forbids it."""


class CudaDevice:
    """What measuring needs of a CUDA device, in one place, so that tests can plant another.

    After a capture that was begun and failed, its memory stays reserved (torch up to 2.13), and drawing random numbers
    outside of graphs raises (up to 2.12); so torch's sources say.
    """

    has_failed = False

    def __init__(self, name: str) -> None:
        import torch

        if torch.device(name).type != "cuda":
            raise UnsupportedError(f"graph replay needs a CUDA device, found {name}")
        check_cuda(name)
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            raise UnsupportedError("CUDA_LAUNCH_BLOCKING makes the host wait for each kernel; unset it to time calls")
        self.name = name
        self._cuda: Any = torch.cuda
        # Streams are handed out from a pool of 32 in turn. In torch 2.13 the end of a graph frees the workspace of
        # cuBLAS that belongs to its stream, also under another graph that was captured there (pytorch#193402); before,
        # each stream keeps its own. So every call has a stream, also where it is captured again, and so has warming up.
        self._warming: Any = None
        self._streams: dict[int, Any] = {}  # by the call's id: a graph keeps its call

    def generators(self, call: Callable[[], object]) -> list[Any]:
        """Return the random generators that a call may draw from: the device's own, and those that it carries."""
        import torch

        self._cuda.init()
        index = torch.device(self.name).index
        own = self._cuda.default_generators[self._cuda.current_device() if index is None else index]
        carried = [value for value in values_carried(call) if isinstance(value, torch.Generator)]
        return list({id(one): one for one in (own, *carried) if one.device.type == "cuda"}.values())

    def warm_up(self, call: Callable[[], object]) -> None:
        with self._cuda.device(self.name):
            side = self._warming = self._warming or self._cuda.Stream()
            side.wait_stream(self._cuda.current_stream())
            with self._cuda.stream(side):
                for _ in range(_WARM_UPS):
                    call()
            self._cuda.current_stream().wait_stream(side)
            self._cuda.synchronize()

    def capture(self, call: Callable[[], object], *, again: bool = False) -> Callable[[], object]:
        """Return a replay of a warm call, not checked if it was captured before; raises what forbids its capture."""
        import torch

        with self._cuda.device(self.name), collector_off():  # to free another graph would spoil the capture
            if not again:
                self._check_synchronises_nothing(call)
            # What autocast has cached lies outside the graph's pool and may be freed before a replay reads it.
            torch.clear_autocast_cache()
            graph, before = self._cuda.CUDAGraph(), self._cuda.current_stream()
            known = self._streams.get(id(call)) if again else None
            side = self._streams[id(call)] = known or self._cuda.Stream()
            with warnings.catch_warnings(action="ignore", category=UserWarning):  # needless and deprecated in 2.15
                for generator in self.generators(call):
                    graph.register_generator_state(generator)
            output: object = None
            refused: Exception | None = None
            try:
                with self._cuda.graph(graph, stream=side):
                    try:
                        output = call()
                    except Exception as error:  # noqa: BLE001 - raised once the capture has ended, as torch needs it to
                        refused = error
            except RuntimeError as error:
                CudaDevice.has_failed = True
                refused = refused or error
            finally:
                self._cuda.set_stream(before)  # torch leaves the side stream current where a capture fails
                torch.clear_autocast_cache()
        if refused is not None:
            try:
                raise refused
            finally:
                del refused, graph  # else the error holds this frame, and so the graph's memory

        return partial(_replay, graph, output, call)

    def _check_synchronises_nothing(self, call: Callable[[], object]) -> None:
        """Raise where a call waits for the device: inside a capture that would spoil torch's allocator up to 2.11."""
        mode = self._cuda.get_sync_debug_mode()
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch calls the mode a prototype
            self._cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            self._cuda.set_sync_debug_mode(mode)
            self._cuda.synchronize()

    def graph_timer(self, cache: Cache) -> Timer:
        return CudaTimer(self.name, cache=cache, graph=True)

    @property
    def replay_doubts(self) -> tuple[str, ...]:
        """Say what this torch adds to every replay."""
        import torch

        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7):
            return ()
        return (
            f"replay: torch {torch.__version__} sets the random seed by two kernels before each replay, a few µs that "
            "are in this time; torch 2.7 and later do so only for calls that draw",
        )

    def fallback(self) -> tuple[Timer, str]:
        """Return the clock of what cannot be captured, and what its times are."""
        import torch

        kernels = KernelTimer(self.name)
        probe = torch.ones(1 << 20, device=self.name)
        try:
            seen = kernels(probe.sum, 3)[kernels.clocks[0]].min() > 0.0
        except (RuntimeError, AssertionError):  # another profiler holds CUPTI, or torch was built without it
            seen = False
        if seen:
            return kernels, "the sum of its kernels' times"
        return LaunchedTimer(self.name), "launched from Python, as torch.profiler sees no kernels here"


class KernelTimer:
    """Sum of the times of a call's kernels and copies, as CUPTI reports them; what lies between them is not in it.

    Once it has run, CUPTI stays attached to the process in most versions, and launches take longer from then on.
    """

    clocks: tuple[str, ...] = ("cuda-kernels",)
    has_run = False

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self, call: Callable[[], object], calls: int) -> Samples:
        import torch
        from torch.profiler import ProfilerActivity

        from precision_eval.trace.observer import profiling

        KernelTimer.has_run = True
        with torch.cuda.device(self._device), collector_off():
            torch.cuda.synchronize()
            with profiling(activities=[ProfilerActivity.CUDA]) as profiler:
                for _ in range(calls):
                    call()
                torch.cuda.synchronize()
        return {self.clocks[0]: np.array([device_seconds(profiler.events() or ()) / calls])}


def _replay(graph: Any, output: object, call: object) -> object:
    """Replay a graph. It reads the memory of what its call carries along, which has to live as long."""
    graph.replay()
    return output


def device_seconds(events: Iterable[Any]) -> float:
    """Sum what a profile's events took on the device; an annotation spans kernels that are counted already."""
    return 1e-6 * sum(
        event.self_device_time_total
        for event in events
        if event.device_type.name != "CPU" and not getattr(event, "is_user_annotation", False)
    )


def capture_candidate(name: str, candidate: Candidate, device: CudaDevice) -> Graph:
    """Capture a call inside its block, and compare one replay with the call, both with the same random numbers."""
    with candidate.block():
        drawn = [(generator, generator.get_state()) for generator in device.generators(candidate.call)]
        try:
            expected = _copied_tensors(candidate.call())
            device.warm_up(candidate.call)
        except Exception as error:
            message = f"candidate '{name}' raised before its capture: {type(error).__name__}: {error}"
            raise CandidateError(message) from error
        try:
            start_s = time.perf_counter()
            replay = Replay(device.capture(candidate.call))
            capture_s = time.perf_counter() - start_s
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CaptureRefusedError(refusal_text(error)) from error
    for generator, state in drawn:
        generator.set_state(state)
    doubts = _replay_doubts(expected, _copied_tensors(replay()))
    return Graph(Candidate(replay), doubts + device.replay_doubts, replay, capture_s)


def _draws_of_graphs(
    graphs: Mapping[str, Graph], calls: Mapping[str, Candidate], device: CudaDevice, draws: Draws | None
) -> Draws | None:
    """Return how to lay the tensors of calls elsewhere and capture all of them again, in random order."""
    if draws is None:
        return None
    rng, names = np.random.default_rng(len(graphs)), list(calls)

    def draw() -> None:
        for graph in graphs.values():
            graph.replay.replay = None  # frees its memory
        draws.draw()
        for index in rng.permutation(len(names)):
            call = calls[names[index]]
            with call.block():
                graphs[names[index]].replay.replay = device.capture(call.call, again=True)

    return Draws(draw, draws.cost_s + sum(graphs[name].capture_s for name in names))


def _copied_tensors(output: object) -> list[Any]:
    return [leaf.detach().clone() for _, leaf in leaves_of(output) if is_tensor(leaf)]


def _replay_doubts(expected: list[Any], replayed: list[Any]) -> tuple[str, ...]:
    before, after = ([(tensor.dtype, tensor.shape) for tensor in side] for side in (expected, replayed))
    if before != after:
        return (f"replay: the graph returns {_shown(replayed)}, the call {_shown(expected)}",)
    unlike = [(a, b) for a, b in zip(replayed, expected, strict=True) if not same_bits(a, b)]
    if not unlike:
        return ()
    apart = max(relative_distance(a, b) for a, b in unlike)
    return (
        f"replay: {len(unlike)} of {len(expected)} outputs of the graph are not bit-equal to the call's, "
        f"by up to {apart:.2g} of their size",
    )


def _shown(tensors: list[Any]) -> str:
    return ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors) or "no tensor"


def refusal_text(error: BaseException) -> str:
    """Return ``capture refused at FILE:LINE: message``, of the last line of the model's code in an error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_the_model(Path(frame.filename))]
    where = f" at {_short_path(Path(frames[-1].filename))}:{frames[-1].lineno}" if frames else ""
    message = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return f"capture refused{where}: {shortened(message, limit=_LONGEST_REASON)}"


def _is_of_the_model(file: Path) -> bool:
    """Whether a file is neither torch's, nor generated by it, nor of the standard library, nor of this suite."""
    if not file.is_file() or any(part.startswith("torchinductor_") for part in file.parts):
        return False
    if file.is_relative_to(_PACKAGE):
        return file.is_relative_to(_MODELS)
    installed = next((folder for folder in _INSTALLED if file.is_relative_to(folder)), None)
    if installed is not None:
        return file.relative_to(installed).parts[0] not in ("torch", "triton")
    return not file.is_relative_to(_STANDARD_LIBRARY)


def _short_path(file: Path) -> Path:
    """Return a path without what it says of somebody's disk."""
    roots = (root for root in (_PACKAGE.parent, *_INSTALLED, Path.cwd()) if file.is_relative_to(root))
    root = next(roots, file.parent)
    return file.relative_to(root)


def capture_each(named: Mapping[str, Candidate], device: CudaDevice) -> tuple[dict[str, Graph], dict[str, str]]:
    """Return the graphs of candidates, and why each other one was refused."""
    graphs, refusals = {}, {}
    for name, candidate in named.items():
        try:
            graphs[name] = capture_candidate(name, candidate, device)
        except CaptureRefusedError as error:
            refusals[name] = str(error)
    return graphs, refusals


def compare_on_device(
    named: Mapping[str, Candidate],
    noise_floor: Candidate | None,
    device: CudaDevice,
    budget_s: float,
    *,
    baseline: str,
    timer: Timer,
    draws: Draws | None,
    compare: Compare,
) -> Ratios:
    """Compare graphs with one another, and what cannot be captured with the baseline on the clock that is left.

    The budget does not count the captures. Where the baseline or its copy cannot be captured, nothing is compared by
    graphs: a ratio is of one clock.
    """
    twin = {} if noise_floor is None else {_TWIN: noise_floor}
    graphs, refusals = capture_each({**named, **twin}, device)
    refused_reference = next((name for name in (baseline, *twin) if name in refusals), None)
    by_graph = {} if refused_reference else {name: graphs[name].candidate for name in named if name in graphs}
    uncaptured = {name: named[name] for name in named if name not in by_graph}
    results: Ratios = {}
    has_pairs = len(by_graph) > 1 or (by_graph and twin)
    budget_s /= 2.0 if has_pairs and uncaptured else 1.0
    if has_pairs:
        copy = graphs[_TWIN].candidate if twin else None
        calls = {name: named[name] for name in by_graph} | twin
        graph_draws = _draws_of_graphs(graphs, calls, device, draws)
        for name, ratio in compare(by_graph, copy, timer, budget_s, graph_draws).items():
            members = (baseline, _TWIN if name == baseline else name)
            results[name] = _doubting(ratio, [text for member in members for text in graphs[member].doubts])
    if uncaptured:
        clock, kind = device.fallback()
        moving = None if draws is NOTHING_MOVES else draws
        ratios = compare({baseline: named[baseline]} | uncaptured, noise_floor, clock, budget_s, moving)
        for name, ratio in ratios.items():
            if name not in results:
                results[name] = _doubting(ratio, [_refusal_doubt(name, baseline, refusals, refused_reference, kind)])
    return {name: results[name] for name in dict.fromkeys((baseline, *named)) if name in results}


def _doubting(ratio: PairedRatio, doubts: Iterable[str]) -> PairedRatio:
    return replace(ratio, doubts=(*ratio.doubts, *dict.fromkeys(doubts)))


def _refusal_doubt(name: str, baseline: str, refusals: Mapping[str, str], reference: str | None, kind: str) -> str:
    if name in refusals or reference is None:
        return f"{refusals[name]}; its time, and {baseline}'s in this ratio, is {kind}"
    return f"{refusals[reference]}, in {baseline}; every time here is {kind}"


def candidates_on_device(
    named: Mapping[str, Candidate], device: CudaDevice
) -> tuple[dict[str, Candidate], Timer, tuple[str, ...]]:
    """Return graphs of all candidates, their clock and doubts; where any is refused, none of them is a graph."""
    graphs, refusals = capture_each(named, device)
    if not refusals:
        doubts = tuple(dict.fromkeys(text for graph in graphs.values() for text in graph.doubts))
        return {name: graph.candidate for name, graph in graphs.items()}, device.graph_timer("warm"), doubts
    timer, kind = device.fallback()
    return dict(named), timer, tuple(f"{name}: {text}; times are {kind}" for name, text in refusals.items())
