"""Provenance: where, with what and under which settings a run was measured.

Conventions: an environment is plain JSON data without anything that changes from minute to minute (no clock, no load,
no free memory), so that the same machine and build give the same SHA-256 and a run can be resumed. Sizes are bytes. A
fact that this platform does not tell is None, never a guess.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from msgspec import Struct

from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.figures import Count, fit
from precision_eval.core.files import from_json, sha256_of, written_whole
from precision_eval.core.formats import CPU_FLAGS, cpu_flags

LIBRARIES: tuple[str, ...] = ("precision-eval", "torch", "numpy", "scipy", "librosa", "soundfile", "safetensors")

VARIABLES: tuple[str, ...] = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "OMP_PROC_BIND",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",  # its name since 2.9
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "LD_PRELOAD",
    "MALLOC_CONF",
)
"""Environment variables that change what runs or how fast."""


class Processor(Struct, frozen=True, kw_only=True):
    model: str | None = None
    usable_cores: Count | None = None


class Package(Struct, frozen=True, kw_only=True):
    git_commit: str | None = None
    source_sha256: str | None = None
    assets: dict[str, str | None] = {}


class TorchBuild(Struct, frozen=True, kw_only=True):
    version: str | None = None
    cpu_capability: str | None = None


class MeasuredDevice(Struct, frozen=True, kw_only=True):
    name: str = "cpu"
    model: str | None = None


class Environment(Struct, frozen=True, kw_only=True):
    """What is read of an environment's file; the rest is kept as it is."""

    platform: dict[str, str | None] = {}
    libraries: dict[str, str | None] = {}
    cpu: Processor = Processor()
    package: Package = Package()
    torch: TorchBuild = TorchBuild()
    device: MeasuredDevice = MeasuredDevice()


def collect(device: str) -> dict[str, Any]:
    return {
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "cpu": {
            **{"model": cpu_model(), "logical_cores": os.cpu_count(), "usable_cores": usable_cores()},
            "half_formats": {dtype: sorted(cpu_flags() & set(flags)) for dtype, flags in CPU_FLAGS.items()},
        },
        "memory_bytes": _physical_memory_bytes(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "package": {"git_commit": git_commit(), "source_sha256": source_sha256(), "assets": asset_sha256()},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "torch": _torch_build(),
        "device": _device(device),
    }


def environment_json(environment: dict[str, Any]) -> str:
    """Return an environment as the text of its file: sorted, indented, strict JSON."""
    return json.dumps(environment, allow_nan=False, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def environment_sha(environment: dict[str, Any]) -> str:
    """Return the SHA-256 of the environment's file, as hexadecimal digits."""
    return hashlib.sha256(environment_json(environment).encode()).hexdigest()


def store_environment(environment: dict[str, Any], run_dir: Path) -> str:
    """Write ``environment.json`` into a run's folder; one that differs is kept as ``environment-<sha>.json``."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / "environment.json"
    text = environment_json(environment)
    if path.exists():
        old = path.read_bytes()
        if old != text.encode():
            path.rename(run_dir / f"environment-{hashlib.sha256(old).hexdigest()[:12]}.json")
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return environment_sha(environment)


def environment_of(content: bytes, *, where: str) -> dict[str, Any]:
    """Read the text of an environment's file; one that no run has written is refused."""
    environment = from_json(content, where=where)
    try:
        fit(environment, Environment, where="it")
    except RecordError as error:
        raise RecordError(f"{where} describes no environment: {error}") from error
    return dict(environment)


def stored_environments(folder: Path, *, damaged_too: bool = False) -> dict[str, dict[str, Any]]:
    """Return the environments of a run's folder by their SHA-256; one that cannot be read is refused, or left out."""
    environments = {}
    for path in sorted(folder.glob("environment*.json")):
        content = path.read_bytes()
        try:
            environments[hashlib.sha256(content).hexdigest()] = environment_of(content, where=str(path))
        except RecordError:
            if not damaged_too:
                raise
    return environments


def usable_cores() -> int:
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str | None:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    if platform.system() == "Darwin":
        return output_of(["sysctl", "-n", "machdep.cpu.brand_string"])
    return platform.processor() or None


def git_commit() -> str | None:
    """Return the commit of the source tree, with ``+changes`` where files differ from it; None outside a repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = output_of(["git", "--no-optional-locks", "-C", str(root), "rev-parse", "HEAD"])
    if commit is None:
        return None
    status = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain", "--"]
    changed = output_of([*status, "precision_eval", "audio_metrics"])
    return commit + ("+changes" if changed else "")


def source_sha256() -> str:
    """Return one SHA-256 over every Python file of both packages, names included."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent / "audio_metrics"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(package.parent).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def asset_sha256() -> dict[str, str]:
    """Return the SHA-256 of each shipped file of the voice (weights, codec tables, scripts), by name."""
    folder = Path(__file__).resolve().parents[1] / "cases" / "voice" / "data"
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def output_of(command: list[str]) -> str | None:
    """Return what a command prints, None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _physical_memory_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


def _torch_build() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "git_version": torch.version.git_version,
        "debug": bool(torch.version.debug),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": _cudnn_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "allow_tf32": _tf32_allowed(),
        "config": torch.__config__.show().splitlines(),
    }


@functools.cache
def _cudnn_version() -> int | None:
    """Ask torch once: where another cuDNN is loaded than it was built for, it raises, and names that one thereafter."""
    import torch

    try:
        return torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    except RuntimeError:  # no matter on a CPU
        return None


def _tf32_allowed() -> bool:
    """Say whether float32 matrix products may run in TF32 on CUDA, by the flag that this torch does not deprecate."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    since_2_9 = hasattr(torch.backends, "fp32_precision")
    return bool(matmul.fp32_precision == "tf32") if since_2_9 else bool(matmul.allow_tf32)


# What torch says where it has no CUDA device, what that is, and the remedy.
_CUDA_FAULTS = (
    ("not compiled with CUDA", "torch {torch} is built without CUDA", "install a build of torch for your CUDA"),
    ("no NVIDIA driver", "torch {torch} finds no NVIDIA driver", "install one"),
    (
        "driver on your system is too old",
        "the NVIDIA driver is too old for torch {torch}",
        "update it or take an older torch",
    ),
    ("driver initialization failed", "the NVIDIA driver does not start", "see whether `nvidia-smi` works"),
    ("busy or unavailable", "another process has it for itself, or it is not usable", "end that process"),
    ("out of memory", "its memory is full", "end other processes that use it"),
)


def resolved_device(device: str) -> str:
    """Return a device that torch has here, and refuse another; ``auto`` is CUDA where there is one. Loads torch."""
    import torch

    kind, _, index = device.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of a driver that does not work, which is said below
        count = torch.cuda.device_count() if kind in ("auto", "cuda") and torch.cuda.is_available() else 0
    if kind == "auto":
        return "cuda" if count else "cpu"
    if kind == "cuda" and int(index or 0) >= count:
        raise ParameterError(f"device {device} is not here: {_why_no_cuda(count)}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ParameterError(f"device mps is not here: torch {torch.__version__} has no Metal device; give cpu")
    return device


def _why_no_cuda(count: int) -> str:
    """Say why torch has no CUDA device of that number, with the remedy."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not count:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            if fault := _cuda_fault(error):
                return f"{fault}, or give cpu"
    seen = f"{count} GPUs" + (f" of CUDA_VISIBLE_DEVICES={visible}" if visible else "")
    remedy = f"give cuda:{count - 1} or less, or cpu" if count else "give cpu"
    if visible and "MIG-" in visible:
        remedy = "a process sees one instance of MIG, as cuda:0; set CUDA_VISIBLE_DEVICES to one, or give cpu"
    return f"torch {torch.__version__} sees {seen}; {remedy}"


def _cuda_fault(error: Exception) -> str | None:
    """Say in a line what torch reports of a device, and what to do; None where it reports something else."""
    import torch

    faults = (
        f"{what.format(torch=torch.__version__)}; {remedy}" for text, what, remedy in _CUDA_FAULTS if text in str(error)
    )
    return next(faults, None)


def usable_device(device: str) -> str:
    """Return a device that torch has here and that calculates; refuse another."""
    import torch

    device = resolved_device(device)
    if device.startswith("cuda"):
        try:
            torch.zeros(1, device=device).item()
        except RuntimeError as error:
            fault = _cuda_fault(error) or f"{str(error).partition(chr(10))[0]}; see whether `nvidia-smi` works"
            raise ParameterError(f"device {device} does not work: {fault}, or give cpu") from error
    return device


def collect_here(device: str) -> dict[str, Any]:
    """Describe the machine, the build and a device that is there; another is refused."""
    return collect(usable_device(device))


def _device(device: str) -> dict[str, Any]:
    import torch

    if device == "cuda":
        device = "cuda:0"
    kind, _, index = device.partition(":")
    if kind != "cuda" or not torch.cuda.is_available() or int(index) >= torch.cuda.device_count():
        return {"name": device}
    properties = torch.cuda.get_device_properties(int(index))
    driver = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])
    return {
        "name": device,
        "model": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": int(properties.total_memory),
        "multiprocessors": int(properties.multi_processor_count),
        "driver": driver,
        "native_bfloat16": bool(torch.cuda.is_bf16_supported(including_emulation=False)),
    }
