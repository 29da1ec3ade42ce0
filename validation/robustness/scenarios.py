"""The matrix: which fault meets which stage, in which command of which run.

A scenario is one run folder and one command line, given again and again. Each :class:`Step` gives it once.
In the first steps the faults of workers are armed. Then the command asks for one fix more, so that every stage is
reached again, and in each step a fault of the main process ends it at another stage; files of the folder may be damaged
before a step. The last step has patience and ends by itself. *quick* has one fault of the main process at eight stages,
*full* all of them at every stage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from validation.frame import Size
from validation.robustness.injector import Fault

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


def _workers_faults(stage: str, case: str, fixes: Mapping[str, str]) -> list[Fault]:
    """One fault of each kind at a stage, each on a fix of its own; what hangs or is too large stays so."""
    once = {"stop_worker": False, "memory_limit": False}
    return [Fault(kind=kind, stage=stage, case=case, fix=fix, once=once.get(kind, True)) for kind, fix in fixes.items()]


def _clock_steps(stages: tuple[str, ...]) -> list[Fault]:
    """The wall clock jumps in every process and at every stage; first, since nothing can be noted on a full disk."""
    return [Fault(kind="clock_step", stage=stage, once=False) for stage in stages]


def _endings(size: Size, stages: Mapping[str, str | None], kinds: tuple[str, ...]) -> list[Fault]:
    """Faults of the main process: the named one of each stage, or at full size every kind."""
    chosen = {stage: kinds if size == "full" else (kind,) if kind else () for stage, kind in stages.items()}
    return [Fault(kind=kind, stage=stage) for stage, all_kinds in chosen.items() for kind in all_kinds]


def _attention(size: Size) -> Scenario:
    fixes = {
        "kill_worker": "query_to_half",
        "memory_limit": "bfloat16",
        "full_disk": "float16",
        "stop_worker": "autocast",
    }
    faults = [
        *_clock_steps(("trace", "drift", "memory", "latency")),
        *_workers_faults("trace", "attention-decode", fixes),
        *_workers_faults("drift", "attention-prefill", fixes),
        *_workers_faults("memory", "attention-prefill", fixes),
        # the group is lost once, and is then run fix by fix, where the others act
        Fault(kind="kill_worker", stage="latency", case="attention-prefill", cells="group"),
        *(
            Fault(kind=kind, stage="latency", case="attention-prefill", fix=fix, cells="single", once=False)
            for kind, fix in fixes.items()
            if kind != "kill_worker"
        ),
        Fault(kind="deleted_logs", stage="drift", case="attention-decode", fix="full_float32"),
        Fault(kind="second_run", stage="memory", case="attention-decode", fix="full_float32"),
    ]
    signals = ("kill_main", "interrupt", "terminate")
    everywhere = (*signals, "full_disk")
    endings = [
        *_endings(size, {"planning": "terminate"}, everywhere),
        *_endings(size, {"trace": None, "drift": "interrupt"}, signals),
        *_endings(size, {"records": "kill_main"}, everywhere),
        *_endings(size, {"memory": None, "latency": "terminate"}, signals),
        *_endings(size, {"report": "kill_main"}, everywhere),
    ]
    damages = {"planning": "torn_line", "drift": "garbage_tail", "records": "cut_character", "latency": "no_logs"}
    return Scenario(
        name="attention",
        arguments=(
            *("--case", "attention-*", "--size", "tiny", "--device", "cpu", "--budget", "0.05"),
            *("--workers", "4", "--timeout", "12"),
        ),
        fixes=("full_float32", *fixes.values()),
        later_fixes=("kv_to_query",),
        faults=tuple(faults),
        steps=(Step(workers=True), *_steps(endings, damages), Step(patient=True)),
    )


def _voice(size: Size) -> Scenario:
    fixes = {
        "kill_worker": "full_float32",
        "memory_limit": "bfloat16",
        "full_disk": "float16",
        "stop_worker": "autocast",
    }
    early = ("teacher_forced_drift", "streams", "synthesis")
    late = {**fixes, "memory_limit": "control_rope_bfloat16"}
    faults = _clock_steps((*early, "divergence", "audio"))
    faults += [fault for stage in early for fault in _workers_faults(stage, "voice", fixes)]
    faults += _workers_faults("divergence", "voice", {**late, "stop_worker": "noise_floor"})
    faults += _workers_faults("audio", "voice", {**late, "stop_worker": "control_long_window"})
    faults += [
        Fault(kind="half_written", stage=stage, fix=fix)
        for stage, fix in zip(early, ("*", "control_rope_bfloat16", "control_rope_bfloat16"), strict=True)
    ]
    stages = {
        "teacher_forced_drift": "kill_main",
        "streams": "interrupt",
        "divergence": None,
        "synthesis": "terminate",
        "audio": None,
    }
    damages = {"teacher_forced_drift": "cut_reference_logits", "streams": "cut_tokens", "synthesis": "no_tokens"}
    endings = _endings(size, stages, ("kill_main", "interrupt", "terminate"))
    return Scenario(
        name="voice",
        arguments=(
            *("--case", "voice", "--device", "cpu", "--minutes", "0.02", "--streams", "2", "--steps", "10"),
            *("--measure", "teacher_forced_drift,divergence,audio", "--workers", "6", "--timeout", "15"),
        ),
        fixes=tuple(fixes.values()),
        later_fixes=("query_to_half",),
        faults=tuple(faults),
        steps=(
            *(Step(workers=True), Step(workers=True)),
            *_steps(endings, damages),
            Step(damage="cut_audio", patient=True),
        ),
    )


def _steps(endings: list[Fault], damages: Mapping[str, str]) -> list[Step]:
    """One step per fault of the main process; the damage of a stage comes before its first."""
    seen: set[str] = set()
    steps = []
    for ending in endings:
        damage = damages.get(ending.stage) if ending.stage not in seen else None
        seen.add(ending.stage)
        steps.append(Step(ending=ending, damage=damage))
    return steps
