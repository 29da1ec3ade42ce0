"""MetaVoice on a T4: the case is in the state that the source's own loader leaves there, and runs."""

import warnings

import pytest
import torch

from precision_eval.cases.systems.metavoice import METAVOICE_DECODE_FLOAT32, METAVOICE_T4
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.measure.memory import cpu_allocated_peak_bytes


def tiny():
    return METAVOICE_T4.build("tiny", device="cpu", seed=0)


def test_the_case_is_stored_as_loaded():
    built = tiny()
    assert {p.dtype for p in built.model.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in built.model.parameters())
    assert built.model.model.layers[0].attention.cache.key.dtype is torch.float16
    assert built.inputs[1].dtype is torch.float32
    assert not built.model.training


def test_it_runs_in_the_source_s_autocast_and_repeats():
    built = tiny()
    first, again = built.model(*built.inputs), built.model(*built.inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    logits, probabilities = first
    assert logits.dtype is torch.float16
    assert not logits.requires_grad
    assert logits.isfinite().all()
    assert probabilities.float().sum() == pytest.approx(1.0, abs=2e-2)
    plain = METAVOICE_DECODE_FLOAT32.build("tiny", device="cpu", seed=0)
    with fix_by_id("kv_to_query").applied(plain.model) as call:
        reference = call(*plain.inputs)[0]
    error = (logits.float() - reference).norm() / reference.norm()
    assert 1e-5 < error < 1e-2  # half arithmetic took place, and nothing else


def test_the_float64_twin_agrees_with_the_plain_decoder_s():
    built, plain = tiny(), METAVOICE_DECODE_FLOAT32.build("tiny", device="cpu", seed=0)
    tokens, speaker, positions = built.inputs
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        found = built.model.in_float64()(tokens, speaker.double(), positions)
        expected = plain.model.in_float64()(tokens, speaker.double(), positions)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is torch.float64
        assert (one - other).abs().max() < 1e-10


def test_autocast_keeps_half_copies_of_all_weights():
    built = tiny()
    trainable = cpu_allocated_peak_bytes(built.model, built.inputs)
    linear = sum(p.numel() for name, p in built.model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    assert trainable > 2 * linear
    built.model.requires_grad_(False)
    assert trainable - cpu_allocated_peak_bytes(built.model, built.inputs) > linear
