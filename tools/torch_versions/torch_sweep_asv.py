"""What ``torch-sweep`` knows of asv itself: its file of machines, and the end of what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from precision_eval.core.errors import RecordError
from tools.torch_versions.sweep_plan import known_machines


def machine_file() -> Path:
    """Return asv's file of machines."""
    return Path.home() / ".asv-machine.json"


def know_machine(name: str, environ: dict[str, str], configuration: Path) -> None:
    """Let asv note this machine down, with what it finds, unless it did before; it would ask at the terminal."""
    path = machine_file()
    if name in known_machines(path):
        return
    words = [sys.executable, "-m", "asv", "machine", "--config", str(configuration), "--yes", "--machine", name]
    done = subprocess.run(words, env=environ, cwd=configuration.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RecordError(f"asv cannot note this machine down: {last_words(done.stdout + done.stderr)}; see {path}")


def last_words(output: str) -> str:
    """Return the end of what asv printed, in one line."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|fail", line, re.IGNORECASE)]
    return "; ".join((errors or lines)[-2:])[:400] or "it ended without a word"
