"""Faults injected into real runs, at every stage: no finished cell is lost, the run resumes with its command and ends.

The matrix is played once, both scenarios side by side; each fault at each stage is then a test of its own. That the
judging can fail is shown on runs whose runner has a planted fault.
"""

import platform
from concurrent.futures import ThreadPoolExecutor

import pytest

from validation.robustness.harness import is_kept, play
from validation.robustness.injector import WORKER_STAGES, Fault
from validation.robustness.scenarios import Scenario, Step, scenarios

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform.system() != "Linux", reason="limits of memory and file size as Linux enforces them"),
]

PLAYED = scenarios("quick")
KEYS = [key for scenario in PLAYED for key in dict.fromkeys(scenario.keys)]

SMALL = Scenario(
    name="small",
    arguments=(
        *("--case", "attention-decode", "--size", "tiny", "--device", "cpu", "--measure", "trace,drift"),
        *("--workers", "1", "--timeout", "200"),
    ),
    fixes=("full_float32", "bfloat16"),
    later_fixes=(),
    faults=(),
    steps=(Step(ending=Fault(kind="kill_main", stage="drift")), Step()),
)
HALF_A_FILE = Scenario(
    name="half",
    arguments=(
        *("--case", "voice", "--device", "cpu", "--measure", "streams", "--streams", "1", "--steps", "2"),
        *("--workers", "3", "--timeout", "200"),
    ),
    fixes=("full_float32",),
    later_fixes=(),
    faults=(Fault(kind="half_written", stage="streams", fix="reference"),),
    steps=(Step(workers=True),),
)
REWRITES = """
from precision_eval.core.records import RecordFile
def append(self, records):
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self.path.write_text("".join(record.to_json() + "\\n" for record in records))
RecordFile.append = append
"""
FORGETS = """
from precision_eval.run import runner
runner._Run.take_over = lambda self, known, timeout_s: None
"""
IN_PLACE = """
from contextlib import contextmanager
from precision_eval.core import files
@contextmanager
def written_whole(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
files.written_whole = written_whole
"""
PLANTED = {"rewrites": (SMALL, REWRITES), "forgets": (SMALL, FORGETS), "in place": (HALF_A_FILE, IN_PLACE)}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    """Every trial by its key."""
    folders = [tmp_path_factory.mktemp(scenario.name) / "play" for scenario in PLAYED]
    with ThreadPoolExecutor(len(PLAYED)) as pool:
        played = list(pool.map(play, PLAYED, folders))
    return {trial["key"]: trial for trials in played for trial in trials}


@pytest.mark.parametrize("key", KEYS)
def test_a_fault_costs_no_finished_cell(matrix, key):
    trial = matrix[key]
    assert trial["acted"], f"{key} never happened"
    assert trial["problems"] == []
    assert (trial["lost"], trial["remeasured"]) == (0, 0)
    assert trial["ended"]


@pytest.mark.parametrize(
    ("kind", "status"), [("kill_worker", "crashed"), ("memory_limit", "out_of_memory"), ("stop_worker", "timed_out")]
)
def test_what_could_not_be_measured_says_so(matrix, kind, status):
    seen = {stage: matrix[f"{kind}/{stage}"]["seen"] for stage in WORKER_STAGES if stage != "latency"}
    assert seen == dict.fromkeys(seen, status)


def test_every_stage_met_every_fault_of_a_worker():
    for kind in ("kill_worker", "memory_limit", "stop_worker", "full_disk"):
        assert {key for key in KEYS if key.startswith(kind)} >= {f"{kind}/{stage}" for stage in WORKER_STAGES}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """The trials of each planted runner."""
    folders = {name: tmp_path_factory.mktemp("planted") / "play" for name in PLANTED}

    def played(name):
        scenario, source = PLANTED[name]
        return play(scenario, folders[name], extra_shim=source)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(PLANTED, pool.map(played, PLANTED), strict=True))


def test_a_runner_with_a_planted_fault_is_caught(planted):
    trials = {name: trial for name, (trial,) in planted.items()}
    assert not any(map(is_kept, trials.values()))
    assert trials["rewrites"]["acted"]
    assert trials["rewrites"]["lost"] > 0
    forgets = trials["forgets"]
    assert (forgets["acted"], forgets["lost"], forgets["ended"]) == (True, 0, True)
    assert forgets["remeasured"] > 0
    assert any("reference.npy is not whole" in problem for problem in trials["in place"]["problems"])
