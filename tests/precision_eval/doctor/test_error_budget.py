"""What the rounding of a line adds to a drift: held to rounding by hand."""

import pytest
import torch
from torch import nn

from precision_eval.doctor.error_budget import largest_shares
from precision_eval.doctor.examination import examine
from precision_eval.measure.model_calls import relative_error, subject_of


class Offset(nn.Module):
    """What is left of values beside an offset."""

    def __init__(self, places):
        super().__init__()
        self.places = places

    def forward(self, x):
        for _ in range(self.places):
            x = x + 100  # far
            x = x - 100
        return x * 3


@pytest.mark.parametrize("places", [1, 2])
def test_the_share_of_a_line_is_what_its_rounding_alone_does(places):
    torch.manual_seed(0)
    x = torch.randn(64).half()
    share = next(largest_shares(subject_of(Offset(places), (x,))))
    by_hand = x.double()
    for _ in range(places):
        by_hand = (by_hand + 100).half().double() - 100
    assert share.own == pytest.approx(relative_error(3 * by_hand, 3 * x.double()), rel=1e-12)
    assert (share.step.name, share.step.line[0], share.lines) == ("add", __file__, 1)
    others = ((x.double() + 100) - 100).half().double()  # exact: what goes in has so few digits
    others = (3 * others).half().double()
    assert share.others == pytest.approx(relative_error(others, 3 * x.double()), rel=1e-12)
    assert share.own > 50 * share.others


def test_a_model_in_float32_has_no_share_to_tell():
    assert list(largest_shares(subject_of(Offset(1), (torch.randn(8),)))) == []


class Counted(nn.Module):
    def forward(self, x):
        return x + torch.arange(300, 308, dtype=x.dtype)


def test_whole_numbers_are_known_as_such():
    share = next(largest_shares(subject_of(Counted(), (torch.ones(8).bfloat16(),))))
    assert (share.step.name, share.is_of_whole_numbers) == ("arange", True)


class Widening(nn.Module):
    """Casts what is narrower than float32, which a float64 copy does not."""

    def forward(self, x):
        wide = x if x.dtype is torch.float64 else x.float()
        near = (wide + 100).half()
        return near.to(wide.dtype) - 100


def test_steps_are_found_again_where_the_float64_copy_makes_fewer():
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).half()
    share = next(largest_shares(subject_of(Widening(), (x,))))
    by_hand = (x.double() + 100).half().double() - 100
    assert share.own == pytest.approx(relative_error(by_hand, x.double()), rel=1e-12)
    assert share.step.name == "half"


class Shifted(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.dtype = torch.float64 if wide else None

    def forward(self, x):
        return x + 1000.1 - torch.tensor(1000.1, dtype=self.dtype)


def test_what_float32_loses_of_a_model_in_float64_is_told_with_its_line():
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lost = abs(float(torch.tensor(1000.1, dtype=torch.float32).double() - 1000.1)) / float(x.square().mean().sqrt())
    told = examine(Shifted(wide=False), x, fixes=False).largest_share
    assert float(told.split(",")[0]) == pytest.approx(lost, rel=0.05)  # two digits are printed
    assert "times what float32 rounds by; most of it is rounded by tensor at" in told
    assert "in float64 there" in told
    assert examine(Shifted(wide=True), x, fixes=False).largest_share == ""
