"""Every site, both directions: bit-identical to the cast written by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.fixes import fix_by_id
from precision_eval.fixes.sites import SITES, site_wrapper

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


# name: the call on an activation and on storage, which `to` casts
CASES = {
    "sdpa": lambda x, to: F.scaled_dot_product_attention(x, to(W3), to(W3)),
    "sdpa, half mask": lambda x, to: F.scaled_dot_product_attention(x, to(W3), to(W3), attn_mask=to(W3[:, :4])),
    "linear": lambda x, to: F.linear(x, to(W)),
    "linear, bias": lambda x, to: F.linear(x, to(W), to(B)),
    "operator": lambda x, to: x @ to(W),
    "torch.matmul": lambda x, to: torch.matmul(x, to(W)),
    "method matmul": lambda x, to: x.matmul(to(W)),
    "torch.bmm": lambda x, to: torch.bmm(x, to(W3)),
    "method bmm": lambda x, to: x.bmm(to(W3)),
    "torch.mm": lambda x, to: torch.mm(x[0], to(W)),
    "method mm": lambda x, to: x[0].mm(to(W)),
    "layer_norm": lambda x, to: F.layer_norm(x, (8,), to(B), to(B)),
    "rms_norm": lambda x, to: F.rms_norm(x, (8,), to(B)),
    "group_norm": lambda x, to: F.group_norm(x, 2, to(B[:4]), to(B[:4])),
    "index_put_": lambda x, _: written(lambda cache: put(cache, x)),
    "index_copy_": lambda x, _: written(lambda cache: copy(cache, x)),
    "assignment": lambda x, _: written(lambda cache: assign(cache, x)),
}
WRITES = ("index_put_", "index_copy_", "assignment")


def shipped(name):
    return Call(lambda x: CASES[name](x, lambda stored: stored))


def by_hand(name, fix_id):
    """The call with the cast in the source: of storage to the activation's dtype, or the other way; a write casts."""
    if fix_id == UP and name not in WRITES:
        return CASES[name](X, torch.Tensor.float)
    return CASES[name](X.half(), lambda stored: stored)


@pytest.mark.parametrize("name", [name for name in CASES if name != "rms_norm"])  # where some torches promote
def test_as_shipped_raises(name):
    with (
        fix_by_id("as_shipped").applied(shipped(name)) as call,
        pytest.raises(RuntimeError, match=r"dtype|scalar type"),
    ):
        call(X)


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("fix_id", [UP, DOWN])
@pytest.mark.parametrize("name", CASES)
def test_bit_identical_to_the_cast_in_the_source(name, fix_id, mode):
    expected = by_hand(name, fix_id)
    applied = fix_by_id(fix_id).applied(shipped(name), mode="eager" if mode == "eager" else "compiled")
    with applied:
        # traced: what Dynamo traces, run as it is; the compiler itself is tested in test_compiled
        found = applied(X) if mode == "eager" else applied.function(X)
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


def test_operands_that_agree_are_handed_on_as_they_are():
    for site in SITES:
        for agreement in ("activation_to_storage", "storage_to_activation"):
            seen = []
            function = site_wrapper(site, agreement, lambda *args, seen=seen, **kwargs: seen.extend(args))
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
    with fix_by_id(DOWN).applied(shipped("linear")) as call:
        assert call(X).dtype is not by_hand("linear", UP).dtype
        assert not torch.equal(call(X).float(), by_hand("linear", UP))
