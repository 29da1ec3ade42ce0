"""The second change: in another format than the first computes in, the author's or a wider one, or elsewhere."""

import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.doctor.examination import examine


def patches_of(model, *inputs):
    torch.manual_seed(0)
    diagnosis = examine(model.eval().requires_grad_(False), *inputs, fixes=False)
    assert all(patch.verified for patch in diagnosis.patches)
    return diagnosis, [patch.diff or patch.code for patch in diagnosis.patches]


class Rotates(nn.Module):
    def __init__(self, *, attends):
        super().__init__()
        self.qv, self.out, self.attends = nn.Linear(8, 16), nn.Linear(8, 8), attends

    def forward(self, x):
        q, v = self.qv(x).chunk(2, -1)
        cos = torch.arange(q.shape[1] * 8, dtype=torch.float32).reshape(q.shape[1], 8).cos()
        q = q * cos
        if not self.attends:
            return q
        return self.out(F.scaled_dot_product_attention(q, q, v))


def test_the_table_is_cast_where_it_is_used_beside_attention_in_float32():
    _, (wide, narrow) = patches_of(Rotates(attends=True).bfloat16(), torch.randn(2, 4, 8).bfloat16())
    assert "F.scaled_dot_product_attention(q, q, v.to(q.dtype))" in wide
    assert "q * cos.to(q.dtype)" in narrow


def test_an_output_that_a_table_widens_comes_back_in_the_models_format():
    diagnosis, changes = patches_of(Rotates(attends=False).bfloat16(), torch.randn(2, 4, 8).bfloat16())
    assert diagnosis.faults == ()
    assert any("q * cos.to(q.dtype)" in change for change in changes)


class EntersTwice(nn.Module):
    """Runs under autocast by one of its two entries."""

    def __init__(self, compute_dtype):
        super().__init__()
        self.embed, self.head, self.compute_dtype = nn.Linear(8, 8), nn.Linear(8, 2), compute_dtype

    def predict(self, x):
        with torch.autocast(x.device.type, dtype=self.compute_dtype):
            return self.head(self.embed(x.to(self.compute_dtype)))

    def forward(self, x):
        return self.embed(x.to(self.compute_dtype)).float()


def test_an_entry_is_put_under_the_autocast_of_the_other_one():
    _, (wide, under) = patches_of(EntersTwice(torch.bfloat16), torch.randn(3, 8))
    assert "model.compute_dtype = torch.float32" in wide
    assert "+        with torch.autocast(x.device.type, dtype=self.compute_dtype): return self.embed(" in under


class Factorizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gram", torch.eye(8))

    def forward(self, x):
        self.gram += x.T @ x
        return torch.linalg.cholesky(self.gram).to(x.dtype)


def test_what_no_kernel_takes_in_half_is_kept_in_float32_beside_a_cast_there_and_back():
    _, (cast, stored) = patches_of(Factorizes().bfloat16(), torch.randn(5, 8).bfloat16())
    assert "model.gram.data = model.gram.data.to(torch.float32)" in stored
    assert "torch.linalg.cholesky(self.gram.float())" in cast


class Dequantizes(nn.Module):
    """Unpacks its weight to one format and computes in another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.arange(64).reshape(8, 8))
        self.scale = nn.Parameter(torch.full((8, 1), 0.02))

    def unpack(self):
        return (self.packed * self.scale.float()).to(self.scale.dtype)

    def forward(self, x):
        wide = x.float()
        return F.linear(wide, self.unpack()).to(x.dtype)


def test_a_cast_where_it_is_used_is_weighed_and_not_one_to_a_half_format_by_name():
    _, (taken_out, cast) = patches_of(Dequantizes().bfloat16(), torch.randn(3, 8).bfloat16())
    assert "-        return (self.packed * self.scale.float()).to(self.scale.dtype)" in taken_out
    assert "+        return F.linear(wide, self.unpack().to(wide.dtype)).to(x.dtype)" in cast
