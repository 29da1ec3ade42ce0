"""Torch's operations with mixed dtypes: what is recorded, and what the torch at hand does."""

from __future__ import annotations

import json

import pytest
import torch

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.diagnose.explain.operations import (
    OUTCOMES,
    PROBES,
    Probe,
    load_outcomes,
    main,
    run_probes,
    save_outcomes,
)
from precision_eval.results.expectations import MODES, release


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


def test_what_upstream_says_is_recorded():
    recorded = load_outcomes()
    assert recorded["2.6.0"]["rms-norm/eager"] == "float32"  # nari-labs/dia: fails on 2.6
    assert recorded["2.13.0"]["rms-norm/eager"] == "float16"
    assert recorded["2.6.0"]["rms-norm-autocast/eager"] == "float32"
    assert recorded["2.9.1"]["rms-norm-autocast/eager"] == "bfloat16"
    by_inductor = {version: column["matmul-3d/compiled-inductor"] for version, column in recorded.items()}
    assert by_inductor["2.6.0"] == "float32"  # pytorch #172183: hidden by the compiler
    assert by_inductor["2.13.0"] == "raised"
    assert {column["matmul-3d/eager"] for column in recorded.values()} == {"raised"}


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


def test_an_unknown_mode_is_refused():
    with pytest.raises(ParameterError, match="unknown mode 'fast'"):
        run_probes(("fast",))


def test_the_command_says_what_differs(tmp_path, monkeypatch, capsys):
    version, path = release(torch.__version__), tmp_path / "o.json"
    monkeypatch.setattr("precision_eval.diagnose.explain.operations.run_probes", lambda: {"a/eager": "float32"})
    assert main(["--table", str(path)]) == 2
    assert f"nothing is recorded for torch {version}" in capsys.readouterr().err
    assert main(["--table", str(path), "--record"]) == 0
    assert main(["--table", str(path)]) == 0
    assert "1 of 1 outcomes as recorded" in capsys.readouterr().out
    path.write_text(json.dumps({"schema_version": 1, "columns": {version: {"a/eager": "raised"}}}), encoding="utf-8")
    assert main(["--table", str(path)]) == 1
    assert "a/eager: float32, recorded: raised" in capsys.readouterr().out
