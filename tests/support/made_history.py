"""A history over torch versions, made up: every figure in it is known, nothing was measured."""

import datetime
from pathlib import Path

from precision_eval.history.changes import ChangePoint, StatusChange
from precision_eval.history.upstream import UpstreamChange
from precision_eval.history.versions import CaseHistory, FixCell, FixTable, VersionHistory
from precision_eval.results.asv import ResultSet

VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")
FIXES = (
    *("as_shipped", "query_to_half", "kv_to_query", "full_float32", "bfloat16", "dynamo_fallback", "float16"),
    *("autocast", "upstream"),
)
CASES = (
    *("attention-decode", "attention-prefill", "metavoice-decode", "metavoice-prefill", "metavoice-t4", "dia-decode"),
    *("dia-encode", "dia-decode-pr45", "cogvideo-t5-encoder", "cogvideo-t5-encoder-stock", "imaginairy-time-embed"),
    *("imaginairy-time-embed-cast-first", "voice"),
)
MADE_UP = UpstreamChange(
    id="made-up-kernel",
    since="2.10.0",
    cases=("*",),
    fixes=("query_to_half",),
    modes=("eager",),
    metrics=("latency_ratio",),
    device="any",
    before=None,
    after=None,
    text="Half attention on the CPU got <b>its own</b> kernel & is fast from here on.",
    reference="https://example.org/pull/1 https://example.org/pull/2",
    confirmed="made up for the test",
)


def cell(mode, fix, version, number):
    """Lost: as shipped raises until 2.13; the fallback exists only compiled; half is slow until 2.10."""
    if fix == "dynamo_fallback" and mode == "eager":
        return blank("not_applicable")
    if fix == "as_shipped" and VERSIONS.index(version) < 7:
        return blank("raised")
    if fix == "upstream" and version == "2.14.0":
        return blank(None)
    if fix == "float16" and version == "2.6.0":
        return blank("non_finite")
    ratio = {"query_to_half": 0.8 if VERSIONS.index(version) >= 4 else 27.0, "kv_to_query": 1.4}.get(fix, 1.0)
    ratio *= 1.0 + 0.01 * FIXES.index(fix) + 0.002 * number
    values = {"drift": 2e-7 * 4.0 ** FIXES.index(fix), "latency_ratio": ratio, "peak_bytes": 3.0 * 2**20}
    return FixCell(status="passed", ratio_interval=(ratio * 0.97, ratio * 1.03), values=values)


def blank(status):
    """A cell without figures."""
    return FixCell(status=status, ratio_interval=None, values={})


def table(mode, number, positions, fixes):
    """One table."""
    cells = {(fix, version): cell(mode, fix, version, number) for fix in fixes for version in positions}
    return FixTable(mode=mode, size="tiny", fixes=fixes, cells=cells)


def case(name, number, positions, fixes, modes):
    """One case, with a change that upstream explains and a status that nothing explains."""
    changes = [
        ChangePoint(
            mode="eager",
            case=name,
            metric="latency_ratio",
            fix="query_to_half",
            size="tiny",
            before="2.9.1",
            at="2.10.0",
            old=27.0,
            new=0.8,
            factor=0.8 / 27.0,
            factor_interval=(0.0285, 0.0306),
            p_value=0.0012,
            adjusted_p_value=0.004,
            with_baseline=False,
            explained_by=(MADE_UP,),
        )
    ]
    statuses = [
        StatusChange(
            mode=mode,
            case=name,
            fix="as_shipped",
            size="tiny",
            before="2.12.0",
            at="2.13.0",
            old="raised",
            new="passed",
            explained_by=(),
        )
        for mode in modes
    ]
    known = "2.10.0" in positions and "2.13.0" in positions
    return CaseHistory(
        case=name,
        tables=tuple(table(mode, number, positions, fixes) for mode in modes),
        series=(),
        changes=tuple(changes) if known else (),
        status_changes=tuple(statuses) if known else (),
    )


def made_history(
    *, cases=CASES, positions=VERSIONS, fixes=FIXES, modes=("eager", "compiled"), notes=("one set left aside",)
):
    """The whole history, or a part of it."""
    made = tuple(case(name, number, positions, fixes, modes) for number, name in enumerate(cases))
    first = datetime.date(2025, 1, 29)
    return VersionHistory(
        axis="torch",
        positions=tuple(positions),
        sets=tuple(result_set(version) for version in positions),
        releases={version: first + datetime.timedelta(days=60 * VERSIONS.index(version)) for version in positions},
        machine="bench",
        hardware={"cpu": "Testium 1", "num_cpu": "2", "os": "Linux 6", "arch": "x86_64", "ram": "8000000"},
        cuda_build=False,
        cases=made,
        upstream=(MADE_UP,),
        notes=tuple(notes),
    )


def result_set(version):
    """The file behind one position."""
    return ResultSet(
        machine="bench",
        commit="a" * 40,
        environment=f"virtualenv-py3.11-torch{version}",
        python="3.11",
        torch_version=version,
        cuda_build=False,
        date_ms=1_780_000_000_000,
        source=Path(f"results/bench/aaaaaaaa-virtualenv-py3.11-torch{version}.json"),
        hardware={},
        points={},
    )
