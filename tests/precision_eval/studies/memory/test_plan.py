"""The arithmetic of a plan: by hand, identities, the largest length against a scan, and planted faults."""

import dataclasses
import math

import pytest

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.fixes.catalog import FIXES, fix_by_id
from precision_eval.results.expectations import load_table
from precision_eval.studies.memory import ModelConfig, Request, Stack, model_by_name, plan_all, plan_fix
from precision_eval.studies.memory.ledger import DisagreementError, Meter, allocate, broadcast, promoted
from precision_eval.studies.memory.machine import Machine, Sized, fused_workspace_bytes
from precision_eval.studies.memory.models import Shipped
from precision_eval.studies.memory.plan import LONGEST, largest_length, norm_promotes

TINY = Stack(layers=1, width=4, heads=2, kv_heads=1, head_dim=2, mlp_width=8, vocabulary=10, max_length=16)
TINY_CONFIG = ModelConfig(name="tiny", source="", decoder=TINY)
META = model_by_name("metavoice-1b")
DIA = model_by_name("dia-1.6b")
T5 = model_by_name("t5-xxl")


def request(config=TINY_CONFIG, **more):
    return Request(config=config, **({"length": 5, "batch": 3} | more))


def self_cache_by_hand(plan):
    assert plan.self_cache_bytes == 2 * 1 * 3 * 1 * 5 * 2 * 4  # k and v, layer, rows, kv head, slots, width, bytes


def test_a_tiny_model_by_hand():
    plan = plan_fix(request(), fix_by_id("as_shipped"))
    assert plan.weights_bytes == 196 * 4
    assert (plan.cross_cache_bytes, plan.buffer_bytes) == (0, 0)
    self_cache_by_hand(plan)
    assert plan.total_bytes == plan.stored_bytes + plan.call_bytes
    assert plan.call_bytes == plan.activations_bytes + plan.workspace_bytes + plan.casts_bytes


def test_ignored_kv_heads_would_be_noticed():
    ignored = dataclasses.replace(TINY_CONFIG, decoder=dataclasses.replace(TINY, kv_heads=TINY.heads))
    with pytest.raises(AssertionError):
        self_cache_by_hand(plan_fix(request(ignored), fix_by_id("as_shipped")))


@pytest.mark.parametrize("name", ["metavoice-1b", "dia-1.6b", "t5-xxl"])
def test_float32_stores_twice_what_half_does(name):
    asked = request(model_by_name(name), length=64)
    wide, *halves = (plan_fix(asked, fix_by_id(fix)) for fix in ("full_float32", "float16", "bfloat16"))
    for half in halves:
        assert wide.weights_bytes == 2 * half.weights_bytes
        assert wide.self_cache_bytes == 2 * half.self_cache_bytes
        assert wide.cross_cache_bytes == 2 * half.cross_cache_bytes
        assert wide.buffer_bytes == half.buffer_bytes  # masks


def test_caches_are_linear_in_batch_and_length_and_weights_in_neither():
    one = plan_fix(request(DIA, batch=1, length=100), fix_by_id("float16"))
    more = plan_fix(request(DIA, batch=3, length=100), fix_by_id("float16"))
    longer = plan_fix(request(DIA, batch=1, length=700), fix_by_id("float16"))
    assert more.self_cache_bytes == 3 * one.self_cache_bytes
    assert more.cross_cache_bytes == 3 * one.cross_cache_bytes
    assert longer.self_cache_bytes == 7 * one.self_cache_bytes
    assert longer.cross_cache_bytes == one.cross_cache_bytes
    assert one.weights_bytes == more.weights_bytes == longer.weights_bytes


def test_the_caches_that_the_sources_report():
    meta = plan_fix(Request(config=META, length=2048), fix_by_id("as_shipped"))
    assert meta.self_cache_bytes == 24 * 2 * math.prod((2, 16, 2048, 128)) * 2
    dia = plan_fix(Request(config=DIA, length=3072), fix_by_id("as_shipped"))
    assert round(dia.self_cache_bytes / 1e6) == 226  # (2B, 4, 3072, 128) per layer in half


def test_a_cast_of_the_cache_holds_one_layer_s_copies():
    asked = Request(config=META, length=2048)
    plan = plan_fix(asked, fix_by_id("kv_to_query"))
    assert plan.casts_bytes == 2 * math.prod((2, 16, 2048, 128)) * 4
    assert plan_fix(asked, fix_by_id("query_to_half")).casts_bytes < 1 << 20
    deeper = dataclasses.replace(META, decoder=dataclasses.replace(META.decoder, layers=48))
    assert plan_fix(dataclasses.replace(asked, config=deeper), fix_by_id("kv_to_query")).call_bytes == plan.call_bytes


def test_autocast_keeps_the_copies_of_float32_weights():
    wide = Shipped(weights="float32", norms="float32", cache="float16")
    slices = dataclasses.replace(META.decoder, cache_write="slice")
    config = dataclasses.replace(META, decoder=slices, shipped=wide)
    kept = plan_fix(Request(config=config, length=2048), fix_by_id("autocast"))
    linear = 24 * (4 * 2048**2 + 3 * 2048 * 5632) + 2562 * 2048 + 256 * 2048  # layers, head, speaker; no embedding
    given = 2 * 2 * 2048  # the input of the layer at hand, cast too
    assert kept.casts_bytes == 2 * linear + given
    frozen = plan_fix(Request(config=config, length=2048, trainable=False), fix_by_id("autocast"))
    assert frozen.casts_bytes == 2 * 2048 * 3 * 2048 + given  # the qkv projection's copy, the largest


def test_statuses():
    plans = {plan.fix: plan for plan in plan_all(Request(config=META, length=64))}
    assert list(plans) == [fix.id for fix in FIXES]
    assert plans["dynamo_fallback"].reason == "exists only compiled, and a plan is of eager calls"
    assert plans["as_shipped"].status == "raises"
    assert plans["as_shipped"].reason == "speaker projection: float16 meets bfloat16"
    assert plans["as_shipped"].total_bytes is None
    assert plans["as_shipped"].weights_bytes > 0
    assert plans["upstream"].status == "unsupported"
    assert plans["float16"].status == "runs"
    assert plan_fix(Request(config=META, dtype="float16", kv_dtype="float16"), fix_by_id("as_shipped")).status == "runs"


def test_the_norm_s_output_decides_dia():
    old = Request(config=DIA, length=64, fused_norm_promotes=True)
    assert plan_fix(old, fix_by_id("as_shipped")).reason == "attention: float32 meets float16"
    assert plan_fix(dataclasses.replace(old, fused_norm_promotes=False), fix_by_id("as_shipped")).status == "runs"
    assert plan_fix(old, fix_by_id("upstream")).status == "runs"


def test_the_norm_s_promotion_is_the_recorded_one():
    """Dia as shipped raises in eager where, and only where, the norm promotes."""
    recorded = {version: column.cells["dia-decode/as_shipped/eager"].status for version, column in load_table().items()}
    assert {"2.6.0", "2.7.1"} <= set(recorded)
    assert {version: "raised" if norm_promotes(version) else "passed" for version in recorded} == recorded
    assert not norm_promotes("2.10.0+cpu")


def test_asking_for_float16_keeps_t5_s_wide_projection():
    shipped, wide, narrow, brain = (
        plan_fix(Request(config=T5, dtype=dtype, length=64), fix_by_id(fix)).weights_bytes
        for dtype, fix in (
            ("as_shipped", "as_shipped"), ("float16", "as_shipped"), ("float16", "float16"), ("bfloat16", "as_shipped")
        )
    )  # fmt: skip
    assert wide == shipped == narrow + 2 * 24 * 10240 * 4096  # wo, two bytes more each
    assert brain == narrow
    unnamed = dataclasses.replace(T5, shipped=Shipped())  # a file that names no dtype is float32 throughout
    assert plan_fix(Request(config=unnamed, dtype="float16", length=64), fix_by_id("as_shipped")).weights_bytes == wide
    dia = plan_fix(Request(config=DIA, dtype="float16", length=64), fix_by_id("as_shipped"))
    assert dia.weights_bytes == plan_fix(Request(config=DIA, length=64), fix_by_id("float16")).weights_bytes


def test_asked_dtypes_replace_the_shipped_ones():
    plan = plan_fix(Request(config=META, dtype="float32", kv_dtype="float16"), fix_by_id("as_shipped"))
    assert plan.weights_bytes == 4 * 1_248_438_272
    assert plan.self_cache_bytes == plan_fix(Request(config=META), fix_by_id("as_shipped")).self_cache_bytes
    assert plan.reason == "cache write: float32 into float16"


@pytest.mark.parametrize("fix", ["as_shipped", "float16", "kv_to_query"])
def test_the_largest_length_against_a_scan(fix):
    asked = request(batch=1, length=1)
    totals = {n: plan_fix(dataclasses.replace(asked, length=n), fix_by_id(fix)).total_bytes for n in range(1, 100)}
    for budget in (100, 1000, 1100, 1200, 1300):
        scanned = max((n for n, total in totals.items() if total <= budget), default=0)
        found = largest_length(dataclasses.replace(asked, device_memory_bytes=budget), fix_by_id(fix))
        assert found == (scanned, "memory") if scanned < 99 else found[0] >= 99


def test_what_limits_the_length():
    enough = request(META, batch=1, device_memory_bytes=1 << 40, length=64)
    assert largest_length(enough, fix_by_id("float16")) == (2048, "positions")
    assert largest_length(dataclasses.replace(enough, config=TINY_CONFIG), fix_by_id("float16")) == (LONGEST, "search")
    plan = plan_fix(dataclasses.replace(enough, device_memory_bytes=1 << 20), fix_by_id("float16"))
    assert (plan.fits, plan.largest_length) == (False, 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dtype": "half"}, "unknown dtype 'half'"),
        ({"kv_dtype": "bfloat15"}, "unknown kv-dtype 'bfloat15'; did you mean bfloat16"),
        ({"batch": 0}, "batch is 0; expected at least 1"),
        ({"tokens": 6}, "tokens 6 do not fit length 5"),
    ],
)
def test_bad_requests(more, message):
    with pytest.raises(ParameterError, match=message):
        plan_fix(request(**more), fix_by_id("float16"))


def test_a_length_beyond_learned_positions():
    with pytest.raises(ParameterError, match="length 2049 is beyond the 2048 learned positions of metavoice-1b; ask"):
        plan_fix(Request(config=META, length=2049), fix_by_id("float16"))
    with pytest.raises(UnknownNameError):
        plan_fix(Request(config=META, dtype="int8"), fix_by_id("float16"))


def test_the_meter_knows_what_lived_at_its_peak():
    meter = Meter()
    first = allocate(meter, (10,), "float32", "activations")
    second = allocate(meter, (10,), "float16", "casts")
    view = first.view(2, 5)
    del first
    assert meter.level == 60
    del view, second
    third = allocate(meter, (11,), "bool", "workspace")
    assert (meter.level, meter.peak) == (11, 60)
    assert meter.at_peak == {"activations": 40, "casts": 20}
    del third
    assert meter.level == 0


def test_promotion_and_broadcasting_as_torch_does():
    import torch

    names = ("float16", "bfloat16", "float32", "float64", "bool", "int64")
    for left in names:
        for right in names:
            if {left, right} <= {"bool", "int64"}:
                continue
            expected = torch.promote_types(getattr(torch, left), getattr(torch, right))
            assert f"torch.{promoted(left, right)}" == str(expected)
    for left, right in (((2, 1, 4), (3, 1)), ((5,), (2, 5)), ((1, 4), (4,))):
        assert broadcast(left, right) == tuple(torch.broadcast_shapes(left, right))


@pytest.mark.parametrize(("queries", "keys", "threads"), [(1, 2048, 1), (7, 100, 2), (200, 512, 4), (800, 900, 3)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_fused_kernel_against_the_proof_s_ledger(queries, keys, threads, dtype):
    from validation.memory.calls import flash_ledger, item_bytes, peak_of

    shape, item = (2, 4, queries, 32), item_bytes(dtype)
    ledger = flash_ledger(shape, keys, item, mask_numel=queries * keys, threads=threads)
    m = Machine(agreement="none", threads=threads)
    cache = Sized((2, 2, keys, 32), dtype)
    m.attend(Sized(shape, dtype), cache, cache, Sized((1, 1, queries, keys), "bool"))
    assert m.meter.peak == peak_of(ledger)
    assert fused_workspace_bytes(shape, keys, dtype, threads=threads, cpu=False) == 8 * queries * 4


@pytest.mark.parametrize("cache_heads", [2, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_plain_attention_against_the_proof_s_ledger(cache_heads, masked):
    from validation.memory.calls import peak_of
    from validation.memory.calls import plain_attention as plain

    ledger = plain("cpu", "float32", cache_heads, 3, 500, masked)[2]
    m = Machine(agreement="none", math_attention=True)
    cache = Sized((2, cache_heads, 500, 16), "float32")
    m.attend(Sized((2, 4, 3, 16), "float32"), cache, cache, Sized((1, 1, 3, 500), "bool") if masked else None)
    assert abs(m.meter.peak - peak_of(ledger)) <= 0.02 * peak_of(ledger)


def test_plain_attention_copies_a_half_cache_to_float32():
    cache = Sized((2, 16, 2048, 128), "float16")
    query = Sized((2, 16, 1, 128), "float16")
    m = Machine(agreement="none", math_attention=True)
    m.attend(query, cache, cache, None)
    assert m.meter.at_peak["workspace"] >= 3 * cache.numel * 4  # key, value and the scaled key


def test_disagreements_name_the_place():
    m = Machine(agreement="none")
    with pytest.raises(DisagreementError, match="cache write: float32 into float16"):
        m.write(Sized((1,), "float16"), Sized((1,), "float32"), "index_put")
    m.write(Sized((1,), "float16"), Sized((1,), "float32"), "slice")
    with pytest.raises(DisagreementError, match="matmul: float32 meets float16"):
        m.product(Sized((1, 2, 2), "float32"), Sized((1, 2, 2), "float16"))
