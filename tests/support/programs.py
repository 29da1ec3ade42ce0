"""This Python as another program."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_python(*words, cwd=ROOT, **variables):
    """Run it with this checkout on its path, and without what pytest and xdist have set; return what ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=500)


def printed_by(*words, **how):
    """Run it; return what it printed where it ends with 0."""
    done = run_python(*words, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
