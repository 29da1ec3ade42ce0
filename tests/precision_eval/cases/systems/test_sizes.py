"""Sizes that cannot fit: named before anything is loaded."""

import pytest
import torch
from made_cells import cell as made_cell

from precision_eval.cases.systems import CASES, case_by_id, cogvideo_t5, dia, metavoice
from precision_eval.cases.systems.cogvideo_t5_model import T5Encoder
from precision_eval.cases.systems.dia_model import DiaDecoder, DiaEncoder
from precision_eval.cases.systems.metavoice_model import MetaVoice, StaticCache
from precision_eval.core.errors import ParameterError


def test_a_size_that_cannot_fit_is_refused_before_it_is_built():
    case = case_by_id("metavoice-decode")
    with pytest.raises(ParameterError, match=r"size 'full' of the case 'metavoice-decode' needs 2.33 GiB .* 1 GiB"):
        case.check_fits("full", available_bytes=2**30)
    case.check_fits("full", available_bytes=2**33)
    case.check_fits("cpu", available_bytes=0)


@pytest.mark.parametrize(
    ("measure", "fixes", "copies"),
    [
        ("trace", ("kv_to_query",), 0.0),
        ("trace", ("full_float32",), 4.0),
        ("memory", ("bfloat16",), 0.0),  # as wide as shipped
        ("drift", ("full_float32",), 4.0 + 8.0 + 4.0),  # the fix, the float64 twin, and what both are made from
        ("latency", ("kv_to_query", "full_float32"), 4.0 + 2.0 + 2.0),
    ],
)
def test_what_a_cell_holds_beside_the_model(measure, fixes, copies):
    from precision_eval.fixes.catalog import FIXES
    from precision_eval.run.resources import copied_bytes

    cell = made_cell(measure, *fixes, case="metavoice-decode", size="full")
    assert copied_bytes(cell, 2.0, {fix.id: fix.storage for fix in FIXES}) == copies


def on_meta(case):
    """Parameters of the size ``full``, without memory; and the dtype that each is stored in."""
    with torch.device("meta"):
        if case.id.startswith("metavoice"):
            size = metavoice.SIZES["full"]
            shape = (metavoice.GUIDANCE_ROWS, size.heads, size.slots, size.head_dim)
            caches = [StaticCache(torch.empty(shape), torch.empty(shape), first_slot=0) for _ in range(size.layers)]
            model, stored = MetaVoice(size, caches), {}
        elif case.id.startswith("cogvideo"):
            model = T5Encoder(cogvideo_t5.SIZES["full"], fused=False)
            stored = {n: torch.float32 if "wo" in n.split(".") else torch.float16 for n, _ in model.named_parameters()}
        else:
            state = dia.BEFORE_PR45 if case.id.endswith("pr45") else dia.D4790DD
            encodes = case.id == "dia-encode"
            model = (
                DiaEncoder(dia.ENCODER_SIZES["full"], state)
                if encodes
                else DiaDecoder(dia.DECODER_SIZES["full"], state)
            )
            stored = {name: parameter.dtype for name, parameter in model.named_parameters()}
    return {name: (parameter.numel(), stored.get(name)) for name, parameter in model.named_parameters()}


COUNTED = [case for case in CASES if case.full_parameters]


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.id)
def test_full_sizes_state_what_their_models_hold(case):
    parameters = on_meta(case)
    assert case.full_parameters == sum(count for count, _ in parameters.values())
    held_bytes = sum(count * dtype.itemsize for count, dtype in parameters.values() if dtype)
    if not case.id.startswith("metavoice"):  # whose dtypes are given at building: see test_metavoice
        assert case.bytes_per_parameter * case.full_parameters == pytest.approx(held_bytes, rel=0.01)


def test_every_full_size_that_may_not_fit_states_a_count():
    small = {case.id for case in CASES if "full" in case.sizes} - {case.id for case in COUNTED}
    assert small == {"imaginairy-time-embed", "imaginairy-time-embed-cast-first"}
