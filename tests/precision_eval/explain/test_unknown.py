"""Texts that are no dtype mismatch are not claimed; real shape and device errors of the torch at hand among them."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precision_eval.explain import explain

MESSAGES = json.loads(Path(__file__).with_name("messages.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", MESSAGES["others"])
def test_other_errors_are_not_claimed(text):
    found = explain(text)
    assert not found.known
    assert (found.member, found.op, found.causes, found.fixes) == (None, None, (), ())
    assert found.reason.startswith("no sentence of the family is in the text")


def test_an_unknown_text_that_names_a_format_gets_the_next_step():
    assert "precision-eval doctor" in explain("frobnication of a torch.float16 tensor is not allowed").reason
    assert explain("the size of tensor a must match").reason == "no sentence of the family is in the text"


@pytest.mark.parametrize("text", MESSAGES["look_alikes"])
def test_a_known_sentence_about_something_else_is_refused_with_its_reason(text):
    """It is a member's, and speaks of devices, shapes or integers."""
    found = explain(text)
    assert not found.known
    assert found.reason.startswith("the sentence is that of '")


SHAPES = [
    lambda: F.linear(torch.ones(2, 3), torch.ones(4, 5)),
    lambda: torch.bmm(torch.ones(1, 2, 3), torch.ones(1, 4, 5)),
    lambda: torch.ones(2, 3) + torch.ones(2, 4),
    lambda: F.scaled_dot_product_attention(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8)),
    lambda: F.conv1d(torch.ones(1, 3, 4), torch.ones(2, 2, 1)),
    lambda: F.layer_norm(torch.ones(2, 4), (3,)),
    lambda: torch.ones(4).index_copy_(0, torch.tensor([0, 1]), torch.ones(3)),
    lambda: torch.ones(2, device="meta") + torch.ones(2),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shape_and_device_errors_of_this_torch_are_not_claimed(number):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        SHAPES[number]()
    assert not explain(caught.value).known
