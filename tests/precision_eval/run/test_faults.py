"""Faults injected into a real run: no finished cell is lost, and the same command resumes and ends.

A few kinds only; the whole matrix of faults and stages is in ``tests/validation``.
"""

import platform

import pytest

from validation.robustness.harness import is_kept, play
from validation.robustness.injector import Fault
from validation.robustness.scenarios import Scenario, Step

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(platform.system() != "Linux", reason="limits of memory as Linux enforces them"),
]

SMALL = Scenario(
    name="small",
    arguments=(
        *("--case", "attention-decode", "--size", "tiny", "--device", "cpu", "--measure", "drift"),
        *("--workers", "2", "--timeout", "200"),
    ),
    fixes=("full_float32", "bfloat16", "float16"),
    later_fixes=(),
    faults=(
        Fault(kind="kill_worker", stage="drift", fix="bfloat16"),
        Fault(kind="memory_limit", stage="drift", fix="float16", once=False),
    ),
    steps=(Step(workers=True, ending=Fault(kind="kill_main", stage="report")), Step()),
)
REWRITES = """
from precision_eval.core.records import RecordFile
def append(self, records):
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self.path.write_text("".join(record.to_json() + "\\n" for record in records))
RecordFile.append = append
"""


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    return {trial["key"]: trial for trial in play(SMALL, tmp_path_factory.mktemp("sound") / "play")}


@pytest.mark.parametrize("key", SMALL.keys)
def test_a_fault_costs_no_finished_cell(trials, key):
    trial = trials[key]
    assert trial["acted"], f"{key} never happened"
    assert not trial["problems"]
    assert (trial["lost"], trial["remeasured"], trial["ended"]) == (0, 0, True)


def test_what_could_not_be_measured_says_so(trials):
    assert trials["kill_worker/drift"]["seen"] == "crashed"
    assert trials["memory_limit/drift"]["seen"] == "out_of_memory"


@pytest.mark.slow
def test_a_runner_that_rewrites_the_records_is_caught(tmp_path):
    trials = {trial["key"]: trial for trial in play(SMALL, tmp_path / "play", extra_shim=REWRITES)}
    assert trials["kill_main/report"]["lost"] > 0
    assert not is_kept(trials["kill_main/report"])
