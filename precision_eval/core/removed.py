"""What has gone from the command line and from the public names, and what replaces each.

A row is a name and what its user does instead, as the rest of one line. Options are written with their command. A name
is looked up here only where it is unknown, so a row never hides something that exists.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "expect": "`precision-eval run --size tiny` shows the statuses under the installed torch",
    "merge": "`precision-eval report RUN RUN` shows several machines side by side",
    "roofline": "time on a device that is absent is not predicted: measure there with run --device",
    "sensitivity": "`precision-eval modules FACTORY` says which modules may be in half; maps of sites are gone",
    "sweep": "`precision-eval run --case attention-decode --size '*'` measures every length, with a figure",
    "self-test": "every ratio states the smallest effect that it would have found",
}

_RUN_SETTINGS: tuple[str, ...] = (
    "minutes",
    "streams",
    "steps",
    "budget",
    "processes",
    "threads",
    "workers",
    "seed",
    "seeds",
)
_RUN_SETTINGS += ("sdpa_backend", "tf32", "memory", "isolation", "timeout", "checkpoint_dtype", "executor")

OPTIONS: Mapping[str, str] = {
    "choose --sweep": "--size takes a size that was measured",
    "choose --memory-plan": "`precision-eval plan` prints the memory of each fix",
    "gate --results": "the gate measures both sides itself; give --base and --head",
    "gate --machine": "the gate measures both sides itself; give --base and --head",
    "gate --margin-anchor": "nothing is compared with an anchor any more",
    "gate --strict": "without --github, a gate that could not tell ends with 4",
    "report --torch-versions": "`precision-eval versions` shows them",
    "versions --html": "use --figure FILE",
    "versions --commit": "the commit with the most versions is shown; read the others from a folder of their own",
    "versions --torch": "the version with the most commits is shown; read the others from a folder of their own",
    "plan --math-attention": "torch's own choice of attention is planned",
    "plan --model": "give the model as the argument",
    "run --workload": "use --case",
    "run --judge": "no replacement",
    **{f"run --{name.replace('_', '-')}": f"use --set {name}=VALUE" for name in _RUN_SETTINGS},
    "run --speech": "see docs/whisper.md for it as a measure of a plugin",
    "run --quiet": "--json names the HTML report",
    "run --open": "use `precision-eval report RUN --open`",
    "report --quiet": "--json names the HTML report",
    **{f"choose --{name}": f"use --set {name}=VALUE" for name in ("device", "threads")},
    **{f"choose --{name}": "use --size" for name in ("length", "batch")},
    "doctor --hf": "give hf:FOLDER as the argument",
    "doctor --case": "give the case's id as the argument",
    **{f"doctor --{name}": f"use --set {name}=VALUE" for name in ("size", "dtype", "budget", "seed")},
    "doctor --compile": "use --set compile=on",
    "doctor --no-compile": "it is the default",
    "doctor --no-latency": "use --set latency=off",
    "doctor --latency": "it is the default",
    **{f"compare --{name}": f"use --set {name}=VALUE" for name in ("budget", "seed")},
    **{f"plan --{name}": f"use --set {name}=VALUE" for name in ("dtype", "batch", "tokens")},
    "plan --kv-dtype": "use --set kv_dtype=VALUE",
    "plan --device-memory": "give the size to --device, such as --device 16GiB",
    **{f"modules --{name}": f"use --set {name}=VALUE" for name in ("format", "seed")},
    "modules --no-held-out": "use --set held_out=off",
    "modules --held-out": "it is the default",
    **{f"gate --{name}": f"use --set {name}=VALUE" for name in ("mode", "size", "device", "threads", "seed")},
    **{f"gate --{name}": f"use --set {name}=VALUE" for name in ("processes", "budget", "require")},
    **{f"gate --margin-{name}": f"use --set margin_{name}=VALUE" for name in ("latency", "drift", "memory")},
    **{f"versions --{name}": f"use --set {name}=VALUE" for name in ("metric", "machine")},
    "versions --csv": "--json holds every value",
}

PUBLIC_NAMES: Mapping[str, str] = {
    "Assessment": "the drift of a run holds the assessment of an attention",
    "HonestRange": "run writes the drift of an attention with its assessment",
    "assess": "run writes the drift of an attention with its assessment",
    "attention_yardsticks": "run compares an attention with torch's own",
    "operation_yardsticks": "nothing replaces it",
    "sample_rows": "nothing replaces it",
    "WORKLOADS": "use CASES",
    "Workload": "use Case",
    "workload_by_id": "use case_by_id",
}

CASES: Mapping[str, str] = {
    "voice-natural": "use voice",
    "voice-natural-capped": "use voice",
    "distillmos": "no replacement",
    "resemblyzer": "no replacement",
    "zoo-dia": "use hf:FOLDER or your own factory",
    "zoo-t5-encoder": "use hf:FOLDER or your own factory",
    "zoo-svd-time-embed": "use hf:FOLDER or your own factory",
    "whisper-encode": "see docs/whisper.md for it as your own case",
    "whisper-decode": "see docs/whisper.md for it as your own case",
}

_NARROW_CACHES = [
    f"cache_{held}_{scale}{part}"
    for held in ("int8", "e4m3", "e5m2")
    for scale in ("token", "head", "tensor")
    for part in ("", "_keys", "_values")
]

_CHANGES = "a candidate of your own does it: see docs/extending.md"

FIXES: Mapping[str, str] = {
    **dict.fromkeys(_NARROW_CACHES, "caches keep the dtype of the storage; measure a quantized cache as your own case"),
    **dict.fromkeys(("layercast", "weights_int8", "weights_int4", "torchao_int8", "torchao_int4"), _CHANGES),
    **dict.fromkeys(("batch_invariant", "deterministic", "matmul_high", "matmul_medium"), _CHANGES),
    **dict.fromkeys(("flex_lowp_cache", "half_reductions"), _CHANGES),
    **dict.fromkeys(("scores_stored", "scores_float32"), "use softmax_float32"),
}

MEASURES: Mapping[str, str] = {
    "sampler": "the drift of a MetaVoice case holds its probabilities too",
    "transcription": "see docs/whisper.md for it as a measure of a plugin",
}

_CLUSTERS = "use --set executor=dask:ADDRESS; dask-jobqueue starts dask on Slurm and PBS, see docs/fleet.md"

EXECUTORS: Mapping[str, str] = {
    "local": "use --set executor=dask",
    "ray": _CLUSTERS,
    "slurm": _CLUSTERS,
}

SETTINGS: Mapping[str, str] = {"speech": "see docs/whisper.md for it as a measure of a plugin"}

REMOVED: Mapping[str, Mapping[str, str]] = {
    "command": COMMANDS,
    "option": OPTIONS,
    "public name": PUBLIC_NAMES,
    "case": CASES,
    "fix": FIXES,
    "measure": MEASURES,
    "executor": EXECUTORS,
    "setting": SETTINGS,
}


def removal_message(kind: str, name: str) -> str | None:
    """Return the line for a name that is gone; None where it never existed.

    >>> removal_message("option", "run --workload")
    "the option 'run --workload' was removed in 1.0; use --case"
    """
    remedy = REMOVED.get(kind, {}).get(name)
    return None if remedy is None else f"the {kind} '{name}' was removed in 1.0; {remedy}"
