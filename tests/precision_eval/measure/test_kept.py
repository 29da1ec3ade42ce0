"""A case that a process keeps: what a cell does to its copy reaches no other cell."""

import gc
from dataclasses import replace

import pytest
import torch
from made_cells import cell as made_cell
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import case_by_id
from precision_eval.core.cells import passed
from precision_eval.core.workers import LastAnswer
from precision_eval.fixes import apply
from precision_eval.measure import kept
from precision_eval.measure.candidates import bits_checksum
from precision_eval.measure.registry import CASE_BITS, Measure

CELL = made_cell("sums", "full_float32", case="metavoice-decode", size="tiny")
MEASURES = (Measure(name="sums", title="", source="", place="kept_measures:sums"),)


@pytest.fixture
def builds(monkeypatch):
    """Counts how often a case is built in what takes this process for a worker."""
    count = []

    def counted(name):
        case = case_by_id(name)
        return replace(case, make=lambda *args, **how: count.append(name) or case.make(*args, **how))

    monkeypatch.setattr(kept, "_process", None)
    monkeypatch.setattr(kept, "case_by_id", counted)
    yield count
    gc.unfreeze()  # a worker freezes what it has loaded


def sums(cell, change):
    """Return a measure that sums its case up, and then alters it."""

    def measure(cell, run_dir):
        built = kept.built_case(cell, cell.options.seed)
        tensors = (*built.model.parameters(), *built.model.buffers(), *built.inputs)
        found = {"sums": [bits_checksum(tensor) for tensor in tensors], "grown": hasattr(built.model, "grown")}
        change(built)
        return [passed(cell.fixes[0], found)]

    return measure


def change_parameter(built):
    with torch.no_grad():
        next(built.model.parameters()).view(-1)[0] += 1


def store_otherwise(built):
    parameter = next(built.model.parameters())
    parameter.data = parameter.data.double()


def change_rest(built):
    next(built.model.buffers()).zero_()
    built.inputs[0].zero_()
    built.model.grown = True


@pytest.mark.parametrize(
    ("change", "times"), [(lambda built: None, 1), (change_rest, 1), (change_parameter, 2), (store_otherwise, 2)]
)
def test_no_change_of_a_cell_reaches_the_next(builds, monkeypatch, tmp_path, change, times):
    results = []
    for step in (change, lambda built: None):
        monkeypatch.setattr("precision_eval.measure.registry.imported", lambda place, step=step: sums(CELL, step))
        results.append(kept.run_kept_cell(CELL, tmp_path, MEASURES))
    first, second = (result.outcomes[0].data for result in results)
    assert first == second
    assert len(first[CASE_BITS]) == 16
    assert builds == ["metavoice-decode"] * times


def test_references_are_calculated_once(builds):
    kept._process = kept._Process(CELL)
    calls = []
    for _ in range(2):
        kept.built_case(CELL, 0).once("reference", lambda: calls.append(1))
    assert len(calls) == 1
    assert kept.built_case(CELL, 1).kept is None  # of another seed
    assert builds == ["metavoice-decode"] * 2


def test_modes_that_are_left_in_force_end_the_process(builds, monkeypatch, tmp_path):
    device = torch.device("meta")

    def measure(place):
        return sums(CELL, lambda built: device.__enter__())

    monkeypatch.setattr("precision_eval.measure.registry.imported", measure)
    try:
        assert isinstance(kept.run_kept_cell(CELL, tmp_path, MEASURES), LastAnswer)
    finally:
        device.__exit__(None, None, None)


class Shares(nn.Module):
    """A weight that is tied, a buffer that is a view, and a tensor in a list."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("row", torch.arange(3.0).expand(4, 3))
        self.register_buffer("whole", torch.ones(2))
        self.others = [torch.zeros(2)]


def test_a_lent_case_shares_its_parameters_alone():
    one = torch.ones(2, 3)
    case = BuiltCase(Shares(), (one, one))
    keeping = kept.KeptCase(case)
    lent, again = keeping.lend(), keeping.lend()
    assert lent.model.first.weight is case.model.first.weight is lent.model.second.weight
    for name in ("row", "whole"):
        pair = [getattr(each.model, name) for each in (case, lent, again)]
        assert torch.equal(pair[0], pair[1])
        assert pair[0].stride() == pair[1].stride()
        assert len({tensor.data_ptr() for tensor in pair}) == 3
    assert lent.model.others[0].data_ptr() != again.model.others[0].data_ptr()
    assert lent.inputs[0] is lent.inputs[1]
    assert lent.inputs[0] is not again.inputs[0]


def test_tensors_of_a_kind_of_their_own_are_built_for_each_cell(builds, monkeypatch):
    def refuses(tensor):
        raise NotImplementedError("no such view")

    monkeypatch.setattr(kept, "bits_checksum", refuses)
    kept._process = kept._Process(CELL)
    assert kept.built_case(CELL, 0).kept is None
    assert kept.built_case(CELL, 0).kept is None
    assert builds == ["metavoice-decode"] * 2


class Card:
    """What torch.cuda is asked for of a card that is not here, and what it is told."""

    def __init__(self, monkeypatch, reserved=()):
        self.done = []
        levels = iter(reserved)
        answers = {
            "get_rng_state": lambda device: "drawn at first",
            "current_device": lambda: 0,
            "default_stream": lambda device: f"stream of {device}",
            "memory_reserved": lambda device: next(levels),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        acts = ("set_rng_state", "set_device", "set_stream", "empty_cache", "reset_peak_memory_stats", "synchronize")
        for name in acts:
            monkeypatch.setattr(torch.cuda, name, lambda *given, name=name: self.done.append((name, *given)))


def test_a_cards_generator_stream_and_number_are_put_back(monkeypatch):
    card = Card(monkeypatch)
    kept.Settings("cuda:1").restore()
    assert card.done == [
        ("set_rng_state", "drawn at first", "cuda:1"),
        ("set_device", 0),
        ("set_stream", "stream of 0"),
    ]


@pytest.mark.parametrize(("left", "goes_on"), [(1 << 20, True), (1 << 28, False)])
def test_memory_of_a_card_that_is_not_given_back_ends_the_process(monkeypatch, left, goes_on):
    card = Card(monkeypatch, reserved=(1 << 30, (1 << 30) + left))
    process = kept._Process(replace(CELL, device="cuda:0"))
    assert card.done == [("empty_cache",)]
    assert kept._clean_up(process) is goes_on
    assert card.done[-1] == ("empty_cache",)


@pytest.mark.parametrize("mark", [(kept.KernelTimer, "has_run"), (kept.CudaDevice, "has_failed")])
def test_a_profiler_that_stays_attached_and_a_failed_capture_end_the_process(monkeypatch, mark):
    process = kept._Process(CELL)
    assert kept._clean_up(process)
    monkeypatch.setattr(*mark, True)
    assert not kept._clean_up(process)


def test_peaks_are_counted_anew(monkeypatch):
    card = Card(monkeypatch)
    kept._count_peaks_anew("cuda:0")
    assert card.done == [("reset_peak_memory_stats", "cuda:0")]


def test_compiled_calls_are_named_as_in_a_new_process():
    """Their names are in what the compiler raises, and so in records."""
    names = []
    for _ in range(2):
        kept.Settings("cpu").restore()
        names.append(apply._with_new_code(lambda: None, "as_shipped").__code__.co_name)
    assert names == ["as_shipped_0"] * 2


@pytest.mark.parametrize(
    ("error", "status", "goes_on"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), "raised", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."), "passed", True),
    ],
)
def test_figures_from_a_device_that_answers_with_errors_are_none(builds, monkeypatch, tmp_path, error, status, goes_on):
    def probe(device):
        raise error

    monkeypatch.setattr(kept, "probe_device", probe)
    monkeypatch.setattr("precision_eval.measure.registry.imported", lambda place: sums(CELL, lambda built: None))
    answer = kept.run_kept_cell(CELL, tmp_path, MEASURES)
    result = answer if goes_on else answer.value
    assert isinstance(answer, LastAnswer) is not goes_on
    assert result.is_lost is not goes_on
    assert result.outcomes[0].status == status
