"""Engines: what is refused, lost, kept and never measured twice; on lanes of this machine, dask, Ray and submitit."""

import contextlib
import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from toy_plans import Inline, plan_of, ran, run, status

from precision_eval.core.environment import usable_cores
from precision_eval.core.errors import ParameterError, RecordError
from precision_eval.core.records import RecordFile
from precision_eval.core.workers import WorkerRaisedError
from precision_eval.run import engines, lanes
from precision_eval.run.engines import EngineExecutor, NodeCall, Submitit, engine_named
from precision_eval.run.lanes import Lane, LocalLanes, enter_lane, lanes_of

SUPPORT = str(Path(__file__).parents[2] / "support")
CALL = NodeCall(device="cpu", preload=("torch",), timeout_s=60.0)
ENVIRONMENT = {"cpu": {"model": "m"}, "memory_bytes": 1_000_000, "variables": {"CUDA_VISIBLE_DEVICES": "0"}}


@pytest.fixture(autouse=True)
def _toy_importable(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    yield
    sys.modules.pop("toy", None)


class Here:
    """An engine that runs a call in this process, after it has lost it `losses` times."""

    lanes = 2

    def __init__(self, losses=0):
        self.losses = losses

    def run(self, function, call):
        if self.losses:
            self.losses -= 1
            raise OSError("the node is gone")
        return function(call)

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    """Isolation left out: what is tested is what lies around it."""
    monkeypatch.setattr(engines, "_isolated", lambda *_: Inline())
    monkeypatch.setattr(engines, "_environment", lambda *_: ENVIRONMENT)


def begin(executor, run_dir, *, environment=ENVIRONMENT, purpose="p"):
    return executor.begin(environment, "cpu", memory_share=None, purpose=purpose, run_dir=run_dir)


def on(engine, plan, run_dir, **kwargs):
    with EngineExecutor(engine, CALL) as executor:
        begin(executor, run_dir, **kwargs)
        return run(plan, run_dir, executor, max_parallel=engine.lanes, lanes=True)


@pytest.mark.parametrize(
    ("text", "device", "message"),
    [
        ("0", "cpu", "lane '0' is none"),
        ("4096", "cpu", "4096 lanes on .* cores; give at most"),
        ("0-0,0-0", "cpu", "lane 0-0 shares its device with another"),
        ("cuda:0,cuda:0", "cuda", "lane cuda:0 shares its device with another; give each GPU and core once"),
        ("cuda:0", "cpu", "lane cuda:0 is none of --device cpu"),
        ("0-0", "cuda", "lane 0-0 is none of --device cuda"),
        ("0-4096", "cpu", "lane '0-4096' is none; give a count"),
        ("gpu", "cpu", "lane 'gpu' is none"),
    ],
)
def test_lanes_that_are_none_are_refused(text, device, message):
    with pytest.raises(ParameterError, match=message):
        lanes_of(text, device=device, threads=1)


def test_lanes_share_no_core_and_hold_the_threads(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10, 11}, raising=False)
    two = lanes_of("2", device="cpu", threads=4)
    assert [sorted(lane.cores) for lane in two] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert lanes_of("cuda:1,cuda:0", device="cuda", threads=4) == (Lane("cuda:1", 1), Lane("cuda:0", 0))
    assert lanes_of("2", device="cuda", threads=4) == (Lane("cuda:0", 0), Lane("cuda:1", 1))
    with pytest.raises(ParameterError, match="has 2 cores for 4 threads; give fewer lanes"):
        lanes_of("4", device="cpu", threads=4)


def test_the_cores_of_a_count_are_the_ones_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5, 7}, raising=False)
    assert [sorted(lane.cores) for lane in lanes_of("2", device="cpu", threads=2)] == [[0, 2], [5, 7]]


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("condor", "cpu", "unknown executor 'condor'"),
        ("local:1", "cuda:0", "chooses the GPU itself, and --device is cuda:0; give cuda or cpu"),
    ],
)
def test_executors_that_are_none_are_refused(name, device, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        engine_named(name, device=device, threads=1, run_dir=tmp_path, workers=None)


@pytest.mark.parametrize(("name", "module"), [("dask", "distributed"), ("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_one_line(refused, tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ("run", "--executor", name, "--device", "cpu", "--out", tmp_path / "out")
    refused(f"needs {module}, which is not installed; pip install 'precision-eval[{name}]'", *arguments)


def _nobody(**_):
    raise ConnectionError("no answer\nfrom there")


def _too_late(**_):
    raise Exception("no answer\nfrom there")  # as Ray has it where its own node does not start in time


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("ray:there:1", types.SimpleNamespace(init=_nobody), "or try ray on this machine"),
        ("ray", types.SimpleNamespace(init=_too_late), "or try local:1 on this machine"),
        ("slurm", types.SimpleNamespace(AutoExecutor=_nobody), "or try slurm:local on this machine"),
    ],
)
def test_an_engine_that_does_not_answer_is_one_line(tmp_path, monkeypatch, name, module, remedy):
    monkeypatch.setitem(sys.modules, {"slurm": "submitit"}.get(name, "ray"), module)
    with pytest.raises(ParameterError, match=f"{name}: no answer from there; run it where that answers, {remedy}"):
        engine_named(name, device="cpu", threads=1, run_dir=tmp_path, workers=None)


def test_rays_answer_to_sigterm_does_not_replace_the_commands(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    ray = types.SimpleNamespace(
        init=lambda **_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(15)),
        remote=lambda **_: lambda function: function,
        cluster_resources=lambda: {"CPU": 2},
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    try:
        assert engines.Ray("", threads=1, gpus=0).lanes == 2
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_cluster_that_never_answers_is_one_line_too(tmp_path, monkeypatch):
    asked = threading.Event()
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=lambda **_: asked.wait()))
    monkeypatch.setattr(engines, "ANSWER_S", 0.1)
    try:
        with pytest.raises(ParameterError, match=r"ray:there:1: no answer within 0\.1 s; run it where that answers"):
            engine_named("ray:there:1", device="cpu", threads=1, run_dir=tmp_path, workers=None)
    finally:
        asked.set()


@pytest.mark.parametrize(
    ("visible", "gpu", "own"), [("", 1, "1"), ("3,5", 1, "5"), ("GPU-8a,MIG-1b", 0, "GPU-8a"), ("3", 1, "-1")]
)
def test_a_lane_of_a_gpu_sees_that_one_alone(monkeypatch, visible, gpu, own):
    monkeypatch.setattr(lanes, "_end_with_starter", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    enter_lane(Lane(f"cuda:{gpu}", gpu))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own


def test_a_call_that_is_lost_is_handed_out_again(here, tmp_path):
    plan = plan_of("a", "b", measures=("first",))
    assert set(status(on(Here(losses=2), plan, tmp_path)).values()) == {"passed"}
    assert len(ran(tmp_path)) == 2


def test_a_node_that_is_lost_every_time_crashes_and_is_no_result_of_the_fix(here, tmp_path):
    (record,) = on(Here(losses=99), plan_of("a", measures=("first",)), tmp_path)
    assert record.status == "crashed"
    assert record.reason.startswith("the engine lost the worker 3 times: OSError: the node is gone")
    assert ran(tmp_path) == []


def test_what_a_node_measured_and_nobody_recorded_is_not_measured_again(here, tmp_path):
    plan = plan_of("a", "b", measures=("first",))
    first = on(Here(), plan, tmp_path)
    (tmp_path / "records.jsonl").unlink()  # as where the parent was killed before it recorded
    again = on(Here(), plan, tmp_path)
    assert len(ran(tmp_path)) == 2
    assert {record.cell: record.data for record in again} == {record.cell: record.data for record in first}
    (tmp_path / "records.jsonl").unlink()
    on(Here(), plan, tmp_path, purpose="another definition of the case")
    assert len(ran(tmp_path)) == 4


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"cpu": {"model": "other"}}, "cpu"),
        ({"memory_bytes": 2_000_000}, "memory_bytes"),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2"}}, "variables"),
        ({"torch": {"version": "2.6.0"}}, "torch"),
    ],
)
def test_a_node_unlike_the_first_is_refused(here, tmp_path, change, differs):
    plan = plan_of("a", measures=("first",))
    with pytest.raises(ParameterError, match=f"differs from the first in {differs}; ask the engine for nodes of one"):
        on(Here(), plan, tmp_path, environment=ENVIRONMENT | change)
    alike = {"memory_bytes": 1_000_999, "variables": {"CUDA_VISIBLE_DEVICES": "1"}}
    assert set(status(on(Here(), plan, tmp_path, environment=ENVIRONMENT | alike)).values()) == {"passed"}


def test_a_device_that_is_not_there_is_refused_in_its_own_words(monkeypatch):
    """Whatever the engine does to an error on its way: a cause does not survive pickling."""
    error = WorkerRaisedError("ParameterError: device cuda:7 is not here")
    error.__cause__ = ParameterError("device cuda:7 is not here")
    refused = Future()
    refused.set_exception(error)
    refusing = Inline()
    monkeypatch.setattr(refusing, "submit", lambda *_: refused)
    monkeypatch.setattr(engines, "_isolated", lambda *_: refusing)
    for call in (CALL, replace(CALL, expected=ENVIRONMENT, kept=Path("kept"))):  # asked, and at a lane's first cell
        answer = pickle.loads(pickle.dumps(engines.on_node(call)))
        assert repr(answer.value) == "ParameterError('device cuda:7 is not here')"


def test_a_node_that_cannot_keep_a_result_ends_the_run(here, tmp_path):
    with EngineExecutor(Here(), CALL) as executor:
        begin(executor, tmp_path)
        (tmp_path / "engine").rmdir()
        with pytest.raises(RecordError, match=r"node .* cannot use .*engine.*: No such file.*; give an --out that is"):
            run(plan_of("a", measures=("first",)), tmp_path, executor, lanes=True)
    assert ran(tmp_path) == []


class Elsewhere(Here):
    """A node whose clock is off, or of a version that answers otherwise."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def run(self, function, call):
        return self.change(function(call))


@pytest.mark.parametrize(("off_s", "apart"), [(3600, "60 min ahead"), (-3600, "60 min or more behind"), (0, None)])
def test_a_clock_that_is_off_is_one_line_and_nothing_else(here, tmp_path, off_s, apart):
    engine = Elsewhere(lambda answer: replace(answer, at_s=answer.at_s + off_s))
    with EngineExecutor(engine, CALL) as executor:
        begin(executor, tmp_path)
        records = run(plan_of("a", "b", measures=("first",)), tmp_path, executor, max_parallel=2, lanes=True)
    assert [record.status for record in records] == ["passed", "passed"]
    assert all(record.wall_s < 600 for record in records)
    assert [line.split(": ")[0].partition(" is ")[2] for line in executor.clocks_apart.values()] == [apart] * bool(
        apart
    )


def test_a_node_of_another_version_is_refused(here, tmp_path):
    plan = plan_of("a", measures=("first",))
    with pytest.raises(ParameterError, match="answers with CellResult, as another version of precision-eval does"):
        on(Elsewhere(lambda answer: answer.value), plan, tmp_path)


class Jobs:
    """Stands in for submitit: a job is a thread; `born` says whether it gets as far as its first call."""

    cluster, born = "local", True

    def __init__(self, **_):
        self.jobs = []

    def update_parameters(self, **_):
        pass

    def submit(self, function, *arguments):
        def job_of():
            with contextlib.suppress(SystemExit):
                function(*arguments)

        thread = threading.Thread(target=job_of if self.born else int, daemon=True)
        thread.start()
        job = types.SimpleNamespace(
            job_id=str(len(self.jobs)), done=lambda: not thread.is_alive(), cancel=lambda check: None
        )
        self.jobs.append(job)
        return job


@pytest.fixture
def submitit_of(tmp_path, monkeypatch):
    """Slurm of jobs that are threads, ended with the test."""
    monkeypatch.setitem(sys.modules, "submitit", types.SimpleNamespace(AutoExecutor=Jobs))
    monkeypatch.setattr(engines, "POLL_S", 0.01)
    made = []

    def make(at_once):
        made.append(Submitit("", threads=1, gpus=0, logs=tmp_path, at_once=at_once))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
    deadline = time.monotonic() + 20
    while not all(job.done() for engine in made for job in engine.executor.jobs):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def answer_of(call):
    """What a node does with a call: one named lost ends its job."""
    if call == "lost":
        raise SystemExit
    return f"{call} done"


def asked(engine, calls):
    pool = ThreadPoolExecutor(len(calls))
    return {call: pool.submit(engine.run, answer_of, call) for call in calls}


def test_what_jobs_read_nobody_else_writes(submitit_of, tmp_path):
    tmp_path.chmod(0o777)
    engine = submitit_of(at_once=1)
    assert engine.run(answer_of, "a") == "a done"  # its pickles were there, and the folder was looked at again
    assert engine.folder.parent == tmp_path
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_a_job_answers_one_call_after_the_other(submitit_of):
    engine = submitit_of(at_once=2)
    for calls in (["a", "b", "c"], ["d"]):
        answers = asked(engine, calls)
        assert {call: answer.result(20) for call, answer in answers.items()} == {call: f"{call} done" for call in calls}
    assert 1 <= len(engine.executor.jobs) <= 2


def test_a_call_that_ends_its_job_takes_no_other_with_it(submitit_of):
    engine = submitit_of(at_once=1)
    answers = asked(engine, ["a", "lost", "b", "c"])
    with pytest.raises(OSError, match=r"job \d+ ended with it; see its log"):
        answers.pop("lost").result(20)
    assert [answer.result(20) for answer in answers.values()] == [f"{call} done" for call in answers]
    assert len(engine.executor.jobs) in (1, 2)  # one where the call that ends it came last


def test_a_job_that_squeue_no_longer_names_has_ended(submitit_of, monkeypatch):
    """Slurm's own word, with and without accounting; while it does not answer, no job is given up."""
    said = iter([(1, ""), (0, ""), (0, "7\n")])
    told = [types.SimpleNamespace(returncode=code, stdout=text) for code, text in said]
    monkeypatch.setattr(engines.subprocess, "run", lambda *_, **__: told.pop(0))
    monkeypatch.setattr(engines, "SQUEUE_S", -1.0)
    engine, (first, seventh) = submitit_of(at_once=1), [types.SimpleNamespace(job_id=name) for name in ("0", "7")]
    monkeypatch.setattr(Jobs, "cluster", "slurm")
    engine._queued = {"0", "7"}
    seen = []
    while told:
        engine._ask_slurm()
        seen.append((engine._ended(first), engine._ended(seventh)))
    assert seen == [(False, False), (True, True), (True, False)]


def test_jobs_that_end_before_they_take_a_call_are_no_endless_loop(submitit_of, monkeypatch):
    monkeypatch.setattr(Jobs, "born", False)
    engine = submitit_of(at_once=1)
    with pytest.raises(OSError, match="no job took it; see the logs of the jobs"):
        engine.run(answer_of, "a")
    assert len(engine.executor.jobs) in (3, 4)


def test_a_job_that_is_put_into_the_queue_again_does_what_it_had_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "IDLE_S", 0.1)
    for number, taken in enumerate(("by-mine", "by-other", "by-mine")):
        engines._write(tmp_path / f"{number}.{taken}", (answer_of, str(number)))
    (tmp_path / "2.answer").write_bytes(b"there")
    engines.serve_calls(tmp_path, "mine")
    assert sorted(path.name for path in tmp_path.glob("*.answer")) == ["0.answer", "2.answer"]
    assert (tmp_path / "2.answer").read_bytes() == b"there"


def test_a_job_that_is_being_ended_answers_nothing_and_takes_nothing(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        for name in ("0.call", "1.call"):
            engines._write(tmp_path / name, (signal.raise_signal, signal.SIGTERM))
        engines.serve_calls(tmp_path, "mine")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".by-mine", ".call"]


def test_a_job_ends_where_no_call_comes_and_where_the_command_is_done(submitit_of, monkeypatch):
    monkeypatch.setattr(engines, "IDLE_S", 0.1)
    engine = submitit_of(at_once=1)
    assert engine.run(answer_of, "a") == "a done"
    deadline = time.monotonic() + 20
    while not engine.executor.jobs[0].done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert engine.run(answer_of, "b") == "b done"
    monkeypatch.setattr(engines, "IDLE_S", 600.0)
    assert engine.run(answer_of, "c") == "c done"  # the fixture sees that its job ends all the same


def test_a_job_takes_no_further_call_near_the_end_of_its_time(submitit_of, monkeypatch):
    monkeypatch.setattr(engines, "SERVES_S", 0.1)
    engine = submitit_of(at_once=1)
    for call in "ab":
        assert engine.run(answer_of, call) == f"{call} done"
        time.sleep(0.2)
    assert len(engine.executor.jobs) == 2


def test_closing_gives_up_what_waits_and_starts_no_further_job(submitit_of, monkeypatch):
    monkeypatch.setattr(engines, "serve_calls", lambda folder, name: time.sleep(0.5))
    engine = submitit_of(at_once=1)
    answers = asked(engine, list("abc"))
    while not engine.executor.jobs:
        time.sleep(0.01)
    engine.close()
    for answer in answers.values():
        assert isinstance(answer.exception(20), OSError)
    assert len(engine.executor.jobs) == 1


def test_a_lane_whose_pipe_broke_before_its_process_was_seen_to_end_is_started_again():
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    lane = Lane("first", cores=frozenset([core]))
    engine = LocalLanes([lane])
    try:
        assert engine.run(abs, -1) == 1
        process, connection = engine._started[lane]
        broken, other = multiprocessing.Pipe()
        other.close()
        engine._started[lane] = process, broken  # the other end is closed, and the process lives
        with pytest.raises(OSError, match="Broken pipe"):
            engine.run(abs, -2)
        assert engine.run(abs, -2) == 2
        assert engine._started[lane][0].pid != process.pid
        assert process.exitcode == -signal.SIGKILL
        connection.close()
    finally:
        engine.close()


@pytest.mark.slow
def test_lanes_keep_their_cores_and_one_that_is_killed_costs_nothing(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    lanes = [Lane(f"{core}-{core}", cores=frozenset([core])) for core in cores]
    engine, plan = LocalLanes(lanes), plan_of("good", "dies", "waits", "raises", measures=("first", "group"))
    with EngineExecutor(engine, CALL) as executor:
        environment = executor.submit(_collect_here).result()
        begin(executor, tmp_path, environment=environment)

        def kill_a_lane():
            while not any("waits" in name for name in ran(tmp_path)):
                time.sleep(0.05)
            for process, _ in list(engine._started.values()):
                os.kill(process.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill_a_lane)
        killer.start()
        records = run(plan, tmp_path, executor, max_parallel=2, lanes=True)
        killer.join()
    found = {record.fix: record for record in records if record.measure == "first"}
    assert {fix: record.status for fix, record in found.items()} == {
        "good": "passed",
        "dies": "crashed",
        "waits": "passed",
        "raises": "raised",
    }
    assert all(len(record.data["cores"]) == 1 for record in found.values() if record.data)
    stored = RecordFile(tmp_path / "records.jsonl").read().records
    assert len(stored) == len({record.cell for record in stored}) == 8
    assert ran(tmp_path).count("toy/good/eager@cpu:s#first") == 1


def _collect_here():
    from precision_eval.core.environment import collect

    return collect("cpu")


def parent(engine, run_dir, fixes=("good", "waits", "b", "c")):
    """A process of its own that runs a plan on an engine."""
    code = (
        "import sys; from pathlib import Path; import toy_engines; "
        f"toy_engines.main({engine!r}, Path({str(run_dir)!r}), {fixes!r})"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([SUPPORT, *sys.path])}
    with (run_dir / "printed.txt").open("a") as printed:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=env, cwd=run_dir, start_new_session=True, stderr=printed
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "module"), [("local:1", "os"), ("dask", "distributed"), ("ray", "ray"), ("slurm:local", "submitit")]
)
def test_a_killed_parent_loses_and_doubles_nothing(tmp_path, engine, module):
    pytest.importorskip(module)
    first = parent(engine, tmp_path)
    deadline = time.monotonic() + 600
    while not any("waits" in name for name in ran(tmp_path)):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.kill()
    first.wait()
    kept = {record.cell for record in RecordFile(tmp_path / "records.jsonl").read().records}
    assert parent(engine, tmp_path).wait(timeout=900) == 0
    stored = RecordFile(tmp_path / "records.jsonl").read().records
    assert len(stored) == len({record.cell for record in stored}) == 8
    assert {record.status for record in stored} == {"passed"}
    for cell in kept:
        assert ran(tmp_path).count(cell) == 1
    assert not (tmp_path / "engine").exists()
    assert json.loads((tmp_path / "done.json").read_text())["records"] == 8
    if engine.startswith("local"):
        assert (tmp_path / "printed.txt").read_text() == ""  # of semaphores, or of lanes that lost their parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_random_kills_lose_and_double_nothing(tmp_path):
    """Of the command, of a lane, of a fork server or a worker, as it comes; then the same command to its end."""
    rng, fixes = random.Random(0), ("waits", *(f"fix{number}" for number in range(12)))
    killed = []
    while len(killed) < 20:
        process = parent("local:2" if usable_cores() > 1 else "local:1", tmp_path, fixes)
        while process.poll() is None and len(killed) < 20:
            time.sleep(rng.uniform(1.0, 6.0))
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                victim = rng.choice(family)
                killed.append(victim.pid)
                victim.kill()
        if process.poll() is None:
            process.wait(timeout=100)
        elif (tmp_path / "done.json").exists():
            (tmp_path / "done.json").unlink()
            (tmp_path / "records.jsonl").rename(tmp_path / f"finished-{len(killed)}.jsonl")  # begin anew
            (tmp_path / "ran.txt").rename(tmp_path / f"ran-{len(killed)}.txt")
    for _ in range(2):  # a worker that was killed is a crash, which the next run measures again
        assert parent("local:1", tmp_path, fixes).wait(timeout=200) == 0
    stored = RecordFile(tmp_path / "records.jsonl").read()
    passed = [record.cell for record in stored.records if record.status == "passed"]
    assert stored.faults == ()
    assert len(passed) == len(set(passed)) == 2 * len(fixes)
    print(f"{len(killed)} kills, {len(passed)} cells, {len(ran(tmp_path))} calls begun")
