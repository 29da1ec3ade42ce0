"""Plans of the published models: stored bytes by hand, statuses, asked dtypes, batches, and the longest that fits."""

import pytest
import torch

from precision_eval.core.errors import ParameterError
from precision_eval.fixes.catalog import FIXES, fix_by_id
from precision_eval.studies.memory.counting import AllocationCounter, scratch_bound_bytes
from precision_eval.studies.memory.models import MODELS, PlannedCall, planned_model
from precision_eval.studies.memory.plan import LONGEST, Planner, largest_within, plan_all

PARAMETERS = {"metavoice-1b": 1_248_438_272, "dia-1.6b": 1_611_160_576, "t5-xxl": 4_762_310_656}
PUBLISHED = {
    "metavoice-1b": (1_200_000_000, 10**8),
    "dia-1.6b": (1_611_000_000, 10**6),
    "t5-xxl": (4_760_000_000, 10**7),
}


@pytest.fixture(scope="module")
def planners():
    return {model.name: Planner(model, autocast_dtype=torch.float16) for model in MODELS}


def plan(planners, name, fix, **asked):
    memory = asked.pop("memory", None)
    model = planned_model(name)
    call = PlannedCall(**({"length": model.default_length} | asked))
    return planners[name].plan(call, fix_by_id(fix), device_memory_bytes=memory)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_as_published(planners, name):
    counted = planners[name].parameter_count(PlannedCall(length=64))
    published, unit = PUBLISHED[name]
    assert counted == PARAMETERS[name]
    assert round(counted / unit) == published // unit


def test_metavoice_by_hand(planners):
    half = plan(planners, "metavoice-1b", "float16")
    assert half.weights_bytes == 2 * PARAMETERS["metavoice-1b"]
    assert half.self_cache_bytes == 2 * 24 * 2 * 16 * 2048 * 128 * 2  # k and v, layers, rows, heads, slots, D, bytes
    assert half.buffer_bytes == 2048**2 + 2  # the causal mask, and which row has the speaker
    assert half.total_bytes == half.stored_bytes + half.call_bytes <= half.total_high_bytes
    cast = plan(planners, "metavoice-1b", "kv_to_query")
    one_layer_in_float32 = 2 * 2 * 16 * 2048 * 128 * 4
    assert one_layer_in_float32 <= cast.casts_bytes < 1.01 * one_layer_in_float32
    assert plan(planners, "metavoice-1b", "full_float32").weights_bytes == 2 * half.weights_bytes


def test_dia_has_two_phases_and_a_cross_cache(planners):
    dia = plan(planners, "dia-1.6b", "float16")
    assert dia.self_cache_bytes == 2 * 18 * 2 * 4 * 3072 * 128 * 2
    assert dia.cross_cache_bytes == 2 * 18 * 2 * 16 * 1024 * 128 * 2
    grouped = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)  # 2.6 expands K and V at every step
    assert dia.phase == "encode" or not grouped  # a whole text at once takes more than one decode step


def test_an_encoder_without_caches_is_planned_beside_a_decoder_whose_are_narrow(planners):
    """A byte a value and no more per tensor; a float32 scale a row of 128 per token."""
    wide, narrow, scaled = (
        plan(planners, "dia-1.6b", fix, length=8192) for fix in ("kv_to_query", "cache_int8_tensor", "cache_int8_token")
    )
    assert (narrow.status, scaled.status) == ("runs", "runs")
    layers = 2 * 18  # keys and values
    assert narrow.self_cache_bytes == wide.self_cache_bytes // 2 + 4 * layers
    assert scaled.self_cache_bytes == wide.self_cache_bytes // 2 + 4 * layers * 2 * 4 * 8192
    assert scaled.total_bytes - scaled.call_bytes < wide.total_bytes - wide.call_bytes


def test_statuses(planners):
    plans = {p.fix: p for p in plan_all(planners["metavoice-1b"], PlannedCall(length=64))}
    assert list(plans) == [fix.id for fix in FIXES]
    assert plans["dynamo_fallback"].reason == "exists only compiled, and a plan is of eager calls"
    assert plans["as_shipped"].status == "raises"
    assert plans["as_shipped"].reason == "mm: float16 meets bfloat16"
    assert plans["as_shipped"].total_bytes is None
    assert plans["as_shipped"].weights_bytes > 0
    assert plans["upstream"].status == "unsupported"
    assert plans["float16"].status == "runs"
    agreed = plan(planners, "metavoice-1b", "as_shipped", dtype="float16", kv_dtype="float16", length=64)
    assert agreed.status == "runs"


def test_asking_for_float16_keeps_t5_s_wide_projection(planners):
    shipped, wide, narrow, brain = (
        plan(planners, "t5-xxl", fix, dtype=dtype, length=64).weights_bytes
        for dtype, fix in (
            ("as_shipped", "as_shipped"), ("float16", "as_shipped"), ("float16", "float16"), ("bfloat16", "as_shipped")
        )
    )  # fmt: skip
    assert wide == shipped == narrow + 2 * 24 * 10240 * 4096  # wo, two bytes more each
    assert brain == narrow


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_batch_repeats_all_but_the_weights(planners, name):
    one, two = (plan(planners, name, "float16", batch=batch, length=64) for batch in (1, 2))
    assert two.status == "runs"
    assert two.weights_bytes == one.weights_bytes
    assert two.self_cache_bytes == 2 * one.self_cache_bytes
    assert two.cross_cache_bytes == 2 * one.cross_cache_bytes
    assert 1.9 * one.call_bytes < two.call_bytes <= 2 * one.call_bytes


def test_what_limits_the_length(planners):
    enough = plan(planners, "metavoice-1b", "float16", memory=1 << 40)
    assert (enough.fits, enough.largest_length, enough.limited_by) == (True, 2048, "positions")
    none = plan(planners, "metavoice-1b", "float16", memory=1 << 20)
    assert (none.fits, none.largest_length, none.limited_by) == (False, 0, "memory")
    t5 = plan(planners, "t5-xxl", "float16", memory=10 * 10**9)
    longest, longer = (
        plan(planners, "t5-xxl", "float16", length=t5.largest_length + more).total_high_bytes for more in (0, 1)
    )
    assert longest <= 10 * 10**9 < longer


@pytest.mark.parametrize("square", [0, 3])
@pytest.mark.parametrize("budget", [0, 12, 1000, 10**6, 10**15])
@pytest.mark.parametrize("start", [1, 77, 2048])
def test_the_largest_length_against_its_definition(square, budget, start):
    def size(n):
        return 5 + 7 * n + square * n * n + 100 * (n > 40)

    largest = largest_within(size, budget, least=1, start=start, most=LONGEST)
    assert size(largest) <= budget or largest == 0
    assert largest == LONGEST or size(largest + 1) > budget


def test_the_counter_follows_views_and_releases():
    x = torch.ones(10)
    with AllocationCounter() as counter:
        first = x + 1
        view = first.view(2, 5)
        del first
        assert counter.level_bytes == 40
        half = view.half()
        del view
        assert counter.level_bytes == 20
        del half
    assert (counter.level_bytes, counter.peak_bytes, counter.casts_at_peak_bytes) == (0, 60, 20)


def test_the_bound_on_scratch_by_hand():
    x, table = torch.ones(3, 4, dtype=torch.float16), torch.ones(100, 4, dtype=torch.float16)
    assert scratch_bound_bytes("add", [x, x.float()], [x.float()]) == 4 * 12 + 4 * (12 + 12)
    assert scratch_bound_bytes("embedding", [table, torch.zeros(3, dtype=torch.long)], [x]) == 4 * 12 + 8 * 3
    tiles = torch.get_num_threads() << 20
    assert scratch_bound_bytes("mm", [x, table.T], [torch.ones(3, 100)]) == 2 * (12 + 400) + 4 * 300 + tiles


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kv_dtype": "bfloat15"}, "unknown kv-dtype 'bfloat15'; did you mean bfloat16"),
        ({"batch": 0}, "batch is 0; expected at least 1"),
        ({"tokens": 6, "length": 5}, "tokens 6 do not fit length 5"),
    ],
)
def test_bad_calls(planners, asked, message):
    with pytest.raises(ParameterError, match=message):
        plan(planners, "metavoice-1b", "float16", **asked)
