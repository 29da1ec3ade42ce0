"""Small models whose sites are known by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.studies.sensitivity.mapping import Mapped, check_reference
from precision_eval.studies.sensitivity.subjects import MapSubject
from precision_eval.studies.sensitivity.targets import Target
from precision_eval.trace.sites import Rule
from precision_eval.trace.tape import record


class Attends(nn.Module):
    """One pre-norm attention layer with a cache that the call writes into, and a head."""

    def __init__(self, width=16, heads=2, slots=8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, width)
        shape = (3, heads, slots, width // heads)
        self.register_buffer("key_cache", torch.zeros(shape))
        self.register_buffer("value_cache", torch.zeros(shape))

    def forward(self, x):
        B, T, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.key_cache[:, :, :T] = k
        self.value_cache[:, :, :T] = v
        y = F.scaled_dot_product_attention(q, self.key_cache[:, :, :T], self.value_cache[:, :, :T], is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).reshape(B, T, width)))


ATTENDS_RULES = (
    Rule(r"(?:key|value)_cache", "cache", "0"),
    Rule("norm", "norm", "0"),
    Rule("qkv", "q|k|v", "0"),
    Rule("out", "output", "0"),
    Rule("head", "head"),
    Rule("", "residual", "0", "add"),
    Rule(".*", "stem"),
)


class Branches(nn.Module):
    """Wᵢ x · scaleᵢ side by side: a branch's error is its scale times an error like every other's, and nothing adds."""

    def __init__(self, scales, width=32):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in scales)
        for branch, scale in zip(self.branches, scales, strict=True):
            branch.weight.data *= scale

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], dim=-1)


BRANCHES_RULES = (Rule(r"branches\.(\d+)", "mlp", r"\1"), Rule(".*", "stem"))


def _subject_of(model, x, rules):
    return MapSubject(model.eval().requires_grad_(False), (x,), rules, len(x), lambda found: found)


@pytest.fixture
def branches_target():
    """Return a function: scales → target."""
    return _branches_target


def _branches_target(scales):
    def make(shape, *, rules, seed):
        torch.manual_seed(seed)
        return _subject_of(Branches(scales), torch.randn(6, 4, 32), rules)

    return Target(id="own", shapes={"tiny": {}}, rules=BRANCHES_RULES, make=make)


@pytest.fixture
def subject_of():
    return _subject_of


@pytest.fixture
def mapped():
    return _mapped


def _mapped(subject, format="bfloat16", name="own"):
    tape = record(subject.model, subject.inputs, format=format, rules=subject.rules)
    reference = subject.reference()
    check_reference(tape, subject, reference)
    return Mapped(name, "tiny", 0, "digest", subject, tape, reference)


@pytest.fixture
def attends():
    torch.manual_seed(3)
    return _subject_of(Attends(), torch.randn(3, 6, 16), ATTENDS_RULES)
