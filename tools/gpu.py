"""Everything that wants a card, in one command that resumes: ``python -m tools gpu``.

A part is a few commands that write into a folder of their own. It is packed into one file every half minute and at its
end, whole or not at all, so that a machine that goes away leaves what it had measured. ``session.json`` names the parts
that ended, with the commit; the same command goes on with the others.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.files import read_json, write_json, written_whole

ROOT = Path(__file__).resolve().parents[1]
STATE = "session.json"
PACK_EVERY_S = 30.0
GRACE_S = 10.0
LARGEST_FILE = 16 * 2**20
LEAST_S = 10.0
"""A part is not begun with less time than this."""

# Others would be imported, each part of a minute, to find nothing in them.
WITH_CUDA = tuple(
    str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.cuda" in file.read_text()
)
RUN = ("-m", "precision_eval.cli", "run", "--device", "cuda")
SYSTEMS = "metavoice-decode,dia-decode,cogvideo-t5-encoder-stock,imaginairy-time-embed"


@dataclass(frozen=True)
class Part:
    """Commands of Python, each followed by ``--out`` and a folder if ``writes`` is set, and their limit in seconds."""

    name: str
    limit_s: float
    commands: tuple[tuple[str, ...], ...]
    writes: bool = True


PARTS = (
    Part("tests", 45, (("-m", "pytest", "-q", "-m", "cuda", "-p", "no:benchmark", *WITH_CUDA),), False),
    Part("quick", 40, ((*RUN, "--quick"),)),
    Part("systems", 150, ((*RUN, "--case", SYSTEMS, "--size", "full", "--mode", "eager"), (*RUN, "--case", "voice"))),
    Part("trials", 90, (("-m", "validation", "card"),)),
    Part("gate", 60, (("-m", "validation", "gate", "--set", "device=cuda", "--set", "faults=none,slower_2"),)),
    Part("sound", 55, ((*RUN, "--case", "voice", "--measure", "sound", "--fix", "kv_to_query,bfloat16,float16"),)),
    Part("kernels", 30, ((*RUN, "--case", "attention-*", "--measure", "trace,drift,memory", "--set",
                          "sdpa_backend=any,math,flash,efficient,cudnn"),)),
)  # fmt: skip


def run_parts(
    out: Path, work: Path, parts: Sequence[Part] = PARTS, *, limit_s: float = 480.0
) -> dict[str, dict[str, Any]]:
    """Run what has not ended at this commit; return every part's status: ended, failed, cut, or not begun.

    ``cut`` is a part that its limit, or the whole session's, ended. What it had written in ``work`` is packed in
    ``out``, and it goes on from there next time, on another machine too.
    """
    out, work = out.resolve(), work.resolve()
    out.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    state = _read_state(out, commit)
    deadline_s = time.monotonic() + limit_s
    for part in parts:
        if state.get(part.name, {}).get("status") == "ended":
            continue
        left_s = min(part.limit_s, deadline_s - time.monotonic())
        began_s = time.monotonic()
        status, codes = _run_part(part, out, work / part.name, left_s) if left_s >= LEAST_S else ("not begun", [])
        state[part.name] = {"status": status, "exit_codes": codes, "seconds": round(time.monotonic() - began_s, 1)}
        write_json(out / STATE, {"commit": commit, "parts": state})
    return state


def require_cuda() -> None:
    """Refuse a machine without a card, in one line."""
    import torch

    if not torch.cuda.is_available():
        build = "built without CUDA" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
        raise UnsupportedError(
            f"no CUDA device here (torch {torch.__version__}, {build}); run this on a machine with one"
        )


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _read_state(out: Path, commit: str) -> dict[str, dict[str, Any]]:
    path = out / STATE
    if not path.exists():
        return {}
    content = read_json(path)
    if content["commit"] != commit:
        raise ParameterError(f"{out} holds parts of commit {content['commit'][:12]}, and this is {commit[:12]}; "
                             "give another --out")  # fmt: skip
    parts: dict[str, dict[str, Any]] = content["parts"]
    return parts


def _run_part(part: Part, out: Path, folder: Path, limit_s: float) -> tuple[str, list[int]]:
    packed = out / f"{part.name}.tar.gz"
    if packed.exists() and not folder.exists():
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
    folder.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + limit_s
    codes: list[int] = []

    def keep() -> None:
        pack(folder, packed)

    try:
        for index, words in enumerate(part.commands):
            target = ["--out", str(folder / f"out{index}")] if part.writes else []
            with (folder / f"log{index}.txt").open("ab") as log:
                code = _run_command([*words, *target], log, deadline_s, keep)
            if code is None:
                return "cut", codes
            codes.append(code)
    finally:
        keep()
    return ("failed" if any(codes) else "ended"), codes


def _run_command(words: Sequence[str], log: Any, deadline_s: float, keep: Callable[[], None]) -> int | None:
    """Return the exit code, or None where the deadline ended it; interrupted first, so that its records are whole."""
    command = [sys.executable, *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(PACK_EVERY_S, left_s))
            keep()
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pack(folder: Path, path: Path, *, largest: int = LARGEST_FILE) -> None:
    """Pack a folder's files, smallest first; what would make the file too large is named in it and left out."""
    files = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    left_out = []
    with written_whole(path) as partial, tarfile.open(partial, "w:gz") as archive:
        for file in files:
            name = str(file.relative_to(folder))
            if partial.stat().st_size + file.stat().st_size > largest:
                left_out.append(name)
                continue
            with suppress(FileNotFoundError):  # a command is still running
                _add(archive, name, file.read_bytes())
        if left_out:
            _add(archive, "LEFT_OUT.txt", "\n".join(left_out).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(content), int(time.time())
    archive.addfile(entry, io.BytesIO(content))
