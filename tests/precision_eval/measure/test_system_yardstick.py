"""What a system's drift is compared with, and what is left out where that is missing."""

import copy

import pytest
import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems.system import System, widened
from precision_eval.fixes import fix_by_id
from precision_eval.measure.system_drift import system_drift


class One(System):
    """One float16 Linear."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight.data = torch.tensor([[1.0, 0.0], [1.0, 2.0]]).half()

    def forward(self, x):
        return self.linear(x)


def drift_of(built, fix_id):
    with fix_by_id(fix_id).applied(copy.deepcopy(built.model)) as call:
        return system_drift(built, call)


def assert_closes(split):
    parts = split.input_cast_mse + split.compute_mse + split.output_rounding_mse + split.cross_mse
    assert parts == pytest.approx(split.total_mse, rel=1e-12)


def test_the_yardstick_is_of_what_the_last_site_returns_where_the_source_widens_that():
    class Widening(One):
        def forward(self, x):
            x = self.linear(x)
            return widened(x), widened(x).softmax(-1)

    found = drift_of(BuiltCase(Widening().eval(), (torch.rand(5, 2),)), "float16")
    assert (found.yardstick_dtype, found.rms_ratio) == ("float16", 1.0)  # the same computation
    assert (found.outputs[0].yardstick_dtype, found.outputs[0].rms_ratio) == ("float16", 1.0)

    class Both(One):
        def forward(self, x):
            x = self.linear(x)
            return x, x.to(torch.bfloat16 if x.dtype is torch.float32 else x.dtype)

    found = drift_of(BuiltCase(Both().eval(), (torch.rand(5, 2),)), "kv_to_query")
    assert (found.yardstick_dtype, found.outputs[0].yardstick_dtype) == ("float32", "bfloat16")
    assert found.outputs[0].relative_error > 1e-4 > found.relative_error


def test_the_yardstick_of_a_source_that_hands_on_float32():
    class Embedding(One):
        def forward(self, x):
            return self.linear(widened(x) * 1.1)

    found = drift_of(BuiltCase(Embedding().eval(), (torch.rand(5, 2).half().float(),)), "query_to_half")
    assert (found.yardstick_dtype, found.rms_ratio, found.doubts) == ("float16", 1.0, ())


def test_the_yardstick_does_not_round_anew():
    """A value that float32 moves onto a tie of float16: only the cell's own rounding goes the other way there."""

    class Tie(One):
        def __init__(self):
            super().__init__()
            self.register_buffer("same", torch.eye(2))

        def forward(self, x):
            return widened(self.linear((widened(x) + 16) - 16)) @ self.same

    # float32: 1 + 3/2048, a tie, to 1 + 2/1024; float64: a little less, to 1 + 1/1024
    x = torch.tensor([[1 + 3 * 2**-11 - 2**-21, 0.0]])
    found = drift_of(BuiltCase(Tie().eval(), (x,)), "query_to_half")
    assert found.yardstick_dtype == "float32"
    assert found.rms_ratio == 2**-10 / 2**-21


def test_a_yardstick_that_raises_is_a_doubt():
    class Picky(One):
        def forward(self, x):
            if x.dtype is self.linear.weight.dtype is torch.float32:
                raise RuntimeError("no float32 kernel")
            return self.linear(x)

    found = drift_of(BuiltCase(Picky().eval(), (torch.rand(3, 2),)), "kv_to_query")
    assert found.doubts == ("no yardstick: plain arithmetic in float32 raises: no float32 kernel",)
    assert (found.rms_ratio, found.yardstick_dtype) == (None, "float32")
    assert_closes(found.split)


def test_a_yardstick_that_overflows_is_a_doubt():
    class Wide(One):
        def forward(self, x):
            return self.linear(x * 1e5 * 1e-5)  # beyond float16 on the way, within it at the Linear

    found = drift_of(BuiltCase(Wide().eval(), (torch.rand(3, 2) + 1,)), "query_to_half")
    assert found.doubts == ("no yardstick: plain arithmetic in float16 is not finite",)
    assert (found.rms_ratio, found.yardstick_dtype) == (None, "float16")
    assert_closes(found.split)


def test_a_split_that_overflows_is_a_doubt():
    """A clamp that only float16 passes through, as T5's, hides a weight beyond float16 from the cell alone."""

    class Clamped(One):
        def __init__(self):
            super().__init__()
            self.linear.weight.data = torch.tensor([[1e5, 0.0], [0.0, 1.0]])

        def forward(self, x):
            x = self.linear(x)
            return x.clamp(max=60000) if x.dtype is torch.float16 else x

    found = drift_of(BuiltCase(Clamped().eval(), (torch.rand(3, 2) + 1,)), "float16")
    assert found.split is None
    assert found.rms_ratio is None
    assert found.relative_error > 0.1
    assert "float64 arithmetic on the operands as cast is not finite, so the noise is not split" in found.doubts
