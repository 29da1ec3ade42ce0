"""``family()``: every message that says that two dtypes do not fit together, read from ``messages.toml``.

A message has one or more templates, the literal text that is raised with placeholders for dtypes; the head of the file
says which. White space may be folded differently in the text searched, or be escaped there; capitals do not count.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

CallSite = Literal[
    "sdpa", "kernel", "linear", "matmul", "norm", "cache_write", "conv", "rnn", "index", "gradient", "other"
]
Role = Literal["activation", "storage", "either"]
Kind = Literal["mismatch", "format", "index", "notice"]
Verdict = Literal["applies", "depends", "does_not_cure", "out_of_reach"]
_CUT = "{|}"


@dataclass(frozen=True)
class Operand:
    name: str
    role: Role
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One message of the family.

    `advice` goes before the rules of its site: (fixes, verdict, reason), the fixes being an id, a storage dtype,
    ``"one dtype"``, ``"casts"`` or ``"every"``. `do` is what to change in the source, where no fix from outside is it.
    """

    id: str
    site: CallSite = "other"
    kind: Kind = "mismatch"
    ops: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    templates: tuple[str, ...]
    asks: str
    sources: tuple[str, ...]
    where: str = "every device"
    do: str = ""
    advice: tuple[tuple[str, Verdict, str], ...] = ()

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The whole sentences, without marks."""
        return tuple(template.replace(_CUT, "") for template in self.templates)

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """What precedes a mark: a sentence that was cut off there is still known."""
        parts = (template.split(_CUT) for template in self.templates)
        return tuple("".join(part[:end]) for part in parts for end in range(1, len(part)))


@cache
def family() -> tuple[Member, ...]:
    """Read the messages, in the order of the file."""
    rows = tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
    shared = {name: Operand(name, *row) for name, row in rows["operands"].items()}
    libraries = ({**_OF_A_LIBRARY, "ops": [row.pop("of")], **row} for row in rows["library"])
    return tuple(_member(row, shared, rows["advice"]) for row in (*rows["message"], *libraries))


_OF_A_LIBRARY = {"kind": "format", "advice": [["every", "does_not_cure", "it is outside of the model"]]}


def _member(row: dict[str, Any], shared: dict[str, Operand], known: dict[str, list[list[Any]]]) -> Member:
    operands = (shared[part] if isinstance(part, str) else Operand(*part) for part in row.pop("operands", ()))
    given = row.pop("advice", ())
    advice = tuple((fixes, verdict, reason) for fixes, verdict, reason in known.get(str(given), given))
    lists: dict[str, Any] = {name: tuple(row.pop(name)) for name in ("ops", "templates", "sources")}
    return Member(operands=tuple(operands), advice=advice, **lists, **row)
