"""``causes()``: the known ways in which dtypes come apart, read from ``causes.toml``.

A cause *fits* where the message and its dtypes do; it is *named* where the text also shows one of its words (a file, a
class, a library). The message alone rarely decides: several causes fit most messages, and each says what to look at.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from precision_eval.explain.messages import SentenceMatch

HALF = ("float16", "bfloat16")
_COMMON = {"float32", *HALF}


@dataclass(frozen=True)
class When:
    """A condition under which a cause raises."""

    members: tuple[str, ...]
    activation: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One known cause.

    With `only_named`, it is named only with one of its words in the text. `formats`, each a dtype or several with ``|``
    between them, have to be among the dtypes of the message, where it names two or more. `devices` are those that the
    text may speak of, where it speaks of one.
    """

    id: str
    title: str
    explanation: str
    tell: str
    when: tuple[When, ...]
    words: tuple[str, ...]
    fix: str
    sources: tuple[str, ...]
    case: str | None = None
    only_named: bool = False
    formats: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@cache
def causes() -> tuple[Cause, ...]:
    """Read the causes, those of one system after the general ones."""
    rows = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))["cause"]
    parsed = []
    for row in rows:
        when = tuple(When(**{name: tuple(value) for name, value in condition.items()}) for condition in row.pop("when"))
        lists: dict[str, Any] = {name: tuple(row.pop(name, ())) for name in ("words", "sources", "formats", "devices")}
        parsed.append(Cause(when=when, **lists, **row))
    return tuple(parsed)


def fits(cause: Cause, matched: SentenceMatch, device: str | None = None) -> bool:
    dtypes = matched.dtypes
    needed = [set(part.split("|")) for part in cause.formats]
    is_rare = any(not formats & _COMMON for formats in needed)  # and so has to be shown
    if (len(dtypes) > 1 or is_rare) and not all(formats & set(dtypes.values()) for formats in needed):
        return False
    if device and cause.devices and device not in cause.devices:
        return False
    if cause.id == "autocast_norm" and dtypes and not _only_value_is_half(dtypes):
        return False
    return any(_holds(when, matched) for when in cause.when)


def _only_value_is_half(dtypes: dict[str, str]) -> bool:
    wide = {dtypes.get(name, "float32") for name in ("query", "key")}  # a sentence that was cut names fewer
    return wide == {"float32"} and dtypes.get("value", HALF[0]) in HALF


def _holds(when: When, matched: SentenceMatch) -> bool:
    if matched.member.id not in when.members:
        return False
    wanted = {"activation": when.activation, "storage": when.storage}
    roles = {operand.name: operand.role for operand in matched.member.operands}
    for name, dtype in matched.dtypes.items():
        among = wanted.get(roles[name], ())
        if among and dtype not in among:
            return False
    return True


def words_in(cause: Cause, text: str) -> int:
    """Count the words of a cause that the text shows; the cause with most is named first."""
    return sum(re.search(word, text, re.IGNORECASE) is not None for word in cause.words)
