"""What the systems' pages say in prose is what their own tables say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precision_eval.cases.systems.metavoice import CACHE_DTYPE, GUIDANCE_ROWS, SIZES

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODES = ("eager", "compiled")


def words(name):
    """Return a page's prose, without its generated blocks, in one line."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<!-- ([\w.-]+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL).split())


def table(name, case):
    """Read a generated table: {fix: {column: cell}}."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    block = text.partition(f"<!-- {case}:begin -->")[2].partition(f"<!-- {case}:end -->")[0]
    lines = [[cell.strip(" `") for cell in line.split(" | ")] for line in block.splitlines() if line.startswith("| ")]
    head = [cell.strip("| ") for cell in lines[0]]
    rows = [dict(zip(head, (cell.strip("|` ") for cell in line), strict=True)) for line in lines[1:]]
    return {row[head[0]]: row for row in rows}


def ratio(row, mode):
    """Return (ratio, low, high) of a latency cell, or None."""
    found = re.search(r"([\d.]+) \[([\d.]+), ([\d.]+)\]", row.get(f"latency, {mode} [95 %]", ""))
    return None if found is None else tuple(map(float, found.groups()))


def faster(rows, fix):
    return all(ratio(rows[fix], mode)[2] < 1 for mode in MODES)


def none_faster(rows):
    """Whether no latency interval of a fix ends below that of the baseline against itself."""
    found = [ratio(row, mode) for fix, row in rows.items() if fix != "full_float32" for mode in MODES]
    return all(high >= 1 for _, _, high in filter(None, found))


def say(name, claim, truth):
    assert (claim in words(name)) == truth, f"mend docs/{name}.md: its tables have changed"


def test_dia_decodes_fastest_in_float32():
    truth = none_faster(table("dia", "dia-decode")) and none_faster(table("dia", "dia-decode-pr45"))
    say("dia", "use float32 throughout for decoding: it is far the most exact, and nothing that cures is faster", truth)


def test_dias_encoder_is_faster_in_bfloat16():
    claim = "bfloat16 throughout takes less time than float32 there, eager and compiled"
    say("dia", claim, faster(table("dia", "dia-encode"), "bfloat16"))


def test_dias_encoder_takes_twenty_times_in_float16():
    found = [ratio(table("dia", "dia-encode")["float16"], mode)[0] for mode in MODES]
    say("dia", "takes some twenty times float32's", all(17 <= value <= 25 for value in found))


def test_dias_two_half_formats_are_as_far_apart_as_said():
    apart = []
    for case in ("dia-decode", "dia-decode-pr45", "dia-encode"):
        rows = table("dia", case)
        apart.append(float(rows["bfloat16"]["drift"]) / float(rows["float16"]["drift"]))
    say("dia", "bfloat16 throughout has seven to ten times the error of float16", 6.5 < min(apart) < max(apart) < 10.5)


@pytest.mark.parametrize(
    ("case", "spans", "claim"),
    [
        ("dia-decode", "raised up to 2.6.0, passed from 2.7.1", "torch from 2.7 on, where that code runs as shipped"),
        ("dia-decode-pr45", "passed up to 2.6.0, raised from 2.7.1", "it runs up to 2.6 and raises from 2.7 on"),
    ],
)
def test_dias_two_states_turn_over_as_said(case, spans, claim):
    rows = table("dia", f"{case}.versions")
    say("dia", claim, all(rows[f"{case}/as_shipped/{mode}"]["recorded versions"] == spans for mode in MODES))


def test_the_product_that_the_compiler_hid_is_the_recorded_one():
    cell = table("dia", "operations")["matmul-3d"]["compiled by Inductor"]
    truth = cell.startswith("float32 up to 2.11.") and ", raised from 2.12." in cell
    say("dia", "a product of mixed dtypes that the compiler hid up to 2.11", truth)


def test_metavoices_autocast_cures_compiled_only():
    rows = table("metavoice", "metavoice-decode")
    truth = (rows["autocast"]["eager"], rows["autocast"]["compiled"]) == ("raised", "passed")
    say("metavoice", "in eager autocast does not cure a cache that a tensor index writes, compiled it does", truth)


def test_metavoices_drift_under_casts_is_computing():
    shares = []
    for case in ("metavoice-decode", "metavoice-decode-slice", "metavoice-prefill"):
        for fix in ("query_to_half", "kv_to_query"):
            cell = table("metavoice", case)[fix]["cast / compute / rounding / cross, %"]
            shares.append([int(part.replace("−", "-")) for part in cell.split(" / ")])
    truth = all(cast <= 5 and compute >= 95 for cast, compute, _, _ in shares)
    say("metavoice", "nearly all of the GPU path's drift is computing", truth)


def test_the_copy_that_metavoice_leaves_out_has_the_size_said():
    full = SIZES["full"]
    assert CACHE_DTYPE == "float16"
    copied_bytes = 2 * GUIDANCE_ROWS * full.heads * full.slots * full.head_dim * 2
    say("metavoice", "32 MiB a layer at full size in half and twice that in float32", copied_bytes == 32 * 2**20)


def test_imaginairys_cast_costs_what_is_said():
    rows = table("imaginairy", "imaginairy-time-embed")
    half, up = ([ratio(rows[fix], mode) for mode in MODES] for fix in ("query_to_half", "kv_to_query"))
    say("imaginairy", "this part then takes more than twice float32's time", all(low > 2 for _, low, _ in half))
    less = all(high < low for (_, _, high), (_, low, _) in zip(up, half, strict=True))
    exact = float(rows["kv_to_query"]["drift"]) < 2 * float(rows["full_float32"]["drift"])
    claim = "(`kv_to_query`) takes less time and keeps float32's error"
    say("imaginairy", claim, less and exact)


def test_no_page_shows_an_address():
    for page in DOCS.glob("*.md"):
        assert not re.search(r"\b0x[0-9a-fA-F]{6,}", page.read_text(encoding="utf-8")), page


def test_a_table_that_says_otherwise_is_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "DOCS", tmp_path)
    text = (Path(__file__).resolve().parents[2] / "docs" / "dia.md").read_text(encoding="utf-8")
    block = text.index("<!-- dia-encode:begin -->")
    (tmp_path / "dia.md").write_text(text[:block] + text[block:].replace("[0.53, 0.61]", "[0.53, 1.02]"), "utf-8")
    with pytest.raises(AssertionError, match=r"mend docs/dia\.md"):
        test_dias_encoder_is_faster_in_bfloat16()
