"""Hostile result files, random mutations of real ones, read by every command that reads results; and random commands.

A *mutation* is one change of one value: its type, range, name, depth or text. Several go into one copy of a folder,
which is then given to the commands in this process. Counted are exceptions that are none of the suite's own errors,
JSON that is not strict, and control characters, live HTML or formulas that reach an output; and how many readings were
refused as a whole, whose other mutations nothing has then met. Drawing takes most of the time of what draws, so figures
are rendered in one folder of 20: in the others they are built, and not rendered. A random command has options that it
declares and runs in a process of its own. A seed names each trial: it can be repeated.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from precision_eval.core.errors import PrecisionEvalError
from validation.frame import Data, Experiment, Figure, Options, Trial, each

RESULTS = Path(__file__).resolve().parents[1] / "results"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_SCRIPT = re.compile(r"(?<!`)<script>alert\(1\)")
_LIVE = {".csv": re.compile(r'(?:^|,)"?=cmd', re.MULTILINE), ".md": _SCRIPT, ".html": _SCRIPT, ".svg": _SCRIPT}
"""What a spreadsheet or a browser would run; a code span of Markdown it would not."""

DRAWN_EVERY = 20
"""Folders to one whose figures are rendered."""

_DEEP: Any = "deep"
for _ in range(150):
    _DEEP = [_DEEP]

DOCUMENTED = (0, 1, 2, 3, 4, 129, 130, 143)
"""Exit codes that ``--help`` names."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, 10**400, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324),
    *("", " ", "x" * 20_000, "\ud800", "\x1b]0;owned\x07\x1b[2J", "../../../etc/passwd", "/etc/passwd", "a\x00b"),
    *("\u202e", "<script>alert(1)</script>", "=cmd|' /C calc'!A0", "line\nbreak", "[/b]", "[red]", "$x_{$"),
    *("%s {0} {", "NaN", "1"),
    *([], {}, [None], [[]], [1, "a", None], {"a": {"b": []}}, _DEEP, {"": ""}, [0.0] * 50),
)
"""Values that a field may be replaced by."""


def mutated(value: Any, rng: np.random.Generator) -> Any:
    """Return a copy of plain data with one change somewhere in it."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    if not items or rng.random() < 0.12:
        return _changed(value, rng)
    key, inner = items[int(rng.integers(len(items)))]
    if isinstance(value, list):
        return [*value[:key], mutated(inner, rng), *value[key + 1 :]]
    return {**value, key: mutated(inner, rng)}


def _changed(value: Any, rng: np.random.Generator) -> Any:
    """Return something else than `value`: fewer or more parts of it, a number scaled, or a hostile value."""
    other = HOSTILE[int(rng.integers(len(HOSTILE)))]
    kind = rng.random()
    if isinstance(value, dict) and value and kind < 0.7:
        name = list(value)[int(rng.integers(len(value)))]
        if kind < 0.35:
            return {key: inner for key, inner in value.items() if key != name}
        return {**value, str(other)[:300] if kind < 0.5 else name: other}
    if isinstance(value, list) and value and kind < 0.6:
        return value[: int(rng.integers(len(value)))] if kind < 0.3 else [*value, other]
    if isinstance(value, int | float) and abs(value) < 2**63 and kind < 0.4:
        return value * float(rng.choice([-1.0, 1e-30, 1e30, 0.0, 1e6]))
    return other


def _mutate_lines(path: Path, count: int, rng: np.random.Generator) -> None:
    """Change `count` lines of a JSON Lines file; now and then a name in all of them, or the bytes of one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for _ in range(count):
        number, kind = int(rng.integers(len(lines))), rng.random()
        if kind < 0.04:
            lines[number] = lines[number][: int(rng.integers(1, len(lines[number]) + 1))] + "{"
            continue
        try:
            content = json.loads(lines[number])
        except (ValueError, RecursionError):
            continue
        if kind < 0.05 and isinstance(content, dict):
            name = str(rng.choice(["case", "fix", "mode", "device", "size"]))
            old, new = content.get(name), str(HOSTILE[int(rng.integers(len(HOSTILE)))])[:300]
            if isinstance(old, str) and old:
                lines = [line.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]) for line in lines]
            continue
        lines[number] = json.dumps(mutated(content, rng))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _mutate_document(path: Path, count: int, rng: np.random.Generator) -> None:
    """Change a JSON file in `count` places."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(count):
        content = mutated(content, rng)
    path.write_text(json.dumps(content), encoding="utf-8")


def _mutate(path: Path, count: int, rng: np.random.Generator) -> None:
    (_mutate_lines if path.suffix == ".jsonl" else _mutate_document)(path, count, rng)


Calls = list[tuple[str, Callable[[], Any]]]
"""What reads a mutated folder, by name."""


def _command(*words: object) -> Callable[[], str]:
    """Return a call of ``precision-eval`` in this process that gives what it printed."""

    def call() -> str:
        from typer.testing import CliRunner

        from precision_eval.cli.application import EXIT_INTERRUPTED
        from precision_eval.cli.commands import app

        done = CliRunner().invoke(app, [str(word) for word in words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        if "Usage: " in done.output:  # a call that is not understood reads nothing
            raise AssertionError(done.output)
        if "--json" in words and done.exit_code in (0, 1, 4) and done.stdout.strip():
            json.loads(done.stdout, parse_constant=_refused)
        return done.output

    return call


def _refused(name: str) -> None:
    raise AssertionError(f"{name} in the JSON that a command prints")


def _read_run(folder: Path, whole: Path) -> Calls:
    from precision_eval import load

    def loaded() -> str:
        run = load(folder)
        json.dumps([run.to_dicts(kind=kind) for kind in ("fixes", "records")], allow_nan=False)
        return repr(run) + run._repr_html_()

    return [
        ("load", loaded),
        ("choose", _command("choose", folder)),
        ("choose --json", _command("choose", folder, "--policy", "speed", "--json")),
    ]


def _read_machines(folder: Path, whole: Path) -> Calls:
    other = RESULTS / "machines" / "torch-2.6.0"
    return [
        ("report of two", _command("report", folder, other)),
        ("report of two --json", _command("report", folder, other, "--json")),
    ]


def _read_asv(folder: Path, whole: Path) -> Calls:
    out = ("--figure", folder / "versions.svg", "--csv", folder / "versions.csv")
    versions = _command("versions", "--results", folder, *out)
    return [("versions", versions)]


def _lay_run(folder: Path) -> list[Path]:
    """Two groups of the committed run: the voice, with every measure, and one case of attention.

    Their environments become one: a gate refuses a run of several, and would then read nothing else of it.
    """
    wanted = {("attention-decode", "eager", "metavoice"), ("voice", "eager", "default")}
    fixes = {"query_to_half", "full_float32", "as_shipped", "oracle", "null"}
    lines = (RESULTS / "cpu" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [(json.loads(line), line) for line in lines]
    kept = [
        line
        for record, line in records
        if (record.get("case", record.get("workload")), record["mode"], record["size"]) in wanted
        and record["fix"] in fixes | {"reference", "noise_floor"}
    ]
    environment = json.loads(kept[0])["environment"]
    kept = [line.replace(json.loads(line)["environment"], environment) for line in kept]
    (folder / "records.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    for path in (RESULTS / "cpu").glob("environment*.json"):
        shutil.copy(path, folder)
    return [folder / "records.jsonl"] * 29 + [folder / "environment.json"]


def _lay_machine(folder: Path) -> list[Path]:
    for path in (RESULTS / "machines" / "torch-2.13.0").glob("*.json*"):
        shutil.copy(path, folder)
    return [folder / "records.jsonl"] * 29 + [folder / "environment.json"]


def _lay_asv(folder: Path) -> list[Path]:
    """Two versions of torch, of each the figures of MetaVoice's decoding."""

    def few(figures: Data) -> Data:
        return {key: value for key, value in figures.items() if re.search(r"metavoice_decode\.|build|^version$", key)}

    source = RESULTS / "torch-versions"
    home = folder / "two-shared-cores"
    home.mkdir()
    wanted = re.compile(r"2\.12\.1|2\.13\.0")
    names = [path.name for path in (source / home.name).glob("*.json") if wanted.search(path.name)]
    shutil.copy(source / home.name / "machine.json", home)
    for name in names:
        content = json.loads((source / home.name / name).read_text(encoding="utf-8"))
        (home / name).write_text(json.dumps({**content, "results": few(content["results"])}), encoding="utf-8")
    for path in source.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    declared = folder / "benchmarks.json"
    declared.write_text(json.dumps(few(json.loads(declared.read_text(encoding="utf-8")))), encoding="utf-8")
    others = [*folder.glob("*.jsonl"), folder / "benchmarks.json", home / "machine.json"]
    return [home / name for name in names] * 4 + others


TARGETS: Mapping[str, tuple[Callable[[Path], Sequence[Path]], Callable[[Path, Path], Calls], int]] = {
    "records": (_lay_run, _read_run, 20),
    "report": (_lay_run, lambda folder, whole: [("report", _command("report", folder))], 24),
    "merge": (_lay_machine, _read_machines, 4),
    "asv": (_lay_asv, _read_asv, 2),
}
"""Target to: what lays its folder out and returns the files to change, what reads it, mutations per folder."""


def _unrendered(figure: Any, file: Any, **options: Any) -> None:
    """Write a figure of one pixel in the place of ``Figure.savefig``."""
    from PIL import Image

    if options.get("format") != "svg" and not str(file).endswith(".svg"):
        Image.new("RGB", (1, 1)).save(file, "PNG")
        return
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" viewBox="0 0 1 1"></svg>'
    if isinstance(file, Path):
        file.write_text(svg)
    else:
        file.write(svg if isinstance(file, io.TextIOBase) else svg.encode())


@contextlib.contextmanager
def _rendering(wanted: bool) -> Iterator[None]:
    """Render figures or, which takes a tenth of the time, only build them."""
    from matplotlib.figure import Figure as Drawing

    with contextlib.ExitStack() as stack:
        if not wanted:
            stack.enter_context(mock.patch.object(Drawing, "savefig", _unrendered))
            stack.enter_context(mock.patch.object(Drawing, "draw_without_rendering", return_value=None))
            stack.enter_context(mock.patch("precision_eval.report.drawing.take_literally"))
        yield


@functools.cache
def _laid(target: str) -> tuple[tempfile.TemporaryDirectory[str], tuple[Path, ...]]:
    """Return a folder of a target as it is before any mutation, and which of its files are mutated."""
    home = tempfile.TemporaryDirectory(prefix="attack-")
    return home, tuple(path.relative_to(home.name) for path in TARGETS[target][0](Path(home.name)))


def attack(target: str, seed: int, mutations: int | None = None) -> Data:
    """Mutate one folder and read it; return each fault with the place that it came from, and what was refused."""
    _, readers, usual = TARGETS[target]
    laid, names = _laid(target)
    count = usual if mutations is None else mutations
    rng = np.random.default_rng([seed, sum(map(ord, target))])
    rendered = seed % DRAWN_EVERY == 0
    with tempfile.TemporaryDirectory(prefix="attack-") as name, warnings.catch_warnings(), _rendering(rendered):
        warnings.simplefilter("ignore")
        folder = shutil.copytree(laid.name, Path(name) / "mutated")
        files = [folder / one for one in names]
        _mutate(files[int(rng.integers(len(files)))], count, rng)  # one file: some are refused for any change of them
        outcomes = [(label, _fault(call)) for label, call in readers(folder, Path(laid.name))]
        faults = [f"{label}: {fault}" for label, fault in outcomes if fault] + _leaks(folder, files)
    refused = sum(fault is None for _, fault in outcomes)
    counts = {"mutations": count, "readings": len(outcomes), "refused": refused}
    return {"target": target, "seed": seed, **counts, "faults": faults}


def _fault(call: Callable[[], Any]) -> str | None:
    """Return what is wrong with a call: another exception than the suite's own, a control character; None: refused."""
    from click.exceptions import ClickException, Exit

    try:
        with contextlib.redirect_stderr(io.StringIO()):
            output = call()
    except (PrecisionEvalError, ClickException, Exit):
        return None
    except Exception as error:  # noqa: BLE001 - what is counted here
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "precision_eval" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} at {where}: {str(error)[:120]}"
    leaked = _CONTROL.search(str(output or ""))
    return f"character {leaked[0]!a} reaches the output" if leaked else ""


def _leaks(folder: Path, given: Sequence[Path]) -> list[str]:
    """Name the written text files that hold control characters, or text that a browser or a spreadsheet would run."""
    written = [path for path in folder.rglob("*") if path.is_file() and path.suffix in _LIVE]
    texts = ((path, path.read_text(encoding="utf-8")) for path in written if path not in given)
    return [
        f"{path.name} holds {leaked[0]!a}"
        for path, text in texts
        for pattern in (_CONTROL, _LIVE[path.suffix])
        if (leaked := pattern.search(text))
    ]


VALUES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("target", "factory"), ("case.py:factory", "case.py:other", "case.py")),
    **dict.fromkeys(("run_dir", "stored_base", "stored_head"), ("run", "run", "run", "empty", "2.12.1")),
    **dict.fromkeys(("results",), ("versions",)),
    "run_dirs": ("run", "run", "empty"), "executor": ("local:1",), "judge": ("whisper",), "speech": ("empty",),
    **dict.fromkeys(("reference", "estimate", "noise_floor"), ("a.wav", "b.wav", "empty")),
    **dict.fromkeys(("margin_latency", "margin_anchor", "margin_drift", "margin_memory"), ("5%", "0.1", "0")),
    **dict.fromkeys(("max_memory", "device_memory"), ("1GiB", "8e9", "24 GB")),
    **dict.fromkeys(("seed", "batch", "threads", "workers", "processes", "tokens", "refine"), ("1", "2", "7")),
    **dict.fromkeys(("budget", "minutes", "seconds", "min_speed"), ("0.05", "1", "1.5")),
    **dict.fromkeys(("commit", "torch", "base", "head"), ("HEAD", "2.13.0", "main")),
    "candidate": ("case.py:change",), "folder": ("empty", "new"), "out": ("run", "new", "empty"),
    "case": ("attention-decode", "attention-*", "voice", "dia-*", "metavoice-decode"), "what": ("fixes", "cases"),
    "fix": ("full_float32", "kv_to_query", "*", "bfloat16,float16"), "mode": ("eager", "compiled", "eager,compiled"),
    "device": ("cpu", "auto", "cuda", "mps"), "size": ("tiny", "default", "metavoice", "cpu"), "streams": ("2",),
    "measure": ("trace", "drift,memory", "latency", "audio"), "steps": ("5",), "timeout": ("3",),
    "memory": ("default",),
    "checkpoint_dtype": ("float32", "bfloat16"), "policy": ("speed", "balanced"), "max_drift": ("0.01", "1e-6"),
    "length": ("1000", "64"), "hf": ("empty",), "dtype": ("float16",), "write_patch": ("a.patch",),
    "message": ("Expected query, key, and value to have the same dtype", "case.py", "-"), "model": ("metavoice-1b",),
    "kv_dtype": ("float16",), "shape": ("metavoice",), "cache_dtype": ("float16",),
    "machine": ("two-shared-cores",), "require": ("latency", "drift"), "markdown": ("gate.md",), "metric": ("latency",),
    "by": ("torch", "commit"), "html": ("v.html",), "csv": ("v.csv",),
    "plot": ("p.png",), "sdpa_backend": ("math",), "tf32": ("on",),
}  # fmt: skip
"""Parameter to values that are mostly sensible in a folder that :func:`_lay_commands` has laid out."""

_LEFT_OUT = {"open_report"}

_CASE = """
def factory():
    import torch
    return torch.nn.Linear(4, 4), (torch.ones(2, 4),)

def other():
    raise KeyError("of the user's own")

def change(model):
    return model.half()
"""
_COMMAND_S, _ENDING_S = 5.0, 60.0

_LOADED_ONCE = ("torch", "scipy.stats", "matplotlib.figure", "precision_eval.cases", "precision_eval.doctor")
"""What most commands load; one process for each command is forked from one that has it."""


def _lay_commands(folder: Path) -> None:
    """A run, results over versions, a user's case and two recordings."""
    import soundfile

    for name, lay in (("run", _lay_run), ("versions", _lay_asv), ("empty", lambda path: [])):
        (folder / name).mkdir()
        lay(folder / name)
    (folder / "case.py").write_text(_CASE)
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000)
    for name in ("a.wav", "b.wav"):
        soundfile.write(folder / name, noise, 16_000)
        noise = np.roll(noise, 7)


def drawn_command(rng: np.random.Generator) -> list[str]:
    """Draw a command with options that it declares; one value in ten is hostile, one word in forty of no command."""
    from precision_eval.cli.commands import COMMANDS, command_named

    name = list(COMMANDS)[int(rng.integers(len(COMMANDS)))]
    words = [name]
    for parameter in command_named(name).params:
        if parameter.name in _LEFT_OUT or (not parameter.required and rng.random() < 0.75):
            continue
        value = str(rng.choice(VALUES.get(parameter.name, ("1",))))
        if rng.random() < 0.1:
            value = (
                str(HOSTILE[int(rng.integers(len(HOSTILE)))])[:300].replace("\x00", "").encode(errors="ignore").decode()
            )
        if parameter.param_type_name == "option":
            words.append(parameter.opts[0])
        if not getattr(parameter, "is_flag", False):
            words.append(value)
    if rng.random() < 0.025:
        words.insert(int(rng.integers(1, len(words) + 1)), "--no-such")
    return words


def attack_commands(seed: int, count: int = 6) -> Data:
    """Give commands, each in a process of its own that is stopped after some seconds; return the faults."""
    for module in _LOADED_ONCE:
        importlib.import_module(module)
    rng = np.random.default_rng([seed, 0])
    faults = []
    with tempfile.TemporaryDirectory(prefix="attack-") as name:
        _lay_commands(Path(name))
        for _ in range(count):
            words = drawn_command(rng)
            if fault := _command_fault(words, Path(name)):
                faults.append(f"{shlex.join(words)}: {fault}")
    return {"target": "commands", "seed": seed, "mutations": count, "faults": faults}


def _command_fault(words: Sequence[str], folder: Path) -> str:
    """Return what is wrong with how a command ended."""
    printed = folder.with_name(f"{folder.name}.printed")
    with printed.open("wb") as out:
        pid = os.fork()  # a fresh interpreter for each would take longer than all else
        if not pid:
            _be_the_command(words, folder, out.fileno())
    end_s = time.monotonic() + _COMMAND_S + _ENDING_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return f"not ended {_ENDING_S:.0f} s after Ctrl-C"
        time.sleep(0.02)
    code, text = os.waitstatus_to_exitcode(ended[1]), printed.read_text(encoding="utf-8", errors="replace")
    printed.unlink()
    if code not in DOCUMENTED:
        return f"exit code {code}: {text[-300:]!r}"
    if wrong := re.search(r"Traceback \(most|internal error|Fatal Python|Exception ignored", text):
        return f"printed {text[wrong.start() :][:300]!r}"
    leaked = _CONTROL.search(text)
    return f"character {leaked[0]!a} reaches the output" if leaked else ""


def _be_the_command(words: Sequence[str], folder: Path, out: int) -> None:
    """Be the process of a command line, interrupted after some seconds."""
    code = 99
    try:
        os.setsid()
        os.chdir(folder)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, out)):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115, PTH123
        sys.argv = ["precision-eval", *words]
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, _COMMAND_S)
        from precision_eval.cli.commands import main

        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - it must never go on as a second attacker
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _trials(options: Options) -> list[Trial]:
    """Return every target's trials side by side, so that a run of limited time has of each."""
    wanted = {target: options["commands" if target == "commands" else "mutations"] for target in options["targets"]}
    counts = {target: -(-count // _per_trial(target)) for target, count in wanted.items()}
    places = sorted((seed / count, target, seed) for target, count in counts.items() for seed in range(count))
    return [Trial(f"{target}/{seed}", (target, seed)) for _, target, seed in places]


def _per_trial(target: str) -> int:
    return 6 if target == "commands" else TARGETS[target][2]


def _summary(lines: Sequence[Data], options: Options) -> Data:
    """Sum the trials of each target up."""
    targets = {}
    for target in [name for name in (*TARGETS, "commands") if any(line["target"] == name for line in lines)]:
        own = [line for line in lines if line["target"] == target]
        counts = {name: sum(line.get(name, 0) for line in own) for name in ("mutations", "readings", "refused")}
        targets[target] = counts | {"faults": [fault for line in own for fault in line["faults"]]}
    return {"targets": targets}


def _figures(content: Data) -> list[Figure]:
    figures = []
    for target, one in content["targets"].items():
        what = "random commands" if target == "commands" else f"mutations of {target}"
        found = str(len(one["faults"]))
        if one["readings"]:
            found += f"; {one['refused'] / one['readings']:.0%} of {one['readings']:,} readings refused in one line"
        name = f"uncaught in {one['mutations']:,} {what}"
        figures.append(Figure(name, found, target="0", met=not one["faults"]))
    return figures


EXPERIMENT = Experiment(
    name="attack",
    title="hostile result files and random commands",
    trials=_trials,
    run=each(lambda spec: attack_commands(spec[1]) if spec[0] == "commands" else attack(*spec)),
    figures=_figures,
    summary=_summary,
    settings={"mutations": (300, 10_000), "commands": (300, 2_000), "targets": ((*TARGETS, "commands"),) * 2},
)
