"""Trials on disk: one strict JSON object per line, appended whole, skipped when already there.

Conventions: a trial is plain data with a ``key`` (str) that names everything it depends on, so that a stopped
experiment goes on with the keys that are missing. A last line without its newline was torn by a crash and is dropped
on the next append.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import RecordError


@dataclass(frozen=True)
class TrialFile:
    """The trials of one experiment."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        """Return every whole trial; where a key was recorded twice, the later one."""
        found: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                trial = json.loads(line)
                found[trial["key"]] = trial
            except (ValueError, TypeError, KeyError) as error:
                raise RecordError(
                    f"{self.path} line {number} is no trial ({error!r}); remove that line and run again"
                ) from error
        return list(found.values())

    def keys(self) -> set[str]:
        """Return the keys of the trials that need not be run again."""
        return {trial["key"] for trial in self.read()}

    def append(self, trial: dict[str, Any]) -> None:
        """Append one trial."""
        try:
            line = json.dumps(trial, allow_nan=False, separators=(",", ":")) + "\n"
        except (TypeError, ValueError) as error:
            raise RecordError(
                f"trial {trial.get('key')} is not strict JSON: {error}; give plain finite data"
            ) from error
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._drop_torn_line()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise RecordError(f"cannot write {self.path}: {error.strerror}; earlier trials are intact") from error

    def _whole_lines(self) -> Iterator[str]:
        if self.path.exists():
            content = self.path.read_text(encoding="utf-8")
            yield from content[: content.rfind("\n") + 1].splitlines()

    def _drop_torn_line(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
