"""Options of ``pytest benchmarks/``, which pytest reads above the tests. asv imports this file too: no pytest in it."""

from __future__ import annotations

from typing import Any


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("precision-eval")
    group.addoption("--case", action="append", metavar="GLOB", help="cases to time; default: attention-*")
    group.addoption("--size", metavar="SIZE", help="size of the cases; default: each one's own default sizes")
    modes = ("eager", "compiled", "cuda")
    group.addoption("--mode", default="eager", choices=modes, help="default: %(default)s; cuda: captured, on a GPU")
