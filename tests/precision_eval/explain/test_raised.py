"""Errors raised for real by the torch at hand, in eager, compiled and exported, and explained from the exception."""

import warnings

import pytest
import torch
import torch._dynamo
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.attention import bias
from torch.nn.utils import parametrize
from torch.utils import checkpoint

from precision_eval.explain import explain

H, B, D = torch.float16, torch.bfloat16, torch.float64


def ones(*size, dtype=torch.float32):
    return torch.ones(*size, dtype=dtype)


INDEX, E = torch.tensor([0]), torch.float8_e4m3fn
NAMES = {"f": "float32", "h": "float16", "b": "bfloat16", "d": "float64", "e": "float8_e4m3fn"}


def attention(query, other, **rest):
    return F.scaled_dot_product_attention(ones(1, 1, 2, 4, dtype=query), *[ones(1, 1, 2, 4, dtype=other)] * 2, **rest)


SDPA, KERNEL = "scaled_dot_product_attention", "an elementwise kernel or its backward"
# name: (call, member, operation, dtypes in the sentence's order by their first letter)
EAGER = {
    "sdpa": (lambda: attention(torch.float32, H), "sdpa", SDPA, "fhh"),
    "mask": (lambda: attention(H, H, attn_mask=ones(2, 2, dtype=B)), "sdpa_mask", SDPA, "bh"),
    "linear": (lambda: nn.Linear(4, 4).half()(ones(2, 4)), "mat1_mat2", "linear", "fh"),
    "bias": (lambda: F.linear(ones(2, 4, dtype=H), ones(4, 4, dtype=H), ones(4)), "self_mat2", "addmm", "fh"),
    "bmm": (lambda: torch.bmm(ones(1, 2, 2), ones(1, 2, 2, dtype=H)), "scalar_type", "bmm", "fh"),
    "dot": (lambda: torch.dot(ones(2), ones(2, dtype=H)), "dot", "dot", "fh"),
    "tensordot": (lambda: torch.tensordot(ones(2, 2), ones(2, 2, dtype=H), 1), "tensordot", None, ""),
    "baddbmm": (
        lambda: torch.baddbmm(ones(1, 2, 2, dtype=H), ones(1, 2, 2), ones(1, 2, 2)), "baddbmm", "baddbmm", "hff",
    ),
    "index_put": (
        lambda: ones(4, 2, dtype=H).index_put_((INDEX,), ones(1, 2)), "index_put", "index_put", "hf",
    ),
    "index_copy": (lambda: ones(4, dtype=H).index_copy_(0, INDEX, ones(1)), "index_copy", "index_copy", "hf"),
    "index_add": (lambda: ones(4, dtype=H).index_add_(0, INDEX, ones(1)), "index_add", None, "hf"),
    "scatter": (lambda: ones(4, dtype=H).scatter_(0, INDEX, ones(1)), "scatter", None, ""),
    "masked_scatter": (
        lambda: ones(1, dtype=H).masked_scatter_(torch.tensor([True]), ones(2)), "masked_scatter", "masked_scatter",
        "hf",
    ),
    "put": (lambda: ones(4, dtype=H).put_(INDEX, ones(1)), "put", "put", "hf"),
    "layer_norm": (lambda: nn.LayerNorm(4).half()(ones(2, 4)), "norm_cpu", "layer_norm", "f"),
    "conv": (lambda: nn.Conv1d(2, 2, 1).half()(ones(1, 2, 3)), "conv_bias", "conv", "fh"),
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
    "complex": (lambda: torch.complex(ones(2), ones(2, dtype=H)), "object_type", "complex", "fh"),
    "bias of attention": (
        lambda: F.scaled_dot_product_attention(
            ones(1, 1, 4, 16), *[ones(1, 1, 8, 16, dtype=H)] * 2, attn_mask=bias.causal_lower_right(4, 8)
        ), "sdpa", SDPA, "fhh",
    ),
    "fill": (lambda: ones(2, dtype=H).masked_fill(ones(2) > 0, -1e9), "fill_overflow", "masked_fill", ""),
    "fill beyond": (
        lambda: ones(2, dtype=B).masked_fill(ones(2) > 0, -1e39), "fill_beyond_float32", "masked_fill", "",
    ),
    "numpy": (lambda: ones(2, dtype=B).numpy(), "numpy_format", "numpy", "b"),
    "no kernel": (lambda: ones(2).to(E).sum(), "float8_op", "an operation on float8", ""),
    "transform": (lambda: torch.fft.rfft(ones(6, dtype=B)), "wide_only", "rfft", "b"),
    "inverse": (lambda: torch.linalg.inv(ones(2, 2, dtype=B)), "wide_only", None, "b"),
    "index": (lambda: ones(2)[ones(1)], "index_types", None, ""),
    "classes": (lambda: F.cross_entropy(ones(2, 2), ones(2)), "index_types", "nll_loss", "f"),
    "integers": (lambda: nn.Parameter(ones(2).to(torch.int8)), "integer_gradient", "requires_grad", ""),
    "no probabilities": (
        lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1), "probability_nan", "multinomial", "",
    ),
    "weight in float8": (lambda: F.linear(ones(2, 4, dtype=B), ones(4, 4).to(E)), "m1_m2", "linear", "be"),
    "float8 added": (lambda: ones(4).to(E) + ones(4, dtype=B), "float8_promotion", None, "eb"),
    "float8 written": (lambda: ones(4, 2).to(E).__setitem__(INDEX, ones(1, 2)), "index_put", "index_put", "ef"),
    "addmv": (lambda: torch.eye(2).to_sparse_csr() @ ones(2, dtype=D), "addmv", "addmv", "dfd"),
    "vecdot": (lambda: torch.linalg.vecdot(ones(2), ones(2, dtype=H)), "vecdot", "linalg.vecdot", "fh"),
    "multi_dot": (
        lambda: torch.chain_matmul(ones(2, 2), ones(2, 2, dtype=H)), "multi_dot", "linalg.multi_dot", "fh",
    ),
    "sampled_addmm": (
        lambda: torch.sparse.sampled_addmm(torch.eye(2).to_sparse_csr(), ones(2, 2).double(), ones(2, 2).double()),
        "sampled_addmm", "sparse.sampled_addmm", "df",
    ),
    "sparse reduce": (
        lambda: torch.sparse.mm(torch.eye(2).to_sparse_csr(), ones(2, 2).double(), "sum"),
        "sparse_mm_reduce", "sparse.mm", "fd",
    ),
    "sparse": (
        lambda: torch.sparse.mm(torch.eye(2).to_sparse(), ones(2, 2, dtype=H)), "scalar_type", "sparse.mm", "fh",
    ),
    "bilinear": (
        lambda: F.bilinear(ones(2, 2), ones(2, 2), ones(2, 2, 2, dtype=H)), "bilinear", "bilinear", "ffh",
    ),
    "lstsq": (lambda: torch.linalg.lstsq(torch.eye(2), ones(2, 1).double()), "linalg", "linalg.lstsq", "fd"),
    "int_mm": (
        lambda: torch._int_mm(torch.ones(32, 32, dtype=torch.int8), ones(32, 32, dtype=B)), "int_mm", "_int_mm", "b",
    ),
    "quantised scale": (
        lambda: torch.fake_quantize_per_channel_affine(ones(4, 4), ones(4, dtype=H), torch.zeros(4), 0, 0, 255),
        "quantised_scale", "fake_quantize_per_channel_affine", "h",
    ),
    "quantised add": (
        lambda: torch.ops.quantized.add(
            *(torch.quantize_per_tensor(ones(4), 1.0, 0, dtype) for dtype in (torch.quint8, torch.qint8)), 1.0, 0
        ), "dtypes_not_named", "quantized.add", "",
    ),
    "nested": (
        lambda: torch.nested.as_nested_tensor([ones(3, 8), ones(2, 8, dtype=H)], layout=torch.jagged),
        "dtypes_not_named", "nested tensor", "",
    ),
    "allclose": (lambda: torch.allclose(ones(2), ones(2, dtype=H)), "allclose", "allclose", "fh"),
    "histogram": (lambda: torch.histogram(ones(4), torch.tensor([0.0, 1.0]).double()), "histogram", "histogram", "fd"),
    "embedding_bag": (
        lambda: F.embedding_bag(torch.tensor([[0]]), ones(2, 2), per_sample_weights=ones(1, 1, dtype=H), mode="sum"),
        "argument_types", "embedding_bag", "fh",
    ),
    "norm's input": (
        lambda: F.group_norm(ones(2, 4, dtype=D), 2, ones(4), ones(4)), "norm_cpu_input", "group_norm", "",
    ),
    "set_": (lambda: ones(2).set_(ones(2, dtype=H)), "set_data", "Tensor.set_", "hf"),
    "parametrization": (
        lambda: parametrize.register_parametrization(nn.Linear(2, 2), "weight", ToHalf()), "parametrization",
        "register_parametrization", "fh",
    ),
    "recomputed": (lambda: recomputed(), "recomputed", "torch.utils.checkpoint", "bf"),
    "optimizer": (lambda: half_state(), "optimizer", "an optimizer's step", ""),
    "reference": (lambda: torch.ops.prims.add(ones(2), ones(2, dtype=H)), "reference", "a decomposition", "hf"),
    "assert_close": (
        lambda: torch.testing.assert_close(ones(2), ones(2, dtype=H)), "assert_close", "torch.testing.assert_close",
        "fh",
    ),
    "cond": (
        lambda: torch.cond(ones(2).sum() > 0, lambda x: x.half(), lambda x: x + 1, (ones(2),)), "branches", "cond",
        "hf",
    ),
    "fsdp": (lambda: alone(fully_sharded), "fsdp", "FSDP", "fh"),
    "collective": (
        lambda: alone(lambda: distributed.all_gather([ones(2, dtype=H)], ones(2))), "collective", "a collective", "hf",
    ),
    "grouped_mm": (
        lambda: torch._grouped_mm(ones(16, 16, dtype=B), ones(2, 16, 16), offs=torch.tensor([8, 16]).int()),
        "grouped_mm", "grouped_mm", "bf",
    ),
}  # fmt: skip


class ToHalf(nn.Module):
    def forward(self, weight):
        return weight.half()


def recomputed():
    runs, layer = [], nn.Linear(4, 4)

    def run(x):
        runs.append(x)
        with torch.autocast("cpu", enabled=len(runs) == 1):
            return torch.sin(layer(x))

    checkpoint.checkpoint(run, ones(2, 4).requires_grad_(), use_reentrant=False).sum().backward()


def half_state():
    weight = nn.Parameter(ones(2))
    weight.grad = ones(2)
    optimizer = torch.optim.AdamW([weight], fused=True)
    optimizer.step()
    optimizer.state[weight]["exp_avg"] = optimizer.state[weight]["exp_avg"].half()
    optimizer.step()


def alone(call):
    """Call in a process group of one."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        call()
    finally:
        distributed.destroy_process_group()


def fully_sharded():
    from torch.distributed.fsdp import FullyShardedDataParallel

    FullyShardedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half()), device_id=torch.device("cpu"))


# name: the dtypes of what flows, and of what is kept, where the sentence says which is which
DIRECTIONS = {
    "sdpa": "f>h", "linear": "f>h", "dot": "f>h",
    "baddbmm": "f>fh", "index_put": "f>h", "index_copy": "f>h", "index_add": "f>h",
    "masked_scatter": "f>h", "put": "f>h", "conv": "f>h", "lstm": "f>h", "prelu": "h>f", "out": "f>h", "loss": "h>f",
    "gradient": "h>f", "bias of attention": "f>h", "weight in float8": "b>e",
    "float8 written": "f>e", "addmv": "f>d", "vecdot": "f>h", "sampled_addmm": "d>f", "sparse reduce": "d>f",
    "bilinear": "f>h", "set_": "h>f",
    "grouped_mm": "b>f",
}  # fmt: skip
# The first version of torch that raises a member, or what is named, so, where that is a later one than 2.6.
SINCE = {"flex_mixed": (2, 13), "addmv": (2, 12), "grouped_mm": (2, 14), "branches": (2, 7), "classes": (2, 13)}


def is_of_torch(*first):
    return first <= tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.mark.filterwarnings("ignore")  # of what is beta or deprecated
@pytest.mark.parametrize("name", EAGER)
def test_a_real_error_is_explained(name):
    call, member, op, dtypes = EAGER[name]
    if not is_of_torch(*SINCE.get(name, SINCE.get(member, (2, 6)))):
        pytest.skip("torch at hand does not raise it")
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError, AssertionError)) as caught:
        call()
    found = explain(caught.value)
    assert found.member == member
    assert found.op == op or (op is None and found.op in found.candidates)
    assert [operand.dtype for operand in found.operands if operand.dtype] == [NAMES[letter] for letter in dtypes]
    if name in DIRECTIONS:
        letters = {dtype: letter for letter, dtype in NAMES.items()}
        flows, kept = (
            {letters[operand.dtype] for operand in found.operands if operand.dtype and operand.role == role}
            for role in ("activation", "storage")
        )
        assert f"{''.join(sorted(flows))}>{''.join(sorted(kept))}" == DIRECTIONS[name]
    assert found.frame is None or "test_raised.py" in found.frame
    alone = explain(str(caught.value))
    assert (alone.member, alone.operands) == (member, found.operands)


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


@pytest.mark.slow  # Inductor lowers it
def test_mixed_flex_attention_is_explained(compiled):
    from torch.nn.attention.flex_attention import flex_attention

    if not is_of_torch(*SINCE["flex_mixed"]):
        pytest.skip("torch at hand does not raise it")
    with pytest.raises(Exception, match="Mixed query, key, and value dtype") as caught:
        torch.compile(flex_attention)(ones(1, 1, 16, 16), *[ones(1, 1, 16, 16, dtype=H)] * 2)
    found = explain(caught.value)
    assert (found.member, found.op) == ("flex_mixed", "flex_attention")
    assert [operand.dtype for operand in found.operands] == ["float32", "float16", "float16"]


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
