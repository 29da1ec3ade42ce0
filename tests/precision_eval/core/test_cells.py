"""What an error stands for: the fix, or what the suite runs on."""

import errno
import os

import pytest

from precision_eval.core.cells import failure_of
from precision_eval.core.files import UnwritableFileError


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "streams/reference.npy"),
        UnwritableFileError("cannot write reference.wav"),
        RuntimeError("backend='inductor' raised: OSError: [Errno 28] No space left on device"),
        RuntimeError("CppCompileError: fatal error: error writing to /tmp/x.s: No space left on device"),
    ],
)
def test_a_fault_of_the_disk_is_no_result_of_the_fix(error):
    outcome = failure_of("kv_to_query", error)
    assert outcome.status == "crashed"
    assert outcome.reason.startswith("the suite failed, not the fix: ")


def test_what_a_model_raises_is_its_own():
    assert failure_of("kv_to_query", RuntimeError("expected scalar type Half")).status == "raised"
