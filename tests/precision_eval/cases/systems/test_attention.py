import dataclasses

import pytest
import torch

from precision_eval.cases import systems as workloads
from precision_eval.cases.systems import WORKLOADS, Workload, workload_by_id
from precision_eval.core.errors import UnknownNameError

ATTENTION = ("attention-decode", "attention-prefill")


@pytest.mark.parametrize("workload_id", ATTENTION)
@pytest.mark.parametrize("size", ["metavoice", "dia", "tiny"])
def test_shapes_and_dtypes_as_reported(workload_id, size):
    case = workload_by_id(workload_id).build(size, device="cpu", seed=0)
    (query,) = case.inputs
    queries = 1 if workload_id == "attention-decode" else {"tiny": 8}.get(size, 64)
    expected = {
        "metavoice": ((2, 16, queries, 128), (2, 16, 2048, 128)),
        "dia": ((2, 16, queries, 128), (2, 4, 3072, 128)),
        "tiny": ((2, 4, queries, 16), (2, 2, 64, 16)),
    }[size]
    assert (tuple(query.shape), tuple(case.model.key.shape)) == expected
    assert case.model.mask.shape == (1, 1, queries, expected[1][2])
    assert (query.dtype, case.model.key.dtype, case.model.value.dtype) == (torch.float32, torch.float16, torch.float16)
    assert case.model.mask.dtype is torch.bool
    assert case.model.scale == (1.0 if size == "dia" else None)


@pytest.mark.parametrize("size", ["metavoice", "dia"])
def test_logits_have_unit_variance(size):
    case = workload_by_id("attention-decode").build(size, device="cpu", seed=0)
    (query,), key = case.inputs, case.model.key.float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scale = case.model.scale or query.shape[-1] ** -0.5
    logits = (query @ key.mT * scale)[case.model.mask.expand(2, 16, -1, -1)]
    assert 0.8 < logits.std() < 1.2


def test_the_mask_is_causal_and_hides_free_slots():
    case = workload_by_id("attention-prefill").build("tiny", device="cpu", seed=0)
    seen = case.model.mask[0, 0].sum(-1)
    assert seen.tolist() == list(range(41, 49))  # 48 slots filled, of which 8 are this call's
    assert case.model.mask[0, 0, -1, :48].all()
    assert not case.model.key[:, :, 48:].any()


def test_seed_decides_the_values():
    build = workload_by_id("attention-decode").build
    one, same, other = (build("tiny", device="cpu", seed=s) for s in (5, 5, 6))
    assert torch.equal(one.model.value, same.model.value)
    assert torch.equal(*one.inputs, *same.inputs)
    assert not torch.equal(*one.inputs, *other.inputs)


def test_a_call_can_be_repeated():
    case = workload_by_id("attention-decode").build("tiny", device="cpu", seed=0)
    case.model.float()
    assert torch.equal(case.model(*case.inputs), case.model(*case.inputs))


def test_the_digest_follows_the_definition():
    workload = workload_by_id("attention-decode")
    assert len({w.digest for w in WORKLOADS}) == len(WORKLOADS)
    changed = dataclasses.replace(workload, definition=(*workload.definition, "v2"))
    assert changed.digest != workload.digest
    assert dataclasses.replace(workload, title="another").digest == workload.digest


def test_names():
    with pytest.raises(UnknownNameError, match="did you mean attention-decode"):
        workload_by_id("attention-decod")
    with pytest.raises(UnknownNameError, match="did you mean metavoice"):
        workload_by_id("attention-decode").build("metavoce", device="cpu", seed=0)
    for workload in WORKLOADS:
        assert set(workload.default_sizes) <= set(workload.sizes)


def test_every_workload_defined_here_is_listed():
    defined = [v for v in vars(workloads.attention).values() if isinstance(v, Workload)]
    assert all(any(w is d for w in WORKLOADS) for d in defined)
