"""``asv continuous`` on a gate trial's repository: the same ten cells as asv times them, base and head in turn.

asv makes an environment that holds nothing but the trial's case, and takes torch from the one that runs the trial. Its
settings are its own defaults, so two rounds of some ten samples each; both commits' samples are then compared once more
at smaller factors, as ``asv compare`` does.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import time
from pathlib import Path

from precision_eval.core.errors import PrecisionEvalError
from validation.frame import Data, python_m

FACTORS = (1.1, 1.05, 1.02, 1.01)
"""1.1 is asv's default."""

_LIMIT_S = 900.0
_ROW = re.compile(r"^\|\s*[+!]\s*\|.*time_call\('(\w+)', '(\w+)'\)")

_BENCHMARK = '''"""The cells of the trial."""

import sys

sys.path.append({packages!r})
import torch


class Latency:
    params = {params!r}

    def setup(self, name, fix):
        import case

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model, self.inputs = getattr(case, name)()
        getattr(case, fix)(self.model)

    def time_call(self, name, fix):
        with torch.no_grad():
            self.model(*self.inputs)
'''

_INSTALL = """import shutil, sys, sysconfig

for name in ("case.py", "planted.py"):
    shutil.copy(f"{sys.argv[1]}/{name}", sysconfig.get_path("purelib"))
"""


def asv_answers(repository: Path, folder: Path, cases: tuple[str, ...], fixes: tuple[str, ...]) -> Data:
    """Run ``asv continuous HEAD~1 HEAD``; returns its seconds, and by factor the cells that it calls worse."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").touch()
    text = _BENCHMARK.format(packages=sysconfig.get_path("purelib"), params=[list(cases), list(fixes)])
    (folder / "benchmarks" / "latency.py").write_text(text, encoding="utf-8")
    (folder / "install.py").write_text(_INSTALL, encoding="utf-8")
    settings = {
        "version": 1,
        "project": "trial",
        "repo": str(repository),
        "branches": ["HEAD"],
        "environment_type": "virtualenv",
        "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
        "build_command": [],
        "install_command": [f"python {folder / 'install.py'} {{build_dir}}"],
        "uninstall_command": [],
        "benchmark_dir": str(folder / "benchmarks"),
        **{f"{name}_dir": str(folder / name) for name in ("env", "results", "html")},
    }
    (folder / "asv.conf.json").write_text(json.dumps(settings), encoding="utf-8")
    _asv(folder, "machine", "--yes")
    began = time.monotonic()
    _asv(folder, "continuous", "HEAD~1", "HEAD")
    seconds = time.monotonic() - began
    worse = {}
    for factor in FACTORS:
        rows = map(_ROW.match, _asv(folder, "compare", "HEAD~1", "HEAD", "--factor", str(factor)).splitlines())
        worse[f"{factor:g}"] = [list(row.groups()) for row in rows if row]
    return {"seconds": seconds, "worse": worse}


def _asv(folder: Path, *words: str) -> str:
    """Run asv with a home of its own; it answers 1 where something became worse."""
    done = python_m("asv", *words, cwd=folder, codes=(0, 1), limit_s=_LIMIT_S, HOME=str(folder))
    if "Traceback" in done.stderr:
        raise PrecisionEvalError(f"asv {words[0]} failed: {done.stderr.strip()[-400:]}")
    return done.stdout
