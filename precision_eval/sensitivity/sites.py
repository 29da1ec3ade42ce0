"""Sites: the places of a model where numbers are stored, so where precision can be held or dropped; loads no torch.

Conventions: a site is a *layer* and a *role*. Layers are named as the target names them (``"0"``, ``"1.cross"``), and
``"all"`` where something belongs to no layer. Roles:

=========  ====================================================================================================
role       what is stored there
=========  ====================================================================================================
q, k, v    the projection's weight, and its result
positions  rotated queries and keys, cosines and sines, inverse frequencies, a relative position bias
cache      keys and values in the cache: those that a call finds there, and those that it writes
scores     q·kᵀ, q·kᵀ·scale, and that plus a floating mask or bias
softmax    the probabilities
output     probabilities · v, and the output projection's weight and result
norm       gain and result of a norm; its mean square too where the source does not widen it by itself
mlp        weights and every intermediate result of the feed-forward
residual   the stream after each addition
stem       embeddings and what is made of the inputs before the first layer
head       the projection to logits
=========  ====================================================================================================

A :class:`Rule` maps the path of a module, and where that is not enough the operation, to a site. The first rule that
matches counts. Attention itself is written out and tagged, so its rule gives only the layer. The path of a rule of
role ``cache`` is held to the names of buffers.

Contents: :data:`ROLES`, :class:`Site`, :class:`Rule`, :func:`sites_of`, :class:`SensitivityError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_eval.errors import PrecisionEvalError, unknown_name

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
    """A map cannot be made or trusted: an operation of no site, or an oracle that computes something else."""


@dataclass(frozen=True, order=True)
class Site:
    """One place.

    Attributes
    ----------
    layer : str
    role : str
        One of :data:`ROLES`.
    """

    layer: str
    role: str

    @property
    def id(self) -> str:
        """``layer.role``, such as ``"0.q"``."""
        return f"{self.layer}.{self.role}"


@dataclass(frozen=True)
class Rule:
    """Which site an operation belongs to.

    Attributes
    ----------
    path : str
        Regular expression that is to match the end of the module's path.
    role : str
        One of :data:`ROLES`; several, joined by ``"|"``, share the last dimension of the result and the first of the
        weight in equal parts, as in a projection to q, k and v at once.
    layer : str
        May refer to the expression's groups; ``"all"`` by default.
    operation : str
        Regular expression of the operation's name, such as ``"add"``; any by default.
    """

    path: str
    role: str
    layer: str = "all"
    operation: str = ""

    def sites(self, path: str, operation: str) -> tuple[Site, ...] | None:
        """Return the sites of an operation, or None where the rule does not match."""
        found = re.search(rf"(?:{self.path})$", path)
        if found is None or (self.operation and not re.fullmatch(self.operation, operation)):
            return None
        layer = found.expand(self.layer)
        return tuple(Site(layer, role) for role in self.role.split("|"))


def sites_of(rules: Sequence[Rule], path: str, operation: str, tag: str = "") -> tuple[Site, ...]:
    """Find the sites of an operation.

    Parameters
    ----------
    rules : sequence of Rule
    path : str
        Of the innermost module that runs.
    operation : str
        Without namespace and overload: ``"mm"``.
    tag : str
        Role given by the written-out attention or a cache write; takes the place of the rule's.

    Returns
    -------
    tuple of Site
        One; several where the operation makes several roles' results side by side.

    Raises
    ------
    SensitivityError
        No rule matches.
    """
    for rule in rules:
        found = rule.sites(path, operation)
        if found is not None:
            return (Site(found[0].layer, tag),) if tag else found
    raise SensitivityError(
        f"operation {operation} in the module '{path or '(top)'}' belongs to no site; add a rule for that path"
    )


def selected(sites: Iterable[Site], *, layers: Sequence[str] = (), roles: Sequence[str] = ()) -> tuple[Site, ...]:
    """Keep the sites of some layers and roles.

    Parameters
    ----------
    sites : iterable of Site
    layers, roles : sequence of str
        Empty for all.

    Returns
    -------
    tuple of Site

    Raises
    ------
    UnknownNameError
        No site has a layer or role of that name.
    """
    known = tuple(sites)
    for kind, wanted, there in (
        ("layer", layers, {site.layer for site in known}),
        ("role", roles, {site.role for site in known}),
    ):
        for name in wanted:
            if name not in there:
                raise unknown_name(f"{kind} of this target:", name, there)
    return tuple(site for site in known if (not layers or site.layer in layers) and (not roles or site.role in roles))
