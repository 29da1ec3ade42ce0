"""How torch and what it needs are installed: by which tool, which build, which packages, and what a failure means."""

from __future__ import annotations

import email
import os
import platform
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from precision_eval.core.errors import ParameterError, UnsupportedError

BUILDS = ("cpu", "slim", "cuda")
BUILD_VARIABLE = "PRECISION_EVAL_TORCH_BUILD"
INDEX_VARIABLE = "PRECISION_EVAL_TORCH_INDEX"
TOOLS = ("asv_runner", "pympler", "setuptools", "wheel")  # asv's half in the environment, and what builds the project
CUDA_PACKAGE = re.compile(r"(nvidia|cuda|triton|pytorch-triton)(-.*)?$")

_NO_NETWORK = re.compile(
    r"error sending request|dns error|Failed to fetch|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError"
    r"|Temporary failure in name resolution|Max retries exceeded|Network is unreachable|network connectivity",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Installer:
    """Makes environments and installs into them."""

    uv: str | None

    @property
    def name(self) -> str:
        """``uv`` or ``pip``."""
        return "uv" if self.uv else "pip"

    def create(self, interpreter: str, folder: Path) -> list[str]:
        """Return the command that makes an environment with pip in it."""
        if self.uv is None:
            return [interpreter, "-m", "venv", str(folder)]
        options = ["--quiet", "--no-project", "--no-python-downloads", "--seed"]
        return [self.uv, "venv", *options, "--python", interpreter, str(folder)]

    def install(
        self, python: Path, packages: Iterable[str], *, dependencies: bool, constraints: Path | None, index: str | None
    ) -> list[str]:
        """Return the command that installs packages into the environment of an interpreter."""
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if self.uv is not None:
            command = [self.uv, "pip", "install", "--quiet", "--python", str(python)]
        command += [] if dependencies else ["--no-deps"]
        command += ["--constraint", str(constraints)] if constraints else []
        return [*command, *(["--index-url", index] if index else []), *packages]


def find_installer() -> Installer:
    """Return uv, on the path or beside this Python, else pip."""
    beside = Path(sys.executable).parent / "uv"
    return Installer(uv=shutil.which("uv") or (str(beside) if beside.exists() else None))


def cache_folder(installer: Installer, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return where uv keeps what it has fetched; None under pip, whose cache holds no unpacked packages."""
    if installer.uv is None:
        return None
    variables = os.environ if environ is None else environ
    named = variables.get("UV_CACHE_DIR")
    if named:
        return Path(named).absolute()
    home = variables.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "uv"


def choose_build(asked: str, environ: Mapping[str, str], *, installer: str, system: str, machine: str) -> str:
    """Say which build of torch to install."""
    build = asked if asked != "auto" else environ.get(BUILD_VARIABLE, "auto")
    if build not in (*BUILDS, "auto"):
        raise ParameterError(f"unknown build of torch {build!r}; known: auto, {', '.join(BUILDS)}")
    plain_linux = (system, machine) == ("Linux", "x86_64")
    if build == "slim" and not plain_linux:
        raise UnsupportedError(f"a slim torch is made on x86-64 Linux only, this is {system} on {machine}; take cpu")
    if build != "auto":
        return build
    if environ.get(INDEX_VARIABLE) or (installer == "uv" and environ.get("UV_TORCH_BACKEND") == "cpu"):
        return "cpu"
    if system != "Linux":
        return "cpu"
    raise ParameterError(
        "the default index has CUDA builds of torch for Linux, several GB per version; say which to take: "
        f"{INDEX_VARIABLE}=URL of an index of CPU builds (with uv also UV_TORCH_BACKEND=cpu), or --torch-build slim "
        f"(or {BUILD_VARIABLE}=slim; the wheel without CUDA's libraries, 1 to 2 GB, CPU only), or --torch-build cuda"
    )


def build_for_here(asked: str, installer: Installer) -> str:
    """Return :func:`choose_build` for this machine."""
    return choose_build(
        asked, os.environ, installer=installer.name, system=platform.system(), machine=platform.machine()
    )


def torch_requirements(metadata: str, *, python: str, cuda: bool) -> tuple[str, ...]:
    """Return what a torch asks for, without CUDA's packages where they are not wanted."""
    from packaging.requirements import Requirement

    needs = []
    for text in email.message_from_string(metadata).get_all("Requires-Dist", []):
        need = Requirement(text)
        values = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
        if (need.marker is None or need.marker.evaluate(values)) and (cuda or not CUDA_PACKAGE.match(need.name)):
            needs.append(f"{need.name}{need.specifier}")
    return tuple(needs)


def asks_for_cuda(metadata: str) -> bool:
    """Say whether a torch asks for libraries of CUDA, as only CUDA builds do."""
    from packaging.requirements import Requirement

    needs = email.message_from_string(metadata).get_all("Requires-Dist", [])
    return any(Requirement(text).name.startswith(("nvidia-", "cuda-")) for text in needs)


def project_requirements(root: Path) -> tuple[str, ...]:
    """Return what the project asks for at run time, without torch."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return tuple(need for need in project["dependencies"] if not re.match(r"torch\b(?!-)", need))


def fitting_constraints(constraints: str, needs: Iterable[str]) -> str:
    """Return the constraints without torch and without those that a torch's own needs exclude."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    wanted = [Requirement(need) for need in needs]
    kept = []
    for line in (line.partition("#")[0].strip() for line in constraints.splitlines()):
        if not line or canonicalize_name(Requirement(line).name) == "torch":
            continue
        fixed = Requirement(line)
        version = next(iter(fixed.specifier)).version
        names = [need for need in wanted if canonicalize_name(need.name) == canonicalize_name(fixed.name)]
        if all(need.specifier.contains(version, prereleases=True) for need in names):
            kept.append(line)
    return "\n".join(kept) + "\n"


def reason_of(output: str, version: str, python: str) -> str:
    """Say in one line why an installation failed, and the remedy."""
    if "No space left on device" in output:
        return f"torch {version}: no room left on the disk; free some, or give --remove-environments"
    if re.search(r"network (connectivity )?(is|was) disabled", output, re.IGNORECASE):
        return (
            f"torch {version}: uv is told to stay offline and its cache lacks a package; unset UV_OFFLINE, or fill the "
            "cache where there is a network"
        )
    if _NO_NETWORK.search(output):
        return f"torch {version}: the package index cannot be reached; connect, or name a mirror as uv or pip read it"
    if re.search(r"torch==\S* has no wheels|only found wheels for `?torch", output):
        return f"torch {version} has no wheel for Python {python} on this platform; take another version or Python"
    if re.search(r"no version of torch==", output):
        return f"torch {version} does not exist on the index; name a released version, such as 2.8.0"
    if re.search(r"No matching distribution found for torch==", output):
        return (
            f"torch {version} does not exist, has no wheel for Python {python}, or pip does not reach the index; "
            "look with `pip index versions torch`"
        )
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"error|cause|because", line, re.IGNORECASE)]
    return f"torch {version}: {'; '.join(errors[-3:] or lines[-1:] or ['the installer failed without a word'])}"[:600]
