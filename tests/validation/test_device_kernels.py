"""Torch's kernels of a device, judged: a broken one is told, one that does not run is no trial."""

import pytest

from validation import device_kernels
from validation.frame import Options

KERNELS = {
    "default": device_kernels.KERNELS["default"],
    "eager": device_kernels.KERNELS["eager"],
    "broken": lambda o: device_kernels.KERNELS["eager"](o) * 1.01,
    "cudnn": device_kernels.KERNELS["cudnn"],  # which no CPU has
}


@pytest.fixture(scope="module")
def content():
    options = Options(out=None, settings={"families": ("gaussian", "whole_prefill"), "device": "cpu"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_kernels, "KERNELS", KERNELS)
        trials = device_kernels._trials(options)
        return device_kernels._summary(list(device_kernels._run(iter(trials), options)), options)


def test_only_the_broken_one_alarms(content):
    judged = {name: (one["judged"], len(one["alarms"].get("as drawn", []))) for name, one in content["kernels"].items()}
    assert judged == {"default": (6, 0), "eager": (6, 0), "broken": (6, 6), "cudnn": (0, 0)}


def test_why_a_kernel_did_not_run_is_kept(content):
    ((why, count),) = content["kernels"]["cudnn"]["refused"].items()
    assert (why[:18], count) == ("No viable backend ", 6)


def test_figures_count_what_ran(content):
    figures = {figure.name: figure for figure in device_kernels._figures(content)}
    assert figures["alarms"].found.endswith("of 18")
    assert figures["alarms"].met is False
    assert figures["cudnn does not take"].found.startswith("6; mostly: No viable backend")


def test_a_causal_mask_of_as_many_rows_as_keys_is_named_and_one_that_hides_nothing_left_out(monkeypatch):
    given = []
    monkeypatch.setattr(device_kernels.F, "scaled_dot_product_attention", lambda *args, **kwargs: given.append(kwargs))
    for family in ("whole_prefill", "decode", "gaussian"):
        device_kernels._sdpa(
            device_kernels.sample(family, seed=0, dtype=device_kernels.DTYPES[0]),
            attention=device_kernels.F.scaled_dot_product_attention,
        )
    assert [(one["attn_mask"] is None, one["is_causal"]) for one in given] == [
        (True, True),
        (True, False),
        (False, False),
    ]
