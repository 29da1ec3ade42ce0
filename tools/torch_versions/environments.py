"""One environment per torch version, for asv: how each is made, what it holds, and why one could not be made.

An environment is a folder ``torch2.8.0-py3.11`` with a virtual environment in it. Made by uv, whose
cache another environment of the same version shares. torch comes first and alone; then what
its own metadata asks for; then what the project asks for, at the versions of ``constraints.txt`` except where this
torch needs another. The last step imports torch there and writes down what it found, so a folder without that note is
not finished and is made anew.
"""

from __future__ import annotations

import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from precision_eval.core.errors import ParameterError, PrecisionEvalError, UnsupportedError
from tools.install import by_pip_again
from tools.torch_versions.stubs import put_stubs

NOTE_NAME = "torch-environment.json"
LIMIT_S = 3600.0

_INSPECT = (
    "import json, platform, numpy, torch; print(json.dumps({'torch_version': torch.__version__, "
    "'cuda': torch.version.cuda, 'python': platform.python_version(), 'numpy': numpy.__version__, "
    "'blas': torch.backends.mkl.is_available() and 'mkl' or 'other'}))"
)


class EnvironmentBuildError(PrecisionEvalError, RuntimeError):
    """An environment for a torch version cannot be made: no such version, no wheel, no network, no room."""


@dataclass(frozen=True, kw_only=True)
class TorchEnvironment:
    """What is asked for."""

    version: str
    python: str
    root: Path
    base: Path

    @property
    def folder(self) -> Path:
        """Where the environment lies."""
        return self.base / folder_name(self.version, self.python)

    @property
    def interpreter(self) -> Path:
        """Its Python."""
        return self.folder / "bin" / "python"


@dataclass(frozen=True, kw_only=True)
class Note:
    """What is written down of a finished environment."""

    version: str
    python: str
    torch_version: str
    numpy: str
    blas: str
    build: str
    cuda: str | None
    stubs: tuple[str, ...]
    installed_by: str
    bytes: int
    seconds: float


def folder_name(version: str, python: str) -> str:
    """Return the name of an environment's folder."""
    return f"torch{version}-py{python}"


def read_note(environment: TorchEnvironment) -> Note | None:
    """Return the note of a finished environment; None where there is none, it is damaged, or its Python is gone."""
    if not environment.interpreter.exists():
        return None
    try:
        fields = json.loads((environment.folder / NOTE_NAME).read_text(encoding="utf-8"))
        return Note(**{**fields, "stubs": tuple(fields["stubs"])})
    except (OSError, ValueError, KeyError, TypeError):  # cut off, or of another schema: as if it were not finished
        return None


def serves(note: Note, build: str) -> bool:
    """Say whether an environment has the build that is asked for; a CPU build serves for a slim one."""
    return note.build == build or (build == "slim" and note.build == "cpu")


def build_environment(
    environment: TorchEnvironment,
    *,
    build: str,
    say: Callable[[str], None] = lambda text: None,
    environ: Mapping[str, str] | None = None,
) -> Note:
    """Make an environment, or return the note of the one that is there with that build."""
    there = read_note(environment)
    if there is not None and serves(there, build):
        return there
    shutil.rmtree(environment.folder, ignore_errors=True)
    started = time.monotonic()
    try:
        environment.base.mkdir(parents=True, exist_ok=True)
        found, stubs = _fill(environment, build, say, dict(environ or os.environ))
        note = Note(
            version=environment.version,
            build=build if found["cuda"] else "cpu",
            stubs=stubs,
            installed_by="uv",
            bytes=disk_bytes(environment.folder),
            seconds=round(time.monotonic() - started, 1),
            **found,
        )
        (environment.folder / NOTE_NAME).write_text(json.dumps(asdict(note), indent=2) + "\n", encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(environment.folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise EnvironmentBuildError(f"torch {environment.version}: {error}") from error
        raise
    return note


def _fill(
    environment: TorchEnvironment, build: str, say: Callable[[str], None], environ: dict[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Create, install, put stub libraries, import; return what torch says and the stub libraries' names."""
    python, version = environment.interpreter, environment.version

    def run(*command: str | Path) -> str:
        return run_step(list(map(str, command)), environment, environ)

    def refuse(came: str) -> EnvironmentBuildError:
        return EnvironmentBuildError(
            f"a CPU build of torch {version} was asked for and {came} came; name an index of CPU builds in "
            f"{INDEX_VARIABLE}, or take --torch-build slim or cuda"
        )

    uv = find_uv()
    install = (uv, "pip", "install", "--quiet", "--python", python)
    say("creating")
    options = ("--quiet", "--no-project", "--no-python-downloads", "--seed")
    own = environment.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    run(uv, "venv", *options, "--python", sys.executable if own else environment.python, environment.folder)
    say(f"installing torch {version}")
    index = environ.get(INDEX_VARIABLE) if build == "cpu" else None
    run(*install, "--no-deps", *(["--index-url", index] if index else []), f"torch=={version}")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    metadata = next(site.glob("torch-*.dist-info/METADATA")).read_text(encoding="utf-8")
    if build == "cpu" and re.search(r"(?m)^Requires-Dist: (nvidia|cuda)-", metadata):  # would not import without them
        raise refuse("a CUDA build")
    needs = torch_requirements(metadata, python=environment.python, cuda=build == "cuda")
    say("installing what torch and the project need")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        text = (environment.root / "constraints.txt").read_text(encoding="utf-8")
        constraints.write_text(fitting_constraints(text, needs), encoding="utf-8")
        packages = [*needs, *project_requirements(environment.root), *TOOLS]
        run(*install, "--constraint", constraints, *packages)
    if again := by_pip_again(str(python)):
        run(*again)
    stubs = put_stubs(site / "torch") if build == "slim" else ()
    say("importing torch")
    found = json.loads(run(python, "-W", "ignore", "-c", _INSPECT).splitlines()[-1])
    if build == "cpu" and found["cuda"]:
        raise refuse(found["torch_version"])
    return found, stubs


def run_step(command: Sequence[str], environment: TorchEnvironment, environ: dict[str, str]) -> str:
    """Run a step and return what it printed."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "env": environ, "cwd": tempfile.gettempdir()}
    try:
        done = subprocess.run(command, timeout=LIMIT_S, check=False, **options)
    except subprocess.TimeoutExpired as error:
        why = f"torch {environment.version}: {command[0]} took more than {LIMIT_S:.0f} s"
        raise EnvironmentBuildError(why) from error
    if done.returncode:
        raise EnvironmentBuildError(reason_of(done.stderr or done.stdout, environment.version, environment.python))
    return done.stdout


def files_on_disk(folder: Path) -> list[tuple[int, bool]]:
    """Return of each file below a folder, links not followed, its bytes on disk and whether it has names elsewhere."""
    seen: dict[tuple[int, int], list[int]] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            stat = (Path(where) / name).lstat()
            seen.setdefault((stat.st_dev, stat.st_ino), [stat.st_blocks * 512, stat.st_nlink, 0])[2] += 1
    return [(size, links > names_here) for size, links, names_here in seen.values()]


def disk_bytes(folder: Path) -> int:
    """Return what a folder takes on disk, each file once."""
    return sum(size for size, _ in files_on_disk(folder))


BUILDS = ("cpu", "slim", "cuda")
BUILD_VARIABLE = "PRECISION_EVAL_TORCH_BUILD"
INDEX_VARIABLE = "PRECISION_EVAL_TORCH_INDEX"
TOOLS = ("asv_runner", "pympler", "setuptools", "wheel")  # asv's half in the environment, and what builds the project
CUDA_PACKAGE = re.compile(r"(nvidia|cuda|triton|pytorch-triton)(-.*)?$")

_REASONS = {
    "No space left on device": ": no room left on the disk; free some, or give --remove-environments",
    r"network (connectivity )?(is|was) disabled": ": uv is told to stay offline and its cache lacks a package; unset "
    "UV_OFFLINE, or fill the cache where there is a network",
    r"error sending request|dns error|Failed to fetch|ConnectTimeout|ReadTimeout|ProxyError"
    r"|Temporary failure in name resolution|Network is unreachable|network connectivity": ": the package index cannot "
    "be reached; connect, or name a mirror as uv reads it",
    r"torch==\S* has no wheels|only found wheels for `?torch": " has no wheel for Python {python} on this platform; "
    "take another version or Python",
    "no version of torch==": " does not exist on the index; name a released version, such as 2.8.0",
}
"""What uv prints where it fails, and what to say of it; the first that is met counts."""


def find_uv() -> str:
    """Return uv's program, on the path or beside this Python."""
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if found is None:
        raise UnsupportedError("uv is not installed, which makes environments; pip install -e '.[dev]' in the checkout")
    return found


def choose_build(asked: str, environ: Mapping[str, str], *, system: str, machine: str) -> str:
    """Say which build of torch to install."""
    build = asked if asked != "auto" else environ.get(BUILD_VARIABLE, "auto")
    if build not in (*BUILDS, "auto"):
        raise ParameterError(f"unknown build of torch {build!r}; known: auto, {', '.join(BUILDS)}")
    if build == "slim" and (system, machine) != ("Linux", "x86_64"):
        raise UnsupportedError(f"a slim torch is made on x86-64 Linux only, this is {system} on {machine}; take cpu")
    if build != "auto":
        return build
    if environ.get(INDEX_VARIABLE) or environ.get("UV_TORCH_BACKEND") == "cpu" or system != "Linux":
        return "cpu"
    raise ParameterError(
        "the default index has CUDA builds of torch for Linux, several GB per version; say which to take: "
        f"{INDEX_VARIABLE}=URL of an index of CPU builds (or UV_TORCH_BACKEND=cpu), or --torch-build slim "
        f"(or {BUILD_VARIABLE}=slim; the wheel without CUDA's libraries, 1 to 2 GB, CPU only), or --torch-build cuda"
    )


def build_for_here(asked: str) -> str:
    """Return :func:`choose_build` for this machine."""
    return choose_build(asked, os.environ, system=platform.system(), machine=platform.machine())


def torch_requirements(metadata: str, *, python: str, cuda: bool) -> tuple[str, ...]:
    """Return what a torch asks for, without CUDA's packages where they are not wanted."""
    values = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    needs = map(Requirement, email.message_from_string(metadata).get_all("Requires-Dist", []))
    return tuple(
        f"{need.name}{need.specifier}"
        for need in needs
        if (need.marker is None or need.marker.evaluate(values)) and (cuda or not CUDA_PACKAGE.match(need.name))
    )


def project_requirements(root: Path) -> tuple[str, ...]:
    """Return what the project asks for at run time, without torch."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tuple(need for need in project["dependencies"] if not re.match(r"torch\b(?!-)", need))


def fitting_constraints(constraints: str, needs: Iterable[str]) -> str:
    """Return the constraints without torch and without those that a torch's own needs exclude."""
    wanted = [Requirement(need) for need in needs]
    kept = []
    for line in filter(None, (line.partition("#")[0].strip() for line in constraints.splitlines())):
        fixed = Requirement(line)
        name, version = canonicalize_name(fixed.name), next(iter(fixed.specifier)).version
        same = [need for need in wanted if canonicalize_name(need.name) == name]
        if name != "torch" and all(need.specifier.contains(version, prereleases=True) for need in same):
            kept.append(f"{line}\n")
    return "".join(kept)


def reason_of(output: str, version: str, python: str) -> str:
    """Say in one line why an installation failed, and the remedy."""
    for pattern, reason in _REASONS.items():
        if re.search(pattern, output, re.IGNORECASE):
            return f"torch {version}{reason.format(python=python)}"
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|cause|because", line, re.IGNORECASE)]
    return f"torch {version}: {'; '.join(errors[-3:] or lines[-1:] or ['the installer failed without a word'])}"[:600]
