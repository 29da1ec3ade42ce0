"""Calls in processes of their own: order, loss, limits, and what is raised; the executor's tests hold the rest."""

import multiprocessing
import os
import platform
import signal
import threading
from contextlib import suppress

import executor_calls as calls
import pytest
import torch

from precision_eval.core import workers
from precision_eval.core.workers import (
    WorkerCrashedError,
    WorkerRaisedError,
    WorkerTimedOutError,
    call_each,
    call_isolated,
)


def answers(function, count, *, at_once=2, timeout_s=30.0):
    return call_each(function, [(number,) for number in range(count)], at_once=at_once, timeout_s=timeout_s)


@pytest.mark.parametrize("at_once", [1, 2])
def test_answers_come_in_the_order_of_the_arguments(at_once):
    assert answers(calls.square, 5, at_once=at_once) == [0, 1, 4, 9, 16]


def test_a_crash_costs_its_own_answer_only():
    first, lost, last = answers(calls.die_if_one, 3)
    assert [first, last] == [0, 4]
    assert isinstance(lost, WorkerCrashedError)
    assert (lost.status, str(lost)[:34]) == ("crashed", "the worker was killed by SIGKILL; ")


def test_what_is_raised_is_the_cause_where_it_can_be_sent():
    with pytest.raises(WorkerRaisedError, match="ValueError: bad value") as caught:
        call_isolated(calls.fail)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(WorkerRaisedError, match="OwnError: 1 and 2") as caught:
        call_isolated(calls.fail_in_a_way_of_its_own)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_function_can_be_named(start):
    assert call_isolated("math:sqrt", 9.0, start=start) == 3.0


@pytest.mark.skipif(platform.system() != "Linux", reason="macOS spawns at all times")
def test_who_uses_cuda_does_not_fork(monkeypatch):
    assert workers.context_of("fork").get_start_method() == "fork" or torch.cuda.is_initialized()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    ways = {start: workers.context_of(start).get_start_method() for start in ("fork", "forkserver", "spawn")}
    assert ways == {"fork": "spawn", "forkserver": "forkserver", "spawn": "spawn"}


@pytest.mark.cuda
def test_a_call_from_who_uses_cuda_may_use_it_too():
    torch.zeros(1, device="cuda")
    assert call_isolated("torch.cuda:mem_get_info")[1] > 0


@pytest.mark.skipif(platform.system() != "Linux", reason="asks /proc")
def test_a_worker_ends_with_the_worker_that_started_it(tmp_path):
    with pytest.raises(WorkerTimedOutError):
        call_isolated(calls.call_within, tmp_path / "pids", timeout_s=2.0)
    inner, its_child = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    calls.wait_for(lambda: not calls.alive(inner))
    os.kill(its_child, 9)  # of another program, which Linux does not end with its parent


def test_a_worker_that_has_something_to_say_to_a_parent_that_is_gone_ends_without_a_word(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "killpg", lambda *what: ended.append(what))
    own, its = multiprocessing.Pipe()
    own.close()
    workers._send(its, workers.WorkerAnswer(begun=True))
    assert ended == [(os.getpgrp(), signal.SIGKILL)]


class Ended:
    """A process that says once how it ended, as the fork server does."""

    def __init__(self):
        self.returncode, self.said, self.inside = None, [-9], threading.Barrier(2)

    def poll(self, flag=0):
        if self.returncode is None:
            with suppress(threading.BrokenBarrierError):
                self.inside.wait(timeout=0.5)
            self.returncode = self.said.pop() if self.said else 255
        return self.returncode


def test_two_threads_that_ask_how_a_process_ended_hear_the_same():
    ended, heard = Ended(), []
    workers.poll_alone(ended)
    threads = [threading.Thread(target=lambda: heard.append(ended.poll())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [-9, -9]
