"""The matrix: which fault meets which stage, in which command of which run.

A scenario is one run folder and one command line, given again and again. Each :class:`Step` gives it once.
In the first steps the faults of workers are armed. Then the command asks for one fix more, so that every stage is
reached again, and in each step a fault of the main process ends it at another stage; files of the folder may be damaged
before a step. The last step has patience and ends by itself. *quick* has one fault of the main process at eight stages,
*full* all of them at every stage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.frame import Size
from validation.robustness.injector import MAIN_STAGES, Fault

ENDS: Mapping[str, tuple[int, ...]] = {"kill_main": (-9,), "interrupt": (130,), "terminate": (143,), "full_disk": (2,)}
"""Exit codes of a command that a fault of the main process ends."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The command, given once."""

    ending: Fault | None = None
    damage: str | None = None
    workers: bool = False
    patient: bool = False

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """Exit codes that are expected; 3 where a worker's full disk kept the suite from measuring something."""
        done = (0, 3) if self.workers else (0,)
        return done if self.ending is None else ENDS[self.ending.kind]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run folder and what happens to it."""

    name: str
    arguments: tuple[str, ...]
    fixes: tuple[str, ...]
    later_fixes: tuple[str, ...]
    faults: tuple[Fault, ...]
    steps: tuple[Step, ...]

    def command(self, step: Step, run_dir: Path) -> tuple[str, ...]:
        """Return the arguments of ``precision-eval``."""
        fixes = self.fixes if step.workers else (*self.fixes, *self.later_fixes)
        patience = ("--timeout", "600") if step.patient else ()
        return ("run", *self.arguments, *patience, "--fix", ",".join(fixes), "--out", str(run_dir))

    def armed(self, step: Step) -> tuple[Fault, ...]:
        """Return the faults of a step."""
        ending = () if step.ending is None else (step.ending,)
        return (*ending, *(self.faults if step.workers else ()))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of its trials."""
        endings = [step.ending.key for step in self.steps if step.ending is not None]
        damages = [f"{step.damage}/between" for step in self.steps if step.damage is not None]
        return (*(fault.key for fault in self.faults), *endings, *damages)


def _cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _only(run_dir: Path, pattern: str) -> Path:
    return sorted(run_dir.glob(pattern))[0]


def _append(run_dir: Path, tail: bytes) -> None:
    with (run_dir / "records.jsonl").open("ab") as file:
        file.write(tail)


DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "torn_line": lambda run_dir: _append(run_dir, b'{"cell":"voice/x","data":{"value":1.'),
    "garbage_tail": lambda run_dir: _append(run_dir, b"\x00\x00\xff\xfe\n\x80garbage\n\x00\x00"),
    "cut_character": lambda run_dir: _append(run_dir, '{"cell":"größer'.encode()[:-4] + b"\xc3"),
    "no_logs": lambda run_dir: shutil.rmtree(run_dir / "logs"),
    "cut_reference_logits": lambda run_dir: _cut_in_half(_only(run_dir, "streams/reference-logits*")),
    "cut_tokens": lambda run_dir: _cut_in_half(run_dir / "streams" / "reference.npy"),
    "no_tokens": lambda run_dir: (run_dir / "streams" / "noise_floor.npy").unlink(),
    "cut_audio": lambda run_dir: _cut_in_half(run_dir / "audio" / "reference.wav"),
}
"""What a crash of the machine, a full disk or a user may do to a run's folder between two commands."""


def scenarios(size: Size) -> tuple[Scenario, ...]:
    """Return what is run at a size."""
    return (_attention(size), _voice(size))


WORKER_FAULTS = ("kill_worker", "memory_limit", "full_disk", "stop_worker")
Ending = tuple[str, str | None, str | None]
"""A stage, what ends the main process there at quick size, and what is damaged before."""


def _workers_faults(stage: str, case: str, fixes: Sequence[str]) -> list[Fault]:
    """One fault of each kind at a stage, each on a fix of its own; what hangs or is too large stays so."""
    stays = ("memory_limit", "stop_worker")
    kinds = zip(WORKER_FAULTS, fixes, strict=True)
    return [Fault(kind=kind, stage=stage, case=case, fix=fix, once=kind not in stays) for kind, fix in kinds]


def _clock_steps(stages: Sequence[str]) -> list[Fault]:
    """The wall clock jumps in every process and at every stage; first, since nothing can be noted on a full disk."""
    return [Fault(kind="clock_step", stage=stage, once=False) for stage in stages]


def _steps(size: Size, endings: Sequence[Ending]) -> list[Step]:
    """One step per fault of the main process: the named one of each stage, or at full size every kind."""
    steps = []
    for stage, quick, damage in endings:
        every = tuple(ENDS) if stage in MAIN_STAGES else tuple(ENDS)[:3]  # a full disk is the main process's own
        for kind in every if size == "full" else (quick,) if quick else ():
            steps.append(Step(ending=Fault(kind=kind, stage=stage), damage=damage))
            damage = None
    return steps


def _attention(size: Size) -> Scenario:
    fixes = ("query_to_half", "bfloat16", "float16", "autocast")
    late: dict[str, Any] = {"stage": "latency", "case": "attention-prefill"}
    faults = [
        *_clock_steps(("trace", "drift", "memory", "latency")),
        *_workers_faults("trace", "attention-decode", fixes),
        *_workers_faults("drift", "attention-prefill", fixes),
        *_workers_faults("memory", "attention-prefill", fixes),
        # the group is lost once, and is then run fix by fix, where the others act
        Fault(kind="kill_worker", cells="group", **late),
        *(
            Fault(kind=kind, fix=fix, cells="single", once=False, **late)
            for kind, fix in zip(WORKER_FAULTS[1:], fixes[1:], strict=True)
        ),
        Fault(kind="deleted_logs", stage="drift", case="attention-decode", fix="full_float32"),
        Fault(kind="second_run", stage="memory", case="attention-decode", fix="full_float32"),
    ]
    endings: list[Ending] = [
        ("planning", "terminate", "torn_line"),
        ("trace", None, None),
        ("drift", "interrupt", "garbage_tail"),
        ("records", "kill_main", "cut_character"),
        ("memory", None, None),
        ("latency", "terminate", "no_logs"),
        ("report", "kill_main", None),
    ]
    return Scenario(
        name="attention",
        arguments=(
            *("--case", "attention-*", "--size", "tiny", "--device", "cpu", "--budget", "0.05"),
            *("--workers", "4", "--timeout", "12"),
        ),
        fixes=("full_float32", *fixes),
        later_fixes=("kv_to_query",),
        faults=tuple(faults),
        steps=(Step(workers=True), *_steps(size, endings), Step(patient=True)),
    )


def _voice(size: Size) -> Scenario:
    fixes = ("full_float32", "bfloat16", "float16", "autocast")
    early = ("teacher_forced_drift", "streams", "synthesis")
    control = "control_rope_bfloat16"
    faults = _clock_steps((*early, "divergence", "audio"))
    faults += [fault for stage in early for fault in _workers_faults(stage, "voice", fixes)]
    faults += _workers_faults("divergence", "voice", (fixes[0], control, fixes[2], "noise_floor"))
    faults += _workers_faults("audio", "voice", (fixes[0], control, fixes[2], "control_long_window"))
    half = zip(early, ("*", control, control), strict=True)
    faults += [Fault(kind="half_written", stage=stage, fix=fix) for stage, fix in half]
    endings: list[Ending] = [
        ("teacher_forced_drift", "kill_main", "cut_reference_logits"),
        ("streams", "interrupt", "cut_tokens"),
        ("divergence", None, None),
        ("synthesis", "terminate", "no_tokens"),
        ("audio", None, None),
    ]
    return Scenario(
        name="voice",
        arguments=(
            *("--case", "voice", "--device", "cpu", "--minutes", "0.02", "--streams", "2", "--steps", "10"),
            *("--measure", "teacher_forced_drift,divergence,audio", "--workers", "6", "--timeout", "15"),
        ),
        fixes=fixes,
        later_fixes=("query_to_half",),
        faults=tuple(faults),
        steps=(
            *(Step(workers=True), Step(workers=True)),
            *_steps(size, endings),
            Step(damage="cut_audio", patient=True),
        ),
    )
