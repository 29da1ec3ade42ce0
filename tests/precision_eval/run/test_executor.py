"""The isolated executor, for real: children that kill themselves, hang, or take too much; the others finish."""

import importlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from programs import ROOT, printed_by

from precision_eval.core import workers
from precision_eval.core.errors import ParameterError
from precision_eval.core.workers import (
    WorkerCrashedError,
    WorkerOutOfMemoryError,
    WorkerRaisedError,
    WorkerStoppedError,
    WorkerTimedOutError,
)
from precision_eval.run import executor
from precision_eval.run.executor import IsolatedExecutor

linux = pytest.mark.skipif(platform.system() != "Linux", reason="only Linux enforces the memory limit")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The module that workers import too: its folder travels to them on ``sys.path``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support"))
    yield importlib.import_module("executor_calls")
    sys.modules.pop("executor_calls", None)


@linux
def test_lost_workers_cost_only_their_own_calls(calls):
    with IsolatedExecutor(2, memory_limit_bytes=3_000_000_000) as executor:
        lost = {
            "killed": executor.submit(calls.kill_self, signal.SIGKILL),
            "fault": executor.submit(calls.kill_self, signal.SIGSEGV),
            "takes": executor.submit(calls.take, 10**10),
            "takes_tensor": executor.submit(calls.take_tensor, 10**10),
            "leaves": executor.submit(calls.leave),
        }
        good = [executor.submit(calls.square, number) for number in range(4)]
        assert [future.result() for future in good] == [0, 1, 4, 9]
        with pytest.raises(WorkerCrashedError, match="killed by SIGKILL"):
            lost["killed"].result()
        with pytest.raises(WorkerCrashedError, match="killed by SIGSEGV"):
            lost["fault"].result()
        with pytest.raises(WorkerOutOfMemoryError, match="MemoryError"):
            lost["takes"].result()
        with pytest.raises(WorkerOutOfMemoryError, match="can't allocate memory"):
            lost["takes_tensor"].result()
        with pytest.raises(WorkerCrashedError, match="ended with code 3"):
            lost["leaves"].result()


def test_a_call_that_hangs_ends_at_its_limit_and_costs_no_other(calls):
    with IsolatedExecutor(2, timeout_s=3.0) as executor:
        hangs, good = executor.submit(calls.hang), executor.submit(calls.square, 3)
        assert good.result() == 9
        with pytest.raises(WorkerTimedOutError, match="no answer within 3 s"):
            hangs.result()


def test_each_call_has_a_process_of_its_own(calls):
    with IsolatedExecutor(1) as executor:
        pids = {executor.submit(calls.own_pid).result() for _ in range(3)}
    assert len(pids) == 3
    assert os.getpid() not in pids


def test_what_is_raised_arrives_with_its_traceback(calls):
    with IsolatedExecutor(1) as executor:
        with pytest.raises(WorkerRaisedError, match="ValueError: bad value") as caught:
            executor.submit(calls.fail).result()
        assert 'raise ValueError("bad value")' in caught.value.remote_traceback
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(WorkerRaisedError, match="result of lambda_result cannot be sent"):
            executor.submit(calls.lambda_result).result()


def test_error_in_the_block_kills_what_runs(calls, tmp_path):
    path = tmp_path / "pids"
    futures = []

    def interrupted():
        with IsolatedExecutor(1) as executor:
            futures.extend([executor.submit(calls.hang, path), executor.submit(calls.square, 2)])
            calls.wait_for(lambda: path.exists() and len(path.read_text().split()) == 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    running, waiting = futures
    assert isinstance(running.exception(), WorkerStoppedError)
    assert waiting.cancelled()
    if platform.system() == "Linux":
        calls.wait_for(lambda: not any(calls.alive(int(pid)) for pid in path.read_text().split()))


def test_a_stopped_worker_is_timed_out_and_killed(calls, tmp_path):
    with IsolatedExecutor(1, timeout_s=1.0) as executor, pytest.raises(WorkerTimedOutError, match="no answer within"):
        executor.submit(calls.stop_self, tmp_path / "pid").result()
    assert not calls.alive(int((tmp_path / "pid").read_text()))


def test_half_an_answer_is_not_waited_for_forever(calls, monkeypatch):
    monkeypatch.setattr(workers, "_SEND_LIMIT_S", 1.0)
    with IsolatedExecutor(1, timeout_s=60.0) as executor, pytest.raises(WorkerTimedOutError, match="half an answer"):
        executor.submit(calls.stop_while_sending).result()


PARENT = """
import sys, pathlib
from precision_eval.run.executor import IsolatedExecutor
import executor_calls
if __name__ == "__main__":
    IsolatedExecutor(1, preload=()).submit(getattr(executor_calls, sys.argv[2]), pathlib.Path(sys.argv[1])).result()
"""


@linux
@pytest.mark.parametrize(("call", "processes"), [("hang", 2), ("stop_self", 1), ("hang_with_the_lock", 2)])
def test_workers_end_with_a_killed_parent(calls, tmp_path, call, processes):
    """Also one that is stopped or busy, which runs no thread that could notice; and what they started."""
    path = tmp_path / "pids"
    (tmp_path / "parent.py").write_text(PARENT)
    here = os.path.dirname(__file__)  # noqa: PTH120
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(path), call], env=env)
    try:
        calls.wait_for(lambda: path.exists() and len(path.read_text().split()) == processes, limit_s=30)
    finally:
        parent.kill()
        parent.wait()
    calls.wait_for(lambda: not any(calls.alive(int(pid)) for pid in path.read_text().split()))


@pytest.mark.parametrize(
    ("kwargs", "match"), [({"max_workers": 0}, "max_workers is 0"), ({"timeout_s": 0}, "timeout_s is 0")]
)
def test_bad_parameters(kwargs, match):
    with pytest.raises(ParameterError, match=match):
        IsolatedExecutor(**kwargs)


SERVING = """
import signal, sys
from precision_eval.run.executor import IsolatedExecutor
import executor_calls
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where they run under nohup
    try:
        preload = sys.argv[1].split(",")
        with IsolatedExecutor(1, preload=preload) as executor:
            print(executor.submit(executor_calls.is_imported, preload[-1]).result(), flush=True)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture
def short_tmp():
    """A folder for sockets, whose paths may have some hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def serving(tmp_path, short_tmp, preload, **modules):
    """Start a program in a session of its own whose fork server imports modules."""
    for name, text in {"serving": SERVING, **modules}.items():
        (tmp_path / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(short_tmp)}
    words = [sys.executable, str(tmp_path / "serving.py"), preload]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=env, start_new_session=True, **pipe)


@linux
@pytest.mark.parametrize("broken", ["raise OSError('libtorch.so is missing')", "raise SystemExit(3)", "x ="])
def test_a_module_that_cannot_be_imported_costs_the_fork_server_nothing(tmp_path, short_tmp, broken):
    parent = serving(tmp_path, short_tmp, "broken,colorsys", broken=broken)
    assert parent.communicate(timeout=60) == ("True\n", "")


@linux
def test_a_module_that_kills_the_fork_server_is_said_to(tmp_path, short_tmp):
    parent = serving(tmp_path, short_tmp, "broken", broken="import os; os.kill(os.getpid(), 9)")
    assert "see whether `python -c 'import torch'` ends by itself" in parent.communicate(timeout=60)[1]


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_fork_server_that_is_still_importing_ends_with_its_parent_and_in_silence(calls, tmp_path, short_tmp, number):
    path = tmp_path / "pid"
    slow = f"""import os, pathlib, time
pathlib.Path({str(path)!r}).write_text(str(os.getpid()))
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.02)
"""
    parent = serving(tmp_path, short_tmp, "slow", slow=slow)
    calls.wait_for(lambda: path.exists() and path.read_text(), limit_s=30)
    if number == signal.SIGKILL:
        parent.kill()
    else:
        os.killpg(parent.pid, number)
    if number != signal.SIGINT:  # Ctrl-C ends it while it imports
        (tmp_path / "go").touch()
    assert parent.communicate(timeout=60) == ("", "")
    calls.wait_for(lambda: not calls.alive(int(path.read_text())))


ASKED = """
import os, threading
os.environ["PRECISION_EVAL_PRELOAD"] = "torch torch._inductor.compile_fx"
import precision_eval.run.preload
from torch._inductor import cpu_vec_isa
asked = cpu_vec_isa.valid_vec_isa_list.cache_info().currsize
print(asked, threading.active_count(), len(os.listdir("/proc/self/task")))
"""


@linux
@pytest.mark.slow
def test_the_compiler_is_asked_once_and_no_thread_starts():
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", ASKED], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "1"]


UNGUARDED = """
import executor_calls
from precision_eval.core.workers import call_isolated
from precision_eval.run.executor import IsolatedExecutor
print("the script runs")
with IsolatedExecutor(1, preload=()) as executor:
    print(executor.submit(executor_calls.square, 3).result())
print(call_isolated(executor_calls.square, 4, start="spawn"))
"""


def test_no_worker_runs_the_callers_script_again(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    support = Path(__file__).parents[2] / "support"
    printed = printed_by(tmp_path / "script.py", PYTHONPATH=f"{ROOT}:{support}")
    assert printed.splitlines() == ["the script runs", "9", "16"]


@pytest.mark.parametrize("node", ["nvidiactl", "kfd", "dxg"])
def test_a_fork_server_that_might_wake_a_gpu_up_imports_torch_alone(monkeypatch, tmp_path, node):
    nodes = tuple(tmp_path / path.name for path in executor.GPU_NODES)
    monkeypatch.setattr(executor, "GPU_NODES", nodes)
    assert "torch._dynamo" in executor.modules_to_preload(compiled=True)
    (tmp_path / node).touch()
    assert executor.modules_to_preload("a", compiled=True) == ("torch",)
