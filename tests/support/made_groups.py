"""Groups with figures set by hand, and records as a run writes them."""

import math

import numpy as np

from precision_eval.core.records import Record
from precision_eval.results.choose import Estimate, Group, Row
from precision_eval.results.model import exact

CONFIDENCE_95 = {3: 3.182446305284263, 4: 2.7764451051977987, 7: 2.3646242510102993}  # Student t, two-sided, by degrees


STEADY = (-0.001, 0.001, -0.001, 0.001)  # spread of four processes around their mean


def around(middle, spread=STEADY):
    """Log-ratios of four processes around a ratio."""
    return tuple(math.log(middle) + one for one in spread)


def timed(logs):
    """A time ratio with its 95 % interval from log-ratios of processes, as a record has it."""
    logs = np.asarray(logs)
    n = logs.size
    half = CONFIDENCE_95[n - 1] * logs.std(ddof=1) / math.sqrt(n)
    middle = logs.mean()
    return Estimate(
        value=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half), degrees=float(n - 1)
    )


def one_input(value):
    return Estimate(value=value, low=0.95 * value, high=1.05 * value)


def contender(fix, *, logs=None, time=None, drift=None, memory=None, **rest):
    """A fix that runs: `logs` per process, or an exact `time`; a drift of one input; memory in bytes."""
    figures = {}
    if logs is not None:
        figures |= {"time": timed(logs), "time_logs": tuple(logs), "processes": len(logs), "session": "s"}
    if time is not None:
        figures |= {"time": exact(time), "processes": 2, "session": "s"}
    if drift is not None:
        figures["drift"] = drift if isinstance(drift, Estimate) else one_input(drift)
    if memory is not None:
        figures |= {"stored_bytes": memory, "peak_bytes": 0}
    given = {"time": "time" in figures, "drift": drift is not None, "memory": memory is not None}
    missing = {axis: "not measured" for axis, there in given.items() if not there}
    return Row(fix=fix, missing=missing, **figures, **rest)


def group(*rows, baseline="full_float32", **rest):
    place = {"case": "attention-decode", "size": "dia", "mode": "eager", "device": "cpu", "threads": 1}
    return Group(**(place | {"baseline": baseline, "run": "runs/x"} | rest), rows=rows)


def base(drift=1e-6, memory=64 * 2**20):
    return contender("full_float32", time=1.0, drift=drift, memory=memory)


def record(fix, measure, data=None, *, role="fix", status="passed", reason=None, **rest):
    place = {"case": "attention-decode", "size": "dia", "mode": "eager", "device": "cpu", "threads": 1}
    place |= {"case_digest": "d0", "environment": "e0", "started_at": "2026-01-01T00:00:00+00:00"}
    place |= {"wall_s": 0.1} | rest
    cell = f"{place['case']}/{fix}/{place['mode']}@{place['device']}:{place['size']}#{measure}"
    return Record(cell=cell, fix=fix, role=role, measure=measure, status=status, reason=reason, data=data, **place)


def latency(ratios, *, baseline="full_float32", verdict=None, blocks=None, **rest):
    """Data of a latency record from ratios of processes, or from blocks of one process."""
    found = timed(np.log(ratios)) if blocks is None else timed(np.log(blocks))
    called = "equivalent" if found.low <= 1.0 <= found.high else "slower" if found.value > 1.0 else "faster"
    data = {
        "baseline": baseline, "ratio": found.value, "ratio_low": found.low, "ratio_high": found.high,
        "confidence": 0.95, "verdict": verdict or called, "error_rate": 0.01, "margin": 0.002,
        "minimum_detectable_effect": 0.02, "median_s": 1e-3, "blocks": len(ratios if blocks is None else blocks),
        "process_ratios": list(ratios) if blocks is None else [], "doubts": [],
        "block_median_s": [1e-3 * one for one in (ratios if blocks is None else blocks)],
        "baseline_block_median_s": [1e-3] * len(ratios if blocks is None else blocks),
    }  # fmt: skip
    return data | rest


def random_group(rng, *, names=("full_float32", "query_to_half", "kv_to_query", "float16", "bfloat16", "autocast")):
    """A group of noisy contenders; nothing is exactly equal."""
    rows = [base(drift=float(10 ** rng.uniform(-7, -6)), memory=int(rng.integers(10**7, 10**8)))]
    for name in names[1:]:
        noise = rng.uniform(0.002, 0.15)
        logs = rng.uniform(-0.7, 1.0) + noise * rng.normal(size=5)
        drift = float(10 ** rng.uniform(-7, -2))
        rows.append(contender(name, logs=tuple(logs), drift=drift, memory=int(rng.integers(10**7, 10**8))))
    return group(*rows)
