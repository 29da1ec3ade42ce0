"""Environments and an asv that only write down what they are asked, for tests of the sweep over torch versions."""

import json
import re
from pathlib import Path

from tools.torch_versions import sweep as torch_sweep
from tools.torch_versions.environments import EnvironmentBuildError, Note
from tools.torch_versions.sweep import Request

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ["result", "params", "version", "started_at", "samples"]
BENCHMARKS = {"eager.a.time_call": "1", "eager.a.track_status": "2", "eager.b.track_status": "3"}


def write_results(path, results, build="slim"):
    """Write a result file: benchmark to result, version and, where there are any, samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [result, [], version, 0, *samples] for name, (result, version, *samples) in results.items()}
    variables = {"TORCH_BUILD": build} if build else {}
    path.write_text(json.dumps({"result_columns": COLUMNS, "results": rows, "env_vars": variables, "version": 2}))


def select(pattern, name):
    return re.search(pattern, name) is not None


class FakeMachine:
    """Environments and an asv that only write down what they are asked."""

    def __init__(self, tmp_path, monkeypatch, benchmarks=BENCHMARKS):
        self.benchmarks = benchmarks
        self.ran, self.turns, self.installed, self.refused, self.failing = [], [], [], {}, set()
        self.notes = {}
        self.stop_at = None
        self.built = "slim"
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".asv-machine.json").write_text('{"vm": {}, "version": 1}')
        self.request = Request(
            config=ROOT / "asv.versions.json",
            versions=("2.6.0", "2.8.0", "2.10.0"),
            results=tmp_path / "results",
            environments=tmp_path / "environments",
            torch_build="slim",
        )
        monkeypatch.setattr(torch_sweep, "build_environment", self.build)
        monkeypatch.setattr(torch_sweep, "_asv", self.asv)
        monkeypatch.setattr(torch_sweep, "_commit", lambda root, revision: "c" * 40)
        monkeypatch.setattr(torch_sweep, "build_for_here", lambda asked, installer: "slim")
        monkeypatch.setattr(torch_sweep, "read_note", lambda environment: None)

    def build(self, environment, **options):
        if environment.version in self.refused:
            refusal = self.refused[environment.version]
            raise EnvironmentBuildError(refusal) if isinstance(refusal, str) else refusal
        self.installed.append(environment.version)
        environment.folder.mkdir(parents=True, exist_ok=True)
        return Note(
            version=environment.version,
            python="3.11.7",
            torch_version=f"{environment.version}+cu1",
            numpy="2",
            blas="mkl",
            build=self.built,
            cuda="1",
            stubs=(),
            installed_by="uv",
            bytes=10,
            seconds=1.0,
        )

    def asv(self, sweep, path, pattern, turn=0):
        """Write results down; a latency has a sample per process: one in a round, three without."""
        version = json.loads(path.read_text())["matrix"]["req"]["torch"][0]
        if pattern == torch_sweep.DISCOVER:
            listed = {name: {"version": one} for name, one in self.benchmarks.items()}
            sweep.results.mkdir(parents=True, exist_ok=True)
            (sweep.results / "benchmarks.json").write_text(json.dumps({**listed, "version": 2}))
            return 0, ""
        names = [name for name in self.benchmarks if select(pattern, name)]
        group = names[0].rpartition(".")[0]
        if self.stop_at in ((version, group), (version, turn)):
            self.stop_at = None
            raise KeyboardInterrupt
        self.ran.append((version, group))
        self.turns += [(version, turn, name) for name in names]
        file = sweep.results / sweep.machine / f"{'c' * 8}-torch-py{sweep.python}-torch{version}.json"
        old = json.loads(file.read_text())["results"] if file.exists() else {}
        results = {name: (row[0], *row[2:3], *row[4:]) for name, row in old.items()}
        for name in names:
            failed, earlier = name in self.failing, (old.get(name) or [None] * 5)[4:]
            taken = ([float(turn)] if turn else [9.0] * 3) if "latency" in name and not failed else None
            before = earlier[0][0] if taken and turn > 1 and earlier and earlier[0] and earlier[0][0] else []
            results[name] = ([None if failed else 1.0], self.benchmarks[name], [taken and before + taken])
        write_results(file, results, build=self.built)
        return (2 if self.failing & set(names) else 0), ""
