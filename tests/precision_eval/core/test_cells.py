"""What an error stands for: the fix, or what the suite runs on."""

import errno
import os

import pytest
import torch

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
