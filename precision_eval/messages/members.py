"""What a member of the message family is, and how its sentence is found in a text.

Conventions: a *sentence* is the literal text that is raised, with placeholders: ``{name}`` is a dtype, which becomes
the operand of that name; ``{#}`` is a number; ``{*}`` is any short run of text within a line. White space may be
folded differently in the text searched, or stand there escaped, and capitals do not count. This module loads no torch.

Contents: :class:`Operand`, :class:`Member`, :func:`compiled_sentence`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from .dtypes import DTYPE_PATTERN, lowered

Site = Literal["sdpa", "kernel", "linear", "matmul", "norm", "cache_write", "conv", "rnn", "index", "gradient", "other"]
Role = Literal["activation", "storage", "either"]
Kind = Literal["mismatch", "format", "index"]


@dataclass(frozen=True)
class Operand:
    """One operand that a sentence names.

    Attributes
    ----------
    name : str
        As in the sentence's placeholder.
    role : {"activation", "storage", "either"}
        Activation: what flows through the model. Storage: a weight, a cache or what is written to.
    meaning : str
        What it is in a model.
    """

    name: str
    role: Role
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Member:
    """One member of the family.

    Attributes
    ----------
    id : str
        Name used in tests and in JSON.
    sentences : tuple of str
        What is raised, in every form known.
    beginnings : tuple of str
        What is left of a sentence that was cut, as titles of threads are: it names fewer dtypes, or none. Taken where
        no whole sentence stands in that place.
    ops : tuple of str
        The operations that raise it; where there are several, the text around decides or it stays open.
    site : str
        Kind of place, which decides what the fixes reach.
    operands : tuple of Operand
        In the order in which a sentence names them.
    kind : {"mismatch", "format", "index"}
        Mismatch: operands disagree, and where the sentence's dtypes all agree it is no member. Format: a kernel takes
        certain formats only. Index: an integer was expected.
    asks : str
        What the check wants.
    where : str
        Devices, builds and versions it is known from.
    sources : tuple of str
        Threads or code; ``repository #number`` becomes a link.
    """

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
    """Compile a sentence to a regular expression for lowered text.

    Parameters
    ----------
    sentence : str
        With placeholders, in any capitals.

    Returns
    -------
    re.Pattern
        One named group per dtype; a run of white space matches any other.
    """
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
