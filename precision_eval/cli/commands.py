"""Every command: importing a module registers its commands, in the order of ``--help``."""

# ruff: noqa: I001 - the order is the one in which they are shown
from __future__ import annotations

from . import (
    app as measuring,
    app_choose as choosing,
    app_tools as tools,
    app_doctor as doctoring,
    app_sensitivity as sensitivities,
    app_gate as gating,
    app_versions as versions,
    app_torch_sweep as torch_sweep,
    app_asv_page as asv_page,
)
from .application import app

__all__ = [
    "app",
    "asv_page",
    "choosing",
    "doctoring",
    "gating",
    "measuring",
    "sensitivities",
    "tools",
    "torch_sweep",
    "versions",
]
