"""Source edited in memory: functions run as edited for the time of a block, and no file is written.

Conventions: an edit changes text within lines and adds none, so that a function is known again by its qualified name
and first line in the source compiled anew; the functions alive that have its code run the new one meanwhile.
"""

from __future__ import annotations

import difflib
import gc
import linecache
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import compress
from operator import is_
from types import CodeType, FunctionType

from precision_eval.doctor.source import Insertion, forget_source, short_path
from precision_eval.trace.dtype_flow import is_installed

_HALF = re.compile(r"torch\.b?float16")
_CHANGES_NOTHING = re.compile(r"\s*(\w+) = \1\s*")


class PatchedSource:
    """Edits of source files, which hold while it is active."""

    def __init__(self) -> None:
        self._original: dict[str, list[str]] = {}
        self._edited: dict[str, list[str]] = {}
        self._compiled: dict[str, CodeType] = {}
        self._at: dict[str, set[int]] = {}  # file → edited lines
        self.only_removes = True
        self.literals = 0  # half formats by name, which fit a model in that one only
        self._swaps: list[tuple[FunctionType, CodeType]] = []
        self._alive: dict[str, list[FunctionType]] = {}  # file → its functions

    def __bool__(self) -> bool:
        return bool(self._edited)

    @property
    def size(self) -> int:
        return len(self.places)

    @property
    def places(self) -> set[tuple[str, int]]:
        return {(file, line) for file, lines in self._at.items() for line in lines}

    @property
    def of_library(self) -> bool:
        return any(map(is_installed, self._edited))

    def insert(self, insertions: Iterable[Insertion]) -> None:
        """Put text into lines as they now stand; nothing is changed where what comes out is no Python, which raises."""
        files: dict[str, list[Insertion]] = {}
        for insertion in insertions:
            files.setdefault(insertion.file, []).append(insertion)
        for file, of_file in files.items():
            original = self._original.get(file) or linecache.getlines(file)
            lines = list(self._edited.get(file, original))
            for insertion in sorted(of_file, key=lambda i: (i.line, i.column), reverse=True):
                raw = lines[insertion.line - 1].encode()
                text = insertion.text.encode()
                lines[insertion.line - 1] = (
                    raw[: insertion.column] + text + raw[insertion.column + insertion.removed :]
                ).decode()
            self._compiled[file] = compile("".join(lines), file, "exec", dont_inherit=True)
            self._original[file], self._edited[file] = original, lines
            self._at.setdefault(file, set()).update(insertion.line for insertion in of_file)
            self.literals += sum(len(_HALF.findall(insertion.text)) for insertion in of_file)
            self.only_removes &= not any(insertion.text for insertion in of_file)
        self._swaps = self._functions()

    def diff(self) -> str:
        """Write a unified diff, with paths below the working directory or below site-packages."""
        parts: list[str] = []
        for file in self._edited:
            name = short_path(file)
            parts += difflib.unified_diff(self._original[file], self._lines_to_show(file), f"a/{name}", f"b/{name}")
        return "".join(part if part.endswith("\n") else f"{part}\n\\ No newline at end of file\n" for part in parts)

    def _lines_to_show(self, file: str) -> list[str]:
        """Lines without those that a cast taken out leaves as ``t = t``, unless their block has no other."""
        lines = list(self._edited[file])
        for line in sorted(self._at[file], reverse=True):
            if _CHANGES_NOTHING.fullmatch(lines[line - 1]):
                rest = lines[: line - 1] + lines[line:]
                with suppress(SyntaxError):
                    compile("".join(rest), file, "exec", dont_inherit=True)
                    lines = rest
        return lines

    @property
    def reaches(self) -> bool:
        """Whether each edited line is one of a function that is alive; lines at the top of a module are not."""
        spans = [(f.__code__.co_filename, *_span(f.__code__)) for f, _ in self._swaps]
        return all(
            any(file == name and first <= line <= last for name, first, last in spans)
            for file, lines in self._at.items()
            for line in lines
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        cached = {file: linecache.cache.get(file) for file in self._edited}
        try:
            for file, lines in self._edited.items():
                linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
            forget_source()
            with self.running():
                yield
        finally:
            for file, entry in cached.items():
                linecache.cache.pop(file, None)
                if entry is not None:
                    linecache.cache[file] = entry
            forget_source()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the functions as edited, for timing: nothing but their code is exchanged."""
        before = [(function, function.__code__) for function, _ in self._swaps]
        for function, code in self._swaps:
            function.__code__ = code
        try:
            yield
        finally:
            for function, code in before:
                function.__code__ = code

    def _functions(self) -> list[tuple[FunctionType, CodeType]]:
        new: dict[tuple[str, str, int], list[CodeType]] = {}
        for file, module in self._compiled.items():
            for code in _codes_in(module):
                new.setdefault((file, code.co_qualname, code.co_firstlineno), []).append(code)
        swaps = []
        if self._edited.keys() - self._alive.keys():  # once a file: it looks at all objects
            functions = _living_functions()
            for file in self._edited:
                self._alive[file] = [function for function in functions if function.__code__.co_filename == file]
        for function in (function for file in self._edited for function in self._alive[file]):
            code = function.__code__
            first, last = _span(code)
            codes = new.get((code.co_filename, code.co_qualname, code.co_firstlineno), [])
            edited = any(first <= line <= last for line in self._at[code.co_filename])
            # two lambdas of one line have one name: nothing says which is which
            if edited and len(codes) == 1 and codes[0].co_freevars == code.co_freevars:
                swaps.append((function, codes[0]))
        return swaps


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def _span(code: CodeType) -> tuple[int, int]:
    lines = [line for _, _, line in code.co_lines() if line]
    inner = [_span(constant)[1] for constant in _codes_in(code)]
    return code.co_firstlineno, max([code.co_firstlineno, *lines, *inner])


def _living_functions() -> list[FunctionType]:
    """List every function; what is frozen, as servers freeze what they have loaded, is thawed for as long."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    try:
        objects = gc.get_objects()
        return list(compress(objects, map(partial(is_, FunctionType), map(type, objects))))  # isinstance runs proxies
    finally:
        if is_frozen:
            gc.freeze()
