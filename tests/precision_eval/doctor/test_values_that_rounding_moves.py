"""Faults that no meeting of dtypes shows: what the call itself casts, and what rounding makes of values."""

import pytest
import torch
from torch import nn

from precision_eval.doctor.examination import examine


class Upcast(nn.Module):
    """A pipeline whose decoder the call itself brings to float32, as the second of two calls finds it."""

    def __init__(self, cast, *, follows=False):
        super().__init__()
        self.net, self.decoder, self.cast, self.follows = nn.Linear(8, 8), nn.Linear(8, 8), cast, follows

    def forward(self, x):
        latents = self.net(x)
        self.cast(self.decoder)
        if self.follows:
            latents = latents.to(self.decoder.weight.dtype)
        return self.decoder(latents)


def _set_data(module):
    for parameter in module.parameters():
        parameter.data = parameter.data.float()


@pytest.mark.parametrize("cast", [lambda module: module.to(dtype=torch.float32), nn.Module.float, _set_data])
def test_a_weight_is_in_the_format_that_the_call_itself_casts_it_to(cast):
    x = torch.randn(3, 8).half()
    diagnosis = examine(Upcast(cast).half().eval(), x, latency=False)
    (fault,) = diagnosis.faults
    assert {operand.name: operand.dtype for operand in fault.operands} == {
        "input": "float16", "weight": "float32", "bias": "float32",
    }  # fmt: skip
    by_module = cast is not _set_data
    assert ("which the call casts at" in fault.operands[1].brought_by) is by_module
    assert diagnosis.patch.verified
    assert "self.decoder(latents.to(self.decoder.weight.dtype))" in diagnosis.patch.diff
    assert examine(Upcast(cast, follows=True).half().eval(), x, fixes=False).faults == ()
