"""Plans against measured peaks: real cases, every fix; what is measured lies in the planned range."""

import dataclasses
import warnings

import pytest
import torch

from precision_eval.cases.systems import case_by_id, metavoice
from precision_eval.cases.systems.metavoice_model import metavoice_case
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes.catalog import FIXES, fix_by_id
from precision_eval.measure.memory import call_memory
from precision_eval.studies.memory.models import PlannedCall, PlannedModel, planned_model
from precision_eval.studies.memory.plan import Planner

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch on mixed dtypes in its norm
LARGE = ("metavoice-t4", "dia-decode", "cogvideo-t5-encoder-stock")
MORE = ("metavoice-prefill", "metavoice-decode-float32", "dia-encode")
CASES = (
    *(("metavoice-decode", "cpu"), ("attention-decode", "tiny"), ("imaginairy-time-embed", "cpu")),
    *((name, "tiny") for name in LARGE),
    *(pytest.param(name, "cpu", marks=pytest.mark.slow) for name in (*LARGE, *MORE)),
)
EAGER = [fix for fix in FIXES if "eager" in fix.modes]
CALL = PlannedCall()


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def planner_of(build, *, layers=2, **settings):
    def phases(call, depth):
        return {"decode": lambda: build(depth["decode"])}

    model = PlannedModel(name="case", source="", layers={"decode": layers}, default_length=64, phases=phases)
    return Planner(model, **settings)


def measured(fix, built):
    """Memory of a call under a fix, or None where it raises or is unsupported."""
    applied = fix.applied(built.model)
    try:
        with applied:
            return call_memory(applied, applied.prepare(built.inputs), model=built.model, device="cpu")
    except (RuntimeError, UnsupportedError):
        return None


def assert_in_range(plan, memory):
    assert plan.stored_bytes == memory.storage_bytes
    assert plan.call_bytes <= memory.allocated_peak_bytes <= plan.call_bytes + plan.workspace_bytes


@pytest.mark.parametrize(("case_id", "size"), CASES)
def test_every_fix_is_in_its_range(case_id, size):
    case = case_by_id(case_id)
    planner, built = (
        planner_of(lambda _: case.build(size, device="cpu", seed=0)),
        case.build(size, device="cpu", seed=0),
    )
    runs = 0
    for fix in EAGER:
        plan, memory = planner.plan(CALL, fix), measured(fix, built)
        assert (plan.status == "runs") == (memory is not None), (fix.id, plan.reason)
        if memory is not None:
            assert_in_range(plan, memory)
            runs += 1
    assert runs >= 4


@pytest.mark.parametrize(
    ("fix_id", "beside"),
    [
        *((name, "kv_to_query") for name in ("cache_int8_token", "cache_e4m3_head", "cache_e5m2_tensor_keys")),
        *(("layercast", "full_float32"), ("weights_int4", "bfloat16")),
    ],
)
def test_narrow_caches_and_weights_at_another_length(fix_id, beside):
    """Planned from the layout: what a longer cache stores, scales counted, is what the longer model really stores."""

    def build(slots, layers):
        size = dataclasses.replace(metavoice.SIZES["tiny"], layers=layers, slots=slots, filled=slots)
        return metavoice_case(
            size, device="cpu", seed=0, prefill=False, indexed=True, weight_dtype="bfloat16", speaker_dtype="float16"
        )

    model = PlannedModel(
        name="case", source="", layers={"decode": 4}, default_length=64,
        phases=lambda call, depth: {"decode": lambda: build(call.length, depth["decode"])},
    )  # fmt: skip
    planner, fix = Planner(model), fix_by_id(fix_id)
    plans = {length: planner.plan(PlannedCall(length=length), fix) for length in (64, 512)}
    for length, plan in plans.items():
        assert_in_range(plan, measured(fix, build(length, 4)))
    wide = planner.plan(PlannedCall(length=512), fix_by_id(beside))
    narrower, same = ("self_cache_bytes", "weights_bytes")[:: 1 if fix.caches else -1]
    assert getattr(plans[512], narrower) < 0.8 * getattr(wide, narrower)
    assert getattr(plans[512], same) == getattr(wide, same)


@pytest.mark.parametrize("case_id", ["voice", "dia-encode"])
def test_a_case_is_planned_with_the_weights_and_inputs_that_it_has(case_id):
    planner, case = Planner(planned_model(case_id)), case_by_id(case_id)
    built = case.build(case.default_sizes[0], device="cpu", seed=0)
    runs = 0
    for name in ("as_shipped", "full_float32", "kv_to_query", "float16", "autocast"):
        plan, memory = planner.plan(PlannedCall(length=1), fix_by_id(name)), measured(fix_by_id(name), built)
        assert (plan.status == "runs") == (memory is not None), (name, plan.reason)
        if memory is not None:
            assert_in_range(plan, memory)
            runs += 1
    assert runs >= 3
    assert planner.parameter_count(CALL) == sum({id(p): p.numel() for p in built.model.parameters()}.values())


def test_two_and_three_layers_tell_of_six():
    """Also for copies that autocast keeps, of every layer's trainable float32 weights."""

    def build(layers):
        size = dataclasses.replace(metavoice.SIZES["tiny"], layers=layers)
        built = metavoice_case(
            size, device="cpu", seed=0, prefill=False, indexed=False, weight_dtype="float32", speaker_dtype="float32"
        )
        built.model.requires_grad_(True)
        return built

    planner, built = planner_of(build, layers=6), build(6)
    for fix_id in ("query_to_half", "kv_to_query", "float16", "autocast"):
        assert_in_range(planner.plan(CALL, fix_by_id(fix_id)), measured(fix_by_id(fix_id), built))
    assert planner.parameter_count(CALL) == sum(parameter.numel() for parameter in built.model.parameters())
    kept = planner.plan(CALL, fix_by_id("autocast")).casts_bytes
    assert kept > 6 * 2 * built.model.layers[0].feed_forward.gate.weight.numel()


def test_a_plan_that_ignores_the_cast_would_be_noticed():
    case = case_by_id("metavoice-decode-float32")
    memory = measured(fix_by_id("kv_to_query"), case.build("cpu", device="cpu", seed=0))
    uncast = planner_of(lambda _: case.build("cpu", device="cpu", seed=0)).plan(CALL, fix_by_id("query_to_half"))
    with pytest.raises(AssertionError):
        assert_in_range(uncast, memory)


def test_what_depends_on_values_is_unsupported_and_not_said_to_raise():
    class Picky(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum().item() > 0 else x

    from precision_eval.cases.base import BuiltCase

    planner = planner_of(lambda _: BuiltCase(Picky(4, 4), (torch.ones(1, 4),)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = planner.plan(CALL, fix_by_id("as_shipped"))
    assert plan.status == "unsupported"
    assert plan.reason.startswith("cannot be planned: ")
    assert plan.weights_bytes == 4 * (16 + 4)
