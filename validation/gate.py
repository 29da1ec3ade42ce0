"""How often ``gate --base --head`` errs: real gates of a small repository whose head is slower by exactly known work.

The repository is made for the trials: two cases of attention, five candidates each, so ten cells; and a user's model as
it ships, with a cache in half, under each shipped fix that cures it. A call repeats its unit :data:`UNITS` times; a
slowed head repeats it (1 + delta) times as often, in one candidate or in all, drifts 1.2 times as far, or holds 2 %
more memory. Every trial is one command as a user gives it, in an interpreter of its own,
with a seed of its own; its wall time counts from the command to its answer. Candidates without a fault count as A/A.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np

from precision_eval.core.errors import unknown_name
from precision_eval.core.formatting import MISSING, grouped
from precision_eval.stats.intervals import wilson_interval
from validation.frame import Data, Experiment, Figure, Options, Trial, each, python_m
from validation.latency.card import processor_of
from validation.report import judged_share

UNITS = 100
PLANTED = "bfloat16"
CANDIDATES = ("float32", "float16", "bfloat16", "cache_to_float32", "float32_again")
CURING = ("query_to_half", "kv_to_query", "full_float32", "bfloat16", "float16", "autocast")
LIMIT_S = 600.0
LONGEST_S = 60.0
LEAST_GATES = 20  # that a rate is judged by
RULE = "paired t"

# What head has; of one candidate, of all, or of a user's model, whose every fix it then is.
FAULTS: dict[str, dict[str, float]] = {
    "none": {},
    "slower_1": {"units": 101},
    "slower_2": {"units": 102},
    "slower_5_all": {"units": 105, "all": True},
    "drift": {"drift": 1.2},
    "memory": {"scratch": 1_020_050},  # of the peak, with what a call allocates besides, 2 %
    "own_none": {"own": True},
    "comment_none": {"own": True, "comment": True},
    "own_slower_5": {"own": True, "units": 105, "all": True},
}

TITLES = {
    "none": "unchanged",
    "slower_1": "1 % more work in one fix",
    "slower_2": "2 % more work in one fix",
    "slower_5_all": "5 % more work in every fix",
    "drift": "drift × 1.2 in one fix",
    "memory": "2 % more memory in one fix",
    "own_none": "a user's model, unchanged",
    "comment_none": "a user's model, another comment",
    "own_slower_5": "a user's model, 5 % more work",
}

METRIC = {"memory": "peak_bytes", "drift": "drift"}
# Share of gates that may (False), or must at least (True), be red; the others must be in 99 %.
TARGETS = {
    "none": (0.01, False),
    "own_none": (0.01, False),
    "comment_none": (0.01, False),
    "slower_1": (0.8, True),
    "slower_2": (0.95, True),
    "own_slower_5": (0.95, True),
}

_CASE = '''"""Attention over a cache, repeated; candidates differ in what they store and how often they repeat."""

import torch

import planted


class Attention(torch.nn.Module):
    def __init__(self, queries):
        super().__init__()
        self.register_buffer("keys", torch.randn(1, 4, 256, 32))
        self.register_buffer("values", torch.randn(1, 4, 256, 32))
        self.exact = (self.keys.double(), self.values.double())  # no buffers: no candidate stores them otherwise
        self.name = ""
        self.cast = False

    def forward(self, query):
        units, drift, scratch = planted.AMOUNTS.get(self.name, (1, 1.0, 0))
        room = torch.empty(scratch, dtype=torch.uint8)
        given, query = query, query.to(self.keys.dtype)
        for _ in range(units):
            keys, values = (self.keys.float(), self.values.float()) if self.cast else (self.keys, self.values)
            output = torch.nn.functional.scaled_dot_product_attention(query.to(keys.dtype), keys, values)
        if drift != 1.0:
            exact = torch.nn.functional.scaled_dot_product_attention(given.double(), *self.exact)
            output = exact + drift * (output.double() - exact)
        return output.float()


def decode():
    return Attention(1).eval(), (torch.randn(1, 4, 1, 32),)


def prefill():
    return Attention(16).eval(), (torch.randn(1, 4, 16, 32),)


class Shipped(torch.nn.Module):
    """A user's model: attention in float32 over a cache in half, which raises."""

    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(128, 128)
        self.register_buffer("keys", torch.randn(1, 4, 256, 32).half())
        self.register_buffer("values", torch.randn(1, 4, 256, 32).half())

    def forward(self, x):
        for _ in range(planted.AMOUNTS["own"][0]):
            query = self.project(x).unflatten(-1, (4, 32)).transpose(1, 2)
            output = torch.nn.functional.scaled_dot_product_attention(query, self.keys, self.values)
        return output


def own():
    return Shipped().eval(), (torch.randn(1, 8, 128),)


def stored(name, dtype, cast=False):
    def change(model):
        model.to(dtype)
        model.name, model.cast = name, cast

    return change


float32 = stored("float32", torch.float32)
float16 = stored("float16", torch.float16)
bfloat16 = stored("bfloat16", torch.bfloat16)
cache_to_float32 = stored("cache_to_float32", torch.float16, cast=True)
float32_again = stored("float32_again", torch.float32)
'''


def amounts(fault: str) -> str:
    """Return the module that says what each candidate does, under a fault."""
    planted = FAULTS[fault]
    plain = (UNITS, 1.0, 1_000_000)
    worse = (int(planted.get("units", UNITS)), planted.get("drift", 1.0), int(planted.get("scratch", 1_000_000)))
    chosen = {name: worse if planted.get("all") or name == PLANTED else plain for name in (*CANDIDATES, "own")}
    return f"AMOUNTS = {chosen!r}\n"


def make_repository(folder: Path, fault: str) -> None:
    """Write a repository whose commit HEAD~1 is plain; HEAD has the fault, and other code, or another comment."""
    (folder / "case.py").write_text(_CASE, encoding="utf-8")
    (folder / "planted.py").write_text(amounts("none"), encoding="utf-8")
    change = "# changed\n" if FAULTS[fault].get("comment") else "CHANGED = True\n"
    _git(folder, "init", "--quiet")
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message=base")
    (folder / "planted.py").write_text(amounts(fault) + change, encoding="utf-8")
    _git(folder, "commit", "--quiet", "--all", "--message=head")


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=trial", "-c", "user.email=trial@localhost", *words], cwd=folder, check=True)


def _trials(options: Options) -> list[Trial]:
    for fault in options["faults"]:
        if fault not in FAULTS:
            raise unknown_name("fault", fault, FAULTS)
    effort = f"{options['processes']}/{options['budget_s']:g}/{RULE}/{options['beside']}"
    place = f"{effort}/{processor_of(options['device'])}/{metadata.version('torch')}"
    counts = {fault: options["gates" if _is_planted(fault) else "equal"] for fault in options["faults"]}
    how = (options["processes"], options["budget_s"], options["beside"], options["device"])
    return [  # in turn, so that a stopped campaign has some of each
        Trial(f"{fault}/{number}/{place}", (fault, number, *how), LONGEST_S)
        for number in range(max(counts.values()))
        for fault, count in counts.items()
        if number < count
    ]


def _is_planted(fault: str) -> bool:
    return not fault.endswith("none")


def _run_gate(spec: tuple[str, int, int, float, str, str]) -> Data:
    fault, number, processes, budget_s, beside, device = spec
    subject = ["--case", "case.py:own", "--fix", ",".join(CURING)]
    if not FAULTS[fault].get("own"):
        subject = ["--case", "case.py:decode,case.py:prefill", "--fix", "none"]
        subject += ["--candidate", ",".join(f"case.py:{name}" for name in CANDIDATES)]
    effort = [f"--set=processes={processes}", f"--set=budget={budget_s}", f"--set=seed={1000 * number}"]
    effort += [f"--set=device={device}"]
    command = ["precision_eval.cli", "gate", "--base", "HEAD~1", "--head", "HEAD", "--json"]
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        make_repository(Path(folder), fault)
        began_s = time.monotonic()
        done = python_m(*command, *subject, *effort, cwd=Path(folder), codes=(0, 1, 4), limit_s=LIMIT_S)
        seconds = time.monotonic() - began_s
    effort_data = {"processes": processes, "budget_s": budget_s, "rule": RULE, "beside": beside}
    return {"fault": fault, **effort_data, "seconds": seconds, **_read(done.stdout)}


def _read(text: str) -> Data:
    """Return what is counted of a gate's answer."""
    content = json.loads(text)
    latencies = [change for change in content["changes"] if change["metric"] == "latency"]
    red = [change for change in content["changes"] if change["verdict"] == "regression"]
    return {
        "outcome": content["verdict"],
        "worse": [[change["case"], change["fix"].rpartition(":")[2], change["metric"]] for change in red],
        "decided": sum(change["verdict"] != "undecided" for change in latencies),
        "cells": len(latencies),
        "detectable": float(np.median([change["detectable"] for change in latencies] or [0.0])),
    }


def _summary(lines: list[Data], options: Options) -> Data:
    places = grouped((_place(line), line) for line in lines)
    by_fault = {place: grouped((line["fault"], line) for line in of) for place, of in places.items()}
    return {"rates": {place: {fault: _rates(fault, of) for fault, of in of.items()} for place, of in by_fault.items()}}


def _place(line: Data) -> str:
    """Return machine and effort; trials of the rule before, a moderated t, are apart."""
    machine = line["key"].split("/")[-2]
    rule = line.get("rule") or "an earlier rule" + (
        f", cleared below {100 * line['cleared']:g} %" if "cleared" in line else ""
    )
    beside = f", beside {line['beside']}" if line.get("beside") else ""
    return f"{machine}, {line['processes']} processes, {line['budget_s']:g} s a cell, {rule}{beside}"


def _rates(fault: str, lines: list[Data]) -> Data:
    """Count the gates that name what is planted, those that name something else, and what else they say."""
    is_own = FAULTS[fault].get("own")
    planted = CURING if is_own else CANDIDATES if FAULTS[fault].get("all") else (PLANTED,)
    metric = METRIC.get(fault, "latency")
    hits = [
        {tuple(w) for w in line["worse"] if _is_planted(fault) and w[1] in planted and w[2] == metric} for line in lines
    ]
    return {
        "gates": len(lines),
        "caught": sum(bool(hit) for hit in hits),
        "caught_cells": sum(len(hit) for hit in hits),
        "planted_cells": (1 if is_own else 2) * len(planted) * len(lines),
        "red": sum(line["outcome"] == "regression" for line in lines),
        "green": sum(line["outcome"] == "no regression" for line in lines),
        "undecided": sum(line["cells"] - line["decided"] for line in lines),
        "cells": sum(line["cells"] for line in lines),
        "longest_s": max(line["seconds"] for line in lines),
        "detectable": sorted(line["detectable"] for line in lines)[len(lines) // 2],
    }


def _figures(content: Data) -> list[Figure]:
    """One row for each effort and fault, one for each effort, one for each load, one for all unchanged gates."""
    figures = [_of_fault(place, *of) for place, rates in content["rates"].items() for of in rates.items()]
    figures += [_of_effort(place, rates) for place, rates in content["rates"].items()]
    for load, busy in (("", False), (", beside other work", True)):
        slowest = [_longest_s(rates) for place, rates in content["rates"].items() if (", beside " in place) is busy]
        if slowest:
            within = max(slowest) <= LONGEST_S
            figures.append(Figure(f"slowest gate{load}", f"{max(slowest):.0f} s", f"≤ {LONGEST_S:g} s", within))
    equal = [counts for rates in content["rates"].values() for fault, counts in rates.items() if not _is_planted(fault)]
    red, gates = (sum(counts[name] for counts in equal) for name in ("red", "gates"))
    return [*figures, judged_share("all unchanged gates: red", red, gates, "≤ 1 %")]


def _of_fault(place: str, fault: str, counts: Data) -> Figure:
    target, least = TARGETS.get(fault, (0.99, True))
    gates, hits = counts["gates"], counts["caught" if least else "red"]
    verb = "named" if _is_planted(fault) else "red"
    bound = f"{'≥' if least else '≤'} {100 * target:g} %"
    fixes = _share(counts["caught_cells"], counts["planted_cells"]) if "slower" in fault else MISSING
    columns = {
        "gates that are green": _share(counts["green"], gates),
        "changed fixes named": fixes,
        "slowest gate": f"{counts['longest_s']:.0f} s",
        "slowdown found in 80 % (median cell)": f"{100 * counts['detectable']:.2f} %",
    }
    share = judged_share(f"{place}: {TITLES[fault]}: {verb}", hits, gates, bound, rivals=columns)
    # Unchanged gates are judged all together.
    return share if gates >= LEAST_GATES and _is_planted(fault) else replace(share, met=None)


def _of_effort(place: str, rates: dict[str, Data]) -> Figure:
    undecided, total = (sum(counts[name] for counts in rates.values()) for name in ("undecided", "cells"))
    columns = {"latencies left undecided": _share(undecided, total)}
    return Figure(f"{place}: slowest gate", f"{_longest_s(rates):.0f} s", rivals=columns)


def _longest_s(rates: Mapping[str, Data]) -> float:
    return max(float(counts["longest_s"]) for counts in rates.values())


def _share(hits: int, trials: int) -> str:
    """Return a count and the interval of its share, for a column of its own."""
    if not trials:
        return MISSING
    low, high = wilson_interval(hits / trials, trials)
    return f"{hits:,} of {trials:,} ({100 * low:.1f} to {100 * high:.1f} %)"


EXPERIMENT = Experiment(
    name="gate",
    title="false alarms and recall of gates of a repository with known work",
    trials=_trials,
    run=each(_run_gate),
    figures=_figures,
    summary=_summary,
    settings={
        "faults": (tuple(FAULTS),) * 2, "equal": (2, 300), "gates": (1, 60), "processes": (10, 10),
        "budget_s": (5.0, 5.0), "beside": ("", ""),  # what else ran on the machine, in words
        "device": ("cpu", "cpu"),
    },
)  # fmt: skip
