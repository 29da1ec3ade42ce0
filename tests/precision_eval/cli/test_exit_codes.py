"""Whatever ends a command ends it with one line and its own exit code: 1 is a verdict and nothing else."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from precision_eval.cli import application
from precision_eval.cli.application import run_application
from precision_eval.core.errors import ParameterError

PROGRAM = """
import sys, typer
from precision_eval.cli.application import run_application
app = typer.Typer(pretty_exceptions_enable=False)
@app.command()
def command() -> None:
    {body}
run_application(app, "program")
"""


def hear(*_):
    """Undo ``nohup``, under which these tests may run."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def program(body, **options):
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    options = {"stderr": subprocess.PIPE, "text": True, "timeout": 60, "preexec_fn": hear, **options}
    return subprocess.run(command, check=False, **options)


def printed_on_a_terminal(body, **variables):
    own, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", **variables}
    subprocess.run([sys.executable, "-c", PROGRAM.format(body=body)], check=True, stdout=theirs, env=environment)
    os.close(theirs)
    with open(own, "rb", buffering=0, closefd=True) as file:  # noqa: PTH123
        return file.read(4096).decode()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ParameterError("x is 1;\nexpected 2"), 2, "program: x is 1; expected 2"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "cannot use a/b: Permission denied; correct that"),
        (KeyError("figure"), 3, "internal error: KeyError: 'figure'; please report it with the traceback (PREC"),
        (
            OSError("libtorch_cpu.so: cannot open shared object"),
            2,
            "program: a library cannot be loaded: libtorch_cpu.so",
        ),
        (ImportError("no symbol", name="torch._C"), 2, "a library cannot be loaded: no symbol; check that `python -c"),
        (ImportError("no such", name="precision_eval.x"), 3, "internal error: ImportError: no such"),
        (ParameterError("no folder \x1b[2J"), 2, "program: no folder \\x1b[2J"),
        (RecursionError("deep"), 3, "internal error: RecursionError: deep"),
        (MemoryError("8 GiB"), 2, "program: memory ran out: MemoryError: 8 GiB; free some, or take a smaller size"),
        (RuntimeError("CUDA error: device-side assert\nFor"), 2, "CUDA error: device-side assert"),
        (GeneratorExit("left"), 3, "internal error: GeneratorExit: left"),
    ],
)
def test_an_error_is_one_line_and_a_code(capsys, error, code, text):
    def application():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_application(application, "program")
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_every_exit_code_is_documented():
    codes = {
        str(code) for name, code in vars(application).items() if name.startswith("EXIT_") and name != "EXIT_CODES_HELP"
    }
    page = (Path(__file__).parents[3] / "docs" / "continuous-integration.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([\d, ]+) \|", page, re.M)
    assert codes == set(re.findall(r"\b\d+\b", application.EXIT_CODES_HELP)) == set(", ".join(cells).split(", "))


def test_the_traceback_of_an_internal_error_can_be_had(monkeypatch, capsys):
    monkeypatch.setenv("PRECISION_EVAL_TRACEBACK", "1")
    with pytest.raises(SystemExit, match="3"):
        run_application(lambda: 1 / 0, "program")
    assert "run_application(lambda: 1 / 0" in capsys.readouterr().err


def test_a_closed_pipe_is_no_verdict():
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = program('print("x" * 100_000)', stdout=reader.stdin)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("body", ['print("little")', 'print("x" * 100_000)', 'print("little"); sys.exit(1)'])
def test_a_full_device_is_no_verdict(body):
    with Path("/dev/full").open("w") as full:
        done = program(body, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "program: cannot write the output: No space left on device\n"


def test_an_error_that_cannot_be_written_either_is_no_verdict(tmp_path):
    body = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); print('x')"
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(body=body)], stdout=out, stderr=out, timeout=60, check=False
        )
    assert done.returncode == 2


@pytest.mark.parametrize(("body", "code"), [("print(1)", 0), ("sys.exit(1)", 1)])
def test_a_closed_output_changes_no_exit_code(body, code):
    done = program(f"sys.stdout = None; {body}")
    assert (done.returncode, done.stderr) == (code, "")


def test_signals_to_a_command_that_is_done_change_nothing():
    sent = "[os.kill(os.getpid(), number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]"
    command = f"import atexit, os, signal; atexit.register(lambda: {sent})" + PROGRAM.format(body="print(1)")
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_an_encoding_lacks_is_escaped():
    done = program('print("µ – x")', stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, "\\xb5 \\u2013 x\n")


@pytest.mark.parametrize("value", ["", "1"])
def test_no_color_leaves_no_escape_sequence_not_even_bold(value):
    body = 'from rich.console import Console; Console().print("bold", style="bold")'
    text = printed_on_a_terminal(body, NO_COLOR=value)
    assert ("\x1b" in text, "bold" in text) == (not value, True)


SIGNALS = [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]


@pytest.mark.parametrize(("name", "code"), SIGNALS)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('run_application(lambda: os.kill(os.getpid(), signal.{}), "plain")', "plain: stopped\n"),  # none of typer's
        ("with ending(): os.kill(os.getpid(), signal.{})", "cleaned\nprogram: stopped\n"),
    ],
)
def test_a_signal_ends_a_command_in_order_and_one_line(body, said, name, code):
    begin = """import contextlib, os, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    @contextlib.contextmanager
    def ending():
        try:
            yield
        finally:
            print("cleaned", file=sys.stderr)
    """
    done = program(begin + body.format(name))
    assert (done.returncode, done.stderr) == (code, said)


def test_an_interrupt_in_a_callback_ends_the_command_too():
    body = """import os, signal, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
    Dying()
    time.sleep(60)"""
    done = program(body)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_comes_again_spoils_no_ending(name):
    body = f"""import os, signal
    try:
        os.kill(os.getpid(), signal.{name})
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        print("cleaned", file=sys.stderr)"""
    done = program(body)
    assert done.returncode == dict(SIGNALS)[name]
    assert done.stderr.startswith("cleaned")


def test_a_signal_that_was_lost_can_be_sent_again():
    body = """import os, signal
    from contextlib import suppress
    from precision_eval.core import workers
    workers.AGAIN_S = 0.0
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    print("not stopped", file=sys.stderr)"""
    done = program(body)
    assert (done.returncode, done.stderr) == (143, "program: stopped\n")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_a_closed_terminal_leaves_what_python_keeps_track_of_in_order():
    body = """import os, signal, time
    from precision_eval.core.workers import context_of
    context = context_of("spawn")
    held = [context.Lock() for _ in range(3)]
    try:
        os.killpg(0, signal.SIGHUP)
        time.sleep(60)
    finally:
        time.sleep(0.2)  # the tracker, where it hears the signal, ends
        held.clear()"""
    done = program(body, start_new_session=True)
    assert (done.returncode, done.stderr) == (129, "program: stopped\n")


def test_nohup_is_respected():
    body = "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"
    done = program(body, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (0, "")
