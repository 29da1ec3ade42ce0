"""What all command lines of this project share: exit codes, one line for each error, and how text is read."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from precision_eval.core.cells import failure_of, is_out_of_memory
from precision_eval.core.errors import ParameterError, PrecisionEvalError
from precision_eval.core.formatting import visible
from precision_eval.core.workers import STOPPING, signals_raise

EXIT_DONE = 0
EXIT_VERDICT = 1
EXIT_BAD_INPUT = 2
EXIT_SUITE_FAILED = 3
EXIT_COULD_NOT_TELL = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_HUNG_UP = 129

EXIT_CODES_HELP = (
    "Exit codes: 0 done, or compared and no worse; 1 a verdict says no (worse, a fault, no fix within the limits); "
    "2 bad input, or an output that cannot be written; 3 the suite itself failed; 4 could not tell; "
    "129, 130 and 143 stopped by a closed terminal, Ctrl-C or SIGTERM; results so far are kept."
)

_TRACEBACK = "PRECISION_EVAL_TRACEBACK"
# Rich and typer would still print bold under NO_COLOR alone.
_NO_TERMINAL = {"TTY_COMPATIBLE": "0", "_TYPER_FORCE_DISABLE_TERMINAL": "1"}


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that a terminal breaks them where it ends."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def split(values: Sequence[str] | None, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return comma-separated names one by one; `default` where the option was not given."""
    if values is None:
        return default
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def run_application(app: Callable[[], None], name: str) -> None:
    """Run a command line; whatever goes wrong ends with one line and its exit code."""
    _escape_unencodable_characters()
    if os.environ.get("NO_COLOR"):
        os.environ |= _NO_TERMINAL
    try:
        with _signals_interrupt(), _no_interrupt_is_lost():
            try:
                app()
            except (KeyboardInterrupt, SystemExit) as ended:
                cause = getattr(ended.__context__, "__cause__", None)  # of typer's Exit, which says nothing
                if not isinstance(ended, KeyboardInterrupt) and not isinstance(cause, KeyboardInterrupt):
                    raise
                print(f"{name}: stopped", file=sys.stderr)
                sys.exit(EXIT_INTERRUPTED)
            finally:
                if sys.stdout is not None:  # None: closed by the parent process
                    sys.stdout.flush()  # a full device is noticed here, not after the exit code is set
    except SystemExit as ended:
        if isinstance(ended.__context__, OSError) and ended.__context__.errno == errno.EPIPE:
            _drop_output()  # click gives a closed pipe the code of a verdict
            sys.exit(EXIT_BAD_INPUT)
        raise
    except KeyboardInterrupt:  # once more
        sys.exit(EXIT_INTERRUPTED)
    except BaseException as error:  # noqa: BLE001 - the door of the process: whatever comes here gets its line and code
        if os.environ.get(_TRACEBACK):
            import traceback

            traceback.print_exc()
        _fail(error, name)


@contextmanager
def leaving_is_noticed() -> Iterator[None]:
    """Refuse ``sys.exit`` and ``os._exit`` of a factory or a model: its 0 would read as a clean bill."""
    exit_process, this_process, has_left = os._exit, os.getpid(), False

    def refuse(status: int) -> NoReturn:
        nonlocal has_left
        if os.getpid() != this_process:  # a child that the user's code forked ends this way
            exit_process(status)
        has_left = True  # in a thread, SystemExit alone would go unnoticed
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    except SystemExit:
        has_left = True
    finally:
        os._exit = exit_process
    if has_left:
        raise ParameterError("the model or its factory ends the program; expected that it returns")


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, end a command as Ctrl-C does, with exit codes of their own."""
    stopped: list[int] = []

    def interrupt(number: int) -> BaseException:
        stopped.append(number)
        return KeyboardInterrupt()

    with signals_raise(interrupt):
        try:
            yield
        except SystemExit as ended:
            if stopped and ended.code not in (EXIT_DONE, None):
                sys.exit(EXIT_HUNG_UP if stopped[0] == signal.SIGHUP else EXIT_TERMINATED)
            raise


@contextmanager
def _no_interrupt_is_lost() -> Iterator[None]:
    """Interrupt once more where Ctrl-C came while Python was in a callback, which prints it and goes on."""
    before = sys.unraisablehook

    def again(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for number in (signal.SIGINT, *STOPPING):
            atexit.register(signal.signal, number, signal.SIG_IGN)  # all is done but for unloading


def _fail(error: BaseException, name: str) -> None:
    code, text = EXIT_BAD_INPUT, str(error)
    if isinstance(error, PrecisionEvalError) or _is_audio_error(error):
        pass
    elif _is_broken_library(error):
        text = f"a library cannot be loaded: {text}; check that `python -c 'import torch'` works here"
    elif isinstance(error, OSError):
        text = _os_error_text(error)
        if error.errno in _OUTPUT_LOST:
            _drop_output()
    elif is_out_of_memory(error):
        reason = str(failure_of("", error).reason).rstrip(".")
        text = f"memory ran out: {reason}; free some, or take a smaller size or another device"
    elif text.startswith("CUDA error"):
        text = f"{failure_of('', error).reason}; begin anew: the device answers all that follows with this"
    else:
        code = EXIT_SUITE_FAILED
        text = f"internal error: {type(error).__name__}: {text}; please report it with the traceback ({_TRACEBACK}=1)"
    with suppress(OSError):  # standard error may be on the disk that is full
        print(f"{name}: {visible(' '.join(text.split()))}", file=sys.stderr)
    sys.exit(code)


def _is_broken_library(error: BaseException) -> bool:
    """Say whether a library could not be loaded, such as a torch whose shared objects are missing."""
    if isinstance(error, ImportError):
        return not (error.name or "").startswith(("precision_eval", "audio_metrics"))
    return isinstance(error, OSError) and error.errno is None


_OUTPUT_LOST = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


def _os_error_text(error: OSError) -> str:
    if error.filename is None:
        return f"cannot write the output: {error.strerror or error}"
    return f"cannot use {error.filename}: {error.strerror}; correct that, or name another file or folder"


def _drop_output() -> None:
    """Let the interpreter's last flush of standard output go nowhere, so that it does not change the exit code."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _escape_unencodable_characters() -> None:
    """Write characters that the terminal's encoding lacks as escapes, rather than end with an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _is_audio_error(error: BaseException) -> bool:
    """Whether an error is one that ``audio_metrics`` raises on purpose, without importing it."""
    module = sys.modules.get("audio_metrics.errors")
    return module is not None and isinstance(error, module.AudioMetricsError)
