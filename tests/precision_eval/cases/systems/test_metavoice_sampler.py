"""Guidance and top-p: by hand, identities, an independent implementation, faults, and their own rounding."""

import numpy as np
import pytest
import torch

from precision_eval.cases.systems import metavoice_model
from precision_eval.cases.systems.metavoice_model import guided_probabilities


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
