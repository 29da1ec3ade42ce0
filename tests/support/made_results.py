"""Run folders and asv's result folders made by hand."""

import json

from made_groups import record

from precision_eval.core.environment import environment_json, environment_sha
from precision_eval.core.records import RecordFile

DIGEST = "d" * 64


def made_environment(*, cpu="Model One", cuda=None, torch="2.13.0", device=None):
    return {
        "platform": {"system": "Linux", "machine": "x86_64", "python": "3.11.7"},
        "cpu": {"model": cpu, "usable_cores": 2},
        "libraries": {"numpy": "2.3.5"},
        "package": {"git_commit": "0123456789abcdef"},
        "variables": {"OMP_NUM_THREADS": "1"},
        "torch": {"version": torch, "cuda": cuda, "hip": None, "debug": False},
        "device": device or {"name": "cpu"},
    }


def made_record(measure, data, *, sha, digest=DIGEST, case="metavoice-decode", fix="kv_to_query", **rest):
    """A record of a tiny case; data only where it passed."""
    place = {"case": case, "size": "tiny", "case_digest": digest, "environment": sha, "options": {"seed": 0}}
    return record(fix, measure, data if rest.get("status", "passed") == "passed" else None, **(place | rest))


def made_run(
    folder, *, ratios=(1.5, 1.5005, 1.4995, 1.5002, 1.4998), drift=1e-6, peak=1000, status="passed", **options
):
    """Write a run of one cell; `ratios` are the processes'."""
    digest, case = options.pop("digest", DIGEST), options.pop("case", "metavoice-decode")
    environment = made_environment(**options)
    sha = environment_sha(environment)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text(environment_json(environment))
    ratio = {"baseline": "full_float32", "ratio": sum(ratios) / len(ratios)}
    ratio["process_ratios"] = list(ratios) if len(ratios) > 1 else []
    memory = {"allocated_peak_bytes": peak, "storage_bytes": 500, "rss_peak_bytes": 10_000, "reserved_peak_bytes": None}
    data = {"trace": {}, "latency": ratio, "drift": {"relative_error": drift}, "memory": memory}
    reason = None if status == "passed" else "RuntimeError: Expected query, key, and value to have the same dtype"
    RecordFile(folder / "records.jsonl").append(
        [
            made_record(name, one, status=status, reason=reason, sha=sha, digest=digest, case=case)
            for name, one in data.items()
        ]
    )
    return folder


COLUMNS = ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25"]
COLUMNS += ["stats_q_75", "stats_number", "stats_repeat", "samples", "profile"]


def made_asv(
    results,
    *,
    commit,
    torch="2.13.0",
    machine="box",
    cuda=False,
    date=1_700_000_000_000,
    ratios=(1.5, 1.5005, 1.4995, 1.5002, 1.4998),
    version="v1",
    cpu="Model One",
    peak=1000.0,
):
    """Write one result file of format version 2; returns the results folder."""
    home = results / machine
    home.mkdir(parents=True, exist_ok=True)
    (home / "machine.json").write_text(json.dumps({"machine": machine, "cpu": cpu, "version": 1}))
    params = [["'kv_to_query'"], ["'tiny'"]]
    median = sorted(ratios)[len(ratios) // 2]
    stats = [[min(ratios)], [max(ratios)], [median], [median], [1], [len(ratios)]]
    rows = {
        "eager.metavoice_decode.track_latency_ratio": [[median], params, version, 0, 1.0, *stats, [list(ratios)]],
        "eager.metavoice_decode.track_status": [[1], params, version, 0, 1.0],
        "eager.metavoice_decode.track_peak_bytes": [[peak], params, version, 0, 1.0],
        "eager.metavoice_decode.time_call": [[0.001], params, version, 0, 1.0],
        "build.torch_build.track_is_cuda_build": [[int(cuda)], [], "1", 0, 1.0],
    }
    environment = f"virtualenv-py3.11-torch{torch}"
    content = {
        "version": 2,
        "commit_hash": commit,
        "env_name": environment,
        "date": date,
        "params": {"machine": machine, "python": "3.11", "torch": torch},
        "python": "3.11",
        "requirements": {"torch": torch},
        "env_vars": {},
        "result_columns": COLUMNS,
        "results": rows,
        "durations": {},
    }
    (home / f"{commit[:8]}-{environment}.json").write_text(json.dumps(content))
    return results
