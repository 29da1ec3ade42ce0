"""The device's time beside the host's: a machine whose host launches and whose device works, on times that we plant."""

import contextlib
import inspect
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_cells import cell as made_cell
from torch import nn

from precision_eval import asv
from precision_eval.core.errors import CandidateError, UnsupportedError
from precision_eval.core.figures import LatencyFigures
from precision_eval.fixes.apply import FixStateError
from precision_eval.gate import measuring
from precision_eval.gate.result import GatePlan
from precision_eval.gate.sides import GateCall
from precision_eval.measure import generic, graphs, latency, timers
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.graphs import CudaDevice, candidates_on_device, capture_candidate, device_seconds
from precision_eval.measure.latency import compare_latency
from precision_eval.measure.timers import CudaTimer, LaunchedTimer

FILE = "tests/precision_eval/measure/test_graphs.py"
KERNELS = 10


@pytest.fixture(autouse=True)
def newer_torch(monkeypatch):
    """What torch 2.6 adds to every replay has a test of its own."""
    monkeypatch.setattr(torch, "__version__", "2.13.0")


class Machine:
    """A host that launches work and a device that does it; seconds pass only as calls say."""

    def __init__(self):
        self.host_s = self.device_s = self.worked_s = 0.0
        self.is_capturing = False
        self.recorded_s = 0.0
        self.read = []  # the clocks, in order

    def launch(self, launch_s, work_s):
        if self.is_capturing:
            self.recorded_s += work_s
            return
        self.host_s += launch_s
        self.device_s = max(self.device_s, self.host_s) + work_s
        self.worked_s += work_s

    def wait(self):
        if self.is_capturing:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for it in the CUDA docs.")
        self.host_s = max(self.host_s, self.device_s)


class MachineTimer:
    def __init__(self, machine, clock):
        self.machine, self.clocks = machine, (clock,)

    def __call__(self, call, calls):
        samples = []
        self.machine.read.append(self.clocks[0])
        for _ in range(calls):
            self.machine.wait()
            start_s = self._read_s()
            call()
            self.machine.wait()
            samples.append(self._read_s() - start_s)
        return {self.clocks[0]: np.array(samples)}

    def _read_s(self):
        return self.machine.host_s if self.clocks[0] == "launched" else self.machine.worked_s


class MachineLaunches(MachineTimer, LaunchedTimer):
    times_launches = True

    def launching_share(self, call, calls):
        return 0.97


class MachineDevice(CudaDevice):
    """The device of such a machine, in place of CUDA's."""

    def __init__(self, machine, *, profiler=True):
        self.machine, self.profiler = machine, profiler

    def warm_up(self, call):
        for _ in range(3):
            call()

    def capture(self, call, *, again=False):
        machine = self.machine
        machine.is_capturing, machine.recorded_s = True, 0.0
        try:
            output = call()
        finally:
            machine.is_capturing = False
        work_s = machine.recorded_s
        return lambda: (machine.launch(0.0, work_s), output)[1]

    def generators(self, call):
        return []

    def graph_timer(self, cache):
        return MachineTimer(self.machine, f"cuda-graph-{cache}")

    def fallback(self):
        if self.profiler:
            return MachineTimer(self.machine, "cuda-kernels"), "the sum of its kernels' times"
        return MachineTimer(self.machine, "launched"), "launched from Python"


@pytest.fixture
def machine(monkeypatch):
    planted = Machine()
    monkeypatch.setattr(latency, "CudaDevice", lambda name: MachineDevice(planted))
    monkeypatch.setattr(generic, "LaunchedTimer", lambda name: MachineLaunches(planted, "launched"))
    return planted


def work(machine, launch_s, work_s, *, waits=False):
    def call():
        for _ in range(KERNELS):
            machine.launch(launch_s / KERNELS, work_s / KERNELS)
        if waits:
            machine.wait()
        return torch.ones(2)

    return call


def compare(machine, calls, **options):
    options = {"baseline": "full_float32", "budget_s": 0.1, "device": "cuda", "graph": True, "check": False} | options
    return compare_latency(calls, **options)


# A half format that needs a third of the device's time and a tenth more of the host's, as on an H200.
WIDE, HALF = (1e-3, 9e-4), (1.1e-3, 3e-4)


class TestVerdictsRestOnTheDevice:
    def measured(self, machine, *, is_bare=False, **options):
        cell = made_cell("latency", "query_to_half", "full_float32", device="cuda:0", budget_s=1e-3, **options)
        half, wide, twin = (Candidate(work(machine, *times)) for times in (HALF, WIDE, WIDE))
        clocks = generic._clocks(cell, is_bare=is_bare)
        candidates = {"query_to_half": half, "full_float32": wide}
        timed = generic._ratios(cell, 0, candidates, twin, clocks)
        return generic._as_outcome("query_to_half", [[timed]]).data

    def test_faster_on_the_device_and_slower_when_launched_is_faster(self, machine):
        data = self.measured(machine)
        assert (data["verdict"], data["clock"]) == ("faster", "cuda-graph-warm")
        assert data["ratio"] == pytest.approx(1 / 3)
        launched = data["launched"]
        assert (launched["clock"], launched["verdict"]) == ("launched", "slower")
        assert launched["ratio"] == pytest.approx((1.1 + 0.03) / (1.0 + 0.09))  # the host's, and the last kernel's
        assert data["cold_l2"]["clock"] == "cuda-graph-cold"
        assert list(dict.fromkeys(machine.read)) == ["launched", "cuda-graph-warm", "cuda-graph-cold"]
        assert [doubt for doubt in launched["doubts"] if doubt.startswith("launch-bound: the host took 97 %")]
        assert not [doubt for doubt in data["doubts"] if doubt.startswith("launch-bound")]
        json.dumps(data, allow_nan=False)

    def test_a_bare_call_is_judged_with_an_emptied_cache(self, machine):
        data = self.measured(machine, is_bare=True)
        assert (data["clock"], data["warm_l2"]["clock"]) == ("cuda-graph-cold", "cuda-graph-warm")

    def test_compiled_calls_with_graphs_of_their_own_are_not_captured_again(self, machine, monkeypatch):
        def timer(device, *, cache, compiled_graphs):
            assert (device, compiled_graphs) == ("cuda:0", True)
            return MachineTimer(machine, f"cuda-tree-{cache}")

        monkeypatch.setattr(generic, "CudaTimer", timer)
        monkeypatch.setattr(MachineDevice, "capture", None)
        data = self.measured(machine, compile_mode="reduce-overhead")
        assert (data["clock"], data["launched"]["clock"]) == ("cuda-tree-warm", "launched")
        assert data["ratio"] == pytest.approx(1 / 3)
        assert data["placement_ratios"] == []
        assert [doubt for doubt in data["doubts"] if doubt.startswith("one placement: the compiler's graphs")]
        assert LatencyFigures(baseline="b", ratio=1.0, clock=data["clock"]).timed_by == "tree"

    def test_one_clock_where_one_is_asked_for(self, machine):
        assert "launched" not in self.measured(machine, clock="device")
        data = self.measured(machine, clock="launched")
        assert data["clock"] == "launched"
        assert not {"warm_l2", "cold_l2", "launched"} & data.keys()


class TestCapture:
    def test_casts_of_a_block_act_at_capture_and_a_replay_has_no_block(self, machine):
        entered = []

        @contextlib.contextmanager
        def block():
            entered.append(1)
            yield
            entered.clear()

        def call():
            assert entered
            machine.launch(*HALF)
            return torch.ones(2)

        graph = capture_candidate("cast", Candidate(call, block), MachineDevice(machine))
        assert not entered
        assert torch.equal(graph.candidate.call(), torch.ones(2))
        assert graph.doubts == ()

    @pytest.mark.parametrize("fix", ["query_to_half", "kv_to_query", "autocast", "full_float32"])
    def test_every_kind_of_fix_is_captured_inside_it(self, machine, fix):
        cell = made_cell("latency", fix)
        with ExitStack() as stack:
            candidate = generic.prepare_candidate(cell, fix, generic._built(cell), stack)
            is_plain = fix == "full_float32"  # needs no block
            with contextlib.nullcontext() if is_plain else pytest.raises(FixStateError, match="is not in force"):
                candidate.call()
            graph = capture_candidate(fix, candidate, MachineDevice(machine))
            with candidate.block():
                assert torch.equal(graph.candidate.call(), candidate.call())
        assert graph.doubts == ()

    def test_a_refusal_names_the_line_and_the_clock_in_its_place(self, machine):
        reads = work(machine, *HALF, waits=True)
        calls = {"full_float32": work(machine, *WIDE), "reads": reads, "half": work(machine, *HALF)}
        ratios = compare(machine, calls)
        line = Machine.wait.__code__.co_firstlineno + 2
        assert (ratios["half"].clock, ratios["half"].doubts) == ("cuda-graph-warm", ())
        assert (ratios["reads"].clock, ratios["reads"].ratio) == ("cuda-kernels", pytest.approx(1 / 3))
        assert ratios["reads"].doubts[-1] == (
            f"capture refused at {FILE}:{line}: operation not permitted when stream is capturing; its "
            "time, and full_float32's in this ratio, is the sum of its kernels' times"
        )

    def test_no_ratio_is_of_two_clocks_where_the_baseline_is_refused(self, machine):
        calls = {"full_float32": work(machine, *WIDE, waits=True), "half": work(machine, *HALF)}
        twin = Candidate(work(machine, *WIDE, waits=True))
        ratios = compare(machine, calls, noise_floor=twin)
        assert list(ratios) == ["full_float32", "half"]
        assert {ratio.clock for ratio in ratios.values()} == {"cuda-kernels"}
        assert "in full_float32; every time here is the sum" in ratios["half"].doubts[-1]

    def test_launched_times_in_the_place_of_the_devices_are_named(self, machine, monkeypatch):
        monkeypatch.setattr(latency, "CudaDevice", lambda name: MachineDevice(machine, profiler=False))
        calls = {"full_float32": work(machine, *WIDE, waits=True), "half": work(machine, *HALF, waits=True)}
        ratio = compare(machine, calls)["half"]
        assert ratio.clock == "launched"
        assert ratio.doubts[-1].endswith("is launched from Python")

    def test_memory_that_ends_in_a_capture_is_no_refusal(self, machine):
        def call():
            if machine.is_capturing:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return torch.ones(2)

        with pytest.raises(torch.OutOfMemoryError):
            capture_candidate("large", Candidate(call), MachineDevice(machine))

    def test_a_tracked_time_of_a_users_model_is_the_devices_or_none(self, machine):
        assert asv._device_time_s(work(machine, *HALF), "cuda:0") == pytest.approx(HALF[1])
        with pytest.raises(asv.FixRaisedError, match=r"no device time: .*capture refused"):
            asv._device_time_s(work(machine, *HALF, waits=True), "cuda:0")

    def test_what_raises_without_a_capture_is_the_candidates_fault(self, machine):
        with pytest.raises(CandidateError, match="candidate 'none' raised before its capture: KeyError: 'x'"):
            capture_candidate("none", Candidate(lambda: {}["x"]), MachineDevice(machine))

    @pytest.mark.parametrize(
        ("captured", "doubt"),
        [
            (torch.tensor([1.0, 1.0]), None),
            (
                torch.tensor([1.0, 1.5]),
                "replay: 1 of 1 outputs of the graph are not bit-equal to the call's, by up to 0.35 of their size",
            ),
            (
                torch.tensor([1.0, 1.0]).half(),
                "replay: the graph returns torch.float16 (2,), the call torch.float32 (2,)",
            ),
        ],
    )
    def test_a_replay_is_compared_with_the_call_once(self, machine, captured, doubt):
        candidate = Candidate(lambda: captured if machine.is_capturing else torch.ones(2))
        doubts = capture_candidate("call", candidate, MachineDevice(machine)).doubts
        assert doubts == (() if doubt is None else (doubt,))

    @pytest.mark.parametrize(
        ("seen_s", "clock"),
        [
            (1e-6, "cuda-kernels"),
            (0.0, "launched"),
            (RuntimeError("another profiler is running"), "launched"),
            (AssertionError("Legacy CUDA profiling requires use_cpu=True"), "launched"),  # torch without CUPTI
        ],
    )
    def test_launched_times_are_taken_only_where_no_profiler_sees_kernels(self, monkeypatch, machine, seen_s, clock):
        class Kernels:
            clocks = ("cuda-kernels",)

            def __init__(self, device): ...

            def __call__(self, call, calls):
                if isinstance(seen_s, Exception):
                    raise seen_s
                return {"cuda-kernels": np.array([seen_s])}

        monkeypatch.setattr(graphs, "KernelTimer", Kernels)
        monkeypatch.setattr(graphs, "LaunchedTimer", lambda name: MachineLaunches(machine, "launched"))
        device = planted_device()
        device.name = "cpu"
        timer, kind = device.fallback()
        assert timer.clocks == (clock,)
        assert ("launched" in kind) == (clock == "launched")

    def test_two_sides_share_a_clock(self, machine):
        device = MachineDevice(machine)
        sides = {"base": Candidate(work(machine, *WIDE)), "head": Candidate(work(machine, *HALF))}
        calls, timer, doubts = candidates_on_device(sides, device)
        assert (timer.clocks, doubts) == (("cuda-graph-warm",), ())
        assert calls["base"].call is not sides["base"].call
        sides["head"] = Candidate(work(machine, *HALF, waits=True))
        calls, timer, doubts = candidates_on_device(sides, device)
        assert (timer.clocks, calls) == (("cuda-kernels",), sides)
        assert doubts[0].startswith(f"head: capture refused at {FILE}:")


@pytest.mark.parametrize("waits", [False, True])
def test_the_gate_times_the_device(monkeypatch, machine, waits):
    monkeypatch.setattr(measuring, "CudaDevice", lambda name: MachineDevice(machine))
    base, head = (GateCall(Candidate(work(machine, *times, waits=waits)), None, (), (), None) for times in (WIDE, HALF))
    plan = GatePlan(cases=(), fixes=(), device="cuda:0", budget_s=0.01)
    ratio, seconds, doubts = measuring._time_pair(base, head, plan, 0)
    assert np.exp(ratio.estimate) == pytest.approx(1 / 3)
    assert seconds == {"base": pytest.approx(WIDE[1]), "head": pytest.approx(HALF[1])}
    assert [text.partition(": capture refused at")[0] for text in doubts] == (["base", "head"] if waits else [])


def test_no_time_is_taken_where_each_launch_waits(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert CudaDevice("cuda:0").name == "cuda:0"
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(UnsupportedError, match="unset it"):
        CudaDevice("cuda:0")


def test_the_line_is_the_last_of_the_models_code():
    def raising():
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError) as caught:
        raising()
    line = raising.__code__.co_firstlineno + 1
    assert graphs.refusal_text(caught.value).startswith(f"capture refused at {FILE}:{line}: ")
    assert graphs.refusal_text(RuntimeError()) == "capture refused: RuntimeError"


def test_kernels_are_summed_without_the_annotations_that_span_them():
    def event(kind, microseconds, **rest):
        return SimpleNamespace(device_type=SimpleNamespace(name=kind), self_device_time_total=microseconds, **rest)

    events = [event("CUDA", 20.0), event("CUDA", 5.0), event("CUDA", 90.0, is_user_annotation=True), event("CPU", 7.0)]
    assert device_seconds(events) == pytest.approx(25e-6)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(3).sum()
    assert len(profiler.events()) > 0
    assert device_seconds(profiler.events()) == 0.0


class Generator(torch.Generator):
    """A generator that says it is a card's: its state is how often it was drawn from."""

    device = torch.device("cuda:0")

    def __new__(cls, name):
        return super().__new__(cls)

    def __init__(self, name):
        self.name, self.drawn = name, 0

    def get_state(self):
        return self.drawn

    def set_state(self, state):
        self.drawn = state

    def draw(self):
        self.drawn += 1
        return torch.full((2,), float(self.drawn))


class PlantedCuda:
    """torch.cuda with what a capture touches; writes down in which order."""

    def __init__(self, *, ending=None):
        self.log, self.ending, self.mode, self.streams = [], ending, 0, 0
        self.default_generators = (Generator("default"),)
        self.graphs = []

    def init(self): ...

    def current_device(self):
        return 0

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode):
        self.mode = mode

    def synchronize(self):
        self.log.append("synchronize")

    def current_stream(self):
        return "before"

    def set_stream(self, stream):
        self.log.append(f"stream {stream}")

    def device(self, name):
        return contextlib.nullcontext()

    def Stream(self):
        self.streams += 1
        return SimpleNamespace(name=f"side {self.streams}", wait_stream=lambda other: None)

    def CUDAGraph(self):
        registered = []
        self.graphs.append(registered)
        return SimpleNamespace(replay=lambda: self.log.append("replay"), register_generator_state=registered.append)

    @contextlib.contextmanager
    def graph(self, graph, *, stream):
        self.log.append(f"begin on {stream.name}")
        yield
        self.log.append("end")
        if self.ending is not None:
            raise self.ending


def planted_device(**options):
    device = CudaDevice.__new__(CudaDevice)
    device.name, device._cuda, device._warming, device._streams = "cuda", PlantedCuda(**options), None, {}
    return device


class TestOrderOfACapture:
    def test_a_replay_returns_the_captured_output(self):
        device = planted_device()
        modes = []
        replay = device.capture(lambda: modes.append(device._cuda.mode) or len(modes))
        assert modes == ["error", 0]  # once where waiting raises, once captured
        assert replay() == 2
        assert device._cuda.log == ["synchronize", "begin on side 1", "end", "stream before", "replay"]

    def test_what_waits_is_refused_before_a_capture_begins(self):
        device = planted_device()

        def waiting():
            if device._cuda.mode == "error":
                raise RuntimeError("called a synchronizing CUDA operation")

        with pytest.raises(RuntimeError, match="synchronizing"):
            device.capture(waiting)
        assert device._cuda.log == ["synchronize"]
        assert device._cuda.mode == 0

    @pytest.mark.parametrize("ending", [None, RuntimeError("capture invalidated")])
    def test_a_capture_ends_before_what_the_call_raised_is_raised(self, monkeypatch, ending):
        monkeypatch.setattr(CudaDevice, "has_failed", False)
        device = planted_device(ending=ending)

        def raising():
            if device._cuda.mode == 0:
                raise ValueError("no copy while capturing")

        with pytest.raises(ValueError, match="no copy"):
            device.capture(raising)
        assert device._cuda.log[1:] == ["begin on side 1", "end", "stream before"]

    @pytest.mark.parametrize(("graph", "first"), [(True, ["wait 120000"]), (False, [])])
    def test_the_device_waits_until_a_block_of_graphs_is_queued(self, graph, first):
        log = []

        class Event:
            def __init__(self, *, enable_timing): ...

            def record(self):
                log.append("event")

            def elapsed_time(self, end):
                return 2.0

        timer = CudaTimer.__new__(CudaTimer)
        timer.clocks, timer.times_launches, timer._flush, timer._device = ("cuda",), not graph, None, "cuda"
        timer._held_cycles = timers._HELD_CYCLES
        timer._cuda = SimpleNamespace(
            device=lambda name: contextlib.nullcontext(), Event=Event, synchronize=lambda device: log.append("sync"),
            _sleep=lambda cycles: log.append(f"wait {cycles}"),
        )  # fmt: skip
        assert timer(lambda: log.append("call"), 3)["cuda"].tolist() == [0.002] * 3
        assert log == ["sync", *first, *["event", "call", "event"] * 3, "sync"]

    def test_what_only_the_end_refuses_is_raised(self, monkeypatch):
        monkeypatch.setattr(CudaDevice, "has_failed", False)
        planted_device().capture(lambda: 1)
        assert not CudaDevice.has_failed
        with pytest.raises(RuntimeError, match="invalidated"):
            planted_device(ending=RuntimeError("capture invalidated")).capture(lambda: 1)
        assert CudaDevice.has_failed

    def test_calls_warm_up_on_one_stream_and_no_two_are_captured_on_one(self):
        device = planted_device()
        device._cuda.stream = lambda stream: contextlib.nullcontext()
        device._cuda.current_stream = lambda: SimpleNamespace(wait_stream=lambda other: None)
        calls = [partial(int, number) for number in range(20)]
        for again in (False, True):  # captured again, a call keeps its stream
            for call in calls:
                device.warm_up(call)
                device.capture(call, again=again)
        begun = [entry for entry in device._cuda.log if entry.startswith("begin")]
        assert begun == [f"begin on side {number}" for number in range(2, 22)] * 2


class Samples(nn.Module):
    def __init__(self, generator):
        super().__init__()
        self.parts = [generator]

    def forward(self):
        return self.parts[0].draw()


class TestRandomNumbers:
    def test_what_a_call_draws_from_is_registered_at_each_capture(self):
        own, kept_elsewhere = Generator("own"), torch.Generator()
        device = planted_device()
        call = partial(Samples(own), kept_elsewhere)
        for again in (False, True):
            device.capture(lambda: call.func(), again=again)
        assert [[one.name for one in registered] for registered in device._cuda.graphs] == [["default", "own"]] * 2

    @pytest.mark.parametrize(("more", "doubts"), [(0, 0), (1, 1)])
    def test_a_replay_is_compared_on_the_same_random_numbers(self, more, doubts):
        own = Generator("own")
        model = Samples(own)

        class Device(MachineDevice):
            generators = CudaDevice.generators

            def capture(self, call, *, again=False):
                return lambda: [call() for _ in range(1 + more)][-1]  # a graph that draws once more is another

        device = Device(Machine())
        device.name, device._cuda = "cuda", PlantedCuda()
        graph = capture_candidate("call", Candidate(model), device)
        assert len(graph.doubts) == doubts

    def test_torch_can_register_a_generator_with_a_graph(self):
        """What is used of torch's graphs is there, by its own declarations, which a build without CUDA has too."""
        source = inspect.getsource(torch.cuda.graphs) + (Path(torch.__file__).parent / "_C/__init__.pyi").read_text()
        assert "def register_generator_state(self, Generator) -> None" in source
        assert isinstance(torch.cuda.default_generators, tuple)
        assert {"stream", "pool", "capture_error_mode"} <= inspect.signature(torch.cuda.graph).parameters.keys()


@pytest.mark.parametrize(("version", "times"), [("2.6.0+cu124", 1), ("2.7.1", 0), ("2.13.0a0+git1", 0), ("3.0", 0)])
def test_what_an_older_torch_runs_before_each_replay_is_said(monkeypatch, machine, version, times):
    monkeypatch.setattr(torch, "__version__", version)
    doubts = capture_candidate("call", Candidate(work(machine, *HALF)), MachineDevice(machine)).doubts
    assert sum("two kernels before each replay" in doubt for doubt in doubts) == times
