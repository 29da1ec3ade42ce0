"""Isolation of a timed cell: what is said of counters and of other processes, and what error does."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from precision_eval.core.cells import Cell, Options, passed
from precision_eval.core.errors import ParameterError
from precision_eval.measure import isolation
from precision_eval.measure.isolation import CpuUse, IsolationError, cpu_doubts, cpu_use, gpu_doubts, watch_device
from precision_eval.measure.registry import Measure, _add_watched, run_cell


@pytest.mark.parametrize(
    ("after", "doubts"),
    [
        (CpuUse(10.0, 112.0, 60.0), ["shared cores: others took 10 % of the time of 2 cores"]),
        (CpuUse(10.0, 111.0, 60.0), []),
        (CpuUse(0.5, 200.0, 50.0), []),  # too short to tell
    ],
)
def test_what_others_took_of_the_cores_by_hand(after, doubts):
    assert cpu_doubts(CpuUse(0.0, 100.0, 50.0), after, 2) == doubts


def test_counters_leave_out_idle_and_count_guests_once(monkeypatch):
    times = type(psutil.cpu_times())
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(**dict.fromkeys(times._fields, 2.0)))
    busy = [name for name in times._fields if name not in ("idle", "iowait", "guest", "guest_nice")]
    assert cpu_use().busy_s == 2.0 * len(busy)


def test_other_processes_on_a_gpu():
    own = os.getpid()
    assert gpu_doubts("", own) == gpu_doubts(f"{own}, python", own) == []
    assert gpu_doubts(f"{own}, python\n7, train\n", own) == ["shared GPU: other processes compute on it: 7, train"]


@pytest.fixture
def others(monkeypatch):
    """A machine on which other processes took half of the cores."""
    looks = iter([CpuUse(0.0, 0.0, 0.0), CpuUse(1.0, 0.5, 0.0)])
    monkeypatch.setattr(isolation, "cpu_use", lambda: next(looks))
    monkeypatch.setattr(isolation.os, "cpu_count", lambda: 1)


def timed(cell, run_dir):
    return [passed(fix, {"ratio": 1.0, "doubts": ["known"]}) for fix in cell.fixes]


def measure_of(name, *, timed):
    return Measure(name=name, title=name, source="", place=f"{__name__}:timed", timed=timed)


def cell_of(measure, level):
    return Cell(case="c", fixes=("f",), mode="eager", device="cpu", size="s", threads=1, measure=measure.name,
                options=Options(isolation=level))  # fmt: skip


DOUBT = "shared cores: others took 50 % of the time of 1 cores"


def test_a_timed_cell_keeps_the_doubt_and_an_untimed_one_has_none(others, tmp_path):
    (measure, quick) = (measure_of(name, timed=name == "a") for name in ("a", "b"))
    (outcome,) = run_cell(cell_of(quick, "error"), tmp_path, (measure, quick)).outcomes
    assert outcome.data["doubts"] == ["known"]
    (outcome,) = run_cell(cell_of(measure, "warn"), tmp_path, (measure, quick)).outcomes
    assert outcome.data["doubts"] == ["known", DOUBT]


def test_error_ends_the_run_instead(others, tmp_path):
    measure = measure_of("a", timed=True)
    with pytest.raises(IsolationError, match=r"took 50 %.*--set isolation=warn"):
        run_cell(cell_of(measure, "error"), tmp_path, (measure,))
    assert issubclass(IsolationError, ParameterError)


def test_a_cell_that_raises_says_why_and_not_that_it_was_disturbed(others):
    with pytest.raises(ZeroDivisionError), watch_device("cpu", "error"):
        _ = 1 / 0


IDLE = "345, 1593, 76.32, 31, 0x0000000000000001"
CAPPED = "1410, 1593, 699.87, 74, 0x0000000000000024"


class Nvml:
    """NVML's module, on planted readings."""

    class NVMLError(Exception): ...

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *, reasons=0, missing=(), fails=False):
        self.reasons, self.missing, self.fails, self.open, self.asked = reasons, missing, fails, 0, []

    def nvmlInit(self):
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetHandleByIndex(self, index):
        self.asked.append(index)
        return "handle"

    def _told(self, name, value):
        if name in self.missing:
            raise self.NVMLError("Not Supported")
        return value

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self._told("clock", {1: 1980, 2: 2619}[kind])

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._told("power", 512_250)

    def nvmlDeviceGetTemperature(self, handle, kind):
        return self._told("temperature", 61)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # the only name before 535
        return self._told("reasons", self.reasons)


@pytest.fixture
def gpu(monkeypatch):
    """Plants what nvidia-smi prints of clocks and of processes; NVML is missing unless it is planted too."""

    def plant(*, states=(), processes="", nvml=None, listed="", knows="clocks_event_reasons"):
        lines = iter(states)

        def output(command):
            if command[1] == "-L":
                return listed
            if "--query-gpu" not in command[1]:
                return processes
            return next(lines, None) if knows in command[1] else None  # as of a field that a driver does not know

        monkeypatch.setattr(isolation, "output_of", output)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None makes the import fail
        monkeypatch.setattr(isolation, "cpu_use", lambda: CpuUse(0.0, 0.0, 0.0))
        monkeypatch.setattr(isolation, "_gpu_of", lambda device: "GPU-7")

    return plant


class TestGpu:
    def watched(self, isolation="warn", device="cuda:0"):
        with watch_device(device, isolation) as watched:
            pass
        return watched

    @pytest.mark.parametrize("knows", ["clocks_event_reasons.active", "clocks_throttle_reasons.active"])
    def test_states_before_and_after_by_nvidia_smi(self, gpu, knows):
        gpu(states=[IDLE, CAPPED], knows=knows)
        watched = self.watched()
        assert watched.gpu["before"] == {
            "sm_mhz": 345.0, "memory_mhz": 1593.0, "power_w": 76.32, "temperature_c": 31.0, "slowed_by": (),
        }  # fmt: skip
        assert watched.gpu["after"]["slowed_by"] == ("its power limit", "its temperature")
        assert watched.doubts == [
            "throttled GPU: slowed by its power limit and its temperature as the timing ended, at 1410 MHz"
        ]

    def test_nvml_is_asked_first(self, gpu):
        nvml = Nvml(reasons=0x80)
        gpu(states=[IDLE, IDLE], nvml=nvml)
        watched = self.watched()
        assert watched.gpu["after"] == {
            "sm_mhz": 1980.0, "memory_mhz": 2619.0, "power_w": pytest.approx(512.25), "temperature_c": 61.0,
            "slowed_by": ("a power brake",),
        }  # fmt: skip
        assert (nvml.asked, nvml.open) == (["GPU-7", "GPU-7"], 0)

    def test_what_a_gpu_does_not_tell_is_none(self, gpu):
        gpu(nvml=Nvml(missing=("power", "reasons")))
        state = self.watched().gpu["after"]
        assert (state["power_w"], state["slowed_by"], state["sm_mhz"]) == (None, (), 1980.0)
        gpu(states=["[N/A], 1593, [N/A], 31, [N/A]"] * 2)
        assert self.watched().gpu["after"]["sm_mhz"] is None

    def test_nvml_that_fails_leaves_it_to_nvidia_smi(self, gpu):
        gpu(states=[IDLE, IDLE], nvml=Nvml(fails=True))
        assert self.watched().gpu["after"]["sm_mhz"] == 345.0

    @pytest.mark.parametrize("states", [(), ("No devices were found", "x")])
    def test_clocks_that_nobody_tells_are_a_doubt(self, gpu, states):
        gpu(states=states)
        watched = self.watched()
        assert [doubt.partition(":")[0] for doubt in watched.doubts] == ["unread clocks"]
        assert watched.gpu == {}

    def test_a_slice_has_the_clocks_of_its_card_and_no_processes_of_other_slices(self, gpu, monkeypatch):
        """A slice has a name of its own, by which neither tool tells clocks; CUDA gives it without its prefix."""
        card = "GPU 0: NVIDIA A100 (UUID: GPU-{0})\n  MIG 1g.5gb Device 0: (UUID: MIG-{1})\n"
        nvml = Nvml()
        gpu(nvml=nvml, listed=card.format("1-a", "2-b") + card.format("3-c", "4-d"), processes="7, other slice")
        for given in ("GPU-4-d", "MIG-4-d"):
            monkeypatch.setattr(isolation, "_gpu_of", lambda device, given=given: given)
            assert isolation._names_of("cuda:0") == ("MIG-4-d", "GPU-3-c")
        watched = self.watched()
        assert (nvml.asked, watched.doubts) == (["GPU-3-c"] * 2, [])
        monkeypatch.setattr(isolation, "_gpu_of", lambda device: "GPU-3-c")
        assert isolation._names_of("cuda:0") == ("GPU-3-c", "GPU-3-c")

    def test_a_slice_of_a_card_that_may_not_be_asked_has_a_doubt(self, gpu, monkeypatch):
        gpu(nvml=Nvml(missing=("clock",)))
        monkeypatch.setattr(isolation, "_gpu_of", lambda device: "MIG-4-d")
        assert [doubt.partition(" so ")[0] for doubt in self.watched().doubts] == [
            "unread clocks: neither NVML nor nvidia-smi gives those of MIG-4-d,"
        ]

    def test_a_cpu_asks_no_gpu(self, gpu):
        gpu(states=[CAPPED, CAPPED], processes="7, train")
        watched = self.watched(device="cpu")
        assert (watched.doubts, watched.gpu) == ([], {})

    def test_throttling_and_others_end_a_run_that_asks_for_isolation(self, gpu):
        gpu(states=[IDLE, CAPPED], processes="7, train")
        with pytest.raises(IsolationError, match="other processes compute on it: 7, train; throttled GPU"):
            self.watched("error")

    def test_the_record_keeps_both_states(self, gpu, tmp_path):
        gpu(states=[IDLE, CAPPED])
        measure = measure_of("a", timed=True)
        with watch_device("cuda", "warn") as watched:
            pass
        (outcome,) = [_add_watched(outcome, watched) for outcome in timed(cell_of(measure, "warn"), tmp_path)]
        assert outcome.data["gpu"]["after"]["sm_mhz"] == 1410.0
        assert outcome.data["doubts"] == ["known", *watched.doubts]


def test_a_gpu_is_named_by_its_uuid(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [isolation._gpu_of(device) for device in ("cuda", "cuda:1", "cuda:2")] == ["GPU-a", "3", "2"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="b-c"))
    assert isolation._gpu_of("cuda:0") == "GPU-b-c"
