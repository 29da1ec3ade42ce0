"""A sweep over torch versions before and between its runs: which versions, what is measured already.

Conventions: versions as text, ordered as numbers; sizes in bytes; asv's names ``MODULE.CLASS.METHOD``; result files in
asv's format 2. Only files are read here: nothing is installed or run, and neither torch nor asv is imported.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_eval.core.errors import ParameterError, PrecisionEvalError, RecordError
from precision_eval.core.files import read_json, worked_out_from

LEAST = (2, 6)
RUN_S = 180.0  # an interruption costs no more than about this, or one class of benchmarks


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """asv's configuration of the sweep."""

    path: Path
    raw: Mapping[str, Any]
    versions: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The project."""
        return self.path.parent

    def place(self, key: str) -> Path:
        """Return a folder that the configuration names, absolute."""
        return (self.root / self.raw[key]).resolve()


_PLACES = ("repo", "benchmark_dir", "env_dir", "results_dir", "html_dir")


def read_configuration(path: Path) -> Configuration:
    """Read ``asv.versions.json``."""
    if not path.is_file():
        raise ParameterError(
            f"{path} cannot be read (there is no such file); run in a checkout of the project, or name its "
            "configuration with --config"
        )
    try:
        raw = read_json(path)
        versions = raw["matrix"]["req"]["torch"]
        lacking = [key for key in _PLACES if key not in raw]
    except (RecordError, KeyError, TypeError) as error:
        raise ParameterError(f'{path} is no asv configuration with "matrix": {{"req": {{"torch": [...]}}}}') from error
    if lacking:
        raise ParameterError(f"{path} lacks {', '.join(lacking)}")
    if not isinstance(versions, list) or not versions or not all(isinstance(version, str) for version in versions):
        raise ParameterError(
            f'{path} has {json.dumps(versions)} as torch versions; expected a list of texts, such as ["2.8.0", "2.9.1"]'
        )
    return Configuration(path=path.resolve(), raw=raw, versions=tuple(sorted(versions, key=numbers)))


def configuration_for(
    configuration: Configuration, version: str, *, python: str, base: Path, results: Path
) -> dict[str, Any]:
    """Return the configuration for one version: places made absolute, one entry in the matrix."""
    places = {key: str(configuration.place(key)) for key in _PLACES}
    own = {"pythons": [python], "matrix": {"req": {"torch": [version]}}}
    return {**configuration.raw, **places, **own, "env_dir": str(base), "results_dir": str(results)}


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, for ordering."""
    if not re.fullmatch(r"\d+(\.\d+){1,2}", version):
        raise ParameterError(f"{version!r} is no torch version; give some such as 2.8.0, or 2.8 for its last patch")
    return tuple(map(int, version.split(".")))


def choose_versions(asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the versions to sweep, in order, each once."""
    chosen = []
    for version in asked or known:
        parts = numbers(version)
        if parts[:2] < LEAST:
            raise ParameterError(f"torch {version} is older than 2.6, the oldest supported")
        if len(parts) == 2:
            patches = [one for one in known if numbers(one)[:2] == parts]
            if not patches:
                raise ParameterError(f"no patch of torch {version} is configured; name one, such as {version}.0")
            version = max(patches, key=numbers)
        chosen.append(version)
    return tuple(sorted(set(chosen), key=numbers))


def environment_name(version: str, python: str) -> str:
    """Return asv's name of an environment, which its result files carry."""
    return f"torch-py{python}-torch{version}"


def known_machines(path: Path) -> tuple[str, ...]:
    """Return the machines that asv's own file, ``~/.asv-machine.json``, names; () where there is none."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise RecordError(f"{path} is not asv's; remove it, asv writes it anew")
    return tuple(name for name in content if name != "version")


def machine_name(asked: str | None, known: Sequence[str]) -> str:
    """Return the name that asv would take: the one asked for, the only one it knows, or the host's."""
    return asked or (known[0] if len(known) == 1 else platform.node())


def read_benchmarks(results: Path) -> dict[str, str] | None:
    """Return name → version of the benchmarks that asv last discovered for a results folder; None before that."""
    path = results / "benchmarks.json"
    if not path.is_file():
        return None
    with worked_out_from(path, remedy="remove it, asv writes its list of benchmarks anew"):
        return {name: str(one["version"]) for name, one in read_json(path).items() if isinstance(one, dict)}


def select_benchmarks(benchmarks: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """Return the benchmarks whose names a pattern finds; all without patterns."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ParameterError(f"--bench {pattern!r} is no regular expression: {error}") from error
    chosen = {
        name: version
        for name, version in benchmarks.items()
        if not patterns or any(re.search(pattern, name) for pattern in patterns)
    }
    if not chosen:
        raise ParameterError(f"--bench {' '.join(patterns)} finds none of {len(benchmarks)} benchmarks")
    return chosen


def result_files(results: Path, *, commit: str, name: str, machine: str) -> tuple[Path, ...]:
    """Return the result files of a commit and environment on a machine: one, or none yet."""
    path = results / machine / f"{commit[:8]}-{name}.json"
    return (path,) if path.is_file() else ()


def check_build(files: Iterable[Path], build: str) -> None:
    """Refuse result files of another build of torch: asv would merge what it measures into them."""
    for path in files:
        content = _content(path)
        if content is None:
            continue
        found = (content.get("env_vars") or {}).get("TORCH_BUILD")
        if found != build:
            which = f"with the build {found} of torch" if found else "without saying with which build of torch"
            other = f", or --torch-build {found}" if found else ""
            raise ParameterError(
                f"{path} was measured {which} and {build} is asked for; asv would mix the two: "
                f"give another --results{other}"
            )


def missing_benchmarks(benchmarks: Mapping[str, str], files: Iterable[Path]) -> tuple[str, ...]:
    """Return the benchmarks without a result of their version, sorted."""
    done: set[str] = set()
    for path in files:
        for name, fields in result_rows(path).items():
            values = fields.get("result")
            measured = isinstance(values, list) and any(value is not None for value in values)
            if measured and fields.get("version") == benchmarks.get(name):
                done.add(name)
    return tuple(sorted(set(benchmarks) - done))


def _content(path: Path) -> dict[str, Any] | None:
    """Return a result file's content; None where it is damaged or not as asv writes it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kinds = {"result_columns": list, "results": dict}
    as_written = isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in kinds.items())
    return content if as_written and isinstance(content.get("env_vars") or {}, dict) else None


def result_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Return benchmark → column → value of a result file; empty where it is damaged."""
    content = _content(path) or {"results": {}}
    try:
        return {
            n: dict(zip(content["result_columns"], row or (), strict=False)) for n, row in content["results"].items()
        }
    except TypeError:
        return {}


def read_durations(results: Path) -> dict[str, float]:
    """Return the seconds that each benchmark took, at most, in any result file of a folder."""
    longest: dict[str, float] = {}
    for path in results.glob("*/*-torch-py*.json"):
        for name, fields in result_rows(path).items():
            taken = fields.get("duration")
            if isinstance(taken, int | float):
                longest[name] = max(longest.get(name, 0.0), taken)
    return longest


def runs(names: Iterable[str], seconds: Mapping[str, float]) -> tuple[tuple[str, ...], ...]:
    """Split benchmarks into runs of asv, each of which an interruption can cost."""
    classes: dict[str, list[str]] = {}
    for name in sorted(names):
        classes.setdefault(name.rpartition(".")[0], []).append(name)
    made: list[tuple[str, ...]] = []
    open_s = RUN_S
    for members in classes.values():
        takes = sum(seconds.get(name, RUN_S) for name in members)
        if open_s + takes <= RUN_S:
            made[-1] = (*made[-1], *members)
            open_s += takes
        else:
            made.append(tuple(members))
            open_s = takes
    return tuple(made)


def selection(names: Iterable[str]) -> str:
    """Return the regular expression by which asv takes these benchmarks and no others."""
    return rf"^({'|'.join(re.escape(name) for name in names)})(\(|$)"


RESERVE_BYTES = 1_000_000_000  # kept free for downloads under way, asv's checkouts and the results

# Measured on x86-64 Linux under Python 3.11, rounded up to 10 MB: torch alone as installed, with stub libraries.
SLIM_BYTES = {
    "2.6.0": 1_580_000_000,
    "2.7.1": 1_650_000_000,
    "2.8.0": 1_730_000_000,
    "2.9.1": 1_760_000_000,
    "2.10.0": 1_790_000_000,
    "2.11.0": 1_170_000_000,
    "2.12.1": 1_160_000_000,
    "2.13.0": 1_130_000_000,
    "2.14.1": 1_180_000_000,
    "2.15.0": 1_180_000_000,
}
# For a version that is not listed: the largest slim one, the CPU build of 2.13.0, the CUDA builds with their libraries.
LARGEST_BYTES = {"cpu": 800_000_000, "slim": 1_800_000_000, "cuda": 7_000_000_000}
OTHER_BYTES = 600_000_000  # numpy, scipy, numba, librosa, ...: once under uv, per version under pip


class DiskSpaceError(PrecisionEvalError, OSError):
    """What is about to be installed does not fit."""


def expected_bytes(version: str, build: str, *, shared: bool, first: bool) -> int:
    """Return what an environment takes at most, before it is made."""
    torch_bytes = SLIM_BYTES.get(version, LARGEST_BYTES[build]) if build == "slim" else LARGEST_BYTES[build]
    return torch_bytes + (OTHER_BYTES if first or not shared else 0)


def check_room(needed: Sequence[int], *, free: int, where: Path, keep: bool) -> int:
    """Return what the sweep needs at its fullest, or refuse."""
    peak = (sum(needed) if keep else max(needed)) + RESERVE_BYTES if needed else 0
    if peak > free:
        remedy = "name fewer --versions, or another disk with --environments"
        if keep and len(needed) > 1:
            remedy = f"give --remove-environments ({gigabytes(max(needed) + RESERVE_BYTES)} at a time), {remedy}"
        raise DiskSpaceError(
            f"{len(needed)} environments need {gigabytes(peak)}, {gigabytes(free)} are free at {where}; {remedy}"
        )
    return peak


def check_cache_room(needed: Sequence[int], *, free: int, where: Path) -> None:
    """Refuse where an installer's cache on another disk than the environments would not fit."""
    peak = sum(needed) + RESERVE_BYTES
    if needed and peak > free:
        raise DiskSpaceError(
            f"uv's cache at {where} is on another disk than the environments and may take {gigabytes(peak)}, "
            f"{gigabytes(free)} are free there; name fewer --versions, or set UV_CACHE_DIR to the environments' disk, "
            "where the two share their files"
        )


def gigabytes(size: int) -> str:
    """Return a size in GB (10^9 bytes)."""
    return f"{size / 1e9:.1f} GB"
