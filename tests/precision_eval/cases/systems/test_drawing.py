"""Where a case's numbers are drawn: the CPU, and at full size a CUDA device itself. No GPU has run this."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from precision_eval.cases.systems import CASES, case_by_id, system


@pytest.mark.parametrize(("size", "device", "place"), [("full", "cuda:1", "cuda:1"), ("cpu", "cuda:1", "cpu")])
def test_only_the_full_size_is_drawn_on_the_card(size, device, place):
    assert system.place_of_draws(size, device) == torch.device(place)


def test_the_host_draws_for_itself_and_for_devices_without_a_generator_of_their_own():
    assert {system.place_of_draws("full", device) for device in ("cpu", "mps")} == {torch.device("cpu")}


class Draws(TorchFunctionMode):
    """Notes where what is drawn lies."""

    def __init__(self):
        super().__init__()
        self.places = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.randn, torch.randint):
            self.places.append(result.device.type)
        return result


class HostGenerators:
    """Torch, but for its generators, of which ``meta`` has none."""

    def __getattr__(self, name):
        return (lambda place: torch.Generator()) if name == "Generator" else getattr(torch, name)


@pytest.mark.parametrize("place", ["meta", "cpu"])
@pytest.mark.parametrize("name", [case.id for case in CASES if case.full_parameters])
def test_every_number_is_drawn_at_that_place(monkeypatch, name, place):
    """``meta`` stands for a card: a tensor that is made elsewhere does not meet those that lie there."""
    monkeypatch.setattr(system, "place_of_draws", lambda size, device: torch.device(place))
    monkeypatch.setattr(system, "torch", HostGenerators())
    with Draws() as draws:
        built = case_by_id(name).build("tiny", device="meta", seed=0)
    assert set(draws.places) == {place}
    assert {tensor.device.type for tensor in (*built.model.parameters(), *built.inputs)} == {"meta"}
