"""Runs the worked examples of docs/, and holds what they show to what they print.

Conventions: the Python blocks of a page run from top to bottom in one namespace, below the lines of the page itself, so
that a place named in an output is a line of the page. What a block prints stands below it, in a ``text`` block between
``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; a block that has none prints nothing. Shown and printed are compared
line by line:

- ``…`` is any text within a line, and alone on a line any number of lines;
- a number with a decimal point, an exponent or a unit of bytes was measured, and the number of a line of source moves
  with edits: another number may stand there;
- blanks may be more or fewer; lines that begin with ``doubt:`` are the machine's, neither shown nor compared;
- everything else is held as it is.

``python -m tools.docs_examples docs/example-*.md`` runs pages and writes what they print, keeping every ``…``.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODE = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)
SHOWN = re.compile(r"<!-- ([\w-]+):begin -->\n```text\n(.*?)```\n<!-- \1:end -->", re.S)
TOKEN = re.compile(
    r"(?P<any>…)"
    r"|(?P<place>(?<=\.(?:py|md):)\d+|(?<=\bline )\d+|(?<=@@ )-\d+,\d+ \+\d+,\d+)"
    r"|(?P<number>(?<![\w.])[-−+]?(?:\d[\d,]*\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?= [KMG]iB))(?!\.?\d|\w))"
    r"|(?P<blank>[ \t]+)"
)
PATTERNS = {
    "any": r"[^\n]*?",
    "place": r"\d+|-\d+,\d+ \+\d+,\d+",
    "number": r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?",
    "blank": r"[ \t]+",
}
LINES = r"(?:[^\n]*\n)*?"
OF_THE_MACHINE = "doubt:"


@dataclass(frozen=True)
class Block:
    """A Python block of a page, and what it is said to print."""

    code: str
    line: int  # of the page, where the code begins
    name: str = ""  # of the markers of the output below it
    shown: str = ""


def blocks_of(text: str) -> list[Block]:
    """Read a page's blocks, in order."""
    found = list(CODE.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    blocks = []
    for match, end in zip(found, ends, strict=True):
        output = SHOWN.search(text, match.end(), end)
        name, shown = output.groups() if output else ("", "")
        blocks.append(Block(match[1], text.count("\n", 0, match.start(1)) + 1, name, shown.strip("\n")))
    return blocks


def run(page: Path, namespace: dict[str, Any] | None = None) -> list[str]:
    """Run a page's blocks in order in one namespace; return what each printed."""
    blocks, space = blocks_of(page.read_text(encoding="utf-8")), {} if namespace is None else namespace
    space.setdefault("__name__", "example")
    lines: list[str] = []
    for block in blocks:  # the code by itself, each line where the page has it: tracebacks and the doctor read it there
        lines += ["\n"] * (block.line - 1 - len(lines)) + block.code.splitlines(keepends=True)
    linecache.cache[str(page)] = (sum(map(len, lines)), None, lines, str(page))
    printed = []
    for block in blocks:
        tree = ast.increment_lineno(ast.parse(block.code), block.line - 1)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(tree, str(page), "exec"), space)
        printed.append(kept(out.getvalue()))
    return printed


def kept(printed: str) -> str:
    """Leave out what is not shown: blanks at the ends of lines, and lines about the machine."""
    lines = (line.rstrip() for line in printed.splitlines() if not line.startswith(OF_THE_MACHINE))
    return "\n".join(lines).strip("\n")


def matched(shown: str, printed: str) -> str | None:
    """Return the printed text as the page is to show it, or None where it does not match what is shown."""
    pattern, tokens = "", []
    for line in shown.splitlines():
        if line.strip() == "…":
            pattern += f"({LINES})"
            tokens.append(f"{line}\n")
            continue
        end = 0
        for token in TOKEN.finditer(line):
            pattern += f"({re.escape(line[end : token.start()])})({PATTERNS[str(token.lastgroup)]})"
            tokens += [None, "…" if token.lastgroup == "any" else None]
            end = token.end()
        pattern += f"({re.escape(line[end:])}\n)"
        tokens.append(None)
    found = re.fullmatch(pattern, printed + "\n") if printed else None
    if found is None:
        return "" if not shown and not printed else None
    return "".join(part if token is None else token for part, token in zip(found.groups(), tokens, strict=True))[:-1]


def difference(block: Block, printed: str) -> str:
    """Return how a block's output differs from what is shown; empty where it does not."""
    if matched(block.shown, printed) is not None:
        return ""
    where = f"the block at line {block.line}"
    return "\n".join(difflib.unified_diff(block.shown.splitlines(), printed.splitlines(), "shown", where, lineterm=""))


def written(text: str, printed: Sequence[str]) -> str:
    """Return a page with what its blocks printed; every ``…`` stays where the rest still matches."""
    for block, output in zip(blocks_of(text), printed, strict=True):
        if not block.name and output:
            raise SystemExit(f"line {block.line}: this block prints, and no output with markers stands below it")
        if block.name:
            first, last = f"<!-- {block.name}:begin -->", f"<!-- {block.name}:end -->"
            before, _, rest = text.partition(first)
            after = rest.partition(last)[2]
            shown = matched(block.shown, output)
            text = f"{before}{first}\n```text\n{output if shown is None else shown}\n```\n{last}{after}"
    return text


def main(arguments: Sequence[str]) -> int:
    """Run pages, write their outputs, and say what changed."""
    for name in arguments:
        page = Path(name)
        before = page.read_text(encoding="utf-8")
        after = written(before, run(page.resolve()))
        page.write_text(after, encoding="utf-8")
        moved = after.count("\n") != before.count("\n")
        state = "written; lines have moved, run it again" if moved else "written" if after != before else "as it was"
        print(f"{name}: {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
