"""Which fix cures MetaVoice: the table of the suite's fixes, and the threads' casts at attention alone."""

import re
import warnings

import pytest
import torch
from torch.nn import functional as F

from precision_eval.cases.systems import metavoice
from precision_eval.cases.systems.metavoice import Case
from precision_eval.core.errors import UnsupportedError
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.fixes.patches import load_dynamo

CASES = {w.id: w for w in vars(metavoice).values() if isinstance(w, Case) and w.id != "metavoice-t4"}
GPU_PATH = ("metavoice-decode", "metavoice-prefill", "metavoice-decode-slice")

SDPA = "Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: c10::Half"
LINEAR = "expected m1 and m2 to have the same dtype, but got: c10::Half != c10::BFloat16"
OUTPUT_LINEAR = "expected m1 and m2 to have the same dtype, but got: c10::Half != float"
INDEX_PUT = "Index put requires the source and destination dtypes match"
CURED = {  # dtype of the logits, and the largest relative error against float64
    "query_to_half": (torch.bfloat16, 3e-2),
    "kv_to_query": (torch.float32, 1e-2),
    "full_float32": (torch.float32, 2e-6),
    "bfloat16": (torch.bfloat16, 3e-2),
    "float16": (torch.float16, 4e-3),
    "autocast": (torch.bfloat16, 3e-2),
}
CURED_ON_CPU_PATH = CURED | {"query_to_half": (torch.float32, 4e-3), "kv_to_query": (torch.float32, 4e-3)}


def expectation(case_id, fix_id, mode):
    """A message, or what a cured call gives."""
    gpu = case_id in GPU_PATH
    if fix_id == "as_shipped":
        return LINEAR if gpu and mode == "eager" else SDPA
    if fix_id == "dynamo_fallback":  # falls back to eager, which raises as it does as shipped
        return LINEAR if gpu else SDPA
    if fix_id == "autocast" and case_id in ("metavoice-decode", "metavoice-prefill"):
        return INDEX_PUT  # autocast casts operands of matrix products, not what is written into a cache
    return (CURED if gpu else CURED_ON_CPU_PATH)[fix_id]


def relative_error(logits, built):
    tokens, speaker, positions = built.inputs
    reference = built.model.in_float64()(tokens, speaker.double(), positions)[0]
    return float((logits.double() - reference).norm() / reference.norm())


def check(case_id, fix, mode):
    built = CASES[case_id].build("tiny", device="cpu", seed=0)
    if fix.id == "upstream":
        with pytest.raises(UnsupportedError, match="no fix landed"), fix.applied(built.model, mode=mode):
            pass
        return
    expected = expectation(case_id, fix.id, mode)
    with fix.applied(built.model, mode=mode) as call:
        inputs = call.prepare(built.inputs)
        if isinstance(expected, str):
            with pytest.raises(RuntimeError, match=re.escape(expected)):
                call(*inputs)
            return
        logits, probabilities = call(*inputs)
        again = call(*inputs)
    assert torch.equal(logits, again[0])
    assert logits.dtype is probabilities.dtype is expected[0]
    assert logits.isfinite().all()
    assert relative_error(logits, built) < expected[1]


@pytest.mark.parametrize("fix", [fix for fix in FIXES if "eager" in fix.modes], ids=lambda fix: fix.id)
@pytest.mark.parametrize("case_id", CASES)
def test_eager(case_id, fix):
    check(case_id, fix, "eager")


@pytest.fixture
def compiler(monkeypatch):
    """torch.compile with a stated backend; aot_eager traces as inductor does, and builds no kernels."""
    torch._dynamo.reset()
    load_dynamo()
    original = torch.compile

    def use(stated):
        monkeypatch.setattr(torch, "compile", lambda function, backend: original(function, backend=stated))

    yield use
    torch._dynamo.reset()


COMPILED = [  # the decode of each path; tracing a prefill meets the same operations
    *(("metavoice-decode", fix.id) for fix in FIXES),
    ("metavoice-decode-slice", "autocast"),
    ("metavoice-decode-float32", "as_shipped"),
    ("metavoice-decode-float32", "kv_to_query"),
    ("metavoice-decode-float32", "dynamo_fallback"),
    ("metavoice-decode-float32", "autocast"),
    ("metavoice-prefill", "as_shipped"),
    ("metavoice-prefill-float32", "as_shipped"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("case_id", "fix_id"), COMPILED)
def test_compiled(case_id, fix_id, compiler):
    compiler("aot_eager")
    check(case_id, fix_by_id(fix_id), "compiled")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed:UserWarning")
def test_inductor_hides_what_index_put_refuses(compiler):
    """Under autocast the write raises in eager; fused into a kernel, it casts in silence."""
    compiler("inductor")
    built = CASES["metavoice-decode"].build("tiny", device="cpu", seed=0)
    with fix_by_id("autocast").applied(built.model, mode="compiled") as call:
        logits, _ = call(*built.inputs)
    assert relative_error(logits, built) < 3e-2


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
    load_dynamo()
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
    load_dynamo()
    with pytest.raises(RuntimeError, match=re.escape(LINEAR)):
        run_row(monkeypatch, "metavoice-decode", cast, compiled=False)


def test_casts_at_attention_alone_on_the_cpu_path(monkeypatch):
    load_dynamo()
    with pytest.raises(RuntimeError, match=re.escape(OUTPUT_LINEAR)):  # half goes on into a float32 projection
        run_row(monkeypatch, "metavoice-decode-float32", "q.half()", compiled=False)
    monkeypatch.undo()
    assert run_row(monkeypatch, "metavoice-decode-float32", "k, v to q", compiled=False)[0].dtype is torch.float32
