"""Errors that look like one of dtypes and are none: the kinds of ``others.toml``, each with its next step."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class OtherError:
    kind: str
    title: str
    next_step: str
    start: int
    end: int


@cache
def _kinds() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("others.toml").read_text(encoding="utf-8"))[
        "kind"
    ]
    return rows


def find_others(text: str) -> list[OtherError]:
    """Find errors of other kinds, in the order of the text; of several at one place, the kind named first."""
    errors: dict[int, OtherError] = {}
    for row in _kinds():
        for pattern, detail in row["patterns"]:
            for match in re.finditer(pattern, text, re.IGNORECASE):
                shown = match.expand(detail)
                title = f"{row['title']}; {shown}" if shown else row["title"]
                line = text.count("\n", 0, match.start())
                errors.setdefault(line, OtherError(row["id"], title, row["next"], match.start(), match.end()))
    return sorted(errors.values(), key=lambda error: error.start)
