"""Runs of machines whose figures are set by hand."""

import made_groups as made
import pytest

from precision_eval.core.environment import store_environment
from precision_eval.core.records import RecordFile

STEADY = (0.999, 1.001, 0.9995, 1.0005)
LAPTOP = {"full_float32": 1.0, "kv_to_query": 0.8, "float16": 0.5}
SERVER = {"full_float32": 1.0, "kv_to_query": 0.9, "float16": 3.0}


def machine(folder, ratios, *, cpu="AMD EPYC", torch="2.13.0", cores=2, memory="grown"):
    """A run of one machine: ratios of four processes, and a drift per fix."""
    sha = store_environment(
        {
            "cpu": {"model": cpu, "usable_cores": cores},
            "torch": {"version": torch, "cpu_capability": "AVX2"},
            "device": {"name": "cpu"},
            "package": {"git_commit": "c0ffee"},
        },
        folder,
    )
    records = []
    for fix, ratio in ratios.items():
        each = [ratio * process for process in STEADY]
        drift = {"relative_error": 1e-3 if fix == "float16" else 1e-6}
        timed = made.latency(each, memory=memory)
        records += [
            made.record(fix, "latency", timed, environment=sha),
            made.record(fix, "drift", drift, environment=sha),
        ]
    RecordFile(folder / "records.jsonl").append(records)
    return folder


@pytest.fixture
def machines(tmp_path):
    """Two, between which the order of float16 and float32 turns over."""
    return machine(tmp_path / "a", LAPTOP), machine(tmp_path / "b", SERVER, cpu="Intel Xeon")
