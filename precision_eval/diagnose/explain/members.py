"""What a member of the message family is, and how its sentence is found in a text.

Conventions: a *sentence* is the literal text that is raised, with placeholders: ``{name}`` is a dtype, which becomes
the operand of that name; ``{#}`` is a number; ``{*}`` is any short run of text within a line. White space may be
folded differently in the text searched, or stand there escaped, and capitals do not count. This module loads no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from precision_eval.diagnose.explain.dtypes import DTYPE_PATTERN, lowered

Site = Literal["sdpa", "kernel", "linear", "matmul", "norm", "cache_write", "conv", "rnn", "index", "gradient", "other"]
Role = Literal["activation", "storage", "either"]
Kind = Literal["mismatch", "format", "index"]


@dataclass(frozen=True)
class Operand:
    """One operand that a sentence names."""

    name: str
    role: Role
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the family."""

    id: str
    sentences: tuple[str, ...]
    ops: tuple[str, ...]
    site: Site
    operands: tuple[Operand, ...] = ()
    kind: Kind = "mismatch"
    asks: str
    where: str
    sources: tuple[str, ...]
    beginnings: tuple[str, ...] = ()


_PLACEHOLDER = re.compile(r"\{([a-z_0-9]+|#|\*)\}")
_LOOSE = {"#": r"\d+", "*": r"[^\n]{0,160}?"}
WHITE_SPACE = r"(?:\s|\\[nrt])+"
"""Pattern of a run of white space, which stands escaped in a ``repr`` and in JSON."""


@cache
def compiled_sentence(sentence: str) -> re.Pattern[str]:
    """Compile a sentence to a regular expression for lowered text."""
    parts = _PLACEHOLDER.split(lowered(sentence))
    found = [_literal(parts[0])]
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        found.append(_LOOSE.get(name) or f"(?P<{name}>{DTYPE_PATTERN})")
        found.append(_literal(text))
    return re.compile("".join(found))


def _literal(text: str) -> str:
    """Escape text; white space becomes flexible, and a quote may stand escaped as in a ``repr``."""
    escaped = re.escape(text).replace("'", r"\\?'")
    return re.sub(r"(?:\\\s)+", lambda _: WHITE_SPACE, escaped)
