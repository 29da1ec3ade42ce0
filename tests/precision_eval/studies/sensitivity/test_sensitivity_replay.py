"""Recording and replay: a case by hand, the identities at both ends, and a second implementation."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn

from precision_eval.studies.sensitivity.mapping import check_reference, prepare
from precision_eval.studies.sensitivity.subjects import unit_drift
from precision_eval.studies.sensitivity.targets import target_by_id
from precision_eval.trace.sites import Rule, SensitivityError, StorageSite
from precision_eval.trace.tape import record, replay, rounded


class Scaled(nn.Module):
    """(x · gain) + x, with a gain that bfloat16 cannot hold."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Module()
        self.gain = nn.Parameter(torch.tensor([1.0 + 2.0**-8]))  # half way between two bfloat16s: to 1, the even one

    def forward(self, x):
        return x * self.gain + x


def test_by_hand(mapped, subject_of):
    rules = (Rule("", "mlp", "0", "mul"), Rule("", "residual", "0", "add"))
    x = torch.tensor([[[3.0]]])
    subject = subject_of(Scaled(), x, rules)
    one = mapped(subject)
    scale, add = StorageSite("0", "mlp"), StorageSite("0", "residual")
    assert one.tape.sites == (scale, add)

    def run(*narrow):
        return float(replay(one.tape, subject.model, subject.inputs, narrow=narrow))

    assert run() == 3.0 * (1.0 + 2.0**-8) + 3.0 == 6.01171875
    assert run(scale) == 6.0  # gain → 1, product 3
    assert run(add) == 6.0  # 6.01171875 lies nearer to 6 than to 6.03125
    assert one.drift([scale]) == pytest.approx([0.01171875 / 6.01171875], rel=1e-12)


@pytest.mark.parametrize("format", ["bfloat16", "float16"])
def test_nothing_narrow_is_the_float32_call_and_everything_narrow_the_uniform_format(attends, format, mapped):
    one = mapped(attends, format)
    plain = record(attends.model, attends.inputs, format="float32", rules=attends.rules).found
    assert torch.equal(replay(one.tape, attends.model, attends.inputs, narrow=()), plain)
    uniform = replay(one.tape, attends.model, attends.inputs, narrow=one.tape.sites).to(one.tape.found.dtype)
    assert float((uniform == one.tape.found).float().mean()) > 0.98  # a sum in another order may round otherwise
    assert one.drift(one.tape.sites).mean() == pytest.approx(
        attends.drift(one.tape.found, one.reference).mean(), rel=0.02
    )


def second_implementation(model, x, format, narrow):
    """The same layer as one plain function, rounding by name."""

    def store(tensor, name):
        return tensor.to(format).float() if name in narrow else tensor

    B, T, width = x.shape
    heads = model.heads
    x0 = x
    normed = torch.nn.functional.layer_norm(
        store(x0, "norm"), (width,), store(model.norm.weight, "norm"), store(model.norm.bias, "norm"), model.norm.eps
    )
    normed = store(normed, "norm")
    parts = [store(w, name) for w, name in zip(model.qkv.weight.chunk(3), "qkv", strict=True)]
    q, k, v = (normed @ torch.cat(parts).T).chunk(3, dim=-1)
    q, k, v = (store(t, n).view(B, T, heads, -1).transpose(1, 2) for t, n in zip((q, k, v), "qkv", strict=True))
    k, v = (store(t, "cache") for t in (k, v))
    scores = store(q @ k.mT, "scores")
    scores = store(scores * (q.shape[-1] ** -0.5), "scores")
    scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -math.inf)
    p = store(scores.softmax(-1), "softmax")
    y = store(p @ v, "output").transpose(1, 2).reshape(B, T, width)
    y = store(y @ store(model.out.weight, "output").T, "output")
    x = store(store(x0, "residual") + y, "residual")
    head = torch.addmm(store(model.head.bias, "head"), x.view(-1, width), store(model.head.weight, "head").T)
    return store(head, "head").view(B, T, width)


ROLES = ("norm", "q", "k", "v", "cache", "scores", "softmax", "output", "residual", "head")


@pytest.mark.parametrize("format", [torch.bfloat16, torch.float16])
def test_a_second_implementation_finds_the_same(attends, format, mapped):
    one = mapped(attends, str(format).removeprefix("torch."))
    assert {site.role for site in one.tape.sites} == set(ROLES)
    (x,) = attends.inputs
    pairs = [*itertools.combinations(ROLES, 1), *itertools.combinations(ROLES, 9), *itertools.combinations(ROLES, 2)]
    for names in pairs:
        narrow = [site for site in one.tape.sites if site.role in names]
        found = replay(one.tape, attends.model, attends.inputs, narrow=narrow)
        expected = second_implementation(attends.model, x, format, names)
        assert float((found - expected).norm() / expected.norm()) < 1e-6, names


def test_the_second_implementation_would_notice_a_site_mixed_up(attends, mapped):
    one = mapped(attends)
    found = replay(one.tape, attends.model, attends.inputs, narrow=[s for s in one.tape.sites if s.role == "k"])
    for other in ("q", "v", "norm", "scores"):
        expected = second_implementation(attends.model, attends.inputs[0], torch.bfloat16, (other,))
        assert float((found - expected).norm() / expected.norm()) > 1e-5


def test_a_wrong_reference_is_caught(attends, mapped):
    one = mapped(attends)
    assert check_reference(one.tape, attends, one.reference) < 1e-12
    rounded_weights = dataclasses.replace(attends, model=copy.deepcopy(attends.model))
    rounded_weights.model.out.weight.data = attends.model.out.weight.data.bfloat16().float()
    with pytest.raises(SensitivityError, match=r"not the same function.*build both from one model"):
        check_reference(one.tape, attends, rounded_weights.reference())
    with pytest.raises(SensitivityError, match="differ by"):
        check_reference(one.tape, attends, one.reference + 1e-8 * one.reference.abs().max())


def test_drift_by_hand_and_where_it_is_not_finite():
    reference = torch.tensor([[[3.0, 4.0], [0.0, 2.0]], [[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    found = reference.clone()
    found[0, 0, 0] += 0.5  # 0.5 / 5
    found[0, 1, 1] -= 0.4  # 0.4 / 2
    assert unit_drift(found, reference) == pytest.approx([0.15, 0.0])
    found[1, 0, 0] = math.nan
    assert unit_drift(found, reference)[1] == math.inf


def test_shared_dimension_is_rounded_in_parts():
    sites = (StorageSite("0", "q"), StorageSite("0", "k"))
    x = torch.full((2, 4), 1.001)
    found = rounded(x, torch.bfloat16, sites=sites, narrow={sites[1]})
    assert torch.equal(found[:, :2], x[:, :2])
    assert torch.equal(found[:, 2:], torch.ones(2, 2))
    assert rounded(x, torch.bfloat16, sites=sites, narrow=()) is x


@pytest.mark.parametrize("target", ["t5-encoder", "dia-encoder", "dia-decoder", "attention-decode", "voice"])
def test_real_classes_keep_both_identities(target):
    one = prepare(target_by_id(target), size="tiny", seed=0, format="float16" if target == "voice" else "bfloat16")
    subject = one.subject
    plain = record(subject.model, subject.inputs, format="float32", rules=subject.rules).found
    replayed = replay(one.tape, subject.model, subject.inputs, narrow=())
    torch.testing.assert_close(replayed, plain)  # the last bits of torch 2.6's products depend on strides
    uniform, native = one.drift(one.tape.sites).mean(), subject.drift(one.tape.found, one.reference).mean()
    assert uniform == pytest.approx(native, rel=0.03)
    if target == "voice":
        caches = [site for site in one.tape.sites if site.role == "cache"]
        assert len(caches) == 4
        assert one.drift(caches).mean() > 20 * one.drift(()).mean()
