import pytest
import torch

from precision_eval.cases.systems import case_by_id

ATTENTION = ("attention-decode", "attention-prefill")


@pytest.mark.parametrize("case_id", ATTENTION)
@pytest.mark.parametrize("size", ["metavoice", "dia", "tiny"])
def test_shapes_and_dtypes_as_reported(case_id, size):
    built = case_by_id(case_id).build(size, device="cpu", seed=0)
    (query,) = built.inputs
    queries = 1 if case_id == "attention-decode" else {"tiny": 8}.get(size, 64)
    expected = {
        "metavoice": ((2, 16, queries, 128), (2, 16, 2048, 128)),
        "dia": ((2, 16, queries, 128), (2, 4, 3072, 128)),
        "tiny": ((2, 4, queries, 16), (2, 2, 64, 16)),
    }[size]
    assert (tuple(query.shape), tuple(built.model.key.shape)) == expected
    assert built.model.mask.shape == (1, 1, queries, expected[1][2])
    assert (query.dtype, built.model.key.dtype, built.model.value.dtype) == (
        torch.float32,
        torch.float16,
        torch.float16,
    )
    assert built.model.mask.dtype is torch.bool
    assert built.model.scale == (1.0 if size == "dia" else None)


def test_the_mask_is_causal_and_hides_free_slots():
    built = case_by_id("attention-prefill").build("tiny", device="cpu", seed=0)
    seen = built.model.mask[0, 0].sum(-1)
    assert seen.tolist() == list(range(41, 49))  # 48 slots filled, of which 8 are this call's
    assert built.model.mask[0, 0, -1, :48].all()
    assert not built.model.key[:, :, 48:].any()
