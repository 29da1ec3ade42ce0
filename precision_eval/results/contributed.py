"""A run as one small file, to send and to merge: JSON Lines that hold no path.

The first line says what follows and its SHA-256; then one line per environment and one per record, the last of each
cell. Reading it writes two kinds of files of fixed names into a folder of its own that ends with the block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from precision_eval.core.environment import environment_json, environment_of, environment_sha, stored_environments
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.files import from_json, to_json, written_whole
from precision_eval.core.formatting import command_line
from precision_eval.core.records import RECORDS_NAME, RecordFile, latest

FORMAT = "precision_eval_run"
VERSION = 1
LARGEST_BYTES = 32 << 20


def pack(run_dir: Path, file: Path) -> int:
    """Write a run as one file; return its size in bytes."""
    if file.exists():
        raise ParameterError(f"{file} is there already; give a new file")
    reading = RecordFile(run_dir / RECORDS_NAME).read()
    records = list(latest(reading.records).values())
    if not records:
        raise RecordError(f"{run_dir} holds no record; measure first: {command_line('run', '--out', run_dir)}")
    known = stored_environments(run_dir)
    used = dict.fromkeys(record.environment for record in records)
    for sha in used:
        if sha not in known or environment_sha(known[sha]) != sha:
            raise RecordError(f"{run_dir} lacks the file of environment {sha[:12]}, as it was written; measure again")
    lines = [to_json(known[sha], what=f"environment {sha[:12]}") for sha in used]
    body = "".join(f"{line}\n" for line in [*lines, *(record.to_json() for record in records)]).encode()
    head = {FORMAT: VERSION, "environments": len(used), "records": len(records), "sha256": _sha256(body)}
    content = f"{to_json(head, what=str(file))}\n".encode() + body
    if len(content) > LARGEST_BYTES:
        raise ParameterError(f"{run_dir} packs into {len(content)} bytes; more than {LARGEST_BYTES} are not taken")
    with written_whole(file) as partial:
        partial.write_bytes(content)
    return len(content)


@contextmanager
def folder_of(run: Path) -> Iterator[Path]:
    """Yield a run's folder; of one that :func:`pack` wrote, a temporary one, once all of it has been checked."""
    if not run.is_file():
        yield run
        return
    with TemporaryDirectory(prefix="precision-eval-") as folder:
        _unpack(run, Path(folder))
        yield Path(folder)


def _unpack(file: Path, folder: Path) -> None:
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise RecordError(f"{file} has {size} bytes; a run as one file has {LARGEST_BYTES} at most")
    first, _, body = file.read_bytes().partition(b"\n")
    head = _head(first, file)
    if _sha256(body) != head["sha256"]:
        raise RecordError(f"{file} is not as it was written: its SHA-256 differs; ask for it again")
    lines, count = body.splitlines(keepends=True), head["environments"]
    if len(lines) != count + head["records"]:
        raise RecordError(f"{file} announces {count + head['records']} lines and has {len(lines)}; ask for it again")
    known = set()
    for number, line in enumerate(lines[:count], start=2):
        environment = environment_of(line, where=f"{file} line {number}")
        try:
            content = environment_json(environment).encode()
        except UnicodeEncodeError as error:  # half a character, written as an escape
            raise RecordError(f"{file} line {number} holds no text: {error.reason}; ask for it again") from error
        known.add(sha := _sha256(content))
        (folder / f"environment-{sha[:12]}.json").write_bytes(content)
    (folder / RECORDS_NAME).write_bytes(b"".join(lines[count:]))
    reading = RecordFile(folder / RECORDS_NAME).read()
    faults = [fault.replace(str(folder / RECORDS_NAME), str(file)) for fault in reading.faults]
    strangers = [record.cell for record in reading.records if record.environment not in known]
    faults += [f"{file}: the environment of {cell} is not in it" for cell in strangers]
    if faults or reading.torn_bytes:
        raise RecordError(faults[0] if faults else f"{file}: its last line is torn; ask for it again")


def _head(line: bytes, file: Path) -> dict[str, Any]:
    """Read the first line."""
    try:
        head = from_json(line, where=str(file))
    except RecordError:
        head = None
    if not isinstance(head, dict) or FORMAT not in head:
        raise RecordError(f"{file} is no run as one file; make one with precision-eval merge RUN --pack FILE")
    if head[FORMAT] != VERSION:
        raise RecordError(f"{file} is of version {str(head[FORMAT])[:40]!r}, this precision-eval reads {VERSION}")
    counts = [head.get(name) for name in ("environments", "records")]
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in counts):
        raise RecordError(f"{file} does not say how many environments and records it has; ask for it again")
    return head


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
