"""The pairs of calls, and the load beside them."""

import subprocess
import sys
import time
from fractions import Fraction
from types import SimpleNamespace

import psutil
import pytest
import torch

from precision_eval.core.errors import ParameterError, UnknownNameError
from validation.latency import calls, load
from validation.latency.calls import CALLS, call_by_name, make_pair, units_of

PAIRS = [(spec, delta) for spec in CALLS for delta in spec.deltas]


@pytest.fixture
def counted(monkeypatch):
    """Count the units that run, in place of every unit."""
    count = SimpleNamespace(units=0)

    def unit():
        count.units += 1
        return count.units

    for name in calls._UNITS:
        monkeypatch.setitem(calls._UNITS, name, lambda seed: unit)
    return count


@pytest.mark.parametrize(("spec", "delta"), PAIRS)
def test_the_slowdown_is_exact_in_units(counted, spec, delta):
    base, candidate = make_pair(spec, delta, seed=0)
    base()
    units = counted.units
    last = candidate()
    assert units == spec.units
    assert Fraction(counted.units - units, units) == 1 + Fraction(str(delta))
    assert last == counted.units  # the last unit's own result


def test_a_slowdown_that_is_no_whole_number_of_units_is_refused():
    with pytest.raises(ParameterError, match=r"30us with delta 0.005 would need 40.2 units"):
        units_of(call_by_name("30us"), 0.005)
    with pytest.raises(UnknownNameError, match="unknown call '31us'; did you mean 30us"):
        call_by_name("31us")
    with pytest.raises(ParameterError, match="times is 0"):
        calls.repeated(lambda: None, 0)


@pytest.mark.parametrize("spec", CALLS)
def test_identical_calls_are_two_functions_of_one_code_and_tensor(spec):
    base, candidate = make_pair(spec, 0.0, seed=3)
    assert base is not candidate
    assert base.__code__ is candidate.__code__
    first, second = base(), candidate()
    assert isinstance(first, torch.Tensor)
    assert torch.equal(first, second)
    again, other = make_pair(spec, 0.0, seed=3)[0](), make_pair(spec, 0.0, seed=4)[0]()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_competitors_run_one_per_core_and_end_with_the_block_also_where_it_raises():
    def broken(competitors):
        assert len(competitors) == load.usable_cores() >= 1
        assert all(competitor.is_alive() for competitor in competitors)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), load.under_load("bursty", seed=1) as competitors:
        broken(competitors)
    assert not any(competitor.is_alive() for competitor in competitors)
    with load.under_load("quiet", seed=1) as competitors:
        assert competitors == ()


def test_competitors_end_with_a_parent_that_is_killed():
    code = (
        "import time\nfrom validation.latency.load import under_load\nif __name__ == '__main__':\n"
        "    with under_load('bursty', seed=1) as competitors:\n"
        "        print(*(competitor.pid for competitor in competitors), flush=True)\n        time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == load.usable_cores()
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert [pid for pid in pids if _runs(pid)] == []


def _runs(pid):
    """Say whether the process runs; one that ended and was not waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_bystanders_are_the_busy_time_that_is_not_our_own(monkeypatch):
    # 2 s of wall clock, in which the machine spent 3 s of processor and this process 1 s: others used 1 core.
    clock = SimpleNamespace(perf_counter=iter([5.0, 7.0]).__next__, process_time=iter([1.0, 2.0]).__next__)
    monkeypatch.setattr(load, "time", clock)
    monkeypatch.setattr(load, "_machine_busy_s", iter([10.0, 13.0]).__next__)
    assert load.Bystanders().cores() == pytest.approx(1.0)


def test_busy_time_leaves_out_idle_and_counts_guests_once(monkeypatch):
    times = {"user": 5.0, "nice": 1.0, "system": 2.0, "steal": 0.5, "idle": 90.0, "iowait": 7.0, "guest": 4.0}
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(_asdict=lambda: times))
    assert load._machine_busy_s() == 8.5
