"""What is asked of every checkpoint, on a real T5 of transformers; the names; and what keeps float64.

Nothing here is skipped: without the extra ``zoo`` these tests fail.
"""

import json
import sys
import tempfile
import types
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from precision_eval.cases.adapters import ADAPTED_CASES
from precision_eval.cases.adapters import base as zoo_base
from precision_eval.cases.adapters.base import as_dtype, load_checked
from precision_eval.cases.modes import KeepingWide
from precision_eval.cases.systems import CASES, case_by_id
from precision_eval.core.errors import ParameterError, UnknownNameError, UnsupportedError

T5 = transformers.T5EncoderModel
SMALL = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
FEED_FORWARD = "encoder.block.0.layer.1.DenseReluDense"
GATE, WO = f"{FEED_FORWARD}.wi_0.weight", f"{FEED_FORWARD}.wo.weight"


@pytest.fixture(scope="module")
def whole():
    """The tensors of a real, small T5, and its config in JSON's types; as transformers itself writes them."""
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        T5(transformers.T5Config(**SMALL, feed_forward_proj="gated-gelu")).half().save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        return load_file(Path(folder) / "model.safetensors"), config


@pytest.fixture
def stored(whole):
    """Write the checkpoint again in a dtype, its tensors changed; its config says that dtype, or none."""
    tensors, config = whole

    def write(folder, change=dict, *, dtype=torch.float16, promises=True):
        folder.mkdir(exist_ok=True)
        written = change({name: value.to(dtype) for name, value in tensors.items()})
        save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
        values = {name: value for name, value in config.items() if name != "dtype"}
        said = {} if not promises else {"dtype": str(dtype).removeprefix("torch.")}
        (folder / "config.json").write_text(json.dumps(values | said))
        return folder

    return write


def test_a_whole_checkpoint_loads(tmp_path, stored):
    folder = stored(tmp_path / "whole")
    model = load_checked(T5, folder, dtype=torch.bfloat16)
    assert not model.training
    assert model.get_parameter(GATE).dtype is torch.bfloat16
    assert torch.equal(model.get_parameter(WO), load_file(folder / "model.safetensors")[WO].bfloat16())
    half = load_checked(T5, folder, dtype=torch.float16)
    assert (half.get_parameter(GATE).dtype, half.get_parameter(WO).dtype) == (torch.float16, torch.float32)


def with_value(name, value):
    return lambda tensors: tensors | {name: torch.full_like(tensors[name], value)}


def with_dtype(name, dtype):
    return lambda tensors: tensors | {name: tensors[name].to(dtype)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_dtype(GATE, torch.float32), rf"says dtype float16, but .* hold float32 in {GATE}; store it again"),
        (with_dtype(GATE, torch.int8), rf"hold I8 in {GATE}; expected float16: give the checkpoint .* quantised"),
        (with_dtype(GATE, torch.float8_e4m3fn), rf"hold F8_E4M3 in {GATE}; expected float16: give"),
        (with_dtype(GATE, torch.float8_e5m2), rf"hold F8_E5M2 in {GATE}; expected float16: give"),
        (with_dtype(GATE, torch.int64), rf"integers in {GATE} \(I64\), which are floating in the model; expected"),
        (with_dtype(GATE, torch.uint8), rf"integers in {GATE} \(U8\), which are floating in the model; expected"),
        (with_value(GATE, float("nan")), rf"holds NaN in {GATE}; expected finite weights: fetch it again"),
        (with_value(GATE, float("inf")), rf"infinities in {GATE} in float32; expected finite .* fetch it again"),
    ],
)
def test_what_differs_from_its_config_is_refused(change, message, tmp_path, stored):
    with pytest.raises(ParameterError, match=message) as refusal:
        load_checked(T5, stored(tmp_path / "torn", change), dtype=torch.float32)
    assert "\n" not in str(refusal.value)


def test_weights_beyond_the_dtypes_range_are_refused_in_that_dtype_only(tmp_path, stored):
    folder = stored(tmp_path / "wide", with_value(GATE, 1e6), dtype=torch.float32)
    with pytest.raises(ParameterError, match=rf"infinities in {GATE} in float16; .* wider range, bfloat16 or float32"):
        load_checked(T5, folder, dtype=torch.float16)
    assert load_checked(T5, folder, dtype=torch.bfloat16).get_parameter(GATE).isfinite().all()


def test_modules_kept_in_float32_are_no_mismatch(tmp_path, stored):
    folder = stored(tmp_path / "kept", with_dtype(WO, torch.float32))
    load_checked(T5, folder, dtype=torch.float16)
    (stored(tmp_path / "wide", dtype=torch.float32) / "model.safetensors").rename(folder / "model.fp32.safetensors")
    load_checked(T5, folder, dtype=torch.float16)  # a variant beside it is not what is loaded
    folder = stored(tmp_path / "wrong", with_dtype(GATE, torch.float32))
    with pytest.raises(ParameterError, match=rf"hold float32 in {GATE}; store it again with model\.to"):
        load_checked(T5, folder, dtype=torch.float16)
    folder = stored(tmp_path / "wrong", with_dtype(GATE, torch.float32), promises=False)
    with pytest.raises(ParameterError, match=r"several dtypes \(\d+ of float\d+, .*, and config\.json names none"):
        load_checked(T5, folder, dtype=torch.float16)
    (stored(tmp_path / "even") / "model.safetensors").rename(folder / "model.safetensors")
    load_checked(T5, folder, dtype=torch.float16)


def test_folders_that_are_no_checkpoint(tmp_path, stored):
    def refused(folder, message):
        with pytest.raises(ParameterError, match=message):
            load_checked(T5, folder, dtype=torch.float16)

    refused(tmp_path / "nowhere", r"no folder .*nowhere; give one with config\.json")
    refused("./nowhere", r"no folder \./nowhere")
    refused("nowhere", "the hub's 'owner/name'")
    refused(tmp_path, r"has no config\.json")
    folder = stored(tmp_path / "pickled")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "pickled checkpoints are refused")
    folder = stored(tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:40])
    refused(folder, "is damaged or no safetensors file")
    for text, message in (("{", "is no JSON"), ("[]", "holds a list; expected an object")):
        (folder / "config.json").write_text(text)
        refused(folder, message)


def test_links_out_of_a_checkpoint_are_refused(tmp_path, stored):
    folder, elsewhere = stored(tmp_path / "folder"), tmp_path / "elsewhere.safetensors"
    (folder / "model.safetensors").rename(elsewhere)
    (folder / "model.safetensors").symlink_to(elsewhere)
    for place in (folder, folder / ".." / "folder"):
        with pytest.raises(ParameterError, match=r"model\.safetensors is a link out of the checkpoint's folder"):
            load_checked(T5, place, dtype=torch.float16)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"shared.weight": "../elsewhere.safetensors"}}))
    with pytest.raises(ParameterError, match=r"names \.\./elsewhere\.safetensors, not found beside it"):
        load_checked(T5, folder, dtype=torch.float16)
    (tmp_path / "hub" / "snapshots").mkdir(parents=True)  # as the hub's cache keeps a checkpoint
    cached, blob = tmp_path / "hub" / "snapshots" / "1a2b", tmp_path / "hub" / "blobs" / "9f"
    index.unlink()
    folder.rename(cached)
    blob.parent.mkdir()
    elsewhere.rename(blob)
    (cached / "model.safetensors").symlink_to(blob)
    load_checked(T5, cached, dtype=torch.float16)


def test_a_checkpoint_in_parts(tmp_path, stored):
    parts = tmp_path / "parts"
    load_checked(T5, stored(tmp_path / "one"), dtype=torch.float16).save_pretrained(parts, max_shard_size="1KB")
    assert (parts / "model.safetensors.index.json").is_file()
    load_checked(T5, parts, dtype=torch.float16)
    last = sorted(parts.glob("*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(ParameterError, match=rf"index\.json names {last.name}, not found beside it; fetch it again"):
        load_checked(T5, parts, dtype=torch.float16)
    (parts / "model.safetensors.index.json").write_text('{"weight_map": 5}')
    with pytest.raises(ParameterError, match=r"index\.json is no index of safetensors files .*; fetch it again"):
        load_checked(T5, parts, dtype=torch.float16)


def test_a_hub_name_is_fetched_as_safetensors_only(tmp_path, monkeypatch, stored):
    asked = []

    def snapshot_download(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "owner/absent":
            raise OSError("404\nnot found")
        return str(stored(tmp_path / "fetched"))

    monkeypatch.setattr(zoo_base, "imported", lambda name: types.SimpleNamespace(snapshot_download=snapshot_download))
    load_checked(T5, "owner/model", dtype=torch.float16)
    assert asked == [("owner/model", ["*.json", "*.safetensors"])]
    with pytest.raises(
        ParameterError, match=r"'owner/absent' is no folder here and the hub .* it: 404 not found; give"
    ):
        load_checked(T5, "owner/absent", dtype=torch.float16)


def test_a_missing_extra_is_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match=r"transformers is not installed; pip install 'precision-eval\[zoo\]'"):
        case_by_id("zoo-dia").build("tiny", device="cpu", seed=0)


def test_names():
    assert as_dtype("bfloat16") is as_dtype(torch.bfloat16) is torch.bfloat16
    with pytest.raises(UnknownNameError, match="did you mean float16"):
        as_dtype("float1")
    with pytest.raises(UnknownNameError, match="did you mean zoo-dia"):
        case_by_id("zoo-di")
    ids = [case.id for case in ADAPTED_CASES]
    assert ids == ["zoo-dia", "zoo-t5-encoder", "zoo-svd-time-embed"]
    assert not set(ids) & {case.id for case in CASES if case not in ADAPTED_CASES}
    assert all(case.sizes == ("tiny",) and not case.by_default for case in ADAPTED_CASES)
    assert len({case.digest for case in ADAPTED_CASES}) == len(ids)


# What keeping_float64 keeps


WIDE = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)

CASTS = [
    lambda x: x.to(torch.float32),
    lambda x: x.to(dtype=torch.float16),
    lambda x: x.to("cpu", torch.bfloat16),
    lambda x: x.to(torch.zeros(1)),
    lambda x: x.type_as(torch.zeros(1)),
    lambda x: x.type(torch.float32),
    lambda x: x.float(),
    lambda x: x.half(),
    lambda x: x.bfloat16(),
    lambda x: x.sum(dtype=torch.float32),
    lambda x: torch.mean(x, dtype=torch.float32),
]


@pytest.mark.parametrize("cast", CASTS)
def test_no_cast_narrows_float64(cast):
    assert cast(WIDE).double() != WIDE or cast(WIDE).dtype is not torch.float64
    with KeepingWide(torch.float64):
        kept = cast(WIDE)
    assert kept.dtype is torch.float64
    assert kept == WIDE


def test_a_wide_dtype_that_is_kept_may_be_widened_further():
    single, double = torch.ones(2), WIDE
    with KeepingWide(torch.float32):
        assert single.half().dtype is torch.float32
        assert single.to(torch.ones(1, dtype=torch.bfloat16)).dtype is torch.float32
        assert torch.zeros(2, dtype=torch.float16).dtype is torch.float32
        assert single.double().dtype is torch.float64
        assert double.half().dtype is torch.float16


def test_softmax_in_float32_is_float64s():
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with KeepingWide(torch.float64):
        found = F.softmax(x, dim=-1, dtype=torch.float32).to(torch.float32)
    assert torch.equal(found, x.softmax(-1))


def test_all_else_is_as_before():
    single = torch.ones(2)
    with KeepingWide(torch.float64):
        assert single.half().dtype is torch.float16
        assert WIDE.to(torch.int64).dtype is torch.int64
        assert WIDE.long().dtype is torch.int64
        assert WIDE.to(torch.complex64).dtype is torch.complex64
    assert WIDE.float().dtype is torch.float32
    with pytest.raises(ZeroDivisionError), KeepingWide(torch.float64):
        raise ZeroDivisionError
    assert WIDE.float().dtype is torch.float32


def test_factories_make_float64_from_none():
    with KeepingWide(torch.float64):
        assert torch.arange(3, dtype=torch.float32).dtype is torch.float64
        assert torch.full((2,), 1.0, dtype=torch.float16).dtype is torch.float64
        assert torch.arange(3).float().dtype is torch.float64
        assert torch.ones(2, dtype=torch.bool).to(dtype=torch.float32).dtype is torch.float64
        assert torch.zeros(2, dtype=torch.int64).dtype is torch.int64
        assert torch.ones(2).dtype is torch.full((1,), 0.1).dtype is torch.float64
        assert torch.full((1,), 0.1) == 0.1
        assert torch.randn(2).dtype is torch.float64
        assert (torch.arange(3) / 3).dtype is torch.eye(2).dtype is torch.float64
        assert torch.arange(3).dtype is torch.full((1,), 2).dtype is torch.int64
    assert torch.ones(2).dtype is torch.float32
