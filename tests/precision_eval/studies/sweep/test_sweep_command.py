"""A tiny sweep from end to end, and one job in this process."""

import json
import platform
from concurrent.futures import Future
from functools import partial

import pytest
import torch

from precision_eval.cli.studies import run_sweep, whole_numbers
from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError, UnsupportedError
from precision_eval.core.files import TrialFile
from precision_eval.measure import allocator as memory
from precision_eval.measure import generic
from precision_eval.measure.latency import Candidate
from precision_eval.studies.sweep import measuring
from precision_eval.studies.sweep.measuring import build_case, measure_job
from precision_eval.studies.sweep.plan import (
    BASELINE,
    CASTS,
    FIXES,
    FULL,
    NOISE_FLOOR,
    TO_HALF,
    TO_QUERY,
    Sweep,
    SweepConfiguration,
    SweepJob,
)
from precision_eval.studies.sweep.running import curves_of

TINY = SweepConfiguration(shape="tiny", cache_dtype="float16", batch=2, mode="eager", threads=1, memory="grown")


def job_of(*lengths, **change):
    options = {"configuration": TINY, "lengths": lengths, "process": 0, "budget_s": 0.04, "campaign": "c", "seed": 0}
    return SweepJob(**(options | change))


class FakeExecutor:
    """Answers at once in this process, with lines that are made up."""

    def __init__(self, made):
        self.made = made

    def __call__(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, argument):
        future = Future()
        is_job = isinstance(argument, SweepJob)
        lines = [self.made.line(argument, length) for length in argument.lengths] if is_job else {"torch": "made up"}
        future.set_result(lines)
        return future


def test_the_command_measures_what_is_missing_and_reports(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("precision_eval.cli.studies.IsolatedExecutor", FakeExecutor(made))
    run_sweep(made.small(), tmp_path, refine=1)
    first = capsys.readouterr().out
    assert "0/6 metavoice float16, eager, 1 thread, process 1 of 2" in first
    assert "no crossing in the range: query_to_half is faster from 64 to 1,024" in " ".join(first.split())
    run_sweep(made.small(), tmp_path)
    assert "process 1 of 2" not in capsys.readouterr().out
    assert len(TrialFile(tmp_path / "lengths.jsonl").read()) == 6
    assert (tmp_path / "environment.json").is_file()


@pytest.mark.slow
def test_from_end_to_end(tmp_path, capsys):
    options = {"shapes": ("tiny",), "lengths": (64, 4096), "modes": ("eager",), "threads": (1,)}
    plan = Sweep(**options, memory=("grown", "kept", "returned"), budget_s=0.05, processes=1)
    run_sweep(plan, tmp_path)
    lines = TrialFile(tmp_path / "lengths.jsonl").read()
    assert len(lines) == 3 * 2
    for name in ("crossover.json", "summary.md", "lengths.png", "lengths.svg", "environment.json"):
        assert (tmp_path / name).stat().st_size > 500
    curves = {curve.configuration.memory: curve for curve in curves_of(lines)}
    for curve in curves.values():
        if curve.configuration.memory == "grown" or platform.libc_ver()[0] == "glibc":
            assert [point.failures for point in curve.points] == [{}, {}]
            assert all(set(point.ratios) == {TO_HALF, TO_QUERY, CASTS, NOISE_FLOOR} for point in curve.points)
    if platform.libc_ver()[0] == "glibc":  # the copies: two of 1 MiB, 512 pages of 4 KiB
        copies = {state: curve.points[1].page_faults[TO_QUERY] for state, curve in curves.items()}
        assert min(copies["returned"]) > 250
        assert max(*copies["kept"], *copies["grown"]) < 25
    run_sweep(plan, tmp_path, report_only=True)
    assert TrialFile(tmp_path / "lengths.jsonl").read() == lines
    assert "slots, memory kept:" in " ".join(capsys.readouterr().out.split())
    configurations = json.loads((tmp_path / "crossover.json").read_text())["configurations"]
    assert [one["memory"] for one in configurations] == ["grown", "kept", "returned"]


def test_bad_requests_end_before_anything_is_started(tmp_path):
    """Others: see ``cli/test_tools``."""
    with pytest.raises(RecordError, match="holds no lines; run `precision-eval sweep"):
        run_sweep(FULL, tmp_path, report_only=True)
    with pytest.raises(ParameterError, match=r"--length: 1e3, 0 is no whole number above 0"):
        whole_numbers("length", ["64,1e3", "0"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "heads", "scale"), [("metavoice", (16, 16), None), ("dia", (16, 4), 1.0), ("tiny", (4, 2), None)]
)
def test_cases_have_the_systems_shapes_with_every_slot_in_use(shape, heads, scale):
    where = SweepConfiguration(**(vars(TINY) | {"shape": shape, "cache_dtype": "bfloat16"}))
    case = build_case(where, 96, seed=0)
    (query,) = case.inputs
    dim = 16 if shape == "tiny" else 128
    assert (query.shape, query.dtype) == ((2, heads[0], 1, dim), torch.float32)
    assert (case.model.key.shape, case.model.key.dtype) == ((2, heads[1], 96, dim), torch.bfloat16)
    assert case.model.mask.all()
    assert case.model.scale == scale
    assert (case.model.key != 0).float().mean() > 0.99
    logits = query[0, 0, 0] @ case.model.key[0, 0].float().T * (scale or dim**-0.5)
    assert 0.5 < float(logits.std()) < 2.0
    again = build_case(where, 96, seed=0)
    assert torch.equal(again.model.value, case.model.value)
    assert not torch.equal(build_case(where, 96, seed=1).inputs[0], query)


def storages_of(candidate):
    """The storages of what a candidate computes with, but for the query, which all share."""
    model = candidate.call.func.model
    return {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers()) if one.numel() > 1}


def given_by_a_job(monkeypatch, change=lambda candidates, options: None):
    """What a job gives to each comparison of latencies, after a change: candidates, options, storages of all."""
    given, compare = [], measuring.compare_latency

    def seen(candidates, **options):
        change(candidates, options)
        timed = [*candidates.values(), *(one for one in options.values() if isinstance(one, Candidate))]
        given.append((candidates, options, [storages_of(one) for one in timed]))
        return compare(candidates, **options)

    monkeypatch.setattr(measuring, "compare_latency", seen)
    measure_job(job_of(64))
    return given


def check_own_tensors(given):
    """The noise floor of the first group is a further candidate, and nobody shares a cache with anybody."""
    (candidates, _, storages), _ = given
    assert len(storages) == len(candidates) + 1
    assert min(map(len, storages)) >= 2  # key and value
    assert len(set().union(*storages)) == sum(map(len, storages))


def test_the_null_is_a_copy_with_tensors_of_its_own(monkeypatch):
    given = given_by_a_job(monkeypatch)
    check_own_tensors(given)
    (candidates, options, _), (casts, others, _) = given
    assert options["noise_floor"].call.func.fix == candidates[BASELINE].call.func.fix
    assert (list(casts), "noise_floor" in others) == ([TO_HALF, TO_QUERY], False)


def itself(candidates, options):
    if "noise_floor" in options:
        options["noise_floor"] = True


def on_its_tensors(candidates, options):
    if "noise_floor" in options:
        own = candidates[BASELINE]
        options["noise_floor"] = Candidate(partial(own.call.func, *own.call.args), own.block)


@pytest.mark.parametrize("fault", [itself, on_its_tensors])
def test_a_null_on_the_baselines_own_tensors_would_be_seen(monkeypatch, fault):
    given = given_by_a_job(monkeypatch, fault)
    with pytest.raises(AssertionError):
        check_own_tensors(given)


def test_a_fix_that_fails_costs_its_own_figures_only(monkeypatch):
    measured = generic.prepared

    def broken(cell, fix, built, stack):
        return (
            generic.failed(fix, "raised", "RuntimeError: planted")
            if fix == TO_QUERY
            else measured(cell, fix, built=built, stack=stack)
        )

    monkeypatch.setattr(generic, "prepared", broken)
    (line,) = measure_job(job_of(64))
    assert line["status"] == {fix: "raised" if fix == TO_QUERY else "passed" for fix in FIXES}
    assert line["reason"] == {TO_QUERY: "RuntimeError: planted"}
    assert set(line["ratios"]) == {TO_HALF, NOISE_FLOOR}
    assert set(line["page_faults"]) == set(FIXES) - {TO_QUERY}


def test_states_of_memory_need_glibc(monkeypatch):
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: ("", ""))
    memory.hold_memory("grown")
    memory.hold_memory("untouched")
    with pytest.raises(UnsupportedError, match="memory kept and memory returned need glibc"):
        memory.hold_memory("kept")
    with pytest.raises(UnknownNameError, match="unknown state of memory"):
        memory.hold_memory("lost")
    (line,) = measure_job(job_of(64, configuration=SweepConfiguration(**(vars(TINY) | {"memory": "kept"}))))
    assert set(line["status"].values()) == {"unsupported"}


@pytest.mark.slow
def test_compiled_job():
    lines = measure_job(job_of(32, 64, configuration=SweepConfiguration(**(vars(TINY) | {"mode": "compiled"}))))
    assert [set(line["status"].values()) for line in lines] == [{"passed"}] * 2
    assert all(set(line["ratios"]) == {TO_HALF, TO_QUERY, CASTS, NOISE_FLOOR} for line in lines)
