"""compare: drift by hand and by an independent computation, statuses, bytes by hand, choosing, what it refuses."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from precision_eval.core.errors import CandidateError, ParameterError
from precision_eval.fixes.outside import fixed
from precision_eval.measure import latency
from precision_eval.measure.isolation import Watched
from precision_eval.results.choose import MissingMeasureError
from precision_eval.stats.paired import paired_ratio
from precision_eval.studies import compare as studies
from precision_eval.studies.compare import Cost, Costs, compare
from tests.precision_eval.measure.test_graphs import HALF, WIDE, Machine, MachineDevice, MachineLaunches, work

W = 64


@pytest.fixture
def linear():
    """Half weights; raises on a float32 input."""
    torch.manual_seed(0)
    return nn.Linear(W, W, bias=False).half().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(2, W, generator=torch.Generator().manual_seed(1))


def untimed(candidates, *inputs, **options):
    return compare(candidates, *inputs, **{"baseline": next(iter(candidates)), "latency": False, **options})


def test_drift_by_hand(x):
    found = untimed({"same": lambda x: x, "half": lambda x: x / 2, "none": lambda x: 0 * x}, x, reference=lambda x: x)
    assert {name: row.drift for name, row in found.items()} == {"same": 0.0, "half": 0.5, "none": 1.0}
    assert found.reference == "as given"


def test_drift_is_the_largest_over_the_outputs(x):
    found = untimed({"two": lambda x: {"a": x, "b": (2 * x, torch.ones(3).long())}}, x, reference=lambda x: (x, x))
    assert found["two"].drift == 1.0


def test_the_module_that_raises_is_its_own_reference(linear, x):
    found = untimed({"as shipped": linear, "up": fixed(linear, "kv_to_query"), "half": fixed(linear, "query_to_half")},
                    x, reference=linear)  # fmt: skip
    assert (found["as shipped"].status, found.reference) == ("raised", "float64")
    assert found["as shipped"].reason.startswith("RuntimeError: ")
    assert "same dtype" in found["as shipped"].reason
    exact = x.double() @ linear.weight.double().T
    for name, output in (("up", x @ linear.weight.float().T), ("half", x.half() @ linear.weight.T)):
        expected = float((output.double() - exact).norm() / exact.norm())
        assert found[name].drift == pytest.approx(expected, rel=1e-6), name
    assert found["up"].drift < 1e-6 < 1e-5 < found["half"].drift


def test_a_tensor_is_an_reference_too(x):
    assert untimed({"one": lambda x: x}, x, reference=x.double())["one"].drift == 0.0
    with pytest.raises(ParameterError, match="the reference gives float32; expected float64: compute it from float64"):
        untimed({"one": lambda x: x}, x, reference=x)
    with pytest.raises(ParameterError, match="the reference gives nothing floating"):
        untimed({"one": lambda x: x}, x, reference=lambda x: 3)
    with pytest.raises(ParameterError, match="the reference is a str; expected a module, a function or a tensor"):
        untimed({"one": lambda x: x}, x, reference="float64")


def test_what_is_not_finite_is_a_status(x):
    found = untimed({"one": lambda x: x, "inf": lambda x: x / 0, "nan": lambda x: x * math.nan}, x)
    assert [row.status for row in found.values()] == ["passed", "non_finite", "non_finite"]
    assert found["nan"].reason == f"{2 * W} of {2 * W} output values are not finite"


def test_an_infinity_that_the_reference_has_too_is_meant(x):
    def masked(x):
        return x.masked_fill(x > 0, -math.inf)

    found = untimed({"one": masked}, x, reference=masked)
    assert (found["one"].status, found["one"].drift) == ("passed", 0.0)


def test_a_model_that_draws_has_no_drift(x):
    class Draws(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn_like(x)

    model = Draws(W, W)
    found = untimed({"one": model}, x, reference=model)
    assert (found["one"].status, found["one"].drift) == ("passed", None)
    assert "draws random numbers" in found.doubts[0]
    with pytest.raises(CandidateError, match="candidate 'one' is not repeatable"):
        compare({"one": model, "two": torch.cos}, x, baseline="two", budget_s=0.05)


def test_bytes_by_hand(linear, x):
    up, wide = fixed(linear, "kv_to_query"), fixed(linear, "full_float32")
    found = untimed({"up": up, "wide": wide, "bare": lambda x: x.clone()}, x)
    output, weight = 2 * W * 4, W * W * 4
    assert (found["up"].stored_bytes, found["up"].peak_bytes) == (weight // 2, weight + output)
    assert (found["wide"].stored_bytes, found["wide"].peak_bytes) == (weight, output)
    assert (found["bare"].stored_bytes, found["bare"].peak_bytes) == (None, output)
    assert untimed({"up": fixed(linear, "kv_to_query")}, x, memory=False)["up"].peak_bytes is None


def test_only_what_passes_is_timed(linear, x):
    candidates = {"as shipped": linear, "up": fixed(linear, "kv_to_query"), "wide": fixed(linear, "full_float32")}
    found = compare(candidates, x, baseline="wide", reference=linear, budget_s=0.1)
    assert {name: row.latency.baseline for name, row in found.items() if row.latency is not None} == {"up": "wide"}
    assert found["up"].latency.median_s > 0.0
    assert repr(found).splitlines()[0].split() == ["candidate", "status", "time", "/", "wide", "drift", "memory"]
    assert [line.split()[0] for line in repr(found).splitlines()[1:4]] == ["as", "up", "wide"]
    assert "as shipped: raised: " in repr(found)


def test_a_baseline_that_does_not_run_is_a_doubt(linear, x):
    found = compare(
        {"as shipped": linear, "up": fixed(linear, "kv_to_query")}, x, baseline="as shipped", reference=linear
    )
    assert found.doubts == ("time was not measured: the baseline as shipped is raised",)
    assert found["up"].latency is None
    assert found.choose(policy="quality").fix == "up"


def cost(name, *, ratio=None, drift=None, stored=None, peak=None, status="passed", reason=""):
    """Build a row whose every block took `ratio` of the baseline's time, but for a spread of 0.1 %."""
    base = [1e-3 * (1 + 1e-3 * math.sin(7 * i)) for i in range(40)]
    own = [ratio * t * (1 + 1e-3 * math.sin(3 * i)) for i, t in enumerate(base)] if ratio else None
    latency = None if own is None else paired_ratio(own, base, baseline="b", margin=0.002, seed=0)
    return Cost(name=name, status=status, reason=reason, drift=drift, latency=latency, stored_bytes=stored,
                peak_bytes=peak)  # fmt: skip


def costs(*rows):
    return Costs(rows={row.name: row for row in rows}, baseline="b", reference="float64", device="cpu", threads=1)


@pytest.fixture
def three():
    return costs(
        cost("b", drift=1e-7, stored=4000, peak=96),
        cost("a", ratio=0.5, drift=1e-3, stored=2000, peak=96),
        cost("c", ratio=2.0, drift=1e-4, stored=2000, peak=0),
        cost("as shipped", status="raised", reason="no"),
    )


def test_choosing_by_hand(three):
    assert three.choose(policy="quality").fix == "b"
    assert three.choose(policy="speed").fix == "a"
    assert three.choose(policy="quality", max_memory="3KB").fix == "c"
    assert three.choose(policy="quality", max_memory=2050).fix == "c"
    assert three.choose(policy="speed", max_drift=5e-4).fix == "b"
    assert three.choose(policy="speed", min_speed=1.5).fix == "a"
    assert three.choose(max_drift=1e-9).fix is None
    assert [out.fix for out in three.choose(policy="quality").left_out] == ["as shipped"]


def test_differences_that_one_process_cannot_tell_are_ties():
    found = costs(cost("b", drift=1e-4), cost("a", ratio=0.97, drift=1e-4)).choose(policy="speed")
    assert (found.outcome, sorted(found.tied)) == ("tie", ["a", "b"])
    assert costs(cost("b"), cost("a", ratio=0.9)).choose(policy="speed").outcome == "one"
    assert any("differences below 5 % count as ties" in doubt for doubt in found.doubts)
    assert not any("--set processes" in doubt for doubt in found.doubts)


def test_what_a_choice_lacks_is_asked_for_here(three):
    bare = costs(cost("b"), cost("a", ratio=0.5))
    with pytest.raises(MissingMeasureError, match=r"add it: compare\(\.\.\., reference=model\)"):
        bare.choose(policy="quality")
    with pytest.raises(MissingMeasureError, match=r"add it: compare\(\.\.\., memory=True\)"):
        bare.choose(policy="speed", max_memory="1MiB")
    with pytest.raises(MissingMeasureError, match=r"add it: compare\(\.\.\., latency=True\)"):
        costs(cost("b", drift=1e-4)).choose(policy="speed")
    with pytest.raises(ParameterError, match="ratio to the candidate full_float32, which is not among b, a, c"):
        three.choose(max_memory="0.6x")


def test_bad_input_is_named(x):
    with pytest.raises(ParameterError, match="baseline 'c' is not a candidate; candidates: a, b"):
        compare({"a": abs, "b": abs}, x, baseline="c")
    with pytest.raises(ParameterError, match="baseline 'c' is not a candidate; candidates: none"):
        compare({}, x, baseline="c")
    with pytest.raises(ParameterError, match="candidate 'b' is a Tensor; expected a module or a function"):
        compare({"a": abs, "b": x}, x, baseline="a")


def test_a_notebook_gets_one_table_of_time_memory_and_drift(linear, x):
    candidates = {"kv_to_query": fixed(linear, "kv_to_query"), "as shipped": linear}
    found = compare(candidates, x, baseline="kv_to_query", reference=linear, latency=False)
    html = found._repr_html_()
    assert html.count("<table") == 1
    assert [name for name in ("memory", "drift", "kv_to_query", "as shipped", "raised") if name not in html] == []
    assert found["kv_to_query"].peak_bytes > 0


def test_calls_whose_result_is_on_the_host_run_on_the_gpu_of_what_they_carry(monkeypatch, x):
    with FakeTensorMode():
        weight = torch.empty(2, device="cuda:1")
    asked = []
    monkeypatch.setattr(studies, "_timed", lambda rows, ready, *, device, **_: asked.append(device) or ({}, ()))
    found = studies.compare({"a": lambda x: x + weight.dim()}, x, baseline="a", memory=False)
    assert (asked, found.device) == (["cuda:1"], "cuda:1")


class TestOnCuda:
    """On a machine whose host launches and whose device works, on times that we plant; no card takes part."""

    @pytest.fixture
    def timed(self, monkeypatch):
        machine = Machine()
        monkeypatch.setattr(latency, "CudaDevice", lambda name: MachineDevice(machine))
        monkeypatch.setattr(studies, "LaunchedTimer", lambda name: MachineLaunches(machine, "launched"))
        monkeypatch.setattr(
            studies, "watch_device", lambda device, isolation: nullcontext(Watched(["throttled GPU: x"]))
        )
        calls = {"wide": work(machine, *WIDE), "half": work(machine, *HALF)}
        ready = {name: studies._Ready(call, nullcontext, None) for name, call in calls.items()}
        rows = {name: Cost(name=name, status="passed") for name in calls}
        return studies._timed(rows, ready, baseline="wide", budget_s=2e-3, seed=0, device="cuda:0")

    def test_time_is_the_devices_and_launched_stands_beside_it(self, timed):
        rows, doubts = timed
        half = rows["half"]
        assert (half.latency.clock, half.launched.clock) == ("cuda-graph-warm", "launched")
        assert half.latency.verdict == "faster"
        assert half.launched.verdict == "slower"
        assert "throttled GPU: x" in doubts
        assert "launched from Python 1.0" in repr(half)

    def test_the_table_has_both_ratios(self, timed):
        rows = {"wide": Cost(name="wide", status="passed")} | timed[0]
        found = Costs(rows=rows, baseline="wide", reference="", device="cuda:0", threads=1)
        assert found.comparison.group.clock == "device"
        table = repr(found)
        assert "device time / wide" in table.splitlines()[0]
        assert table.splitlines()[0].endswith("launched")
        assert "1.037" in table
