"""A user's own files, as text: a small attention with a half cache, fixes for it, and every slip in writing them."""

CASE = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Attention(nn.Module):
    def __init__(self, width=64, heads=4, slots=32):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, heads, slots, width // heads, dtype=torch.float16))
        self.register_buffer("values", torch.zeros_like(self.keys))

    def forward(self, x, *, scale=1.0):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x * scale).chunk(3, -1))
        self.keys[:, :, : x.shape[1]] = k
        self.values[:, :, : x.shape[1]] = v
        return self.out(scaled_dot_product_attention(q, self.keys, self.values).transpose(1, 2).flatten(2))


def factory():
    return Attention().eval(), (torch.randn(1, 8, 64),)


def named():
    return Attention().eval(), {"x": torch.randn(1, 8, 64), "scale": 0.5}


def passes():
    model, inputs = factory()
    wide_cache(model)
    return model, inputs


def wide_cache(model):
    model.keys, model.values = model.keys.float(), model.values.float()
"""

SLIPS = """
import contextlib

import torch
from torch import nn
from precision_eval import Fix

x = torch.ones(1, 4)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        return self.inner(x)

    def generate(self, x):
        return self.inner(x) + 1


class Draws(Layer):
    def forward(self, x):
        return self.inner(x) + torch.randn(())


class Keeps(Layer):
    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


class Counts(Layer):
    def forward(self, x):
        return (x > 0).sum()


def draws(): return Draws().eval(), (x,)
def keeps(): return Keeps().eval(), (x,)
def counts(): return Counts().eval(), (x,)
def training(): return Layer(), (x,)
def unseeded():
    generator = torch.Generator()
    generator.seed()
    return Layer().eval(), (torch.randn(1, 4, generator=generator),)
def no_model(): return (lambda x: x), (x,)
def no_inputs(): return Layer().eval()
def three(): return 1, 2, 3
def ends(): raise SystemExit(3)
def raises(): return {}["missing"]
def needs(width): return Layer().eval(), (x,)
def other_names(): return Layer().eval(), {"hidden": x}
def method(): return Layer().eval().generate, (x,)
def plain(): return Layer().eval(), (x,)

def breaks(model): model.inner = nn.Linear(3, 3)
def returns_a_number(model): return 3
def nothing(model): pass
def fails(model): model.missing.weight
def doubled(model): return model.double()
@contextlib.contextmanager
def held(model): yield
HALF = Fix(id="half", storage="float16")
NUMBER = 3
"""
