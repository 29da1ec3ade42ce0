"""Isolation of a timed cell: what is said of counters and of reports as drivers write them, and what error does."""

import pytest

from precision_eval.core.cells import Cell, Options, passed
from precision_eval.core.errors import ParameterError
from precision_eval.measure import isolation
from precision_eval.measure.isolation import CpuUse, IsolationError, cpu_doubts, cpu_use, gpu_doubts, watched
from precision_eval.measure.registry import Measure, run_cell

# Elements, their order and their words as drivers 590 (event reasons) and 525 (throttle reasons) print them.
QUIET = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<driver_version>590.48.01</driver_version>
	<gpu id="00000000:01:00.0">
		<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
			<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
			<clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
			<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
		</clocks_event_reasons>
		<ecc_errors><volatile><sram_uncorrectable>0</sram_uncorrectable><dram_correctable>7</dram_correctable>
			<dram_uncorrectable>N/A</dram_uncorrectable></volatile>
			<aggregate><dram_uncorrectable>9</dram_uncorrectable></aggregate></ecc_errors>
		<clocks><graphics_clock>345 MHz</graphics_clock><sm_clock>345 MHz</sm_clock></clocks>
		<max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks>
		<processes>
			<process_info><pid>21</pid><type>C</type><process_name>python</process_name>
				<used_memory>123 MiB</used_memory></process_info>
			<process_info><pid>22</pid><type>G</type><process_name>/usr/lib/xorg/Xorg</process_name>
				<used_memory>N/A</used_memory></process_info>
		</processes>
	</gpu>
</nvidia_smi_log>
"""


def test_a_gpu_that_is_ones_own_leaves_no_doubt():
    assert gpu_doubts(QUIET, 21) == []
    assert gpu_doubts("", 21) == []
    assert gpu_doubts("<nvidia_smi_log/>", 21) == []


@pytest.mark.parametrize(
    ("old", "new", "doubt"),
    [
        ("<pid>21</pid>", "<pid>77</pid>", "shared GPU: other processes compute on it: 77 (python)"),
        ("<type>G</type>", "<type>C+G</type>", "shared GPU: other processes compute on it: 22 (Xorg)"),
        ("<current_mig>Disabled", "<current_mig>Enabled", "shared GPU: it is divided (MIG)"),
        ("<sram_uncorrectable>0", "<sram_uncorrectable>2", "faulty GPU: 2 errors of its memory"),
        ("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active",
         "slowed GPU: hw_thermal_slowdown; its clock is 345 MHz of 1980 MHz"),
        ("</gpu>", "", "shared GPU: nvidia-smi's report could not be read"),
    ],
)  # fmt: skip
def test_each_planted_state_of_a_gpu_is_a_doubt_and_nothing_else_is(old, new, doubt):
    assert old in QUIET
    (found,) = gpu_doubts(QUIET.replace(old, new), 21)
    assert found.startswith(doubt)


def test_drivers_before_535_call_the_reasons_otherwise():
    older = QUIET.replace("clocks_event_reason", "clocks_throttle_reason").replace(
        "sw_power_cap>Not Active", "sw_power_cap>Active"
    )
    (found,) = gpu_doubts(older, 21)
    assert found.startswith("slowed GPU: sw_power_cap")


def test_what_others_took_of_the_cores_by_hand():
    before = CpuUse(0.0, 100.0, 1.0, 50.0, 3)
    assert cpu_doubts(before, CpuUse(10.0, 110.0, 1.0, 60.0, 3), 2) == []  # all that was busy was its own
    assert cpu_doubts(before, CpuUse(10.0, 118.0, 2.0, 60.0, 5), 2) == [
        "shared cores: other processes took 40 % of the time of 2 cores",
        "shared cores: the host took 5 % of the time of 2 cores",
        "shared cores: the control group's limit of processor time held it up 2 times",
    ]
    assert cpu_doubts(None, before, 2) == []
    assert cpu_doubts(before, CpuUse(0.002, 100.02, 1.0, 50.0, 3), 2) == []  # two ticks of others in two milliseconds


def test_counters_are_of_the_cores_that_may_be_used(monkeypatch):
    stat = "cpu  400 0 0 0 0 0 0 0 0 0\ncpu0 100 20 30 999 9 1 2 50 0 0\ncpu1 300 0 0 0 0 0 0 0 0 0\nintr 5 0\n"
    cgroup = "usage_usec 17\nnr_periods 9\nnr_throttled 4\nthrottled_usec 800\n"
    monkeypatch.setattr(isolation.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    monkeypatch.setattr(isolation.os, "sysconf", lambda name: 100)
    use = cpu_use(stat, cgroup)
    assert (use.busy_s, use.stolen_s, use.throttled) == (1.53, 0.5, 4)


@pytest.fixture
def others(monkeypatch):
    """A machine on which other processes took half of the cores."""
    looks = iter([CpuUse(0.0, 0.0, 0.0, 0.0, 0), CpuUse(1.0, 0.5, 0.0, 0.0, 0)])
    monkeypatch.setattr(isolation, "cpu_use", lambda: next(looks))
    monkeypatch.setattr(isolation, "usable_cores", lambda: 1)


def timed(cell, run_dir):
    return [passed(fix, {"ratio": 1.0, "doubts": ["known"]}) for fix in cell.fixes]


def measure_of(name, *, timed):
    return Measure(name=name, title=name, source="", place=f"{__name__}:timed", timed=timed)


def cell_of(measure, level):
    return Cell(case="c", fixes=("f",), mode="eager", device="cpu", size="s", threads=1, measure=measure.name,
                options=Options(isolation=level))  # fmt: skip


DOUBT = "shared cores: other processes took 50 % of the time of 1 cores"


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
    with pytest.raises(ZeroDivisionError), watched("cpu", "error"):
        _ = 1 / 0
