"""pytest-benchmark over fixes, grouped by case: ``pytest benchmarks/ --case 'metavoice-*' --size cpu``.

This folder is no package, so asv does not look into it. A fix that raises is shown as *xfailed* with its message and
has its line in the summary; what cannot be is skipped with its reason. Compare only within one session, and decide by
the paired verdicts of the summary. Under ``--mode cuda`` a call is the replay of a CUDA graph to its end, with some
10 µs of the host; ``paired`` in the extra info has the device's own time.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from precision_eval.history.tracking import (
    THREADS,
    FixFailedError,
    NotApplicableError,
    TrackedCell,
    fix_of_label,
    raise_unless_passed,
)

PAIRED = ("baseline", "ratio", "ratio_low", "ratio_high", "verdict", "minimum_detectable_effect", "clock", "median_s")

pytestmark = pytest.mark.filterwarnings("default")  # torch.compile warns on its own account


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def test_call(benchmark, results, place: TrackedCell, label: str):
    import torch

    from precision_eval.history.timing import ready

    measured, fix = results[place], fix_of_label(label).id
    trace = measured.trace[fix]
    benchmark.group = f"{place.case} {place.size} {place.mode}"
    benchmark.extra_info |= {
        "case_digest": place.entry.digest,
        "fix": label,
        "mode": place.mode,
        "threads": THREADS,
        "torch": torch.__version__,
        "status": trace.status,
        "reason": trace.reason,
        "trace": trace.data,
        "drift": _data(measured.drift, fix).get("relative_error"),
        "memory": {name: _data(measured.memory, fix).get(name) for name in ("allocated_peak_bytes", "storage_bytes")},
        "paired": {name: _data(measured.verdicts, fix).get(name) for name in PAIRED},
    }
    with ExitStack() as stack:
        try:
            raise_unless_passed(trace)
            call = ready(place, label, stack=stack)
        except NotApplicableError as reason:
            pytest.skip(f"n/a: {reason}")
        except FixFailedError as error:
            pytest.xfail(str(error)[:300])
        benchmark(call)


def _data(outcomes, fix):
    outcome = outcomes.get(fix)
    return {} if outcome is None or outcome.data is None else outcome.data
