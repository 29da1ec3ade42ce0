"""Causes, fixes, links and the text of an explanation, and the command."""

import io
import json
import sys
import time

import pytest
import typer
from made_messages import as_raised

from precision_eval.cli.application import EXIT_COULD_NOT_TELL
from precision_eval.cli.own_model import explain as explain_command
from precision_eval.explain import explain
from precision_eval.explain.causes import causes
from precision_eval.explain.messages import dtype_name
from precision_eval.explain.mismatches import family
from precision_eval.fixes.catalog import FIXES

SDPA = (
    "Expected query, key, and value to have the same dtype, but got query.dtype: {} key.dtype: {} and value.dtype: {}"
)
MIXED = SDPA.format("float", "c10::Half", "c10::Half") + " instead."
LINEAR = "RuntimeError: mat1 and mat2 must have the same dtype, but got {} and {}"


def causes_of(text):
    return [cause.id for cause in explain(text).causes]


def verdict(text, fix):
    return {one.fix: one for one in explain(text).fixes}[fix].verdict


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("struct c10::Half", "float16"),
        ("class c10::complex<float>", "complex64"),
        ("long unsigned int", "uint64"),
        ("unsigned __int64", "uint64"),
        ("torch.cuda.BFloat16Tensor", "bfloat16"),
        ("CUDABFloat16Type", "bfloat16"),
        ("c10::Float8_e4m3fn", "float8_e4m3fn"),
        ("long\n  int", "int64"),
        ("bf16", "bfloat16"),
    ],
)
def test_spellings_come_to_one_name(spelling, name):
    assert dtype_name(spelling) == name


def test_the_public_name_stays_the_function_once_the_room_is_imported():
    import precision_eval

    assert precision_eval.explain is explain
    assert precision_eval.explain.__module__ == "precision_eval.explain.explanation"


def test_the_bare_report_fits_metavoice_and_dia_and_says_that_it_cannot_tell():
    found = explain(MIXED)
    assert causes_of(MIXED) == ["norm_promotes", "metavoice_cpu", "metavoice_fast"]
    assert not any(cause.is_named for cause in found.causes)
    assert "the text does not tell which" in str(found)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ('  File "/content/metavoice-src/fam/llm/fast_model.py", line 160, in forward\n' + MIXED, "metavoice_fast"),
        ('  File "/app/dia/layers.py", line 210, in forward\n' + MIXED, "norm_promotes"),
        ('  File "imaginairy/modules/x.py", in f\n    emb = self.time_embed(t)\n' + LINEAR.format("Float", "Half"),
         "float32_embedding"),
        ('  File "peft/tuners/lora/layer.py", line 1, in forward\n' + LINEAR.format("Float", "BFloat16"),
         "adapter_weights"),
        ('  File "apex/normalization/fused_layer_norm.py", line 75\nexpected scalar type Float but found Half',
         "t5_fused_norm"),
        ("with torch.autocast('cuda'):\n    q = self.q_norm(q)\nFlashAttention only support fp16 and bf16 data type",
         "autocast_norm"),
    ],
)  # fmt: skip
def test_a_word_of_the_text_names_the_cause(text, first):
    causes = explain(text).causes
    assert causes[0].id == first
    assert causes[0].is_named


NO_BFLOAT16 = "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16."


def test_a_card_without_bfloat16_is_told_what_stays_and_what_does_not():
    found = explain('  File "/content/metavoice-src/fam/llm/sample.py", line 81, in __init__\n' + NO_BFLOAT16)
    assert [cause.id for cause in found.causes] == ["no_bfloat16"]
    assert found.causes[0].is_named
    assert "including_emulation=False" in found.to_text(verbose=True)
    verdicts = {fix: verdict(NO_BFLOAT16, fix) for fix in ("bfloat16", "float16", "kv_to_query", "autocast")}
    assert verdicts == {
        "bfloat16": "does_not_cure", "float16": "depends", "kv_to_query": "does_not_cure", "autocast": "depends",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fix", "expected"),
    [
        (MIXED, "query_to_half", "applies"),
        (MIXED, "kv_to_query", "applies"),
        (MIXED, "full_float32", "applies"),
        (MIXED, "float16", "depends"),
        (MIXED, "autocast", "applies"),
        (LINEAR.format("Half", "BFloat16"), "float16", "applies"),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "full_float32", "does_not_cure"),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "autocast", "does_not_cure"),
        ("RuntimeError: query and key must have the same dtype", "kv_to_query", "out_of_reach"),
        ("Input type (float) and bias type (c10::Half) should be the same", "query_to_half", "out_of_reach"),
        ("Input type (float) and bias type (c10::Half) should be the same", "autocast", "applies"),
        ("Index put requires the source and destination dtypes match, got Half for the destination and Float for the "
         "source", "query_to_half", "applies"),
        ("Index put requires the source and destination dtypes match, got Half for the destination and Float for the "
         "source", "autocast", "does_not_cure"),
        ("expected scalar type Half but found Float", "query_to_half", "depends"),
        ("expected scalar type Half but found Float", "kv_to_query", "depends"),
        ("expected scalar type Half but found Float", "autocast", "depends"),
        ("scatter(): Expected self.dtype to be equal to src.dtype", "query_to_half", "out_of_reach"),
        ("Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
         "torch.HalfTensor instead", "full_float32", "does_not_cure"),
    ],
)  # fmt: skip
def test_each_fix_is_judged_for_the_call(text, fix, expected):
    assert verdict(text, fix) == expected


def test_what_is_said_to_apply_at_attention_does_in_a_run():
    """The judgement is checked on the bare call: what applies cures it, what does not cure raises it again."""
    from precision_eval.cases.systems import case_by_id
    from precision_eval.fixes.apply import AppliedFix

    built = case_by_id("attention-decode").build("tiny", device="cpu", seed=0)
    with pytest.raises(RuntimeError) as caught, AppliedFix(FIXES[0], built.model) as call:
        call(*built.inputs)
    verdicts = {one.fix: one.verdict for one in explain(caught.value).fixes}
    for fix in FIXES:
        if "eager" not in fix.modes or fix.id in ("as_shipped", "upstream"):
            continue
        assert verdicts[fix.id] in ("applies", "depends"), fix.id
        with AppliedFix(fix, built.model) as call:
            call(*call.prepare(built.inputs))


def test_every_fix_but_the_control_is_judged_for_every_member():
    for member in family():
        found = explain(as_raised(member, member.sentences[0]))
        assert found.member == member.id
        assert [one.fix for one in found.fixes] == [fix.id for fix in FIXES if fix.id != "as_shipped"]
        assert all(one.reason for one in found.fixes)
        assert all(len(line) <= 130 for line in found.to_text(verbose=True).splitlines())
        for width in (80, 110):
            lines = found.to_text(width=width).splitlines()
            assert len(lines) <= 15, (member.id, width)
            assert len(set(lines)) == len(lines), (member.id, width)
            assert all(len(line) <= width for line in lines), (member.id, width)
            assert lines[-1].startswith("Next"), member.id


def test_no_cause_speaks_of_a_format_or_a_device_that_is_not_there():
    halves = explain("expected scalar type Half but found BFloat16")
    assert [cause.id for cause in halves.causes] == ["two_halves"]
    assert "float32_embedding" not in causes_of(LINEAR.format("Half", "BFloat16"))
    on_mps = explain('  File "a.py", line 1\n    x = x.to("mps")\n' + MIXED)
    assert on_mps.device == "mps"
    assert "CUDA" not in "".join(fix.reason for fix in on_mps.fixes)
    assert {fix.fix: fix for fix in on_mps.fixes}["autocast"].snippet[0] == 'with torch.autocast("mps"):'


def test_a_linear_that_gets_float32_is_told_of_its_input_first():
    assert causes_of(LINEAR.format("Float", "Half"))[0] == "input_not_cast"


def test_integers_are_not_taken_for_a_model_in_half():
    assert causes_of(LINEAR.format("Long", "Float")) == ["integer_input"]
    assert causes_of(LINEAR.format("Double", "Float")) == ["numpy_float64"]
    verdicts = {
        fix: verdict(LINEAR.format("Long", "Float"), fix) for fix in ("query_to_half", "kv_to_query", "autocast")
    }
    assert verdicts == {"query_to_half": "applies", "kv_to_query": "does_not_cure", "autocast": "does_not_cure"}
    assert verdict("self and mat2 must have the same dtype, but got BFloat16 and Char", "kv_to_query") != "applies"
    assert "x.float()" in explain("mean(): could not infer output dtype. Got: Long").do
    labels = explain("RuntimeError: expected scalar type Long but found Float")  # a loss, or a product of integers
    assert "labels.long()" in labels.do
    assert "x.float()" in labels.do


def test_a_graph_that_forgets_a_cast_is_named_as_compiled():
    text = '  File "/tmp/torchinductor_user/4x/c4x7.py", line 912, in call\n    extern_kernels.addmm(a, b)\n'
    assert causes_of(text + LINEAR.format("Float", "BFloat16"))[0] == "compiled_only"
    assert "compiled_only" not in causes_of(LINEAR.format("Float", "BFloat16"))


@pytest.mark.parametrize(
    ("text", "named", "never"),
    [
        ("TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.",
         [".float()"], ["float16", ".half()"]),
        ("TypeError: Trying to convert Float8_e4m3fn to the MPS backend but it does not have support for that dtype.",
         ["float16"], ["float64"]),
        ("NotImplementedError: \"slow_conv2d_cpu\" not implemented for 'Half'", ["slow_conv2d_cpu", "model.float()"],
         ["model.half()"]),
        ("ValueError: Attempting to unscale FP16 gradients.", ["model.float()", "autocast"], ["model.half()"]),
        ("TypeError: Got unsupported ScalarType BFloat16", ["x.float().numpy()"], ["model.bfloat16()"]),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", ["--dtype=half"],
         ["model.bfloat16()"]),
        ("Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))", ["x.astype(np.float32)"],
         ["model."]),
        ("RuntimeError: value cannot be converted to type c10::Half without overflow", ["torch.finfo(x.dtype).min"],
         ["model.half()"]),
        ("RuntimeError: value cannot be converted to type c10::BFloat16 without overflow", ["torch.finfo(x.dtype).min"],
         ["model."]),
        ("Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32", ["named_parameters()"],
         ["autocast:"]),
        ("Input type (struct c10::BFloat16) and bias type (struct c10::Half) should be the same",
         ["at the line that raised: input.to(bias.dtype)"], ["input.to(weight.dtype)"]),
        ("RuntimeError: \"ConvTranspose 3D with BF16 or FP16 types is not supported on MPS\"",
         ["enabled=False): y = layer.float()(x.float())"], ["model.half()"]),
        ("NotImplementedError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
         ["leave the GradScaler out"], ["model.bfloat16()"]),
    ],
)  # fmt: skip
def test_what_is_refused_is_never_advised(text, named, never):
    answer = explain(text).to_text()
    assert [word for word in named if word not in answer] == []
    assert [word for word in never if word in answer] == []


@pytest.mark.parametrize("text", [
    "MatMul8bitLt: inputs will be cast from torch.bfloat16 to float16 during quantization",
    "FP16 is not supported on CPU; using FP32 instead",
])  # fmt: skip
def test_a_notice_is_told_from_an_error(text):
    found = explain(text)
    assert found.kind == "notice"
    assert "no error" in str(found)
    assert {fix.verdict for fix in found.fixes if fix.fix != "upstream"} == {"does_not_cure"}


def test_verbose_prints_everything(capsys):
    explain_command(MIXED, verbose=True)
    printed = capsys.readouterr().out
    assert "metavoice-src/issues/187" in printed
    assert "to tell it:" in printed


def test_causes_are_named_once_and_raise_known_members():
    assert len({cause.id for cause in causes()}) == len(causes())
    known = {member.id for member in family()}
    for cause in causes():
        assert cause.sources
        assert cause.tell
        assert {member for when in cause.when for member in when.members} <= known, cause.id


def test_the_command_reads_standard_input_and_ends_with_4_on_unknown_text(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Traceback ...\nRuntimeError: " + MIXED))
    explain_command("-", as_json=False)
    assert "query float32" in capsys.readouterr().out
    with pytest.raises(typer.Exit) as end:
        explain_command("CUDA error: invalid argument", as_json=True)
    assert end.value.exit_code == EXIT_COULD_NOT_TELL
    assert json.loads(capsys.readouterr().out)["known"] is False


def test_each_fix_that_helps_is_two_lines_of_code_for_the_operands_named():
    found = explain("Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: Half")
    snippets = {fix.fix: fix.snippet for fix in found.fixes}
    assert snippets["query_to_half"][0] == "query = query.to(key.dtype)"
    assert snippets["kv_to_query"][0] == "key, value = key.to(query.dtype), value.to(query.dtype)"
    assert snippets["full_float32"][0].startswith("model.float()")
    assert snippets["dynamo_fallback"] == ()
    for lines in snippets.values():
        compile("\n".join(lines), "snippet", "exec")
    assert "precision-eval doctor" in repr(found).splitlines()[-1] + str(found)


def test_very_many_blank_lines_take_no_longer_than_other_text():
    blank, begun = "\n" * 300_000, time.process_time()
    assert explain(f"{blank}RuntimeError: expected scalar type Half but found Float{blank}").member is not None
    assert time.process_time() - begun < 5.0  # minutes, where each line is begun at every other


def test_the_command_reads_a_file(tmp_path, capsys):
    text = b"\xff step 3\nexpected m1 and m2 to have the same dtype, but got: float != c10::Half\n"
    (tmp_path / "train.log").write_bytes(text)
    explain_command(str(tmp_path / "train.log"))
    assert "mat1 = mat1.to(mat2.dtype)" in capsys.readouterr().out


OVER_SEVERAL_LINES = """\
Traceback (most recent call last):
  File "/home/me/app.py", line 8, in <lambda>
    lambda: F.embedding_bag(torch.tensor([[0]]), ones(2, 2), per_sample_weights=w, mode="sum"),
            ~~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/env/lib/python3.13/site-packages/torch/nn/functional.py", line 2822, in embedding_bag
    ret, _, _, _ = torch.embedding_bag(
                   ~~~~~~~~~~~~~~~~~~~^
        weight,
        ^^^^^^^
    ...<7 lines>...
        padding_idx,
        ^^^^^^^^^^^^
    )
    ^
RuntimeError: Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 \
'per_sample_weights'; but type torch.FloatTensor does not equal torch.HalfTensor \
(while checking arguments for embedding_bag)
"""


def test_a_call_that_python_3_13_shows_over_several_lines_is_read():
    assert explain(OVER_SEVERAL_LINES).op == "embedding_bag"
