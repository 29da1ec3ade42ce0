import json
import subprocess
import sys
import types

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from precision_eval.errors import ParameterError, UnknownNameError, UnsupportedError
from precision_eval.workloads import WORKLOADS
from precision_eval.zoo import ZOO, ZOO_WORKLOADS, zoo_entry_by_id
from precision_eval.zoo import base as zoo_base
from precision_eval.zoo.base import as_dtype, imported, keeping_float64, load_checked


class Net(torch.nn.Module):
    """A class that loads as the libraries' do; only what load_checked asks of them."""

    def __init__(self):
        super().__init__()
        self.wi = torch.nn.Linear(2, 3, bias=False)
        self.wo = torch.nn.Linear(3, 2, bias=False)

    @classmethod
    def from_pretrained(cls, folder, *, dtype, use_safetensors, output_loading_info, local_files_only):
        assert use_safetensors
        assert output_loading_info
        assert local_files_only
        model, stored = cls(), load_file(folder / "model.safetensors")
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        mismatched = [(n, tuple(v.shape), shapes[n]) for n, v in stored.items() if n in shapes and v.shape != shapes[n]]
        if any("raise" in name for name in stored):
            raise RuntimeError("size mismatch\nmore lines")
        info = {
            "missing_keys": shapes.keys() - stored.keys(),
            "unexpected_keys": stored.keys() - shapes.keys(),
            "mismatched_keys": mismatched,
            "error_msgs": [],
        }
        if not any(info.values()):
            model.load_state_dict(stored)
        return model.to(dtype), info


class Keeping(Net):
    _keep_in_fp32_modules = ("wo",)


def stored(folder, tensors=None, *, dtype=torch.float16, config=None):
    folder.mkdir(exist_ok=True)
    whole = {name: value.to(dtype).contiguous() for name, value in Net().state_dict().items()}
    save_file(whole if tensors is None else tensors(whole), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {"dtype": str(dtype).removeprefix("torch.")}))
    return folder


def test_a_whole_checkpoint_loads(tmp_path):
    folder = stored(tmp_path / "whole")
    model = load_checked(Net, folder, dtype=torch.bfloat16)
    assert not model.training
    assert model.wi.weight.dtype is torch.bfloat16
    assert torch.equal(model.wo.weight, load_file(folder / "model.safetensors")["wo.weight"].bfloat16())
    assert load_checked(Net, tmp_path, dtype=torch.float16, subfolder="whole").wi.weight.dtype is torch.float16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: {"wi.weight": whole["wi.weight"]}, r"missing keys: wo\.weight; expected every tensor"),
        (lambda whole: whole | {"new": whole["wi.weight"].clone()}, r"unexpected keys: new;"),
        (lambda whole: whole | {"wi.weight": torch.zeros(9, 9).half()}, r"mismatched keys: \('wi\.weight', \(9, 9\)"),
        (lambda whole: whole | {"raise": torch.zeros(1).half()}, r"does not load as a Net: size mismatch; expected"),
        (
            lambda whole: whole | {"wo.weight": whole["wo.weight"].float()},
            r"says dtype float16, .*float32 in wo\.weight",
        ),
    ],
)
def test_what_differs_from_its_config_is_refused(change, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        load_checked(Net, stored(tmp_path / "torn", change), dtype=torch.float32)


def test_modules_kept_in_float32_are_no_mismatch(tmp_path):
    folder = stored(tmp_path / "kept", lambda whole: whole | {"wo.weight": whole["wo.weight"].float()})
    load_checked(Keeping, folder, dtype=torch.float16)
    (stored(tmp_path / "wide", dtype=torch.float32) / "model.safetensors").rename(folder / "model.fp32.safetensors")
    load_checked(Keeping, folder, dtype=torch.float16)  # a variant beside it is not what is loaded
    folder = stored(tmp_path / "wrong", lambda whole: whole | {"wi.weight": whole["wi.weight"].float()})
    with pytest.raises(ParameterError, match=r"hold float32 in wi\.weight; store it again with model\.to"):
        load_checked(Keeping, folder, dtype=torch.float16)
    (folder / "config.json").write_text('{"layers": 2}')  # a config that promises no dtype
    with pytest.raises(
        ParameterError, match=r"several dtypes \(1 of float32, 1 of float16\), and config\.json names none"
    ):
        load_checked(Net, folder, dtype=torch.float16)
    load_checked(Net, stored(tmp_path / "even", config={"layers": 2}), dtype=torch.float16)


def test_folders_that_are_no_checkpoint(tmp_path):
    def refused(folder, message):
        with pytest.raises(ParameterError, match=message):
            load_checked(Net, folder, dtype=torch.float16)

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


def test_a_hub_name_is_fetched_as_safetensors_only(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "owner/absent":
            raise OSError("404\nnot found")
        return str(stored(tmp_path / "fetched"))

    monkeypatch.setattr(zoo_base, "imported", lambda name: types.SimpleNamespace(snapshot_download=snapshot_download))
    load_checked(Net, "owner/model", dtype=torch.float16)
    assert asked == [("owner/model", ["*.json", "*.safetensors"])]
    with pytest.raises(ParameterError, match=r"'owner/absent' is no folder here and the hub did not give it: 404;"):
        load_checked(Net, "owner/absent", dtype=torch.float16)


def test_a_plain_model_on_the_hub_needs_no_subfolder(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(name, *, allow_patterns):
        asked.append(allow_patterns[0])
        return str(stored(tmp_path / "fetched"))

    monkeypatch.setattr(zoo_base, "imported", lambda name: types.SimpleNamespace(snapshot_download=snapshot_download))
    load_checked(Net, "owner/model", dtype=torch.float16, subfolder="unet")
    assert asked == ["unet/*.json", "*.json"]


def test_a_missing_extra_is_unsupported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match=r"transformers is not installed; pip install 'precision-eval\[zoo\]'"):
        zoo_entry_by_id("zoo-dia").tiny()
    with pytest.raises(UnsupportedError, match="pip install"):
        zoo_entry_by_id("zoo-dia").from_pretrained("anything", dtype="float16")


def test_a_broken_package_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "brokenzoo.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        imported("brokenzoo")


def test_names():
    assert as_dtype("bfloat16") is as_dtype(torch.bfloat16) is torch.bfloat16
    with pytest.raises(UnknownNameError, match="did you mean float16"):
        as_dtype("float1")
    with pytest.raises(UnknownNameError, match="did you mean zoo-dia"):
        zoo_entry_by_id("zoo-di")
    ids = [entry.id for entry in ZOO]
    assert ids == ["zoo-dia", "zoo-t5-encoder", "zoo-svd-time-embed"]
    assert [workload.id for workload in ZOO_WORKLOADS] == ids
    assert not set(ids) & {workload.id for workload in WORKLOADS if workload not in ZOO_WORKLOADS}
    assert all(workload.sizes == ("tiny",) and not workload.by_default for workload in ZOO_WORKLOADS)
    assert len({workload.digest for workload in ZOO_WORKLOADS}) == len(ids)


def test_listing_the_zoo_loads_no_torch_and_no_library():
    code = (
        "import sys, precision_eval.zoo\n"
        "print([n for n in ('torch', 'transformers', 'diffusers', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


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
@pytest.mark.parametrize("factories", [False, True])
def test_no_cast_narrows_float64(cast, factories):
    assert cast(WIDE).double() != WIDE or cast(WIDE).dtype is not torch.float64
    with keeping_float64(factories=factories):
        kept = cast(WIDE)
    assert kept.dtype is torch.float64
    assert kept == WIDE


def test_softmax_in_float32_is_float64s():
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with keeping_float64():
        found = F.softmax(x, dim=-1, dtype=torch.float32).to(torch.float32)
    assert torch.equal(found, x.softmax(-1))


def test_all_else_is_as_before():
    with keeping_float64():
        assert torch.ones(2).half().dtype is torch.float16
        assert torch.arange(3).float().dtype is torch.float32
        assert torch.arange(3, dtype=torch.float32).dtype is torch.float32
        assert WIDE.to(torch.int64).dtype is torch.int64
        assert WIDE.long().dtype is torch.int64
        assert WIDE.to(torch.complex64).dtype is torch.complex64
    assert WIDE.float().dtype is torch.float32
    with pytest.raises(ZeroDivisionError), keeping_float64():
        raise ZeroDivisionError
    assert WIDE.float().dtype is torch.float32


def test_factories_make_float64_from_none():
    with keeping_float64(factories=True):
        assert torch.arange(3, dtype=torch.float32).dtype is torch.float64
        assert torch.full((2,), 1.0, dtype=torch.float16).dtype is torch.float64
        assert torch.arange(3).float().dtype is torch.float64
        assert torch.ones(2, dtype=torch.bool).to(dtype=torch.float32).dtype is torch.float64
        assert torch.zeros(2, dtype=torch.int64).dtype is torch.int64
        assert torch.ones(2).dtype is torch.float32  # nobody asked for a dtype
        assert torch.ones(2).half().dtype is torch.float16  # floating already, and not float64
