"""Mixed policies: what every site is stored in, as data; loads no torch.

Conventions: a policy has one narrow format, and *holds* some roles or sites in float32. That is the same choice as a
map's *rescue* of several groups, so the map can foretell a policy's drift; :mod:`.executed` really runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from precision_eval.core.errors import unknown_name
from precision_eval.trace.sites import ROLES, Site

SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What every site is stored in."""

    format: str = "bfloat16"
    held: tuple[str, ...] = ()
    cache: str = ""
    in_blocks: bool = False

    @property
    def id(self) -> str:
        """Short name, such as ``"bf16, f32: residual norm"``."""
        parts = [SHORT[self.format]]
        if self.held:
            parts.append(f"f32: {' '.join(self.held)}")
        if self.cache:
            parts.append(f"cache {SHORT[self.cache]}{' in blocks' if self.in_blocks else ''}")
        return ", ".join(parts)

    def format_of(self, site: Site) -> str:
        """Return the format that a site stores in."""
        if site.role == "cache" and self.cache:
            return self.cache
        return "float32" if site.role in self.held or site.id in self.held else self.format

    def narrow(self, sites: Iterable[Site]) -> frozenset[Site]:
        """Return the sites that store in the policy's narrow format, for a replay of the same format."""
        return frozenset(site for site in sites if self.format_of(site) == self.format != "float32")

    def foretold(self, sites: Iterable[Site]) -> frozenset[Site]:
        """Return the sites that a run of the policy rounds, for the map to foretell its drift."""
        known = tuple(sites)
        attention = bool({"scores", "softmax"} & set(self.held))
        held = {site for site in known if self.format_of(site) != self.format or site.role in ("scores", "softmax")}
        roles = {site.role for site in known}

        def stays(site: Site) -> bool:
            if site.role == "norm":
                layer = ("q", "k", "v", "mlp") if site.layer != "all" else ("head",)
                return all(self.format_of(Site(site.layer, role)) != self.format for role in layer if role in roles)
            return attention or site.role not in ("q", "k", "v", "positions", "cache") or site.layer == "all"

        return frozenset(site for site in known if site not in held or not stays(site))

    def holding(self, name: str) -> Policy:
        """Return the policy that holds one more role or site."""
        return Policy(format=self.format, held=(*self.held, name), cache=self.cache, in_blocks=self.in_blocks)

    def checked(self, sites: Iterable[Site]) -> Policy:
        """Return the policy itself, if all that it holds exists."""
        known = {*ROLES, *(site.id for site in sites)}
        for name in self.held:
            if name not in known:
                raise unknown_name("role or site to hold:", name, known)
        for format in filter(None, (self.format, self.cache)):
            if format not in SHORT:
                raise unknown_name("format of a policy:", format, SHORT)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Policy:
        """Read what :meth:`to_dict` wrote."""
        return cls(**{**data, "held": tuple(data["held"])})
