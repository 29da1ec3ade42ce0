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
    with pytest.raises(ParameterError, match=r"size 'full' of the workload 'metavoice-decode' needs 4.65 GiB .* 1 GiB"):
        workload.check_fits("full", available_bytes=2**30)
    workload.check_fits("full", available_bytes=2**33)
    workload.check_fits("cpu", available_bytes=0)


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
