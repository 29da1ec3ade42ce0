"""Every site, both directions: bit-identical to the cast written by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.fixes import fix_by_id
from precision_eval.fixes.sites import SITES, agreed

UP, DOWN = "kv_to_query", "query_to_half"  # the activation is float32 and storage float16 in what follows
GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(2, 4, 8, generator=GENERATOR)
W = torch.randn(8, 8, generator=GENERATOR).half()
B = torch.randn(8, generator=GENERATOR).half()
W3 = torch.randn(2, 8, 8, generator=GENERATOR).half()
WHERE = torch.tensor([1])


class Call(nn.Module):
    """Wraps a function, so that a fix can be put on it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def written(write):
    cache = torch.zeros(2, 4, 8, dtype=torch.float16)
    write(cache)
    return cache


def put(cache, x):
    cache.index_put_((WHERE,), x[WHERE])


def copy(cache, x):
    cache.index_copy_(1, WHERE, x[:, WHERE])


def assign(cache, x):
    cache[:, WHERE] = x[:, WHERE]


# name: (as shipped, storage → activation by hand, activation → storage by hand)
CASES = {
    "sdpa": (
        lambda x: F.scaled_dot_product_attention(x, W3, W3),
        lambda x: F.scaled_dot_product_attention(x, W3.float(), W3.float()),
        lambda x: F.scaled_dot_product_attention(x.half(), W3, W3),
    ),
    "sdpa, half mask": (
        lambda x: F.scaled_dot_product_attention(x, W3, W3, attn_mask=W3[:, :4]),
        lambda x: F.scaled_dot_product_attention(x, W3.float(), W3.float(), attn_mask=W3[:, :4].float()),
        lambda x: F.scaled_dot_product_attention(x.half(), W3, W3, attn_mask=W3[:, :4]),
    ),
    "linear": (lambda x: F.linear(x, W), lambda x: F.linear(x, W.float()), lambda x: F.linear(x.half(), W)),
    "linear, bias": (
        lambda x: F.linear(x, W, B),
        lambda x: F.linear(x, W.float(), B.float()),
        lambda x: F.linear(x.half(), W, B),
    ),
    "operator": (lambda x: x @ W, lambda x: x @ W.float(), lambda x: x.half() @ W),
    "torch.matmul": (lambda x: torch.matmul(x, W), lambda x: x @ W.float(), lambda x: x.half() @ W),
    "method matmul": (lambda x: x.matmul(W), lambda x: x @ W.float(), lambda x: x.half() @ W),
    "torch.bmm": (lambda x: torch.bmm(x, W3), lambda x: x @ W3.float(), lambda x: torch.bmm(x.half(), W3)),
    "method bmm": (lambda x: x.bmm(W3), lambda x: x @ W3.float(), lambda x: torch.bmm(x.half(), W3)),
    "torch.mm": (lambda x: torch.mm(x[0], W), lambda x: x[0] @ W.float(), lambda x: x[0].half() @ W),
    "method mm": (lambda x: x[0].mm(W), lambda x: x[0] @ W.float(), lambda x: x[0].half() @ W),
    "layer_norm": (
        lambda x: F.layer_norm(x, (8,), B, B),
        lambda x: F.layer_norm(x, (8,), B.float(), B.float()),
        lambda x: F.layer_norm(x.half(), (8,), B, B),
    ),
    "rms_norm": (
        lambda x: F.rms_norm(x, (8,), B),
        lambda x: F.rms_norm(x, (8,), B.float()),
        lambda x: F.rms_norm(x.half(), (8,), B),
    ),
    "group_norm": (
        lambda x: F.group_norm(x, 2, B[:4], B[:4]),
        lambda x: F.group_norm(x, 2, B[:4].float(), B[:4].float()),
        lambda x: F.group_norm(x.half(), 2, B[:4], B[:4]),
    ),
    **{
        name: (
            lambda x, f=f: written(lambda c: f(c, x)),
            lambda x, f=f: written(lambda c: f(c, x.half())),
            lambda x, f=f: written(lambda c: f(c, x.half())),
        )
        for name, f in {"index_put_": put, "index_copy_": copy, "assignment": assign}.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_as_shipped_raises(name):
    if name == "rms_norm":
        pytest.skip("some versions of torch promote in rms_norm instead of raising")
    with fix_by_id("as_shipped").applied(Call(CASES[name][0])) as call, pytest.raises(RuntimeError):
        call(X)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("fix_id", [UP, DOWN])
@pytest.mark.parametrize("name", CASES)
def test_bit_identical_to_the_cast_in_the_source(name, fix_id, mode):
    shipped, up, down = CASES[name]
    expected = (up if fix_id == UP else down)(X)
    applied = fix_by_id(fix_id).applied(Call(shipped), mode="eager" if mode == "eager" else "compiled")
    with applied:
        # traced: what Dynamo traces, run as it is; the compiler itself is tested in test_compiled
        found = applied(X) if mode == "eager" else applied.function(X)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


def test_operands_that_agree_are_handed_on_as_they_are():
    for site in SITES:
        for agreement in ("activation_to_storage", "storage_to_activation"):
            seen = []
            function = agreed(site, agreement, lambda *args, seen=seen, **kwargs: seen.extend(args))
            if site.site == "cache_write":
                args = {"index_put_": (X, (WHERE,), X), "index_copy_": (X, 0, WHERE, X), "__setitem__": (X, WHERE, X)}
                operands = args[site.name]
            elif site.site == "norm":
                operands = (X, (8,), X)
            else:
                operands = (X, X, X) if site.site == "sdpa" else (X, X)
            function(*operands)
            assert [id(o) for o in seen if o is X] == [id(o) for o in operands if o is X]


def test_integers_are_never_cast():
    cache = torch.zeros(4, dtype=torch.int64)
    applied = fix_by_id(UP).applied(Call(lambda x: cache.index_put_((WHERE,), x)))
    with applied as call, pytest.raises(RuntimeError, match="dtypes match"):
        call(torch.ones(1))


def test_a_planted_wrong_direction_is_seen():
    shipped, up, _ = CASES["linear"]
    with fix_by_id(DOWN).applied(Call(shipped)) as call:
        assert call(X).dtype is not up(X).dtype
        assert not torch.equal(call(X).float(), up(X))
