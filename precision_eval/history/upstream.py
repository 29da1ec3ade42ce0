"""Releases of torch with their dates, and the changes in torch that explain what is seen between two of them.

Conventions: both are data, in ``upstream.json``. A date is the day (UTC) on which the first file of a release was
uploaded to the package index; null where it is not known. A change holds *since* a version: it explains what differs
between a version before and that one or a later one. Patterns are globs on the names of cases, fixes, sizes, modes
and metrics; a change of status may have to go from one given status to another. How an entry was confirmed is part of
it.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precision_eval.core.errors import IntegrityError
from precision_eval.results.asv import Key, version_key

DATA = Path(__file__).with_name("upstream.json")
SCHEMA_VERSION = 1
DEVICES = ("any", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class UpstreamChange:
    """Something that changed in torch."""

    id: str
    since: str
    cases: tuple[str, ...]
    fixes: tuple[str, ...]
    modes: tuple[str, ...]
    metrics: tuple[str, ...]
    device: str
    before: str | None
    after: str | None
    text: str
    reference: str
    confirmed: str
    sizes: tuple[str, ...] = ("*",)
    certain: bool = False

    def explains(self, key: Key, *, before: str, at: str, statuses: tuple[str, str] | None = None) -> bool:
        """Say whether this is about what `key` names, came between two torch versions, and turns the statuses so."""
        mode, case, metric, fix, size = key
        pairs = (
            (mode, self.modes),
            (case, self.cases),
            (metric, self.metrics),
            (fix, self.fixes),
            (size, self.sizes),
        )
        named = all(any(fnmatchcase(name, glob) for glob in globs) for name, globs in pairs)
        turned = statuses is None or (self.before in (None, statuses[0]) and self.after in (None, statuses[1]))
        return named and turned and version_key(before) < version_key(self.since) <= version_key(at)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What ``upstream.json`` holds: the date of each release, where it is known, and what changed in them."""

    releases: Mapping[str, datetime.date | None]
    changes: tuple[UpstreamChange, ...]


@functools.cache
def load_upstream(path: Path = DATA) -> Upstream:
    """Read releases and changes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise IntegrityError(f"{path.name} has schema {content['schema_version']}, expected {SCHEMA_VERSION}")
        releases = {
            version: None if day is None else datetime.date.fromisoformat(day)
            for version, day in sorted(content["releases"].items(), key=lambda item: version_key(item[0]))
        }
        changes = tuple(_change(entry) for entry in content["changes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{path.name} is damaged ({error!r}); install the package again") from error
    return Upstream(releases=releases, changes=changes)


def _change(entry: Mapping[str, Any]) -> UpstreamChange:
    known = UpstreamChange.__dataclass_fields__
    if set(entry) != set(known):
        raise KeyError(f"{entry.get('id')}: {sorted(set(entry) ^ set(known))}")
    version_key(entry["since"])
    if entry["device"] not in DEVICES:
        raise ValueError(f"{entry['id']}: device is {entry['device']}, expected one of {', '.join(DEVICES)}")
    if not isinstance(entry["certain"], bool):
        raise ValueError(f"{entry['id']}: certain is {entry['certain']!r}, expected true or false")
    globs = {name: tuple(entry[name]) for name in ("cases", "fixes", "sizes", "modes", "metrics")}
    return UpstreamChange(**{**entry, **globs})
