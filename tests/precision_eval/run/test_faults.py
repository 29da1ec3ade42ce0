"""Faults injected into a real run: no finished cell is lost, and the same command resumes and ends."""

import platform
from collections import Counter

import pytest

from tests.support.fault_injection import EXIT_CODES, Fault, FaultyRun

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform.system() != "Linux", reason="limits of memory and file size as Linux enforces them"),
]

STAGES = ("trace", "drift", "memory", "latency")
ARGUMENTS = (
    *("--case", "attention-decode", "--size", "tiny", "--device", "cpu", "--measure", ",".join(STAGES)),
    *("--set", "budget=0.05", "--set", "processes=1", "--set", "workers=4"),
)
STATUSES = {
    "kill_worker": ("crashed", "bfloat16"),
    "memory_limit": ("out_of_memory", "float16"),
    "stop_worker": ("timed_out", "autocast"),
}
FIXES = ("full_float32", *(fix for _, fix in STATUSES.values()))
WORKER_FAULTS = [
    Fault(kind=kind, stage=stage, fix=fix, once=False)
    for kind, (_, fix) in STATUSES.items()
    for stage in ("drift", "memory")
]
ENDINGS = [
    Fault(kind="kill_main", stage="trace"),
    Fault(kind="interrupt", stage="drift"),
    Fault(kind="terminate", stage="latency"),
    Fault(kind="kill_main", stage="records"),
    Fault(kind="full_disk", stage="records"),
]
DAMAGES = (b"", b'{"cell":"attention-decode/', b"\x00\xff\xfe\n\x80garbage\n\x00", b'{"cell":"gr\xc3')
REWRITES = """
from precision_eval.core.records import RecordFile
def append(self, records):
    self.path.parent.mkdir(parents=True, exist_ok=True)
    self.path.write_text("".join(record.to_json() + "\\n" for record in records))
RecordFile.append = append
"""


def run_in(folder, fixes, **more):
    return FaultyRun(folder / "play", (*ARGUMENTS, "--fix", ",".join(fixes)), **more)


def test_a_fault_of_a_worker_costs_its_own_cells_and_the_next_run_measures_them(tmp_path):
    run = run_in(tmp_path, FIXES)
    code, output, _ = run.give(*WORKER_FAULTS, more=("--set", "timeout=20"))
    assert code in (0, 3), output
    assert all(map(run.acted, WORKER_FAULTS))
    statuses = {(record["measure"], record["fix"]): record["status"] for record in run.latest().values()}
    for fault in WORKER_FAULTS:
        assert statuses[fault.stage, fault.fix] == STATUSES[fault.kind][0], fault.key
    assert all(statuses[stage, "full_float32"] == "passed" for stage in STAGES)
    assert all(record["reason"] for record in run.latest().values() if record["status"] != "passed")
    code, output, lost = run.give()
    assert (code, lost) == (0, 0), output
    again = {record["fix"]: record["status"] for record in run.latest().values() if record["measure"] == "drift"}
    assert again == dict.fromkeys(FIXES, "passed") | {"float16": "out_of_memory"}  # that one stays


def test_a_run_that_is_ended_anywhere_goes_on_and_loses_nothing(tmp_path):
    run = run_in(tmp_path, ("full_float32", "bfloat16"))
    for number, fault in enumerate(ENDINGS):
        code, output, lost = run.give(fault)
        assert run.acted(fault), fault.key
        assert (code, lost) == (EXIT_CODES[fault.kind], 0), output
        with (run.run_dir / "records.jsonl").open("ab") as file:
            file.write(DAMAGES[number % len(DAMAGES)])
    code, output, lost = run.give()
    assert (code, lost) == (0, 0), output
    assert {record["status"] for record in run.latest().values()} == {"passed"}
    assert len(run.latest()) == 2 * len(STAGES)
    assert (run.run_dir / "report.md").is_file()
    counts = Counter(cell for cell in map(bytes.decode, run.lines()) if "/latency" not in cell)
    assert set(counts.values()) == {1}


def test_a_runner_that_rewrites_the_records_is_caught(tmp_path):
    run = run_in(tmp_path, ("full_float32", "bfloat16"), extra=REWRITES)
    run.give(Fault(kind="kill_main", stage="latency"))
    assert run.give(Fault(kind="kill_main", stage="latency"))[2] + run.give()[2] > 0
