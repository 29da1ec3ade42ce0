"""The plan, the running of jobs on an executor, and the lines on file; nothing is measured here."""

import json
from concurrent.futures import Future
from dataclasses import replace

import pytest

from precision_eval.core.errors import ParameterError, RecordError, UnknownNameError
from precision_eval.core.files import TrialFile
from precision_eval.core.workers import WorkerCrashedError
from precision_eval.stats import over_processes, paired_log_ratios
from precision_eval.studies.sweep.plan import CASTS, REVISION, TO_HALF, Sweep
from precision_eval.studies.sweep.running import SweepRun, curves_of, middles

ENVIRONMENT = "ab" * 32


class Made:
    """An executor that makes lines up, and fails as it is told."""

    def __init__(self, made, failures=None):
        self.made, self.jobs, self.failures = made, [], failures or {}

    def line(self, job, length):
        return self.made.line(job, length)

    def submit(self, fn, job):
        self.jobs.append(job)
        future: Future = Future()
        error = self.failures.get((job.process, job.lengths), self.failures.get(job.process))
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result([self.line(job, length) for length in job.lengths])
        return future


def run(sweep, tmp_path, executor, **options):
    file = TrialFile(tmp_path / "lengths.jsonl")
    started(sweep, file, executor, **options).measure_missing()
    return file.read()


def started(sweep, file, executor, **options):
    return SweepRun(sweep=sweep, file=file, executor=executor, environment=ENVIRONMENT, **options)


def test_jobs_go_process_by_process_in_orders_of_their_own(made):
    sweep = made.small(processes=3, memory=("grown", "kept"))
    jobs = sweep.jobs(ENVIRONMENT)
    assert [job.process for job in jobs] == [0, 0, 1, 1, 2, 2]
    assert all(sorted(job.lengths) == [64, 256, 1024] for job in jobs)
    assert len({job.lengths for job in jobs}) > 1
    assert jobs == sweep.jobs(ENVIRONMENT)
    assert sum(job.budget_s for job in jobs if job.configuration.memory == "kept") == pytest.approx(sweep.budget_s)


def test_a_job_names_everything_it_depends_on(made):
    sweep = made.small()
    others = [
        replace(sweep, **change)
        for change in ({"budget_s": 1.0}, {"processes": 3}, {"seed": 1}, {"batch": 1}, {"cache_dtypes": ("bfloat16",)})
    ]
    keys = {one.jobs(ENVIRONMENT)[0].key(64) for one in [sweep, *others]} | {sweep.jobs("c" * 64)[0].key(64)}
    assert len(keys) == 7


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"shapes": ("metavoise",)}, UnknownNameError, "did you mean metavoice"),
        ({"shapes": ()}, ParameterError, "name each once"),
        ({"modes": ("eager", "eager")}, ParameterError, "name each once"),
        ({"memory": ("full",)}, UnknownNameError, "unknown state of memory 'full'"),
        ({"cache_dtypes": ("float8",)}, UnknownNameError, "float16"),
        ({"lengths": (0, 64)}, ParameterError, r"lengths are \(0, 64\)"),
        ({"lengths": (64, 64)}, ParameterError, "different whole numbers"),
        ({"threads": ()}, ParameterError, "threads are"),
        ({"processes": 0}, ParameterError, "processes 0"),
        ({"budget_s": float("inf")}, ParameterError, "budget_s is inf"),
    ],
)
def test_bad_sweeps(change, error, message):
    with pytest.raises(error, match=message):
        Sweep(**change)


def test_run_and_resume(made, tmp_path):
    told = []
    executor = Made(made)
    lines = run(made.small(), tmp_path, executor, progress=lambda *what: told.append(what))
    assert len(lines) == 6
    assert told[0] == (0, 6, "metavoice float16, eager, 1 thread, process 1 of 2")
    assert told[-1] == (6, 6, "done")
    again = Made(made)
    assert run(made.small(), tmp_path, again) == lines
    assert again.jobs == []
    longer = Made(made)
    run(made.small(lengths=(64, 256, 512, 1024)), tmp_path, longer)
    assert [job.lengths for job in longer.jobs] == [(512,), (512,)]


def test_a_lost_worker_costs_one_length_and_is_tried_again(made, tmp_path):
    sweep = made.small(processes=1)
    (job,) = sweep.jobs(ENVIRONMENT)
    crash = WorkerCrashedError("the worker was killed by SIGSEGV")
    executor = Made(made, {(0, job.lengths): crash, (0, (256,)): crash})
    lines = {line["length"]: line for line in run(sweep, tmp_path, executor)}
    assert [len(one.lengths) for one in executor.jobs] == [3, 1, 1, 1]
    assert set(lines[256]["status"].values()) == {"crashed"}
    assert lines[256]["reason"][TO_HALF] == "the worker was killed by SIGSEGV"
    assert set(lines[64]["status"].values()) == {"passed"}
    again = Made(made)
    assert set(run(sweep, tmp_path, again)[1]["status"].values()) == {"passed"}
    assert [one.lengths for one in again.jobs] == [(256,)]


class Jump(Made):
    """The ratio of the casts jumps from 1/2 to 2 at 700 slots, with memory kept it is 1/2 throughout.

    At the lengths in `unsteady` a process has the ratio given for it instead; `faults` are per call from 700 on.
    """

    def __init__(self, made, *, unsteady=None, faults=0.0):
        super().__init__(made)
        self.unsteady, self.faults = unsteady or {}, faults

    def line(self, job, length):
        above = length >= 700 and job.configuration.memory != "kept"
        casts = self.unsteady[length][job.process] if length in self.unsteady else 2.0 if above else 0.5
        return self.made.line(job, length, casts=casts, faults=self.faults if above else 0.0)


def test_refining_narrows_the_bracket_of_a_jump(made, tmp_path):
    sweep = made.small(processes=3, memory=("grown", "kept"))
    file, executor = TrialFile(tmp_path / "lengths.jsonl"), Jump(made)
    under_way = started(sweep, file, executor)
    under_way.measure_missing()
    grown, kept = sweep.configurations()
    assert middles(curves_of(file.read())) == {grown: (512,), kept: ()}  # between 256 and 1024
    began = len(executor.jobs)
    under_way.refine(3)
    added = [(job.configuration.memory, job.lengths) for job in executor.jobs[began:]]
    assert added == [("grown", (n,)) for n in (512, 724, 609) for _ in range(3)]
    under_way.refine(20)
    ((low, high),) = [one.between for one in curves_of(file.read())[0].crossover.crossings]
    assert low < 700 <= high <= 1.02 * low
    ended = len(executor.jobs)
    under_way.refine(5)
    assert len(executor.jobs) == ended


LOW, HIGH = (0.2, 0.5, 1.2), (0.6, 2.0, 7.0)  # by process; with 3 of them neither decides


@pytest.mark.parametrize(("faults", "first"), [(0.0, 724), (5600.0, 724)])
def test_refining_goes_on_past_a_length_without_a_decided_order(made, tmp_path, faults, first):
    """Half of the bracket 256 to 1024 is 512, which is measured already."""
    sweep = made.small(processes=3, lengths=(64, 256, 512, 1024))
    file, executor = TrialFile(tmp_path / "lengths.jsonl"), Jump(made, unsteady={512: LOW}, faults=faults)
    started(sweep, file, executor).measure_missing()
    (crossing,) = curves_of(file.read())[0].crossover.crossings
    assert crossing.between == (256, 1024)
    assert list(middles(curves_of(file.read())).values()) == [(first,)]
    started(sweep, file, executor).refine(20)
    (crossing,) = curves_of(file.read())[0].crossover.crossings
    low, high = crossing.between
    assert low < 700 <= high <= 1.02 * low


def test_lines_are_strict_json_and_combine_over_processes(made):
    jobs = made.small().jobs(ENVIRONMENT)
    lines = [made.line(job, length) for job in jobs for length in job.lengths]
    (series,) = curves_of(json.loads(json.dumps(lines, allow_nan=False)))
    assert [point.length for point in series.points] == [64, 256, 1024]
    assert {point.processes for point in series.points} == {2}
    own = [made.ratio(1.5, baseline=TO_HALF, seed=100 * process + 64 + 2) for process in (0, 1)]
    expected, point = over_processes(own), series.points[0]
    combined = point.ratios[CASTS]
    assert (combined.ratio, combined.ratio_low) == pytest.approx((expected.ratio, expected.ratio_low))
    logs = paired_log_ratios(combined.block_median_s, combined.baseline_block_median_s)  # raw times to six digits
    assert logs.mean() == pytest.approx(0.405, abs=0.02)
    crossing = point.crossover_point()
    assert crossing is not None
    assert (crossing.degrees, crossing.length) == (1, 64)


def test_another_revision_is_never_mixed_in(made):
    (job, _) = made.small().jobs(ENVIRONMENT)
    assert f"/r{REVISION}/" in job.campaign
    new = made.line(job, 64)
    assert new["revision"] == REVISION
    old = made.line(replace(job, campaign=job.campaign.replace(f"/r{REVISION}", "")), 64)
    del old["revision"]  # as lines were before
    (series,) = curves_of([old, new])
    assert series.points[0].processes == 1
    with pytest.raises(RecordError, match=f"measured by revision 1, this reads revision {REVISION}.*measure again"):
        curves_of([old])
