"""Run folders and asv's result folders made by hand."""

from made_groups import record
from made_versions import Run, write_run

from precision_eval.core.environment import environment_json, environment_sha
from precision_eval.core.records import RecordFile

DIGEST = "d" * 64
RATIOS = (1.5, 1.5005, 1.4995, 1.5002, 1.4998)


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


def made_run(folder, *, ratios=RATIOS, drift=1e-6, peak=1000, status="passed", **options):
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


def made_asv(
    results, *, commit, machine="box", date=1_700_000_000_000, ratios=RATIOS, version="v1", peak=1000.0, **run
):
    """Write one result file of asv's; returns the results folder."""
    figures = {"track_latency_ratio": list(ratios), "track_status": 1, "track_peak_bytes": peak, "time_call": 0.001}
    values = {f"eager.metavoice_decode.{name}": {("kv_to_query", "tiny"): value} for name, value in figures.items()}
    run = {"torch": "2.13.0", "cpu": "Model One"} | run
    versions = dict.fromkeys(values, version)
    write_run(results, Run(values=values, commit=commit, machine=machine, date_ms=date, versions=versions, **run))
    return results
