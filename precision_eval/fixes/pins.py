"""Settings of torch that a run pins: the kernel of attention, and TF32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from precision_eval.core.cells import WARNED, cause_of
from precision_eval.core.errors import ParameterError, UnsupportedError

# Name here and in the trace → name in ``torch.nn.attention.SDPBackend``.
SDPA_BACKENDS: Mapping[str, str] = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
# Torch's choice, where a run has pinned backends too.
ANY = "any"
# Options that change what runs; a measure that does not name them among its options is not run under a pin.
PINS: tuple[str, ...] = ("sdpa_backend", "tf32")

_TF32_CAPABILITY = (8, 0)


def check_tf32(tf32: str | None, device: str) -> None:
    if tf32 is not None and device != "auto" and not device.startswith("cuda"):
        raise ParameterError(f"--set tf32={tf32} is a mode of CUDA devices, the device is {device}; leave it out")


def set_tf32(tf32: str | None, device: str) -> None:
    """Allow or forbid TF32 for the rest of this process; None leaves it as it is."""
    if tf32 is None:
        return
    import torch

    if tf32 == "on" and torch.version.hip is not None:
        raise UnsupportedError("TF32 is a mode of NVIDIA's cards, and this torch is built for AMD's; leave tf32 out")
    if tf32 == "on":
        major, minor = torch.cuda.get_device_capability(device) if device.startswith("cuda") else (0, 0)
        if (major, minor) < _TF32_CAPABILITY:
            raise UnsupportedError(
                f"{device} has no TF32: compute capability {major}.{minor}, it takes 8.0; leave tf32 out"
            )
    torch.set_float32_matmul_precision("high" if tf32 == "on" else "highest")
    cudnn: Any = torch.backends.cudnn
    operations = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
    settable = [operation for operation in operations if hasattr(operation, "fp32_precision")]
    for operation in settable:
        operation.fp32_precision = "tf32" if tf32 == "on" else "ieee"
    if not settable:
        cudnn.allow_tf32 = tf32 == "on"


@contextmanager
def pin_sdpa(backend: str | None) -> Iterator[None]:
    """Allow attention one backend for the time of a block; None allows all that were allowed before."""
    if backend is None:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with _without_autograd_cache(), _note_warnings(), sdpa_kernel(getattr(SDPBackend, SDPA_BACKENDS[backend])):
        yield


def _without_autograd_cache() -> AbstractContextManager[None]:
    """Keep ahead-of-time autograd from handing over what was compiled for another backend."""
    from torch._functorch import config

    if not hasattr(config, "enable_autograd_cache"):
        return nullcontext()
    patched: AbstractContextManager[None] = config.patch(enable_autograd_cache=False)
    return patched


@contextmanager
def _note_warnings() -> Iterator[None]:
    """Add torch's warnings to an error as notes: it says there, and not in the error, why it passed over a kernel."""
    show = warnings.showwarning
    reasons: dict[str, None] = {}

    def note(message: Any, *args: Any, **kwargs: Any) -> None:
        reasons[" ".join(str(message).split())] = None
        show(message, *args, **kwargs)

    warnings.showwarning = note
    try:
        yield
    except Exception as error:
        for reason in reasons:
            if "ttention" in reason or "kernel" in reason:
                cause_of(error).add_note(f"{WARNED}{reason}")
        raise
    finally:
        warnings.showwarning = show


def unlike_pin(backend: str | None, traced: Mapping[str, Any]) -> str | None:
    """Say why a pinned call did not run as pinned; None where it did, or where nothing was observed."""
    if backend is None or traced.get("observed") == "nothing":
        return None
    if not traced.get("sdpa"):
        return f"attention is pinned to {backend}, but the call has no scaled_dot_product_attention"
    actual = traced.get("backend")
    return None if actual == backend else f"attention is pinned to {backend}, but {actual} ran"
