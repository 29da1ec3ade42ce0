"""Plans: globs, modes, the control, pseudo fixes, what comes after what, and names that do not exist."""

from dataclasses import dataclass, replace

import pytest

from precision_eval.core.cells import Options
from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.fixes.catalog import Fix
from precision_eval.measure.registry import MEASURES
from precision_eval.run.plan import Selection, make_plan


@dataclass(frozen=True)
class FakeCase:
    id: str
    measures: tuple[str, ...]
    sizes: tuple[str, ...] = ("small", "large")
    default_sizes: tuple[str, ...] = ("small",)
    digest: str = "d"
    by_default: bool = True
    upstream: str = ""

    def takes(self, fix):
        return fix != "upstream" or bool(self.upstream)


FIXES = (
    Fix(id="as_shipped"),
    Fix(id="kv_to_query"),
    Fix(id="full_float32"),
    Fix(id="dynamo_fallback", modes=("compiled",)),
)
CASES = (FakeCase("attention", ("trace", "latency")), FakeCase("voice", ("trace", "synthesis", "audio", "latency")))


def planned(**kwargs):
    return make_plan(Selection(**kwargs), cases=CASES, fixes=FIXES)


def ids(plan):
    return [cell.id for cell in plan.cells]


def test_default_is_eager_and_what_exists_only_compiled_is_asked_for_by_name():
    eager = [
        "attention/as_shipped/eager@cpu:small#trace",
        "attention/kv_to_query/eager@cpu:small#trace",
        "attention/full_float32/eager@cpu:small#trace",
        "attention/as_shipped+kv_to_query+full_float32/eager@cpu:small#latency",
    ]
    compiled = [
        "attention/as_shipped/compiled@cpu:small#trace",
        "attention/dynamo_fallback/compiled@cpu:small#trace",
        "attention/as_shipped+dynamo_fallback/compiled@cpu:small#latency",
    ]
    assert ids(planned(cases=("attention",))) == eager
    assert ids(planned(cases=("attention",), fixes=("as_shipped", "dynamo*"), measures=("latency",))) == [
        "attention/as_shipped/eager@cpu:small#latency",
        compiled[-1],
    ]
    assert sorted(ids(planned(cases=("attention",), fixes=("*", "dynamo_fallback")))) == sorted(eager + compiled)


def test_a_mode_that_a_fix_lacks_is_not_planned():
    plan = planned(cases=("attention",), measures=("trace",), modes=("eager",))
    assert {cell.mode for cell in plan.cells} == {"eager"}
    assert not any("dynamo_fallback" in cell.fixes for cell in plan.cells)
    both = planned(cases=("attention",), measures=("trace",), modes=("compiled", "eager"))
    assert len(both.cells) == 3 + 4
    assert both.compiled


def test_a_case_of_ones_own_is_not_lost_where_a_size_of_another_is_named():
    own = FakeCase("own.py:f", ("trace",), sizes=("own",), default_sizes=("own",))
    other = FakeCase("other", ("trace",), sizes=("tiny",), default_sizes=("tiny",))
    selection = Selection(cases=("own.py:f", "attention", "other"), measures=("trace",), fixes=("kv_to_query",))
    plan = make_plan(replace(selection, sizes=("small",)), cases=(*CASES, own, other), fixes=FIXES)
    assert {(cell.case, cell.size) for cell in plan.cells} == {("own.py:f", "own"), ("attention", "small")}


def test_what_comes_before():
    plan = planned(cases=("voice",), fixes=("kv_to_query",))
    after = plan.after["voice/kv_to_query/eager@cpu:small#audio"]
    assert after == (
        "voice/reference/eager@cpu:small#synthesis",
        "voice/noise_floor/eager@cpu:small#synthesis",
        "voice/kv_to_query/eager@cpu:small#synthesis",
    )
    assert plan.after["voice/kv_to_query/eager@cpu:small#synthesis"] == ("voice/kv_to_query/eager@cpu:small#trace",)
    assert plan.after["voice/reference/eager@cpu:small#synthesis"] == ()
    assert plan.after["voice/kv_to_query/eager@cpu:small#latency"] == ("voice/kv_to_query/eager@cpu:small#trace",)


def test_audio_brings_its_synthesis():
    plan = planned(cases=("voice",), fixes=("kv_to_query",), measures=("audio",))
    assert {cell.measure for cell in plan.cells} == {"synthesis", "audio"}
    assert {fix for cell in plan.cells for fix in cell.fixes} >= {
        "reference",
        "noise_floor",
        "control_rope_bfloat16",
        "kv_to_query",
    }


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"fixes": ("zz*",)}, r"unknown fix 'zz\*'; known: as_shipped"),
        ({"sizes": ("smal",)}, "unknown size 'smal'; did you mean small"),
    ],
)
def test_unknown_names(kwargs, match):
    """Others: see ``test_cli``."""
    with pytest.raises(UnknownNameError, match=match):
        planned(**kwargs)


def test_empty_and_bad():
    with pytest.raises(ParameterError, match="comes to no cell"):
        planned(cases=("attention",), measures=("synthesis",))
    with pytest.raises(ParameterError, match="threads is 0"):
        planned(threads=0)


def test_records_of_a_cuda_device_name_its_clocks_and_those_of_a_cpu_none():
    def options_of(device, **options):
        plan = planned(cases=("attention",), measures=("latency", "trace"), device=device, options=Options(**options))
        return {cell.measure: plan.options_of(cell, cell.fixes[0]).get("clock") for cell in plan.cells}

    assert options_of("cuda:0") == {"trace": None, "latency": "both"}
    assert options_of("cuda:0", clock="launched")["latency"] == "launched"
    assert options_of("cpu")["latency"] is None
    with pytest.raises(ParameterError, match="--set clock=device applies to CUDA only, and the device is cpu"):
        options_of("cpu", clock="device")


class TestCompileMode:
    def test_it_is_part_of_compiled_cells_alone(self):
        options = Options(compile_mode="reduce-overhead")
        plan = planned(cases=("attention",), fixes=("as_shipped",), modes=("eager", "compiled"), device="cuda",
                       measures=("trace",), options=options)  # fmt: skip
        assert ids(plan) == [
            "attention/as_shipped/eager@cuda:small#trace",
            "attention/as_shipped/compiled@cuda:small,compile=reduce-overhead#trace",
        ]
        recorded = [plan.options_of(cell, "as_shipped").get("compile_mode") for cell in plan.cells]
        assert recorded == [None, "reduce-overhead"]

    def test_a_measure_that_does_not_record_it_is_left_out(self):
        options = Options(compile_mode="max-autotune")
        plan = planned(cases=("voice",), fixes=("as_shipped",), modes=("compiled",), device="cuda", options=options)
        measures = {cell.measure for cell in plan.cells if cell.mode == "compiled"}
        assert measures == {"trace", "latency"}

    def test_the_default_is_no_choice(self):
        chosen = {"cases": ("attention",), "fixes": ("as_shipped",), "modes": ("compiled",)}
        assert ids(planned(**chosen, options=Options(compile_mode="default"))) == ids(planned(**chosen))

    @pytest.mark.parametrize(
        ("mode", "device", "modes", "message"),
        [
            ("reduce-overhead", "cpu", ("compiled",), "captures CUDA graphs, and the device is cpu; leave it out"),
            ("max-autotune", "mps", ("compiled",), "captures CUDA graphs, and the device is mps"),
            ("reduce-overhead", "cuda", None, "is a choice of compiled calls; add --mode compiled"),
            ("default", "cuda", ("eager",), "is a choice of compiled calls; add --mode compiled"),
            ("fast", "cuda", ("compiled",), "unknown compile mode 'fast'; did you mean default"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, mode, device, modes, message):
        with pytest.raises(ParameterError, match=message):
            planned(device=device, modes=modes, options=Options(compile_mode=mode))


def test_a_run_that_names_no_case_has_those_that_are_in_by_default():
    entries = (FakeCase("attention", ("trace",)), FakeCase("dia", ("trace",), by_default=False))
    assert {c.case for c in make_plan(Selection(), cases=entries, fixes=FIXES).cells} == {"attention"}
    named = make_plan(Selection(cases=("*",)), cases=entries, fixes=FIXES)
    assert {c.case for c in named.cells} == {"attention", "dia"}


def test_what_landed_upstream_is_planned_only_where_the_case_says_something_about_it():
    entries = (FakeCase("attention", ("trace",)), FakeCase("dia", ("trace",), upstream="PR #127"))
    plan = make_plan(Selection(modes=("eager",)), cases=entries, fixes=(*FIXES, Fix(id="upstream")))
    assert {c.case for c in plan.cells if "upstream" in c.fixes} == {"dia"}


def test_the_package_own_registries_can_be_planned():
    plan = make_plan(Selection())
    assert {cell.measure for cell in plan.cells} <= {measure.name for measure in MEASURES}
    assert len({cell.id for cell in plan.cells}) == len(plan.cells)
    assert set(plan.after) == {cell.id for cell in plan.cells}


def test_the_fork_server_imports_libraries_and_nothing_of_somebody_elses():
    own = replace(MEASURES[0], name="mine", place="my_measures:mine", everywhere=True, after=())
    plan = make_plan(Selection(cases=("attention-decode",)), measures=(*MEASURES, own))
    assert {cell.measure for cell in plan.cells} >= {"drift", "mine"}
    assert "precision_eval.measure.generic" in plan.modules
    assert not [name for name in plan.modules if name.startswith("my_measures")]
    assert "transformers" not in str(make_plan(Selection(cases=("attention-decode",))).modules)
