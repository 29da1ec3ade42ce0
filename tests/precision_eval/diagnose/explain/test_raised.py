"""Errors raised for real by the torch at hand, in eager, compiled and exported, and explained from the exception."""

import warnings

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F

from precision_eval.diagnose.explain import explain

H, B = torch.float16, torch.bfloat16


def ones(*size, dtype=torch.float32):
    return torch.ones(*size, dtype=dtype)


INDEX, NAMES = torch.tensor([0]), {"f": "float32", "h": "float16", "b": "bfloat16", "d": "float64"}


def attention(query, other, **rest):
    return F.scaled_dot_product_attention(ones(1, 1, 2, 4, dtype=query), *[ones(1, 1, 2, 4, dtype=other)] * 2, **rest)


SDPA, KERNEL = "scaled_dot_product_attention", "an elementwise kernel or its backward"
# name: (call, member, operation, dtypes in the sentence's order by their first letter)
EAGER = {
    "sdpa": (lambda: attention(torch.float32, H), "sdpa", SDPA, "fhh"),
    "sdpa other way": (lambda: attention(B, torch.float32), "sdpa", SDPA, "bff"),
    "mask": (lambda: attention(H, H, attn_mask=ones(2, 2, dtype=B)), "sdpa_mask", SDPA, "bh"),
    "linear": (lambda: nn.Linear(4, 4).half()(ones(2, 4)), "mat1_mat2", "linear", "fh"),
    "linear without bias": (lambda: nn.Linear(4, 4, False).to(B)(ones(2, 4, dtype=H)), "m1_m2", "linear", "hb"),
    "bias": (lambda: F.linear(ones(2, 4, dtype=H), ones(4, 4, dtype=H), ones(4)), "self_mat2", "addmm", "fh"),
    "bmm": (lambda: torch.bmm(ones(1, 2, 2), ones(1, 2, 2, dtype=H)), "scalar_type", "bmm", "fh"),
    "matmul": (lambda: ones(1, 2, 2) @ ones(1, 2, 2, dtype=H), "scalar_type", "matmul", "fh"),
    "einsum": (
        lambda: torch.einsum("bij,bjk->bik", ones(2, 2, 2), ones(2, 2, 2, dtype=H)), "scalar_type", "einsum", "fh",
    ),
    "dot": (lambda: torch.dot(ones(2), ones(2, dtype=H)), "dot", "dot", "fh"),
    "tensordot": (lambda: torch.tensordot(ones(2, 2), ones(2, 2, dtype=H), 1), "tensordot", None, ""),
    "baddbmm": (
        lambda: torch.baddbmm(ones(1, 2, 2, dtype=H), ones(1, 2, 2), ones(1, 2, 2)), "baddbmm", "baddbmm", "hff",
    ),
    "index_put": (
        lambda: ones(4, 2, dtype=H).index_put_((INDEX,), ones(1, 2)), "index_put", "index_put", "hf",
    ),
    "assignment": (lambda: ones(4, 2, dtype=H).__setitem__(INDEX, ones(1, 2)), "index_put", "index_put", "hf"),
    "index_copy": (lambda: ones(4, dtype=H).index_copy_(0, INDEX, ones(1)), "index_copy", "index_copy", "hf"),
    "index_add": (lambda: ones(4, dtype=H).index_add_(0, INDEX, ones(1)), "index_add", None, "hf"),
    "scatter": (lambda: ones(4, dtype=H).scatter_(0, INDEX, ones(1)), "scatter", None, ""),
    "masked_scatter": (
        lambda: ones(1, dtype=H).masked_scatter_(torch.tensor([True]), ones(2)), "masked_scatter", "masked_scatter",
        "hf",
    ),
    "put": (lambda: ones(4, dtype=H).put_(INDEX, ones(1)), "put", "put", "hf"),
    "layer_norm": (lambda: nn.LayerNorm(4).half()(ones(2, 4)), "norm_cpu", "layer_norm", "f"),
    "group_norm": (lambda: nn.GroupNorm(2, 4).half()(ones(2, 4)), "norm_cpu", "group_norm", "f"),
    "conv": (lambda: nn.Conv1d(2, 2, 1).half()(ones(1, 2, 3)), "conv_bias", "conv", "fh"),
    "conv without bias": (
        lambda: nn.Conv1d(2, 2, 1, bias=False).half()(ones(1, 2, 3)), "scalar_type", "conv", "fh",
    ),
    "lstm": (lambda: nn.LSTM(4, 4).half()(ones(1, 1, 4)), "rnn", None, "fh"),
    "embedding": (lambda: nn.Embedding(4, 4)(ones(2, dtype=H)), "indices", "embedding", "h"),
    "prelu": (lambda: F.prelu(ones(1, 2, dtype=H), ones(1)), "prelu", "prelu", "hf"),
    "lerp": (lambda: torch.lerp(ones(1), ones(1, dtype=H), 0.5), "lerp", "lerp", "fh"),
    "out": (lambda: torch.mm(ones(2, 2), ones(2, 2), out=ones(2, 2, dtype=H)), "out", "an operation with out=", "fh"),
    "loss": (lambda: F.binary_cross_entropy(ones(2), ones(2, dtype=H)), "found_dtype", KERNEL, "hf"),
    "gradient": (
        lambda: setattr(nn.Parameter(ones(2)), "grad", ones(2, dtype=H)), "gradient", "Tensor.grad =", "hf",
    ),
    "solve": (lambda: torch.linalg.solve(torch.eye(2), torch.eye(2).double()), "linalg", None, "fd"),
    "autocast": (
        lambda: torch.autocast("cpu", dtype=B)(torch.cat)([ones(2, dtype=H), ones(2)]), "autocast_other_half", None, "",
    ),
    "complex": (lambda: torch.complex(ones(2), ones(2, dtype=H)), "object_type", None, "fh"),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_a_real_error_is_explained(name):
    call, member, op, dtypes = EAGER[name]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    found = explain(caught.value)
    assert (found.member, found.how) == (member, "eager")
    assert found.op == op or (op is None and found.op in found.candidates)
    assert [operand.dtype for operand in found.operands if operand.dtype] == [NAMES[letter] for letter in dtypes]
    if name not in ("lstm", "linear", "conv"):  # raised inside torch's own Python
        assert found.frame is None or "test_raised.py" in found.frame
    alone = explain(str(caught.value))
    assert (alone.member, alone.how, alone.operands) == (member, "not shown", found.operands)


class Attend(nn.Module):
    def forward(self, query, key):
        return F.scaled_dot_product_attention(query, key, key)


class Project(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4).half()

    def forward(self, x):
        return self.out(x)


@pytest.fixture
def compiled():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own parts, imported here
        torch._dynamo.reset()
        yield lambda model: torch.compile(model, backend="eager")
        torch._dynamo.reset()


def test_a_compiled_error_names_the_traced_call(compiled):
    with pytest.raises(RuntimeError) as caught:
        compiled(Attend())(ones(1, 2, 3, 4), ones(1, 2, 5, 4, dtype=H))
    found = explain(caught.value)
    assert (found.member, found.op, found.how) == ("sdpa", "scaled_dot_product_attention", "while tracing")
    assert [operand.dtype for operand in found.operands] == ["float32", "float16", "float16"]
    assert found.traced[:2] == (("(1, 2, 3, 4)", "default"), ("(1, 2, 5, 4)", "float16"))
    assert "test_raised.py" in found.frame
    assert explain(str(caught.value)).member == "sdpa"
    advice = {one.fix: one for one in found.fixes}
    assert advice["dynamo_fallback"].verdict == "does_not_cure"
    assert "falls back to eager" in advice["dynamo_fallback"].reason


def test_a_compiled_error_at_run_time_is_told_from_one_while_tracing(compiled):
    with pytest.raises(RuntimeError) as caught:
        compiled(Project())(ones(2, 4))
    found = explain(caught.value)
    assert (found.member, found.op, found.how) == ("mat1_mat2", "linear", "compiled, at run time")


def test_frames_of_the_suite_are_not_the_users():
    from precision_eval.measure import model_calls

    sentence = "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half"
    text = f'  File "{{}}", line 91, in forward\n    y = self.model(x)\n{sentence}'
    assert explain(text.format(model_calls.__file__)).frame is None
    assert explain(text.format("/home/me/work/model.py")).frame == "work/model.py line 91 in forward"
