"""Torch's operations with mixed dtypes: what is recorded, and what the torch at hand does."""

import pytest
import torch

from precision_eval.core.errors import RecordError
from precision_eval.results.expectations import MODES, release
from precision_eval.results.operations import (
    OUTCOMES,
    PROBES,
    Probe,
    load_outcomes,
    run_probes,
    save_outcomes,
)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled-aot_eager", marks=pytest.mark.slow)])
def test_the_torch_at_hand_does_what_is_recorded(mode):
    recorded = load_outcomes()
    version = release(torch.__version__)
    if version not in recorded:
        pytest.skip(f"nothing is recorded for torch {version}")
    own = {key: outcome for key, outcome in recorded[version].items() if key.endswith(f"/{mode}")}
    assert run_probes((mode,)) == own


def test_every_version_holds_every_probe():
    keys = {f"{probe.id}/{mode}" for probe in PROBES for mode in MODES}
    recorded = load_outcomes()
    assert len(recorded) >= 10
    assert all(set(column) == keys for column in recorded.values())


def test_a_failure_that_is_not_about_dtypes_is_no_outcome():
    probe = Probe(id="x", title="x", source="x", make=lambda: (torch.matmul, (torch.ones(2, 3), torch.ones(2, 3))))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run_probes(("eager",), probes=(probe,))


def test_they_come_back_in_order(tmp_path):
    path = tmp_path / "o.json"
    save_outcomes({"2.10.0": {"b/eager": "raised", "a/eager": "float32"}, "2.9.1": {}}, path)
    assert list(load_outcomes(path)) == ["2.9.1", "2.10.0"]
    assert load_outcomes(path)["2.10.0"] == {"a/eager": "float32", "b/eager": "raised"}
    assert load_outcomes(tmp_path / "none.json") == {}
    save_outcomes(load_outcomes(), path)
    assert path.read_bytes() == OUTCOMES.read_bytes()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": 1}', '{"schema_version": 9, "columns": {}}'])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "o.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=r"o\.json"):
        load_outcomes(path)
