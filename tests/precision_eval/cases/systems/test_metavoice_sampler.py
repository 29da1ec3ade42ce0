"""Guidance and top-p: by hand, identities, an independent implementation, faults, and their own rounding."""

import numpy as np
import pytest
import torch

from precision_eval.cases.systems import metavoice_model
from precision_eval.cases.systems.metavoice_model import guided_probabilities, sampler_rounding


def rows(conditional, unconditional):
    """Logits (2, 1, V) in float64."""
    return torch.from_numpy(np.array([conditional, unconditional], dtype=np.float64))[:, None]


def random_logits(seed, tokens=200):
    generator = torch.Generator().manual_seed(seed)
    shared, own = torch.randn(1, 3, tokens, generator=generator), torch.randn(2, 3, tokens, generator=generator)
    return (2.5 * shared + own).double()


def independent(logits):
    """Keep the likeliest tokens, one after another, until what is left weighs at most 0.05."""
    conditional, unconditional = logits[:, -1].numpy()
    guided = unconditional + 3 * (conditional - unconditional)
    shares = np.exp(guided - guided.max())
    shares /= shares.sum()
    kept = np.zeros_like(shares)
    for token in np.argsort(-shares):
        if 1 - kept.sum() <= 1 - 0.95:
            break
        kept[token] = shares[token]
    return torch.from_numpy(kept / kept.sum())


def test_by_hand():
    # 3 log p − 2 log 1: p³ / Σp³ = .216, .027, .001 over .244; the last weighs .0041 and falls out
    found = guided_probabilities(rows(np.log([0.6, 0.3, 0.1]), [0, 0, 0]), precision=torch.float64)
    torch.testing.assert_close(found, torch.tensor([8 / 9, 1 / 9, 0]).double(), rtol=0, atol=1e-7)
    assert found[2] == 0


def test_the_boundary_token_stays():
    p = [0.5, 0.3, 0.14, 0.04, 0.02]  # .02 ≤ .05 < .06: only the last falls out
    found = guided_probabilities(rows(np.log(p), np.log(p)), precision=torch.float64)
    expected = torch.tensor([*p[:4], 0.0], dtype=torch.float64) / 0.98
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_guidance_between_equal_rows_and_a_shift_change_nothing():
    logits = random_logits(0)
    same = logits[:1].repeat(2, 1, 1)
    kept = guided_probabilities(same, precision=torch.float64)
    plain = same[0, -1].softmax(-1)
    support = kept > 0
    assert plain[~support].sum() <= 0.05 < plain[~support].sum() + plain[support].min()
    torch.testing.assert_close(kept[support], plain[support] / plain[support].sum(), rtol=1e-12, atol=0)
    shifted = guided_probabilities(logits + 5, precision=torch.float64)
    torch.testing.assert_close(shifted, guided_probabilities(logits, precision=torch.float64), rtol=1e-10, atol=0)
    assert float(shifted.sum()) == pytest.approx(1, abs=1e-12)


def agrees(seeds=range(30)):
    pairs = [(guided_probabilities(x, precision=torch.float64), independent(x)) for x in map(random_logits, seeds)]
    return all(torch.allclose(found, expected, rtol=0, atol=1e-12) for found, expected in pairs)


def test_an_independent_implementation_agrees():
    assert agrees()


def test_a_planted_fault_is_caught(monkeypatch):
    original = metavoice_model.trimmed

    def one_more(logits, top_p):  # the boundary token falls out too
        kept = original(logits, top_p)
        return kept.index_fill(0, kept.masked_fill(kept.isinf(), torch.inf).argmin()[None], -torch.inf)

    monkeypatch.setattr(metavoice_model, "trimmed", one_more)
    assert not agrees()
    monkeypatch.setattr(metavoice_model, "trimmed", lambda logits, top_p: original(logits, top_p + 1e-3))
    assert not agrees()


def test_the_threshold_itself_is_rounded():
    """By hand: 0.95 is 0.9492 in bfloat16, so a last token of mass 0.0503 falls out; in float16 it stays."""
    logits = rows([0, -2.9375], [0, -2.9375])  # −2.9375, ×3 and ×2 are exact in bfloat16
    coarse = sampler_rounding(logits, dtype=torch.bfloat16)
    assert float(coarse.on_cast_logits[1]) == pytest.approx(0.05033, abs=1e-5)
    assert coarse.found.tolist() == [1, 0]
    facts = coarse.to_dict()
    assert (facts["kept"], facts["kept_in_float64"], facts["boundary_flips"]) == (1, 2, 1)
    assert facts["total_variation"] == pytest.approx(0.05033, abs=1e-5)
    assert (facts["input_cast_flips"], facts["input_cast_total_variation"], facts["mass"]) == (0, 0, 1)
    assert sampler_rounding(logits, dtype=torch.float16).to_dict()["boundary_flips"] == 0


def test_rounding_alone():
    logits = random_logits(2)
    exact = sampler_rounding(logits, dtype=torch.float64)
    assert torch.equal(exact.found, exact.reference)
    assert {k: v for k, v in exact.to_dict().items() if "flips" in k or "variation" in k} == {
        "boundary_flips": 0, "total_variation": 0, "input_cast_flips": 0, "input_cast_total_variation": 0,
    }  # fmt: skip
    fine, coarse = (sampler_rounding(logits, dtype=dtype) for dtype in (torch.float16, torch.bfloat16))
    assert 0 < fine.to_dict()["total_variation"] < coarse.to_dict()["total_variation"] < 1
    assert (coarse.found.dtype, coarse.on_cast_logits.dtype) == (torch.bfloat16, torch.float64)
    assert torch.equal(coarse.on_cast_logits, guided_probabilities(logits.bfloat16().double(), precision=torch.float64))
