"""The threads' casts at attention alone, on MetaVoice; what the suite's fixes do is in the table of expectations."""

import re
import warnings

import pytest
import torch
import torch._dynamo  # which lists torch's functions: before a test patches one
from torch.nn import functional as F

from precision_eval.cases.systems import metavoice
from precision_eval.cases.systems.metavoice import Case

CASES = {w.id: w for w in vars(metavoice).values() if isinstance(w, Case) and w.id != "metavoice-t4"}

SDPA = "Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: c10::Half"
LINEAR = "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"
OUTPUT_LINEAR = "expected m1 and m2 to have the same dtype, but got: c10::Half != float"


def at_attention(cast):
    """Attention with a cast of the threads' own: there, and nowhere else."""
    original = F.scaled_dot_product_attention

    def attention(query, key, value, attn_mask):
        if cast == "q.half()":
            query = query.half()
        if cast == "k, v to q":
            key, value = key.to(query.dtype), value.to(query.dtype)
        return original(query, key, value, attn_mask=attn_mask)

    return attention


ROWS = [  # path, cast at attention, suppress_errors, fullgraph, what happens
    ("metavoice-decode", "none", True, True, SDPA),  # upstream compiles with fullgraph=True: nothing to fall back to
    ("metavoice-decode", "none", True, False, LINEAR),
    ("metavoice-decode", "q.half()", False, True, LINEAR),
    ("metavoice-decode", "k, v to q", False, True, LINEAR),
    ("metavoice-decode-float32", "none", True, True, SDPA),
    ("metavoice-decode-float32", "q.half()", False, True, OUTPUT_LINEAR),
    ("metavoice-decode-float32", "k, v to q", False, True, None),
]


def run_row(monkeypatch, case_id, cast, *, compiled, suppress=False, fullgraph=False):
    built = CASES[case_id].build("tiny", device="cpu", seed=0)
    monkeypatch.setattr(F, "scaled_dot_product_attention", at_attention(cast))
    run = torch.compile(built.model, backend="aot_eager", fullgraph=fullgraph) if compiled else built.model
    with torch.no_grad(), torch._dynamo.config.patch(suppress_errors=suppress), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts
        return run(*built.inputs)


@pytest.mark.slow
@pytest.mark.parametrize(("case_id", "cast", "suppress", "fullgraph", "message"), ROWS)
def test_rows_of_the_threads_compiled(case_id, cast, suppress, fullgraph, message, monkeypatch):
    torch._dynamo.reset()

    def run():
        return run_row(monkeypatch, case_id, cast, compiled=True, suppress=suppress, fullgraph=fullgraph)

    if message is None:
        assert run()[0].dtype is torch.float32
    else:
        with pytest.raises(RuntimeError, match=re.escape(message)):
            run()
    torch._dynamo.reset()


@pytest.mark.parametrize("cast", ["q.half()", "k, v to q"])
def test_a_cast_at_attention_alone_never_reaches_the_gpu_paths_error(cast, monkeypatch):
    with pytest.raises(RuntimeError, match=re.escape(LINEAR)):
        run_row(monkeypatch, "metavoice-decode", cast, compiled=False)


def test_casts_at_attention_alone_on_the_cpu_path(monkeypatch):
    with pytest.raises(RuntimeError, match=re.escape(OUTPUT_LINEAR)):  # half goes on into a float32 projection
        run_row(monkeypatch, "metavoice-decode-float32", "q.half()", compiled=False)
    monkeypatch.undo()
    assert run_row(monkeypatch, "metavoice-decode-float32", "k, v to q", compiled=False)[0].dtype is torch.float32
