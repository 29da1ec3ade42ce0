"""Sites: the places of a model where numbers are stored, so where precision can be held or dropped; loads no torch.

Conventions: a site is a *layer* and a *role*. Layers are named as the target names them (``"0"``, ``"1.cross"``), and
``"all"`` where something belongs to no layer. Roles:
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from precision_eval.core.errors import PrecisionEvalError

ROLES = (
    "stem",
    "norm",
    "q",
    "k",
    "v",
    "positions",
    "cache",
    "scores",
    "softmax",
    "output",
    "mlp",
    "residual",
    "head",
)
FORMATS = ("float16", "bfloat16")


class SensitivityError(PrecisionEvalError, RuntimeError):
    """A map cannot be made or trusted: an operation of no site, or a reference that computes something else."""


@dataclass(frozen=True, order=True)
class StorageSite:
    """One place."""

    layer: str
    role: str

    @property
    def id(self) -> str:
        """``layer.role``, such as ``"0.q"``."""
        return f"{self.layer}.{self.role}"


@dataclass(frozen=True)
class Rule:
    """Which site an operation belongs to."""

    path: str
    role: str
    layer: str = "all"
    operation: str = ""

    def sites(self, path: str, operation: str) -> tuple[StorageSite, ...] | None:
        """Return the sites of an operation, or None where the rule does not match."""
        found = re.search(rf"(?:{self.path})$", path)
        if found is None or (self.operation and not re.fullmatch(self.operation, operation)):
            return None
        layer = found.expand(self.layer)
        return tuple(StorageSite(layer, role) for role in self.role.split("|"))


def sites_of(rules: Sequence[Rule], path: str, operation: str, tag: str = "") -> tuple[StorageSite, ...]:
    """Find the sites of an operation."""
    for rule in rules:
        found = rule.sites(path, operation)
        if found is not None:
            return (StorageSite(found[0].layer, tag),) if tag else found
    raise SensitivityError(
        f"operation {operation} in the module '{path or '(top)'}' belongs to no site; add a rule for that path"
    )
