"""Cells on a cluster: what is refused; statuses and resumption on dask's own workers."""

import multiprocessing
import pickle
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_plans import Inline, plan_of, ran, run, status

from precision_eval.core.errors import ParameterError, UnknownNameError
from precision_eval.core.workers import WorkerRaisedError
from precision_eval.run import cluster
from precision_eval.run.cluster import ClusterExecutor, NodeLimits, open_cluster, run_on_node

LIMITS = NodeLimits(device="cpu", preload=("torch",), timeout_s=30.0)
ENVIRONMENT = {"cpu": {"model": "m"}, "torch": {"version": "2"}, "memory_bytes": 1, "variables": {}}
SUPPORT = str(Path(__file__).parents[2] / "support")


@pytest.fixture(autouse=True)
def _toy_importable(monkeypatch):
    monkeypatch.syspath_prepend(SUPPORT)
    yield
    sys.modules.pop("toy", None)


@pytest.fixture
def node(monkeypatch):
    """A node in this process, which is like `ENVIRONMENT`."""
    monkeypatch.setattr(cluster, "_isolated", lambda *_: Inline())
    monkeypatch.setattr(cluster, "_environment", lambda *_: ENVIRONMENT)
    return ClusterExecutor(Inline(), LIMITS)


@pytest.mark.parametrize(("name", "remedy"), [("condor", "known: dask"), ("slurm", "dask-jobqueue"), ("local", "dask")])
def test_another_executor_is_refused(name, remedy):
    with pytest.raises(UnknownNameError, match=remedy), open_cluster(f"{name}:1", LIMITS, threads=1):
        pass


def test_a_missing_extra_is_one_line(refused, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    arguments = (
        "run", "--set", "executor=dask", "--device", "cpu", "--case", "attention-decode", "--out", tmp_path / "out",
    )  # fmt: skip
    refused("needs distributed, which is not installed; pip install 'precision-eval[dask]'", *arguments)


def test_the_device_of_a_cluster_elsewhere_is_named(refused, tmp_path):
    refused("give cpu or cuda", "run", "--set", "executor=dask:tcp://there:1", "--out", tmp_path / "out")


@pytest.mark.parametrize("part", ["cpu", "torch"])
def test_a_node_unlike_the_first_is_refused(node, tmp_path, part):
    plan = plan_of("a", measures=("first",))
    (tmp_path / "alike").mkdir()
    node.expect(ENVIRONMENT | {"memory_bytes": 2, "variables": {"CUDA_VISIBLE_DEVICES": "1"}})
    assert set(status(run(plan, tmp_path / "alike", node)).values()) == {"passed"}
    node.expect(ENVIRONMENT | {part: {}})
    with pytest.raises(ParameterError, match=f"differs from the first in {part}; use nodes of one kind"):
        run(plan, tmp_path / "unlike", node)


def test_a_device_that_is_not_there_is_refused_in_its_own_words(monkeypatch):
    error = WorkerRaisedError("ParameterError: device cuda:7 is not here")
    error.__cause__ = ParameterError("device cuda:7 is not here")
    future = Future()
    future.set_exception(error)
    monkeypatch.setattr(cluster, "_isolated", lambda *_: SimpleNamespace(submit=lambda *_: future))
    with pytest.raises(ParameterError) as caught:
        run_on_node(LIMITS, print, (), {})
    assert str(pickle.loads(pickle.dumps(caught.value))) == "device cuda:7 is not here"


def test_a_worker_that_may_start_no_process_says_what_to_set(monkeypatch):
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    with pytest.raises(ParameterError, match="DASK_DISTRIBUTED__WORKER__DAEMON=False"):
        run_on_node(LIMITS, print, (), {})


@pytest.mark.slow
def test_dask_isolates_each_cell_and_a_run_resumes(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", SUPPORT)
    plan = plan_of("good", "dies", "raises", "takes", measures=("first",))
    expected = {"good": "passed", "dies": "crashed", "raises": "raised", "takes": "out_of_memory"}
    for _ in range(2):
        with open_cluster("dask", LIMITS, threads=1) as (executor, size):
            records = run(plan, tmp_path, executor, max_parallel=size)
        assert {fix: name for (fix, _), name in status(records).items()} == expected
    assert len(ran(tmp_path)) == len(expected) + 1  # a crash alone is measured again


@pytest.mark.parametrize(("visible", "given"), [("", ["0", "1"]), ("2,GPU-a", ["2", "GPU-a"]), ("MIG-b", ["MIG-b"])])
def test_each_worker_of_this_machine_has_one_of_the_gpus_that_are_visible(monkeypatch, visible, given):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(cluster, "call_isolated", lambda name: 2)
    distributed = SimpleNamespace(Nanny=None, Scheduler=None, SpecCluster=lambda scheduler, workers: workers)
    workers = cluster._local_cluster(distributed, "cuda", 1)
    assert [worker["options"]["env"]["CUDA_VISIBLE_DEVICES"] for worker in workers.values()] == given
