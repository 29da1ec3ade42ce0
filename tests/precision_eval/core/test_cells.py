"""What an error stands for: the fix, or what the suite runs on."""

import errno
import os
import re

import pytest
import torch
from torch import nn

from precision_eval import fix_by_id
from precision_eval.cases.modes import KeepingWide, SharedNoise
from precision_eval.core.cells import failure_of
from precision_eval.core.errors import UnsupportedError
from precision_eval.core.files import UnwritableFileError

DISK = "the suite failed, not the fix: "


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "crashed", DISK),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "crashed", DISK),
        (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "streams/reference.npy"), "crashed", DISK),
        (UnwritableFileError("cannot write reference.wav"), "crashed", DISK),
        (RuntimeError("backend='inductor' raised: OSError: [Errno 28] No space left on device"), "crashed", DISK),
        (RuntimeError("CppCompileError: error writing to /tmp/x.s: No space left on device"), "crashed", DISK),
        (UnsupportedError("no"), "unsupported", ""),
        (MemoryError(), "out_of_memory", ""),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out_of_memory", ""),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory", ""),
        (RuntimeError("expected scalar type Half"), "raised", "RuntimeError: expected"),
        (ValueError("x\n" * 5000), "raised", "ValueError: x"),
    ],
)
def test_what_an_error_stands_for(error, status, reason):
    outcome = failure_of("kv_to_query", error)
    assert (outcome.status, outcome.role) == (status, "fix")
    assert outcome.reason.startswith(reason)
    assert len(outcome.reason) <= 1600


class Slips(nn.Module):
    """A model that raises what this package's own slips would be, here or in an operation of torch without a frame."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return {
            "torch's IndexError": lambda: x.__setitem__((torch.tensor([0]),) * 3, x[:1]),
            "torch's TypeError": lambda: x.index_put_(3, x),
            "its KeyError": lambda: {}["missing"],
            "its file": lambda: open("no-such-file"),  # noqa: PTH123
            "our wrapper's": lambda: nn.functional.linear(x, None),
        }[self.kind]()


@pytest.mark.parametrize("fix", ["as_shipped", "kv_to_query", "query_to_half"])
@pytest.mark.parametrize("kind", ["torch's IndexError", "torch's TypeError", "its KeyError", "its file"])
def test_what_a_model_raises_under_our_wrappers_is_the_fixs(fix, kind):
    errors = (LookupError, TypeError, OSError)
    with (
        pytest.raises(errors) as caught,
        fix_by_id(fix).applied(Slips(kind)) as call,
        KeepingWide(torch.float64),
        SharedNoise(0),
    ):
        call(torch.ones(2, 2))
    assert failure_of(fix, caught.value).status == "raised", caught.value


def test_what_our_wrapper_raises_is_the_suites():
    with pytest.raises(AttributeError) as caught, fix_by_id("query_to_half").applied(Slips("our wrapper's")) as call:
        call(torch.ones(2, 2))
    outcome = failure_of("query_to_half", caught.value)
    assert outcome.status == "crashed"
    assert outcome.reason.startswith(DISK)


CUDA_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
FULL = (
    "CUDA out of memory. Tried to allocate 20 GiB. GPU 0 has a total capacity of 14.56 GiB of which 1.20 GiB is free. "
    "Including non-PyTorch memory, this process has 13 GiB memory in use. Of the allocated memory 12 GiB is allocated"
)


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (f"CUDA error: device-side assert triggered\n{CUDA_ADVICE}", "raised", "set CUDA_LAUNCH_BLOCKING=1"),
        (f"CUDA error: an illegal memory access was encountered\n{CUDA_ADVICE}", "raised", "encountered$"),
        (FULL, "out_of_memory", "of which 1.20 GiB is free.$"),
        (f"CUDA error: out of memory\n{CUDA_ADVICE}", "out_of_memory", "CUDA error: out of memory$"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out_of_memory", "cublasCreate"),
    ],
)
def test_errors_of_cuda_are_said_without_torchs_advice(text, status, reason):
    outcome = failure_of("a", RuntimeError(text))
    assert outcome.status == status
    assert re.search(reason, outcome.reason), outcome.reason
    assert not re.search("asynchronously|non-PyTorch", outcome.reason)
