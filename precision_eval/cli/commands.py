"""Every command, in the order of ``--help``: importing a module registers its command."""

# ruff: noqa: I001, F401 - the order is the one in which they are shown, and importing is the point
from __future__ import annotations

from precision_eval.cli import init, run, report, choose, doctor, explain, compare, plan, sensitivity, sweep
from precision_eval.cli import gate, versions, expect
from precision_eval.cli import audio
from precision_eval.cli import listing
from precision_eval.cli.application import app, run_application


def main() -> None:
    """Run the command line and exit."""
    run_application(app, "precision-eval")
