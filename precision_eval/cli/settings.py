"""The settings of each command, ``--set NAME=VALUE``: what is seldom set, and how each value is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import typer

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.core.removed import removal_message


@dataclass(frozen=True)
class Setting:
    name: str
    expected: str
    read: Callable[[str], Any]
    help: str
    default: Any = None


def _at_least(number: Callable[[str], Any], least: float) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = number(text)
        if not least <= value < math.inf:
            raise ValueError
        return value

    return read


def _word_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _switch(text: str) -> bool:
    return _word_of("on", "off")(text) == "on"


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _margin(text: str) -> float:
    """Read ``1%``, ``0.01`` or ``×1.1``."""
    number = text.strip().removeprefix("×").removeprefix("x")
    return float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)


_count = _at_least(int, 1)
_seconds = _at_least(float, 0.05)
_MARGIN = "a number such as 1% or 1.2"

BUDGET = Setting("budget", "seconds from 0.05", _seconds, "timing per group of compared fixes; default 2")
PROCESSES = Setting(
    "processes",
    "a count from 1",
    _count,
    "processes that time each group; with 5 or more, intervals include the variation between processes",
)
SEED = Setting("seed", "a count from 0", _at_least(int, 0), "seed of weights, inputs, noise and order; default 0", 0)
THREADS = Setting("threads", "a count from 1", _count, "threads per worker, as torch uses them; default 1", 1)
DEVICE = Setting("device", "auto, cpu, cuda, cuda:i or mps", str, "device to measure on; default cpu", "cpu")
SIZE = Setting("size", "a name", str, "size of a shipped case; default its smallest")

RUN = (
    Setting("minutes", "a number from 0.01", _at_least(float, 0.01), "audio per fix; default 0.25"),
    Setting("streams", "a count from 1", _count, "parallel streams of drift, divergence and sound; default 16"),
    Setting("steps", "a count from 1", _count, "frames of 20 ms per stream; default 50"),
    BUDGET,
    PROCESSES,
    THREADS,
    Setting("workers", "a count from 1", _count, "untimed cells at a time; default cores / threads, 1 on a GPU"),
    replace(SEED, default=None),
    Setting("seeds", "a count from 1", _count, "seeded inputs that drift is measured on; default 1, thorough 8"),
    Setting(
        "sdpa_backend",
        "any, math, flash, efficient, cudnn, or several, comma-separated",
        _names,
        "pins the attention backend; any lets torch choose",
        (),
    ),
    Setting("tf32", "on or off", _word_of("on", "off"), "TF32 for float32 on CUDA; default torch's setting"),
    Setting(
        "memory",
        "names, comma-separated; see docs/definitions.md",
        lambda text: ",".join(_names(text)),
        "allocator states to time in; the first decides the verdict; default grown",
    ),
    Setting(
        "clock",
        "device, launched or both",
        _word_of("device", "launched", "both"),
        "how calls are timed on CUDA: as graphs (device) or from Python (launched); default both",
    ),
    Setting(
        "isolation",
        "warn or error",
        _word_of("warn", "error"),
        "when other processes use the device during timing: warn records a doubt, error ends the run",
    ),
    Setting("timeout", "seconds from 1", _at_least(float, 1.0), "time limit of one cell; default 900"),
    Setting(
        "checkpoint_dtype",
        "float32 or bfloat16",
        _word_of("float32", "bfloat16"),
        "dtype of the voice's stored weights; default float32",
        "float32",
    ),
    Setting(
        "executor",
        "dask or dask:ADDRESS",
        str,
        "run cells on a dask cluster: on this machine, or at ADDRESS; see docs/fleet.md",
    ),
)

CHOOSE = (
    Setting("device", "cpu, cuda, cuda:i or mps", str, "device of the records"),
    Setting("threads", "a count from 1", _count, "threads of the records"),
)

DOCTOR = (
    SIZE,
    Setting("dtype", "a dtype of torch", str, "dtype of a checkpoint's weights; default from its config"),
    Setting(
        "compile",
        "on or off",
        _switch,
        "also diagnose under torch.compile (backend aot_eager); slow; default off",
        False,
    ),
    Setting("latency", "on or off", _switch, "time the fixes that cure; default on", True),
    Setting(
        "budget",
        "seconds from 0.5",
        _at_least(float, 0.5),
        "time for all fixes; nothing is timed if it would take ten times as long; default 3",
        3.0,
    ),
    SEED,
)

COMPARE = (replace(BUDGET, help="timing of all calls together; default 2", default=2.0), SEED)

PLAN = (
    Setting(
        "dtype",
        "as_shipped, float16, bfloat16 or float32",
        str,
        "dtype of the weights; default as_shipped",
        "as_shipped",
    ),
    Setting(
        "kv_dtype",
        "as_shipped, float16, bfloat16 or float32",
        str,
        "dtype of the KV cache; default as_shipped",
        "as_shipped",
    ),
    Setting("batch", "a count from 1", _count, "sequences; default 1", 1),
    Setting("tokens", "a count from 1", _count, "tokens per call: 1 is decode, more is prefill; default 1", 1),
    replace(SIZE, help="size of a shipped case; default its first"),
)

MODULES = (
    Setting("format", "bfloat16 or float16", str, "the half format; default bfloat16", "bfloat16"),
    Setting("held_out", "on or off", _switch, "measure the policy and every fix on further seeds; default on", True),
    SEED,
)

GATE = (
    Setting("mode", "eager, compiled, or both, comma-separated", _names, "how fixes run; default eager", ("eager",)),
    SIZE,
    DEVICE,
    THREADS,
    SEED,
    Setting(
        "processes",
        "a count from 2",
        _at_least(int, 2),
        "processes, each with its own seed; undecided cells get more; default 10",
        10,
    ),
    Setting("budget", "seconds from 0.1", _at_least(float, 0.1), "timing per fix in all processes; default 5", 5.0),
    Setting(
        "margin_latency", _MARGIN, _margin, "largest slowdown that passes; default: above 0.5% fails, below 1% passes"
    ),
    Setting("margin_drift", _MARGIN, _margin, "largest growth factor of drift that passes; default 1.1", 1.1),
    Setting("margin_memory", _MARGIN, _margin, "largest growth of memory that passes; default 1%", 0.01),
    Setting(
        "require",
        "status, latency, drift, memory, or several, comma-separated",
        _names,
        "what needs a verdict for exit code 0; default latency",
        ("latency",),
    ),
)

VERSIONS = (
    Setting("metric", "status, drift, latency_ratio, peak_bytes, … or globs", _names, "what to show", ("*",)),
    Setting("machine", "a name", str, "machine, if asv's results have several"),
)


def set_option(table: Sequence[Setting]) -> Any:
    names = ", ".join(setting.name for setting in table)
    return typer.Option("--set", metavar="NAME=VALUE", help=f"Repeatable: {names}.")


def settings_help(table: Sequence[Setting]) -> str:
    lines = [f"[cyan]{setting.name}[/cyan]  {setting.help} [dim]({setting.expected})[/dim]" for setting in table]
    return "\n\n".join(["\n[bold]Settings[/bold], each as [cyan]--set NAME=VALUE[/cyan]", *lines])


def read_settings(pairs: Sequence[str] | None, table: Sequence[Setting]) -> dict[str, Any]:
    """Return the value of each setting of a table, else its default; the last of several for one name counts."""
    return {setting.name: setting.default for setting in table} | dict(_read(pair, table) for pair in pairs or ())


def _read(pair: str, table: Sequence[Setting]) -> tuple[str, Any]:
    name, separator, text = pair.partition("=")
    setting = {entry.name: entry for entry in table}.get(name)
    if setting is None:
        raise ParameterError(removal_message("setting", name) or _unknown(name, table))
    if not separator:
        raise ParameterError(f"--set {name} has no value; give --set {name}=VALUE, {setting.expected}")
    try:
        return name, setting.read(text)
    except ValueError:
        raise ParameterError(f"--set {name} is '{text}'; expected {setting.expected}") from None


def _unknown(name: str, table: Sequence[Setting]) -> str:
    names = "; ".join(f"{setting.name}: {setting.help}" for setting in table)
    return f"{unknown_name('setting', name, [setting.name for setting in table])} ({names})"
