"""The settings of ``run --set NAME=VALUE``: what is seldom set, each with how it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.core.removed import removal_message


@dataclass(frozen=True)
class Setting:
    """A setting, what a value of it is, how that is read, and what it does."""

    name: str
    expected: str
    read: Callable[[str], Any]
    help: str


def _count(text: str) -> int:
    return _at_least(int(text), 1)


def _seconds(text: str) -> float:
    return _at_least(float(text), 0.05)


def _at_least(value: Any, least: float) -> Any:
    if not least <= value < math.inf:
        raise ValueError
    return value


def _of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return read


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


SETTINGS = (
    Setting("minutes", "a number from 0.01", lambda text: _at_least(float(text), 0.01), "audio per fix; default 0.25"),
    Setting("streams", "a count from 1", _count, "parallel streams of drift, divergence and sound; default 16"),
    Setting("steps", "a count from 1", _count, "frames of 20 ms per stream; default 50"),
    Setting("budget", "seconds from 0.05", _seconds, "timing per group of fixes that are compared; default 2"),
    Setting(
        "processes",
        "a count from 1",
        _count,
        "processes that time each group; from 5 on, what differs between processes is part of the intervals",
    ),
    Setting("threads", "a count from 1", _count, "threads per worker, as torch uses them; default 1"),
    Setting("workers", "a count from 1", _count, "untimed cells at a time; default cores / threads, 1 on a GPU"),
    Setting("seed", "a count from 0", lambda text: _at_least(int(text), 0), "of weights, inputs, noise and order"),
    Setting("seeds", "a count from 1", _count, "seeded inputs that drift is measured on; default 1, thorough 8"),
    Setting(
        "sdpa_backend",
        "any, math, flash, efficient, cudnn, or several by commas",
        _names,
        "pins attention; any is torch's choice",
    ),
    Setting("tf32", "on or off", _of("on", "off"), "TF32 for float32 on CUDA; default as torch has it"),
    Setting(
        "memory",
        "states of the C library's allocator by commas; see docs/definitions.md",
        lambda text: ",".join(_names(text)),
        "what to time in; verdicts rest on the first; default grown",
    ),
    Setting(
        "isolation",
        "warn or error",
        _of("warn", "error"),
        "where others used the device of a timed cell: a doubt, or the end of the run",
    ),
    Setting("timeout", "seconds from 1", lambda text: _at_least(float(text), 1.0), "limit of one cell; default 900"),
    Setting(
        "checkpoint_dtype",
        "float32 or bfloat16",
        _of("float32", "bfloat16"),
        "format that the voice's weights are stored in; default float32",
    ),
    Setting("speech", "a folder", str, "recordings that Whisper transcribes"),
)

HELP = "\n\n".join(
    ["[bold]Settings[/bold], each as [cyan]--set NAME=VALUE[/cyan]"]
    + [f"[cyan]{setting.name}[/cyan]  {setting.help} [dim]({setting.expected})[/dim]" for setting in SETTINGS]
)


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read settings; the last of several for one name counts."""
    return dict(_read(pair) for pair in pairs)


def _read(pair: str) -> tuple[str, Any]:
    name, separator, text = pair.partition("=")
    setting = {entry.name: entry for entry in SETTINGS}.get(name)
    if setting is None:
        raise ParameterError(removal_message("setting", name) or _unknown(name))
    if not separator:
        raise ParameterError(f"--set {name} has no value; give --set {name}=VALUE, {setting.expected}")
    try:
        return name, setting.read(text)
    except ValueError:
        raise ParameterError(f"--set {name} is '{text}'; expected {setting.expected}") from None


def _unknown(name: str) -> str:
    names = "; ".join(f"{setting.name}: {setting.help}" for setting in SETTINGS)
    return f"{unknown_name('setting', name, [setting.name for setting in SETTINGS])} ({names})"
