"""What an experiment is, and the one way to run it, to keep its trials and to report what they say.

An experiment lists its trials, each with a key that names everything the trial depends on. Every trial that ends is one
line of ``OUT/NAME.jsonl``; a stopped experiment goes on with the keys that are missing. Figures, plots and summaries
are made from those lines alone.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError, unknown_name
from precision_eval.core.files import TrialFile, check_own_folder, claimed, read_json, write_json
from precision_eval.core.formatting import visible

ROOT = Path(__file__).resolve().parents[1]
Size = Literal["quick", "full"]
SIZES: tuple[Size, ...] = ("quick", "full")
Data = dict[str, Any]
# Called as ``progress(done, total, key)`` after every trial; trials on file count as done.
Progress = Callable[[int, int, str], None]


class Trial(NamedTuple):
    """One trial, as data: its key, what the experiment needs to run it, and the seconds that it may take."""

    key: str
    spec: Any = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Figure:
    """One line of a report. `met` is None without a target, or where there are too few trials to tell."""

    name: str
    found: str
    target: str = ""
    met: bool | None = None
    rivals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks of an experiment; settings are read as ``options["sets"]``."""

    out: Path
    size: Size = "quick"
    report: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.settings[name]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment: data and four functions.

    `settings` maps a name to its values at quick and full size. `summary` makes one JSON document of the lines, stored
    as ``OUT/stored``; `figures` and `plots` then read that document instead of the lines.
    """

    name: str
    title: str
    trials: Callable[[Options], Sequence[Trial]]
    run: Callable[[Iterator[Trial], Options], Iterable[Data]]
    figures: Callable[[Any], list[Figure]]
    plots: Callable[[Any, Path], list[Path]] = lambda content, out: []
    summary: Callable[[list[Data], Options], Data | None] | None = None
    notes: Callable[[Any], list[str]] = lambda content: []
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    file: str = ""
    stored: str = ""

    def path(self, out: Path) -> Path:
        return out / (self.file or f"{self.name}.jsonl")

    def stored_path(self, out: Path) -> Path:
        return out / (self.stored or f"{self.name}.json")

    def options(self, given: Mapping[str, str], *, out: Path, size: Size = "quick", report: bool = False) -> Options:
        """Return the settings of a size with those that were given, converted to the type of the defaults."""
        settings = {name: values[SIZES.index(size)] for name, values in self.settings.items()}
        for name, text in given.items():
            if name not in settings:
                raise unknown_name(f"setting of {self.name}", name, settings)
            settings[name] = _converted(name, text, settings[name])
        return Options(out=out, size=size, report=report, settings=settings)


def _converted(name: str, text: str, default: Any) -> Any:
    """Read a setting's text: a number, true or false, a comma-separated list, or text, as the default is."""
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes")
    if isinstance(default, tuple):
        return tuple(part for part in text.split(",") if part)
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except ValueError as error:
        raise ParameterError(f"{name} is {text!r}; expected a number such as {default}") from error


def python_m(
    *words: str, cwd: Path, codes: Sequence[int] = (0,), limit_s: float | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a module that finds this checkout; what ends with another code raises with what it said last."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True, text=True, check=False, timeout=limit_s,
    )  # fmt: skip
    if done.returncode not in codes:
        last = (done.stderr.strip() or done.stdout.strip())[-400:]
        raise PrecisionEvalError(f"{' '.join(words[:3])} ended with {done.returncode}: {last}")
    return done


def each(function: Callable[..., Data]) -> Callable[[Iterator[Trial], Options], Iterator[Data]]:
    """Run trials one by one: the function is given a trial's spec and returns the rest of its line."""
    return lambda trials, options: ({"key": trial.key, **function(trial.spec)} for trial in trials)


_MODULES = (
    "latency", "memory", "overhead", "divergence", "latency.kinds", "latency.device", "latency.card", "audio_ladder",
    "sound", "choose", "doctor", "gate", "versions", "reports",
)  # fmt: skip
NAMES = tuple(module.rpartition(".")[2].replace("_", "-") for module in _MODULES)
PROOF = NAMES[:4]  # the experiments on the measuring itself, which run when none is named


def experiment_by_name(name: str) -> Experiment:
    if name not in NAMES:
        raise unknown_name("experiment", name, NAMES)
    module = importlib.import_module(f"validation.{_MODULES[NAMES.index(name)]}")
    experiment: Experiment = module.EXPERIMENT
    return experiment


def run(experiment: Experiment, options: Options, *, limit_s: float = float("inf"), progress: Progress) -> None:
    """Run the trials that are missing; begin none that would not end within the limit."""
    _check_folder(experiment, options.out)
    file, planned = TrialFile(experiment.path(options.out)), experiment.trials(options)
    known, end_s = file.keys(), time.monotonic() + limit_s
    missing = [trial for trial in planned if trial.key not in known]
    keys = {trial.key for trial in planned}
    progress(len(keys & known), len(keys), "on file")
    in_time = takewhile(lambda trial: time.monotonic() + trial.seconds <= end_s, missing)
    with claimed(options.out):
        for line in experiment.run(in_time, options):
            file.append(line)
            known.add(line["key"])
            progress(len(keys & known), len(keys), line["key"])


def _check_folder(experiment: Experiment, out: Path) -> None:
    """Refuse to write into a folder that holds something else than trials or summaries."""
    if not experiment.stored_path(out).exists():
        others = [f"{name}.jsonl" for name in NAMES if (out / f"{name}.jsonl").exists()]
        check_own_folder(out, experiment.path(out).name, *others)


def content_of(experiment: Experiment, options: Options) -> Any:
    """Return what figures are made of: the lines, their summary, or the stored summary of an earlier run; else None."""
    lines = TrialFile(experiment.path(options.out)).read()
    if experiment.summary is None:
        return lines or None
    path = experiment.stored_path(options.out)
    stored = read_json(path) if path.exists() else None
    if not lines:
        return stored
    content = experiment.summary(lines, options)
    if content is not None:
        content = {**content, **_environment(stored or {}, options)}
        write_json(path, content)
    return content


def _environment(stored: Data, options: Options) -> Data:
    """Return where the trials ran: here where they ran just now, else what an earlier summary says, if any."""
    from precision_eval.core.environment import collect

    if not options.report:
        return {"environment": collect("cpu")}
    return {"environment": stored["environment"]} if "environment" in stored else {}


@contextmanager
def reading_trials(path: Path, *, remedy: str) -> Iterator[None]:
    """Name the file in one line where its trials cannot be read: they were edited or damaged."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, PrecisionEvalError):
            raise
        what = f"{type(error).__name__}: {visible(str(error))[:120]}"
        raise RecordError(f"{path} does not hold what this suite writes ({what}); {remedy}") from error


def figures_of(experiment: Experiment, content: Any, path: Path) -> list[Figure]:
    with reading_trials(path, remedy=f"give another file or --out with trials of {experiment.name}"):
        return [] if content is None else experiment.figures(content)


def report(experiment: Experiment, options: Options) -> tuple[list[Figure], list[Path]]:
    """Return the figures and the drawn files of an experiment; both are empty where nothing is stored."""
    content = content_of(experiment, options)
    path = experiment.path(options.out)
    figures = figures_of(experiment, content, path if path.exists() else experiment.stored_path(options.out))
    return figures, experiment.plots(content, options.out) if figures else []
