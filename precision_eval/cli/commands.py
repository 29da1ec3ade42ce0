"""Every command: importing a module registers its commands, in the order of ``--help``."""

# ruff: noqa: I001 - the order is the one in which they are shown
from __future__ import annotations

from precision_eval.cli import app as measuring
from precision_eval.cli import app_choose as choosing
from precision_eval.cli import app_tools as questions
from precision_eval.cli import sweep
from precision_eval.cli import doctor
from precision_eval.cli import sensitivity
from precision_eval.cli import app_gate as gating
from precision_eval.cli import versions
from precision_eval.cli.application import app

__all__ = ["app", "choosing", "doctor", "gating", "measuring", "questions", "sensitivity", "sweep", "versions"]
