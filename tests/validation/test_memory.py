import json

import pytest
import torch

from precision_eval.core.files import TrialFile
from validation import frame, memory
from validation.frame import Options
from validation.memory import EXPERIMENT, measured_peak, rivals
from validation.memory.calls import FAMILIES, all_keys, build, family_of, flash_ledger, peak_of, with_more

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
SMALL = [
    key for key in all_keys() if not {4194304, "metavoice", "dia"} & {*json.loads(key)} and "[1024]" not in str(key)
]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_ledgers_by_hand():
    assert peak_of(()) == 0
    assert peak_of((5, -5, 3)) == 5
    assert build('["sum-of-three", "float32", 1000]').predicted_bytes == 8000  # two sums at once
    assert build('["views", "float32", 1000]').predicted_bytes == 0
    # output 2·4·1·8 floats, logsumexp 8, and one tile: 1 × 16 scores, a maximum, a sum, 8 results
    assert flash_ledger((2, 4, 1, 8), 16, 4, mask_numel=0, threads=1)[:3] == (256, 32, 4 * (16 + 2 + 8))


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if not family.kernel])
def test_elementary_calls_to_the_byte(family):
    for key in [key for key in SMALL if family_of(key) == family][:4]:
        known = build(key)
        assert measured_peak(known) == known.predicted_bytes, key


@pytest.mark.skipif(TORCH != (2, 13), reason="what kernels take for themselves was read from torch 2.13")
@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.kernel])
def test_kernels_to_the_byte(family):
    for key in [key for key in SMALL if family_of(key) == family][:6]:
        known = build(key)
        assert measured_peak(known) == known.predicted_bytes, key


def test_a_planted_regression_is_seen_to_the_byte_and_a_wrong_ledger_is_caught():
    known = build('["sum-of-three", "float32", 1000]')
    more = with_more(known, fraction=memory.MORE)
    assert more.predicted_bytes - known.predicted_bytes == 400
    assert measured_peak(more) - measured_peak(known) == 400
    assert measured_peak(known) != peak_of((*known.ledger, 4004))


def test_rivals_run_their_own_code():
    pytest.importorskip("asv_runner")
    key = '["single", "float32", 4194304]'
    read = {rival: rivals.rival_bytes(rival, key) for rival in rivals.RIVALS}
    assert read["torch.profiler table"] == 1 << 24
    assert isinstance(read["asv peakmem"], int)


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A run of three calls, the rivals in this very process."""
    keys = ('["single", "float32", 1000]', '["views", "float32", 1000]', '["sum-of-three", "float64", 1000]')
    monkeypatch.setattr(memory, "all_keys", lambda: keys)
    monkeypatch.setattr(memory, "ANY_PROCESS", tuple(rivals.RIVALS))
    frame.run(EXPERIMENT, Options(out=tmp_path, size="full"), progress=lambda *step: None)
    return TrialFile(tmp_path / "memory.jsonl").read()


def test_figures_from_trials_alone(lines):
    exact, repeats, regression = EXPERIMENT.figures([*lines, {"key": "of an earlier kind", "ours": [0]}])
    assert exact.met
    assert exact.found.startswith("exact in 3 of 3 (3 elementary")
    assert set(exact.rivals) == set(rivals.RIVALS)
    assert repeats.met
    assert regression.met
    assert regression.found == "2 of 2, 2 of them to the byte"  # of a view there are no 5 %


def test_a_byte_off_is_not_met(lines):
    one = lines[0]
    wrong = {**one, "ours": [one["predicted"] + 1] * 2, "more": [one["more"][0], one["predicted"]]}
    exact, _, regression = EXPERIMENT.figures([wrong, *lines[1:]])
    assert not exact.met
    assert "largest difference 1 B" in exact.found
    assert not regression.met
