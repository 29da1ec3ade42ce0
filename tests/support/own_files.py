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
        return bool((x > 0).all())


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

SPEAKER = """
import math

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from precision_eval import OwnCase

CODES, WIDTH, SLOTS, RATE_HZ, HOP = 48, 32, 40, 16000, 320


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(CODES, WIDTH), nn.Linear(WIDTH, CODES)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("cache", torch.zeros(2, 1, 4, SLOTS, WIDTH // 4).half())

    def forward(self, tokens, at):
        q, k, v = self.qkv(self.embed(tokens)).reshape(-1, 1, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        self.cache[0, :, :, at : at + 1], self.cache[1, :, :, at : at + 1] = k, v
        mask = (torch.arange(SLOTS) <= at)[None]
        attended = scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask)
        return self.head(attended.transpose(1, 2).reshape(-1, WIDTH)) * 4


def state(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CODES, (1,), generator=generator), 0


def decode_step(model, tokens, at):
    return model(tokens, at), at + 1


def synthesize(model, script, seed):
    tokens, kept = state(model, seed)
    waves = []
    for _ in range(len(script)):
        logits, kept = decode_step(model, tokens, kept)
        tokens = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        waves.append(torch.sin(torch.arange(HOP) * (tokens + 4) * math.pi * 100 / RATE_HZ) * 0.3)
    return torch.cat(waves), RATE_HZ


def factory():
    torch.manual_seed(0)
    model = Speaker().eval()
    return OwnCase(
        model=model,
        inputs=(torch.tensor([3]), 0),
        decode_step=decode_step,
        state=state,
        synthesize=synthesize,
        script="x" * 36,
        tolerances={"max_drift": 1e-5},
    )
"""
