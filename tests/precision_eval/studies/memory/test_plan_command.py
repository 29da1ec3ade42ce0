"""The command: its table, its strict JSON, its errors, and what it does not load."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from precision_eval.cli.plan import PlanRequest, plan_command
from precision_eval.core.errors import PrecisionEvalError
from precision_eval.fixes.catalog import FIXES
from precision_eval.studies.memory.text import parse_bytes, shown_bytes


def printed(**asked):
    out = io.StringIO()
    plan_command(PlanRequest(**asked), console=Console(file=out, width=160))
    return out.getvalue()


def test_the_table():
    text = printed(model="metavoice-1b", device="t4")
    assert "1.248 B parameters" in text
    assert all(fix.id in text for fix in FIXES)
    assert "as_shipped raises: speaker projection: float16 meets bfloat16" in text
    assert "t4: its format is float16; float16 native, bfloat16 emulated, float32 native" in text
    assert "2048*" in text
    assert "* all 2048 learned positions" in text


def test_the_table_fits_a_terminal():
    out = io.StringIO()
    plan_command(PlanRequest(model="t5-xxl", device="t4"), console=Console(file=out, width=80))
    assert all(f" {fix.id} " in out.getvalue() for fix in FIXES)
    assert "…" not in out.getvalue()


def test_without_a_device_each_published_one_is_named():
    text = printed(model="metavoice-1b", device_memory="16GiB", fixes=("float16",))
    assert "in 16.0G" in text
    assert "a100: its format is bfloat16" in text
    assert "t4: its format is float16" in text


def test_a_t4_is_not_told_to_take_what_ends_in_nan():
    for fixes in (("all",), ("as_shipped",)):  # whatever is planned: the line on the device stands below
        text = printed(model="t5-xxl", device="t4", fixes=fixes)
        assert "take --dtype float16 with the fix as_shipped" in text
        assert "take float16" not in text
    assert "as_shipped, which keeps it" not in printed(model="dia-1.6b", device="t4")


def test_pinned_attention_and_what_runs_beside_are_said():
    text = printed(model="metavoice-1b", device="t4")
    assert "the source pins plain attention around each decode step, which --math-attention plans" in text
    assert "not in this plan: the second stage" in text
    assert "pins plain attention" not in printed(model="metavoice-1b", device="t4", math_attention=True)
    assert "pins plain attention" not in printed(model="metavoice-1b", device="t4", tokens=64)  # a prefill
    assert "pins plain attention" not in printed(model="dia-1.6b", device="t4")


def test_what_does_not_fit_is_a_result():
    text = printed(model="t5-xxl", device_memory="1GiB", fixes=("float16", "full_float32"))
    assert "nothing fits in 1.00G: float16 needs least" in text
    assert "use a smaller batch or a larger device" in text
    assert "shorten to" in printed(model="dia-1.6b", device_memory="3.7GB", fixes=("float16",))


def test_strict_json(capsys):
    plan_command(PlanRequest(model="dia-1.6b", device_memory="16GiB", as_json=True, length=512))
    document = json.loads(capsys.readouterr().out)
    assert document["parameters"] == 1_611_160_576
    assert document["device_memory_bytes"] == 16 << 30
    found = {plan["fix"]: plan for plan in document["fixes"]}
    assert found["float16"]["fits"] is True
    parts = ("weights_bytes", "self_cache_bytes", "cross_cache_bytes", "buffer_bytes")
    assert found["float16"]["stored_bytes"] == sum(found["float16"][part] for part in parts)
    assert {choice["device"] for choice in document["formats"]} >= {"t4", "a100"}


def test_a_file(tmp_path):
    path = tmp_path / "mine.json"
    decoder = {"layers": 2, "width": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "mlp_width": 16, "vocabulary": 20,
               "max_length": 32}  # fmt: skip
    path.write_text(json.dumps({"name": "mine", "decoder": decoder}), encoding="utf-8")
    assert "mine, batch 1, length 32" in printed(model=str(path), device="cpu")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "metavoice-2b"}, "unknown model 'metavoice-2b'; did you mean metavoice-1b"),
        ({"model": "none.json"}, "none.json cannot be read"),
        ({"fixes": ("kv_to_quary",)}, "unknown fix 'kv_to_quary'; did you mean kv_to_query"),
        ({"device": "t5"}, "unknown device 't5'; did you mean t4"),
        ({"device_memory": "16"}, "device memory '16' is no size; write a number and a unit"),
        ({"device_memory": "16 potatoes"}, "device memory '16 potatoes' is no size"),
        ({"device_memory": "0GiB"}, "device memory '0GiB' is nothing"),
        ({"dtype": "fp16"}, "unknown dtype 'fp16'; did you mean"),
        ({"length": 4096}, "length 4096 is beyond the 2048 learned positions"),
        ({"batch": -1}, "batch is -1"),
    ],
)
def test_bad_input(asked, message):
    with pytest.raises(PrecisionEvalError) as found:
        plan_command(PlanRequest(**({"model": "metavoice-1b"} | asked)))
    assert message in str(found.value)


def test_nothing_heavy_is_loaded():
    code = (
        "import sys\nfrom precision_eval.cli.plan import PlanRequest, plan_command\n"
        "plan_command(PlanRequest(model='metavoice-1b', device='t4'))\n"
        "print('LOADED', [name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "LOADED []" in done.stdout


def test_sizes():
    assert parse_bytes("16GiB") == 16 << 30
    assert parse_bytes(" 15.8 gb ") == 15_800_000_000
    assert [shown_bytes(n) for n in (None, 12, 1000, 2048, 3 << 20, 1010 << 20, 16 << 30, 123 << 30)] == [
        "–", "12", "0.977K", "2.00K", "3.00M", "0.986G", "16.0G", "123G",
    ]  # fmt: skip
