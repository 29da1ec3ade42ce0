from dataclasses import replace

import pytest

from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.core.cells import failed, passed
from precision_eval.core.errors import UnknownNameError
from precision_eval.fixes import FIXES, fix_by_id
from precision_eval.history.tracking import (
    ANCHOR_DEFINITION,
    METRICS,
    FixFailedError,
    NotApplicableError,
    _digest,
    _first_word,
    metric_by_id,
    metrics_of,
    version_of,
)
from precision_eval.measure.registry import MEASURES

FIX_DIGESTS = {
    "as_shipped": "470fb9337453ac45",
    "query_to_half": "51dabb52dda8353d",
    "kv_to_query": "44d6cd300fb0a124",
    "full_float32": "47a3b7951c4c6f4d",
    "bfloat16": "f99067907e0e8b20",
    "dynamo_fallback": "92d2788471071737",
    "float16": "b256675b2c8ec8e7",
    "autocast": "2edc7172ffc9a0da",
    "upstream": "3b2fdb28e1ccacf1",
}


def fix_digest(fix):
    """Digest of what a fix does; its words are left out."""
    return _digest([fix.id, _first_word(fix.storage), _first_word(fix.agreement), fix.modes, fix.suppress_errors])


def test_each_fix_is_what_it_was_at_its_revision():
    for fix in FIXES:
        known = FIX_DIGESTS.get(fix.label)
        assert known is not None, f"{fix.label} is not listed here; add its digest: {fix_digest(fix)[:16]}"
        assert fix_digest(fix).startswith(known), (
            f"{fix.id} was redefined: give it revision={fix.revision + 1} in precision_eval/fixes/catalog.py, so that "
            f"its history starts anew, and list '{fix.id}~{fix.revision + 1}' here with {fix_digest(fix)[:16]}"
        )


def test_the_list_of_digests_catches_a_redefined_fix():
    changed = replace(fix_by_id("kv_to_query"), storage="float16")
    assert not fix_digest(changed).startswith(FIX_DIGESTS["kv_to_query"])
    reworded = replace(fix_by_id("kv_to_query"), explanation="other words", revision=2)
    assert fix_digest(reworded) == fix_digest(fix_by_id("kv_to_query"))


def test_metrics_name_measures_that_exist_and_each_case_has_the_common_ones():
    known = {measure.name for measure in MEASURES}
    assert {name for metric in METRICS for name in metric.measures} <= known
    for case in CASES:
        ids = {metric.id for metric in metrics_of(case, "eager")}
        assert {"status", "drift", "peak_bytes", "stored_bytes"} <= ids, case.id
    assert metric_by_id("drift").measure_of(case_by_id("voice").measures) == "teacher_forced_drift"
    assert [metric.method for metric in METRICS[:3]] == ["time_call", "peakmem_call", "track_status"]
    with pytest.raises(UnknownNameError, match=r"did you mean .*drift"):
        metric_by_id("drifd")


def test_figures_are_read_from_where_they_stand():
    data = {"against_reference": {"log_spectral_distance_db": {"ratio_to_null": 0.5}}, "ratio_to_anchor": [1.0, 3, 2.0]}
    outcome = passed("bfloat16", data)
    assert metric_by_id("audio_degradation").read(outcome) == 0.5
    assert metric_by_id("latency_to_anchor").read(outcome) == (1.0, 3.0, 2.0)
    of_seeds = passed("bfloat16", {"relative_error": 2.0, "relative_error_by_seed": [1.0, 4]})
    assert metric_by_id("drift").read(of_seeds) == (1.0, 4.0)
    assert metric_by_id("drift").read(passed("bfloat16", {"relative_error": 2.0})) == 2.0
    assert metric_by_id("status").read(failed("bfloat16", "out_of_memory", "")) == 5
    missing = passed("bfloat16", {"ratio_to_baseline": None, "missing": {"ratio_to_baseline": "no baseline"}})
    with pytest.raises(FixFailedError, match=r"bfloat16 has no latency.*: no baseline"):
        metric_by_id("latency_ratio").read(missing)
    with pytest.raises(FixFailedError, match="found None"):
        metric_by_id("drift").read(missing)


VOICE, DECODE = case_by_id("voice"), case_by_id("attention-decode")


@pytest.mark.parametrize(
    "changed",
    [
        version_of(replace(DECODE, definition=("changed",)), "eager", metric_by_id("drift")),
        version_of(DECODE, "compiled", metric_by_id("drift")),
        version_of(DECODE, "eager", replace(metric_by_id("drift"), path=("bias_z",))),
        version_of(DECODE, "eager", replace(metric_by_id("drift"), unit="%")),
        version_of(DECODE, "eager", replace(metric_by_id("drift"), revision=2)),
        version_of(DECODE, "eager", metric_by_id("status")),
    ],
)
def test_a_changed_definition_is_another_version(changed):
    assert changed != version_of(DECODE, "eager", metric_by_id("drift"))


def test_the_anchor_is_part_of_the_versions_that_rest_on_it(monkeypatch):
    from precision_eval.history import tracking as versioning

    ids = ("latency_to_anchor", "latency_ratio")
    before = [version_of(DECODE, "eager", metric_by_id(name)) for name in ids]
    monkeypatch.setattr(versioning, "ANCHOR_DEFINITION", (*ANCHOR_DEFINITION, "v2"))
    after = [version_of(DECODE, "eager", metric_by_id(name)) for name in ids]
    assert before[0] != after[0]
    assert before[1] == after[1]


class TestOnAGpu:
    def test_names_tell_the_clocks_apart_and_none_is_tracked_on_a_cpu(self):
        on_cuda, on_cpu = ({metric.id for metric in metrics_of(DECODE, mode)} for mode in ("cuda", "eager"))
        assert on_cuda - on_cpu == {"device_time", "device_ratio", "launched_ratio"}
        assert not on_cuda & {"time", "peakmem", "latency_ratio", "latency_to_anchor"}
        assert version_of(DECODE, "cuda", metric_by_id("drift")) != version_of(DECODE, "eager", metric_by_id("drift"))

    def test_each_figure_is_of_its_own_clock(self):
        launched = {"ratio": 1.1, "clock": "launched"}
        data = {"ratio": 0.3, "median_s": 2e-4, "clock": "cuda-graph-cold", "launched": launched}
        read = {name: metric_by_id(name).read(passed("float16", data)) for name in ("device_time", "device_ratio")}
        assert read == {"device_time": 2e-4, "device_ratio": 0.3}
        assert metric_by_id("launched_ratio").read(passed("float16", data)) == 1.1
        refused = data | {"clock": "cuda-kernels", "doubts": ["other", "capture refused at model.py:3: no"]}
        with pytest.raises(NotApplicableError, match=r"its clock is cuda-kernels; capture refused at model\.py:3"):
            metric_by_id("device_ratio").read(passed("float16", refused))
        assert metric_by_id("launched_ratio").read(passed("float16", refused)) == 1.1
