"""The generic measures on a small attention, in this process: data as the records promise, failures as statuses."""

import json
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
import torch
from made_cells import cell as made_cell
from torch._dynamo.utils import counters

from precision_eval.cases.base import BuiltCase
from precision_eval.core.cells import failure_of
from precision_eval.core.errors import CandidateError
from precision_eval.core.records import STATUSES
from precision_eval.measure import generic, latency, placement
from precision_eval.measure.blocks import Candidate
from precision_eval.measure.generic import in_process
from precision_eval.measure.registry import run_cell
from precision_eval.measure.system_drift import OF_TOKENS
from precision_eval.trace import capture

SENTENCE = "Expected query, key, and value to have the same dtype"


def outcomes(tmp_path, *args, **kwargs):
    threads = torch.get_num_threads()
    try:
        result = run_cell(made_cell(*args, budget_s=0.05, **kwargs), tmp_path)
    finally:
        torch.set_num_threads(threads)
    assert all(outcome.status in STATUSES for outcome in result.outcomes)
    json.dumps([outcome.data for outcome in result.outcomes], allow_nan=False)
    return {outcome.fix: outcome for outcome in result.outcomes}


@pytest.mark.parametrize("measure", ["trace", "drift", "memory", "latency"])
def test_what_landed_upstream_is_measured_and_where_nothing_did_it_is_unsupported(tmp_path, measure):
    for case, status in (("cogvideo-t5-encoder", "passed"), ("metavoice-decode", "unsupported")):
        found = outcomes(tmp_path, measure, "upstream", case=case)["upstream"]
        assert found.status == status
        assert (found.data is not None) == (status == "passed")
        assert status == "passed" or "#187" in found.reason


@pytest.mark.slow
def test_a_graph_that_only_the_compiler_runs_is_passed_and_said_to_be_unseen(tmp_path):
    """Under autocast a cache write raises in eager, and inductor fuses it with a silent cast (torch 2.13)."""
    found = outcomes(tmp_path, "trace", "autocast", mode="compiled", case="metavoice-decode")["autocast"]
    built = generic._built(made_cell("trace", "autocast", mode="compiled", case="metavoice-decode"))
    with generic.fix_by_id("autocast").applied(built.model, mode="compiled") as call:
        try:
            call(*built.inputs)
        except RuntimeError:
            assert found.status == "raised"
        else:
            assert found.status == "passed"
            assert "does not in eager" in found.data["doubts"][0]


def test_latency_group(tmp_path):
    found = outcomes(tmp_path, "latency", "as_shipped", "kv_to_query", "full_float32")
    assert found["as_shipped"].status == "raised"
    assert SENTENCE in found["as_shipped"].reason
    assert found["kv_to_query"].data["baseline"] == "full_float32"
    assert found["kv_to_query"].data["blocks"] >= 12
    null = found["full_float32"].data  # against its own copy; how near to 1 depends on what else the machine does
    assert 0.0 < null["ratio_low"] <= null["ratio"] <= null["ratio_high"]
    assert found["kv_to_query"].data["clock"] in ("wall", "cpu")


def test_latency_is_timed_in_a_stated_state_of_the_allocator(tmp_path, monkeypatch):
    states = []
    monkeypatch.setattr(latency, "hold_memory", states.append)
    record = outcomes(tmp_path, "latency", "kv_to_query", "full_float32")["kv_to_query"].data
    assert states == [record["memory"]] == ["grown"]
    assert record["page_faults_per_call"] >= 0.0
    assert "by_memory" not in record


def test_latency_in_several_states_of_the_allocator(tmp_path):
    cell = made_cell("latency", "full_float32", budget_s=0.05, memory="kept,grown")
    (outcome,) = run_cell(cell, tmp_path).outcomes
    assert outcome.data["memory"] == "kept"
    assert list(outcome.data["by_memory"]) == ["grown"]
    assert outcome.data["by_memory"]["grown"]["ratio"] != outcome.data["ratio"]  # processes of their own


@pytest.mark.cuda
def test_a_gpu_is_timed_by_its_own_clock_and_as_launched(tmp_path):
    fixes = ("query_to_half", "kv_to_query", "full_float32", "bfloat16", "autocast")
    recorded = outcomes(tmp_path, "latency", *fixes, device="cuda:0", size="dia", clock="both")
    for outcome in recorded.values():
        assert outcome.status == "passed", outcome.reason
        assert outcome.data["clock"] == "cuda-graph-cold"
        assert outcome.data["warm_l2"]["clock"] == "cuda-graph-warm"
        assert outcome.data["launched"]["clock"] == "launched"


def test_latency_needs_no_baseline_in_the_cell_and_none_where_all_raise(tmp_path, monkeypatch):
    assert list(outcomes(tmp_path, "latency", "kv_to_query")) == ["kv_to_query"]
    built = []
    original = generic.prepare_candidate
    monkeypatch.setattr(
        generic,
        "prepare_candidate",
        lambda cell, fix, *rest, **shares: built.append(fix) or original(cell, fix, *rest, **shares),
    )
    assert outcomes(tmp_path, "latency", "as_shipped")["as_shipped"].status == "raised"
    assert built == ["as_shipped"]


def test_output_that_is_not_finite(tmp_path, monkeypatch):
    class Infinite(torch.nn.Module):
        def forward(self, query):
            return query / 0.0

    built = BuiltCase(Infinite(), (torch.ones(2, 3),))
    monkeypatch.setattr(generic, "_built", lambda *_: built)
    for measure in ("trace", "latency"):
        outcome = outcomes(tmp_path, measure, "kv_to_query")["kv_to_query"]
        assert (outcome.status, outcome.data) == ("non_finite", None)
        assert outcome.reason == "6 of 6 output values are NaN or infinite"


def test_format_that_the_device_lacks(tmp_path, monkeypatch):
    from precision_eval.core.formats import Support

    monkeypatch.setattr(generic, "support", lambda device, name: Support("absent", "no such unit"))
    for measure in ("trace", "latency"):
        outcome = outcomes(tmp_path, measure, "bfloat16")["bfloat16"]
        assert (outcome.status, outcome.reason) == ("unsupported", "bfloat16 on cpu: no such unit")


def test_latency_in_several_processes(tmp_path):
    cell = made_cell("latency", "as_shipped", "kv_to_query", "full_float32", budget_s=0.1, processes=3)
    found = {outcome.fix: outcome for outcome in run_cell(cell, tmp_path).outcomes}
    assert found["as_shipped"].status == "raised"
    assert len(found["kv_to_query"].data["process_ratios"]) == 3
    assert found["kv_to_query"].data["blocks"] >= 36
    assert len(set(found["full_float32"].data["process_ratios"])) == 3


def _dies(cell, process):
    os._exit(7)


def _runs_out(cell, process):
    raise CandidateError("candidate 'a' raised while it was timed") from torch.OutOfMemoryError("CUDA out of memory")


def test_a_timing_process_that_dies_is_not_the_fault_of_the_fix():
    with pytest.raises(CandidateError, match="process 2 gave no result: the worker ended with code 7") as caught:
        in_process(_dies, made_cell("latency", "kv_to_query"), 1)
    assert failure_of("kv_to_query", caught.value).status == "crashed"


@pytest.mark.parametrize(("device", "start"), [("cpu", "fork"), ("cuda:0", "spawn")])
def test_a_process_that_uses_a_gpu_is_not_forked_from_one_that_has_asked_for_it(monkeypatch, device, start):
    monkeypatch.setattr(generic, "call_isolated", lambda *call, start: start)
    assert in_process(_dies, made_cell("latency", "kv_to_query", device=device), 0) == start


class SkipsGraphs(torch.nn.Module):
    """A module of which the compiler captures no graph, in two parts of its first call."""

    def __init__(self, skips):
        super().__init__()
        self.skips = skips

    def forward(self, x):
        counters["inductor"]["cudagraph_skips"] += self.skips
        return x + 1


@dataclass
class Doubted:
    doubts: tuple[str, ...] = ()


def prepared(skips, mode):
    cell = made_cell("latency", "full_float32", compile_mode=mode)
    with ExitStack() as stack:
        return generic.call_once(cell, "full_float32", BuiltCase(SkipsGraphs(skips), (torch.ones(2),)), stack)


@pytest.mark.parametrize(("skips", "mode"), [(0, "reduce-overhead"), (2, None)])
def test_a_call_that_is_captured_or_is_not_to_be_has_no_doubt(skips, mode):
    assert prepared(skips, mode).doubt == ""


def test_a_compiled_call_that_is_not_captured_says_so_in_the_devices_time_alone(monkeypatch):
    candidate = prepared(2, "reduce-overhead")
    assert "made no CUDA graph of full_float32 at 2 places" in candidate.doubt
    monkeypatch.setattr(generic, "compare_latency", lambda *_, **__: {"kv_to_query": Doubted()})
    cell = made_cell("latency", "kv_to_query", "full_float32", device="cuda:0")
    candidates = {"kv_to_query": Candidate(print), "full_float32": candidate}
    timed = generic._ratios(cell, 0, candidates, candidate, {"warm_l2": {}, "launched": {}})
    assert timed["kv_to_query"]["warm_l2"].doubts == (candidate.doubt,)
    assert timed["kv_to_query"]["launched"].doubts == ()


def test_running_out_of_memory_while_timed_keeps_its_status():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        in_process(_runs_out, made_cell("latency", "kv_to_query"), 0)
    assert failure_of("kv_to_query", caught.value).status == "out_of_memory"
    with pytest.raises(CandidateError) as wrapped:
        _runs_out(None, 0)
    assert failure_of("kv_to_query", wrapped.value).status == "out_of_memory"


class Plain(torch.nn.Module):
    """A module of a user's: it upcasts in its own code, and returns a dictionary."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16, dtype=torch.float16)

    def forward(self, x):
        hidden = self.linear(x)
        return {"out": hidden.float().softmax(-1).to(x.dtype), "index": hidden.argmax(-1)}


class Greedy(torch.nn.Module):
    """Tokens behind a product that overflows in float16, from row 2 on."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16, dtype=torch.float16)

    def forward(self, x):
        return (self.linear(x) * 1e4 * torch.arange(8, dtype=x.dtype)[:, None] ** 2).softmax(-1).argmax(-1)


def drift_of(monkeypatch, tmp_path, fix, model=Plain):
    torch.manual_seed(0)
    built = BuiltCase(model().eval(), (torch.randn(8, 16),))
    monkeypatch.setattr(generic, "_built", lambda *_: built)
    return outcomes(tmp_path, "drift", fix)[fix]


def test_drift_of_any_module(monkeypatch, tmp_path):
    half, wide = (drift_of(monkeypatch, tmp_path, fix) for fix in ("query_to_half", "full_float32"))
    assert half.status == wide.status == "passed"
    assert 1e-5 < half.data["relative_error"] < 1e-2
    assert wide.data["relative_error"] < 1e-6
    assert half.data["casts"]
    assert drift_of(monkeypatch, tmp_path, "as_shipped").status == "raised"


def test_the_drift_of_tokens_is_the_share_that_differs(monkeypatch, tmp_path):
    half, wide = (drift_of(monkeypatch, tmp_path, fix, Greedy) for fix in ("float16", "full_float32"))
    assert wide.data["relative_error"] == 0.0
    assert half.data["relative_error"] * 8 in range(3, 9)  # whole tokens; a row of NaN has token 0
    assert half.data["doubts"] == wide.data["doubts"] == [OF_TOKENS]


def test_what_the_suite_itself_cannot_do_is_no_status_of_the_fix(monkeypatch, tmp_path):
    from precision_eval.measure import system_drift

    def broken(model):
        raise RuntimeError("no float64 here")

    monkeypatch.setattr(system_drift, "in_float64", broken)
    outcome = drift_of(monkeypatch, tmp_path, "query_to_half")
    assert outcome.status == "crashed"
    assert outcome.reason.startswith("the suite failed, not the fix: MeasurementError: the drift of 'query_to_half'")
    assert "no float64 here" in outcome.reason


def test_a_trace_that_the_suite_cannot_take_is_no_status_of_the_fix(monkeypatch, tmp_path):
    def broken(call, inputs):
        raise RuntimeError("an operation without a schema")

    monkeypatch.setattr(capture, "observe", broken)
    outcome = outcomes(tmp_path, "trace", "full_float32")["full_float32"]
    assert outcome.status == "crashed"
    assert outcome.reason.startswith("the suite failed, not the fix: MeasurementError: the trace of 'full_float32'")


def sizes_held(cell, monkeypatch, device="cuda:0"):
    """Bytes of the parameters of all fixes and the baseline's copy, each storage once, as `_ratios` gets them."""
    seen = {}

    def count(cell, process, candidates, twin, clocks, doubts):
        every = {name: placement._module_of(one.call) for name, one in {**candidates, "twin": twin}.items()}
        for name, model in every.items():
            seen[name] = {p.untyped_storage().data_ptr(): p.nbytes for p in model.parameters()}
        return {}

    monkeypatch.setattr(generic, "_ratios", count)
    monkeypatch.setattr(generic, "check_format", lambda *_: None)
    monkeypatch.setattr(generic, "_clocks", lambda *_, **__: {})
    built = generic._built(made_cell("latency", case=cell.case))
    monkeypatch.setattr(generic, "_built", lambda *_: built)
    generic._time_once(replace(cell, device=device), 0)
    return seen, sum(p.nbytes for p in built.model.parameters())


def test_on_cuda_fixes_hold_the_parameters_as_shipped_once_and_the_copy_its_own(monkeypatch):
    cell = made_cell("latency", "query_to_half", "kv_to_query", "full_float32", "bfloat16", case="metavoice-decode")
    seen, shipped_bytes = sizes_held(cell, monkeypatch)
    assert seen["query_to_half"] == seen["kv_to_query"]
    assert sum(seen["query_to_half"].values()) == shipped_bytes
    assert not seen["twin"].keys() & (seen["full_float32"].keys() | seen["query_to_half"].keys())
    on_cpu, _ = sizes_held(cell, monkeypatch, device="cpu")
    together = [len({key for of_fix in each.values() for key in of_fix}) for each in (seen, on_cpu)]
    assert together[0] <= together[1]


def test_what_writes_its_parameters_shares_none(monkeypatch):
    class Writes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, x):
            return x + self.weight.mul_(1.0)

    built = BuiltCase(Writes(), (torch.ones(2),))
    cell = made_cell("latency", "query_to_half", "full_float32", device="cuda:0")
    monkeypatch.setattr(generic, "check_format", lambda *_: None)
    assert not generic._can_share_parameters(cell, built)
    assert generic._can_share_parameters(cell, BuiltCase(torch.nn.Linear(2, 2).requires_grad_(False), built.inputs))


@pytest.mark.parametrize("fails_at", [1, 3, 4])
def test_memory_that_ends_while_several_are_prepared_is_no_fixs_doing(tmp_path, monkeypatch, fails_at):
    """The first fix, the baseline, its copy: the whole cell raises, so that the runner takes the fixes one by one."""
    calls = []
    original = generic.call_once

    def run_out(*args):
        calls.append(args)
        if len(calls) == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(*args)

    monkeypatch.setattr(generic, "call_once", run_out)
    result = run_cell(made_cell("latency", "query_to_half", "kv_to_query", "full_float32", budget_s=0.05), tmp_path)
    assert result.raised
    assert {outcome.status for outcome in result.outcomes} == {"out_of_memory"}


def test_a_fix_alone_is_timed_though_memory_has_no_room_for_a_copy_of_the_baseline(tmp_path, monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(generic, "_copy_of_baseline", lambda *args, **named: full())
    (alone,) = run_cell(made_cell("latency", "query_to_half", budget_s=0.05), tmp_path).outcomes
    assert alone.status == "passed"
    assert generic._NO_COPY in alone.data["doubts"]
