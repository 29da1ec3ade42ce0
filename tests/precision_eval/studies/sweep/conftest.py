"""Lines and series made up for tests: known ratios, no measuring."""

from types import SimpleNamespace

import numpy as np
import pytest

from precision_eval.core.cells import passed
from precision_eval.stats import paired_ratio
from precision_eval.studies.sweep.plan import BASELINE, CASTS, FIXES, NOISE_FLOOR, TO_HALF, TO_QUERY, Sweep, line_of


def ratio(value, *, baseline, seed, noise=0.01):
    """A ratio of 30 rounds around `value`."""
    rng = np.random.default_rng(seed)
    base = 1e-3 * rng.uniform(1.0, 1.2, 30)
    return paired_ratio(
        value * base * np.exp(rng.normal(0.0, noise, 30)),
        base,
        baseline=baseline,
        margin=0.002,
        seed=seed,
        resamples=50,
    )


def line(job, length, *, half=3.0, casts=1.5, faults=0.0, noise_floor=1.0, seed=0):
    """One line: `half` = query_to_half over full_float32, `casts` = kv_to_query over query_to_half, `null`."""
    own = 100 * job.process + length + seed
    ratios = {
        TO_HALF: ratio(half, baseline=BASELINE, seed=own),
        TO_QUERY: ratio(half * casts, baseline=BASELINE, seed=own + 1),
        CASTS: ratio(casts, baseline=TO_HALF, seed=own + 2),
        NOISE_FLOOR: ratio(noise_floor, baseline=BASELINE, seed=own + 3),
    }
    outcomes = {fix: passed(fix, {}) for fix in FIXES}
    return line_of(job, length, outcomes, ratios=ratios, page_faults={TO_QUERY: faults})


def small(**options):
    """A sweep of one configuration, three lengths and two processes."""
    chosen = {
        "shapes": ("metavoice",),
        "lengths": (64, 256, 1024),
        "modes": ("eager",),
        "threads": (1,),
        "memory": ("grown",),
        "processes": 2,
        "budget_s": 0.2,
    }
    return Sweep(**(chosen | options))


@pytest.fixture(scope="session")
def made():
    """The functions of this file, for tests."""
    return SimpleNamespace(ratio=ratio, line=line, small=small)
