"""Sizes that contradict themselves or cannot fit: named before anything is loaded."""

from dataclasses import replace

import pytest

from precision_eval.errors import ParameterError
from precision_eval.memory_plan.models import model_by_name, parameter_count
from precision_eval.workloads import WORKLOADS, all_workloads, cogvideo_t5, imaginairy, workload_by_id


@pytest.mark.parametrize(
    ("size", "change", "text"),
    [
        (cogvideo_t5.SIZES["tiny"], {"layers": 0}, "'layers' of a T5 size is 0"),
        (cogvideo_t5.SIZES["tiny"], {"prompt": 25}, "'prompt' is 25, but a call has 24 tokens"),
        (cogvideo_t5.SIZES["tiny"], {"hidden": 8}, "'hidden' is 8"),
        (imaginairy.SIZES["tiny"], {"frames": 1}, "two or more"),
        (imaginairy.SIZES["tiny"], {"channels": 33}, "'channels' is 33"),
        (imaginairy.SIZES["tiny"], {"embedding": -1}, "'embedding' of a time embedding's size is -1"),
    ],
)
def test_a_size_that_contradicts_itself_is_named(size, change, text):
    with pytest.raises(ParameterError, match=text):
        replace(size, **change)


def test_a_size_that_cannot_fit_is_refused_before_it_is_built():
    workload = workload_by_id("metavoice-decode")
    with pytest.raises(ParameterError, match=r"size 'full' of the workload 'metavoice-decode' needs 2.33 GiB .* 1 GiB"):
        workload.check_fits("full", available_bytes=2**30)
    workload.check_fits("full", available_bytes=2**33)
    workload.check_fits("cpu", available_bytes=0)


def test_copies_that_cannot_fit_are_refused_with_what_holds_them():
    workload = workload_by_id("cogvideo-t5-encoder")
    held = {"available_bytes": 20 * 2**30, "holder": "witness of full_float32", "remedy": "--size cpu, leave it out"}
    workload.check_fits("full", copies=0.0, **held)
    with pytest.raises(ParameterError) as refusal:
        workload.check_fits("full", copies=4.0, **held)
    assert str(refusal.value) == (
        "size 'full' of the workload 'cogvideo-t5-encoder' needs 28.4 GiB for its weights and those that witness of "
        "full_float32 copies, 20 GiB are free; take --size cpu, leave it out, or a larger machine"
    )


@pytest.mark.parametrize(
    ("measure", "fixes", "copies"),
    [
        ("witness", ("kv_to_query",), 0.0),
        ("witness", ("full_float32",), 4.0),
        ("memory", ("bfloat16",), 0.0),  # as wide as shipped
        ("drift", ("full_float32",), 4.0 + 8.0 + 4.0),  # the fix, the float64 twin, and what both are made from
        ("latency", ("kv_to_query", "full_float32"), 4.0 + 2.0 + 2.0),
    ],
)
def test_what_a_cell_holds_beside_the_model(measure, fixes, copies):
    from precision_eval.cli.run import _copies
    from precision_eval.experiment.cells import Cell, Options
    from precision_eval.fixes.catalog import FIXES

    cell = Cell(
        workload="metavoice-decode", fixes=fixes, mode="eager", device="cpu", size="full", threads=1, measure=measure,
        options=Options(),
    )  # fmt: skip
    assert _copies(cell, 2.0, {fix.id: fix.storage for fix in FIXES}) == copies


@pytest.mark.parametrize(
    ("prefix", "model"), [("metavoice", "metavoice-1b"), ("dia", "dia-1.6b"), ("cogvideo", "t5-xxl")]
)
def test_full_sizes_state_the_published_count(prefix, model):
    counts = {workload.full_parameters for workload in WORKLOADS if workload.id.startswith(prefix)}
    assert counts == {parameter_count(model_by_name(model))}


def test_the_zoo_can_be_asked_for_by_name():
    assert {workload.id for workload in all_workloads()} - {workload.id for workload in WORKLOADS} == {
        "zoo-dia",
        "zoo-t5-encoder",
        "zoo-svd-time-embed",
    }
    assert not any(workload.by_default for workload in all_workloads() if workload.id.startswith("zoo-"))
