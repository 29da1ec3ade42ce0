"""Drift over seeds: one measured for real, and the factor between two versions."""

import json

import pytest

from precision_eval.core.errors import RecordError
from precision_eval.core.files import TrialFile
from validation.versions import seeds
from validation.versions.seeds import EXPERIMENT

CELL = "attention-decode:tiny"


def key_of(version, cell, fix, count):
    from precision_eval.cases.systems import case_by_id
    from precision_eval.history.tracking import metric_by_id, version_of

    definition = version_of(case_by_id(cell.partition(":")[0]), "eager", metric_by_id("drift"))
    return seeds._key(version, cell, fix, count, definition)


def test_a_drift_is_measured_for_real_and_its_seeds_differ(tmp_path):
    line = seeds.measured(CELL, "float16", seeds=3)
    json.dumps(line, allow_nan=False)
    assert line["key"] == key_of(line["torch_version"], CELL, "float16", 3)
    assert len(set(line["drift"].values())) == 3
    assert all(1e-6 < value < 1e-2 for value in line["drift"].values())
    TrialFile(tmp_path / "drift-seeds.jsonl").append(line)
    both = [line | {"torch_version": version, "key": version} for version in ("2.8.0", "2.9.1")]
    (figure,) = EXPERIMENT.figures([one | {"drift": {str(n): 1e-3 * (1 + n) for n in range(8)}} for one in both])
    assert figure.name == "2.8.0 → 2.9.1 attention-decode:tiny float16"
    assert figure.found.startswith("×1.000 [1.000, 1.000] over 8 seeds")
    with pytest.raises(RecordError, match="as_shipped raised"):
        seeds.measured(CELL, "as_shipped", seeds=1)
