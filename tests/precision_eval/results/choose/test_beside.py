"""Lengths of sizes, times from a sweep, memory from a plan, and questions to a whole run."""

import json
import math

import made_groups as made
import pytest

from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError
from precision_eval.results.choose import Constraints, Question, answer
from precision_eval.results.choose.asking import extent_of
from precision_eval.results.model import ONE_PROCESS


def group(size="metavoice", **rest):
    rows = (
        made.base(),
        made.contender("query_to_half", logs=made.around(3.0), drift=1e-3, memory=32),
        made.contender("kv_to_query", logs=made.around(5.0), drift=1e-6, memory=96),
        made.contender("bfloat16", logs=made.around(0.5), drift=1e-2, memory=32),
    )
    return made.group(*rows, size=size, **rest)


def point(length, **ratios):
    found = {}
    for fix, (ratio, processes) in ratios.items():
        one = made.timed([math.log(ratio * process) for process in processes])
        found[fix] = {"ratio": one.value, "ratio_low": one.low, "ratio_high": one.high,
                      "process_ratios": [ratio * process for process in processes]}  # fmt: skip
    return {"length": length, "ratios": found}


STEADY = (0.99, 1.01, 1.0, 1.0)


@pytest.fixture
def sweep(tmp_path):
    """Two lengths: at 64 the query's cast is slow, at 1,024 the cache's."""
    configuration = {
        "id": "metavoice/float16/b2/eager/t1/grown", "shape": "metavoice", "cache_dtype": "float16", "mode": "eager",
        "threads": 1, "batch": 2, "says": "one crossing", "points": [
            point(64, query_to_half=(4.0, STEADY), kv_to_query=(1.0, STEADY)),
            point(1024, query_to_half=(1.0, STEADY), kv_to_query=(4.0, STEADY)),
        ],
    }  # fmt: skip
    (tmp_path / "crossover.json").write_text(json.dumps({"configurations": [configuration]}), encoding="utf-8")
    return tmp_path


def asked(groups, **question):
    return answer(groups, Question(**question))


def test_sizes_state_their_extents():
    found = extent_of("attention-decode", "metavoice")
    assert (found.length, found.rows) == (2048, 2)
    assert extent_of("metavoice-prefill", "cpu").length == 64
    assert extent_of("metavoice-decode-slice", "cpu").length == 2048
    assert extent_of("cogvideo-t5-encoder", "cpu").length == 226
    assert extent_of("voice", "default") is None
    assert extent_of("dia-decode", "nothing") is None


def test_every_case_of_the_registry_has_an_extent_or_none_by_intent():
    from precision_eval.cases.systems import CASES

    without = {one.id for one in CASES if extent_of(one.id, one.default_sizes[0]) is None}
    voices = {"voice"}
    assert without == voices | {"imaginairy-time-embed", "imaginairy-time-embed-cast-first"}


def test_a_length_takes_the_nearest_size_and_says_so():
    found = asked([group("metavoice"), group("dia")], length=3072, policy="quality")
    assert [choice.group.size for choice in found.choices] == ["dia"]
    assert found.choices[0].group.notes == ()
    found = asked([group("metavoice"), group("dia")], length=100, policy="quality")
    assert [choice.group.size for choice in found.choices] == ["metavoice"]
    assert found.choices[0].group.notes == ("measured at length 2,048, asked for 100",)
    limited = Constraints(max_memory_bytes=2**40)
    found = asked([group("metavoice")], length=100, policy="quality", constraints=limited)
    assert "--length 100 --fix NAMES --json > plan.json" in found.choices[0].group.notes[-1]
    assert len(asked([group("metavoice")], length=2048, constraints=limited).choices[0].group.notes) == 0


def test_a_batch_that_nothing_has_names_those_there_are():
    with pytest.raises(ParameterError, match=r"no size in the run has 8 rows, only 2; .*sweep --batch 8"):
        asked([group()], batch=8)


@pytest.mark.parametrize(("length", "fix"), [(64, "kv_to_query"), (1024, "query_to_half")])
def test_the_sweep_decides_by_length(sweep, length, fix):
    (choice,) = asked([group()], length=length, sweep=sweep, policy="speed").choices
    assert fix in choice.tied
    assert {"query_to_half", "kv_to_query"} - {fix} == set(choice.runners_up)
    out = {one.fix: one.reason for one in choice.left_out}
    assert out == {"bfloat16": f"the sweep has no time of it at length {length:,}"}
    assert choice.group.notes[-1].endswith("one crossing")


def test_between_two_lengths_the_line_is_straight_in_the_logarithms(sweep):
    (choice,) = asked([group()], length=256, sweep=sweep, policy="speed").choices
    row = choice.group.row("query_to_half")  # 256 lies halfway between 64 and 1,024 in the logarithm
    assert row.time.value == pytest.approx(2.0, rel=1e-3)
    assert row.time_logs == pytest.approx([math.log(2.0 * one) for one in STEADY])
    assert row.time.low < row.time.value < row.time.high


def written(folder, **changes):
    """The sweep with other values in its configuration."""
    path = folder / "crossover.json"
    (configuration,) = json.loads(path.read_text(encoding="utf-8"))["configurations"]
    path.write_text(json.dumps({"configurations": [configuration | changes]}), encoding="utf-8")
    return folder


def test_a_sweep_of_another_cache_is_another_sweep(sweep):
    with pytest.raises(RecordError, match="has no sweep of metavoice float16, batch 2"):
        asked([group()], length=64, sweep=written(sweep, cache_dtype="bfloat16"), policy="speed")


@pytest.mark.parametrize(("blocks", "degrees"), [((40, 24), 23), ((24, 40), 23)])
def test_one_process_of_a_sweep_is_one_and_its_interval_is_of_blocks(sweep, blocks, degrees):
    points = [point(length, query_to_half=(1.0, STEADY), kv_to_query=(0.97, STEADY)) for length in (64, 1024)]
    for one, count in zip(points, blocks, strict=True):
        for ratio in one["ratios"].values():  # as a sweep with --processes 1 stores it
            ratio |= {"process_ratios": [], "blocks": count}
    (choice,) = asked([group()], length=256, sweep=written(sweep, points=points), policy="speed").choices
    row = choice.group.row("kv_to_query")
    assert (row.processes, row.time_logs, row.time.degrees) == (1, (), degrees)
    assert choice.group.time_reach == pytest.approx(math.log1p(ONE_PROCESS))  # 3 % faster is not called
    assert {"full_float32", "kv_to_query"} <= set(choice.tied)
    assert any("the sweep timed it in one process" in doubt for doubt in choice.doubts)


def test_a_sweep_that_does_not_reach_is_refused(sweep, tmp_path):
    with pytest.raises(RecordError, match=r"sweeps lengths 64 to 1,024 .*asked for 4,096; .*--length 4096"):
        asked([group()], length=4096, sweep=sweep)
    with pytest.raises(RecordError, match="precision-eval sweep --out"):
        asked([group()], length=64, sweep=tmp_path / "nowhere")


def test_memory_from_a_plan(tmp_path):
    path = tmp_path / "plan.json"
    plan = {"model": "dia-1.6b", "length": 512, "batch": 1, "fixes": [
        {"fix": "full_float32", "stored_bytes": 7 * 2**30, "call_bytes": 2**20},
        {"fix": "query_to_half", "stored_bytes": 3 * 2**30, "call_bytes": 2**20},
        {"fix": "kv_to_query", "stored_bytes": 3 * 2**30, "call_bytes": None, "status": "raises", "reason": "x"},
    ]}  # fmt: skip
    path.write_text(json.dumps(plan), encoding="utf-8")
    limits = Constraints(max_memory_bytes=4 * 2**30)
    (choice,) = asked([group()], plan=path, constraints=limits, policy="quality").choices
    assert choice.fix == "query_to_half"
    assert choice.group.row("query_to_half").memory_bytes == 3 * 2**30 + 2**20
    why = {out.fix: out.reason for out in choice.left_out}
    assert why["kv_to_query"] == "plan.json: the plan says raises: x"
    assert why["bfloat16"] == "plan.json: not in the plan; plan it with --fix bfloat16"
    with pytest.raises(RecordError, match=r"planned for length 512, asked for 2048; plan again: .*--length 2048"):
        asked([group()], plan=path, length=2048)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(RecordError, match="holds a list, expected an object"):
        asked([group()], plan=path)


def test_nothing_of_that_name():
    with pytest.raises(UnknownNameError, match="unknown case 'voice'; known: attention-decode"):
        asked([group()], cases=("voice",))
    with pytest.raises(ParameterError, match=r"nothing with 4 threads, only \[1\]"):
        asked([group()], threads=4)
    with pytest.raises(ParameterError, match="length is 0"):
        asked([group()], length=0)
