"""The tests under other kernels, thread counts, Pythons and torch versions: one run of pytest for each setting.

A setting is variables that make torch, oneDNN, MKL or OpenBLAS take the kernels of another processor, or an environment
made for it with another Python and torch. What the libraries then took is asked of them and recorded: a variable that a
library ignores shows. A line of ``capabilities.jsonl`` is one run; the same command goes on from where it was stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from precision_eval.core.environment import cpu_model
from precision_eval.core.errors import ParameterError
from precision_eval.core.files import TrialFile
from precision_eval.core.table import make_table, to_markdown

ROOT = Path(__file__).resolve().parents[1]
# What calculates by numpy and by torch; an environment of another Python or torch runs every test.
SIGNALS = ("tests/audio_metrics",)
TENSORS = tuple(f"tests/precision_eval/{name}" for name in ("cases", "fixes", "measure", "trace"))
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    # Without a limit for oneDNN, torch packs for AMX by kernels that ATen was told to leave out, and raises.
    "ATen default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "ATen AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "ATen AVX-512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "oneDNN SSE4.1": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "oneDNN AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "oneDNN AVX-512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "MKL SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL debug type": {"MKL_DEBUG_CPU_TYPE": "5"},
    "OpenBLAS Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "OpenBLAS SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "8 threads": {"OMP_NUM_THREADS": "8"},
    "all AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
# Python and torch of an environment.
ENVIRONMENTS = (("3.11", "2.6.0"), ("3.11", "2.11.0"), ("3.12", "2.13.0"), ("3.13", "2.13.0"), ("3.13", "2.15.0"))
_PROBE = """
import json, platform, threadpoolctl, numpy, torch
values = torch.randn(64, 64)
values @ values, torch.nn.functional.conv1d(torch.randn(8, 64, 512), values[:, :, None])
blas = [entry.get("architecture") for entry in threadpoolctl.threadpool_info() if entry["internal_api"] == "openblas"]
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__,
    "ATen": torch.backends.cpu.get_cpu_capability(), "OpenBLAS": blas[0] if blas else None,
}))
"""


def names() -> list[str]:
    """Return the name of every setting, environments last."""
    return [*SETTINGS, *(f"Python {python}, torch {torch}" for python, torch in ENVIRONMENTS)]


def sweep(path: Path, chosen: Sequence[str] = (), *, workers: int = 2, tests: Sequence[str] = ()) -> list[str]:
    """Run what has no line for this commit and processor yet; return the settings in which a test failed."""
    if unknown := sorted(set(chosen) - set(names())):
        raise ParameterError(f"setting '{', '.join(unknown)}' is unknown; known: {'; '.join(names())}")
    file, commit, processor = TrialFile(path), _commit(), cpu_model() or "unnamed processor"
    for name in chosen or names():
        key = "/".join((name, processor, commit))
        if key not in {line["key"] for line in file.read()}:
            line = _run_setting(name, workers, tests)
            file.append({"key": key, "setting": name, "processor": processor, "commit": commit, **line})
            print(
                f"{name}: {line['passed']} passed, {len(line['failures'])} failed, {line['seconds']:.0f} s", flush=True
            )
    latest = {line["setting"]: line for line in file.read() if line["processor"] == processor}
    return [name for name in chosen or names() if latest[name]["failures"]]


def _run_setting(name: str, workers: int, tests: Sequence[str]) -> dict[str, Any]:
    if name in SETTINGS:
        return _run_tests(sys.executable, SETTINGS[name], workers, tests or _tests_of(SETTINGS[name]))
    python, torch = ENVIRONMENTS[names().index(name) - len(SETTINGS)]
    with tempfile.TemporaryDirectory(prefix="precision-eval-") as folder:
        interpreter = _make_environment(Path(folder), python, torch)
        return _run_tests(interpreter, {}, workers, tests)


def _tests_of(variables: Mapping[str, str]) -> tuple[str, ...]:
    if set(variables) == {"OPENBLAS_CORETYPE"}:
        return SIGNALS  # torch has MKL
    of_torch = all(name.startswith(("ATEN", "ONEDNN", "MKL")) for name in variables) and variables
    return TENSORS if of_torch else (*SIGNALS, *TENSORS)


def _make_environment(folder: Path, python: str, torch: str) -> str:
    """Install the package, what its tests need, and a torch; return the interpreter."""
    found = shutil.which(f"python{python}")
    if found is None:
        raise ParameterError(f"no python{python} on the PATH; put it there, or leave this setting out with --set")
    if subprocess.run([found, "-m", "venv", folder], check=False).returncode:
        raise ParameterError(f"{found} makes no environment; put a python{python} that does first on the PATH")
    interpreter = str(folder / "bin" / "python")
    install = [interpreter, str(ROOT / "tools" / "install.py"), "--unconstrained", f"torch=={torch}"]
    subprocess.run([*install, "-e", ".[dev]"], cwd=ROOT, check=True)
    return interpreter


def _run_tests(interpreter: str, variables: Mapping[str, str], workers: int, tests: Sequence[str]) -> dict[str, Any]:
    environment = os.environ | variables
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [interpreter, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:benchmark", "-m", "not slow"]
        command += ["--dist", "loadfile", f"--junitxml={report}", *tests]
        start = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        if not report.exists():
            raise ParameterError(f"pytest wrote no report: {(done.stdout + done.stderr).strip()[-2000:]}")
        counts = read_report(report.read_text(encoding="utf-8"))
    return {
        "variables": dict(variables),
        "tests": list(tests) or ["tests"],
        "took": _probe(interpreter, environment),
        "seconds": round(seconds, 1),
        **counts,
    }


def read_report(text: str) -> dict[str, Any]:
    """Return how many tests of a JUnit report passed and were skipped, and the last line of each that failed."""
    counts: dict[str, Any] = {"passed": 0, "skipped": 0, "failures": {}}
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - pytest wrote it here
        faults = [entry for entry in case if entry.tag in ("failure", "error")]
        if faults:
            message = (faults[0].get("message") or "").strip().splitlines() or [""]
            counts["failures"][f"{case.get('classname')}::{case.get('name')}"] = message[0][:300]
        else:
            counts["skipped" if case.find("skipped") is not None else "passed"] += 1
    return counts


def _probe(interpreter: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Ask the libraries which kernels they take."""
    verbose = {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    done = subprocess.run(
        [interpreter, "-c", _PROBE], env={**environment, **verbose}, capture_output=True, text=True, check=True
    )
    took: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            took |= json.loads(line)
        elif "info,cpu,isa:" in line:
            took["oneDNN"] = line.partition("isa:")[2]
        elif line.startswith("MKL_VERBOSE") and "architecture" in line:
            took["MKL"] = line.partition("architecture ")[2].partition(",")[0].strip()
    return took


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def capabilities_markdown(path: Path, page: Path) -> str:
    """Return the latest run of each setting, and which tests failed."""
    latest = {(line["processor"], line["setting"]): line for line in TrialFile(path).read()}
    place = {name: number for number, name in enumerate(names())}
    rows = []
    for line in sorted(latest.values(), key=lambda line: (line["processor"], place.get(line["setting"], len(place)))):
        setting = " ".join(f"{name}={value}" for name, value in line["variables"].items()) or line["setting"]
        rows.append((setting, f"{line['passed']:,}", _failed(line)))
    processors = ", ".join(sorted({line["processor"] for line in latest.values()}))
    return f"{to_markdown(make_table(('setting', 'passed', 'failed'), rows))}\n\nMeasured on {processors}."


def _failed(line: Mapping[str, Any]) -> str:
    """Return how many tests failed, and their names."""
    failures = [name.rpartition("::")[2] for name in line["failures"]]
    return f"{len(failures)}: {', '.join(failures)}" if failures else "0"
