"""A policy of any model's modules: its parts, the file that holds it, and that it keeps to its limit."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from precision_eval.cases.base import BuiltCase
from precision_eval.cases.systems import case_by_id
from precision_eval.core.files import TrialFile
from precision_eval.fixes import fix_by_id
from precision_eval.measure.system_drift import relative_error, system_drift
from precision_eval.studies import modules
from precision_eval.studies.modules import (
    NOT_CALLED,
    ModulePolicy,
    Part,
    advice,
    fix_of,
    module_of,
    parts_of,
    policy_table,
    search_modules,
)

CASE = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), scale))

    def forward(self, x):
        return x * self.weight


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scaled = Scaled(1.0)
        self.bare = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.scaled(self.second(self.first(self.tokens(ids))))
        x = x + 1e-3 * self.attention(x, x, x, need_weights=False)[0]
        return self.head(nn.functional.linear(x, self.bare.weight))


def factory():
    return Model().half().eval(), (torch.randint(0, 16, (2, 5)),)
"""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy_case.py"
    path.write_text(CASE, encoding="utf-8")
    return case_by_id(f"{path}:factory")


@pytest.fixture(scope="module")
def found(case, tmp_path_factory):
    file = TrialFile(tmp_path_factory.mktemp("modules") / "modules.jsonl")
    policy = search_modules(case, "own", seeds=(0, 1), format="bfloat16", file=file)
    return policy, file


def test_parts_are_leaves_torchs_own_modules_and_what_shares_weights(case):
    parts = parts_of(module_of(case.build("own", device="cpu", seed=0)))
    assert [part.names for part in parts] == [
        ("tokens", "head"), ("first",), ("second",), ("attention",), ("scaled",), ("bare",),
    ]  # fmt: skip
    assert [part.saved_bytes for part in parts] == [2 * n for n in (128, 72, 72, 24 * 8 + 24 + 72, 8, 64)]


def test_no_part_is_float32_and_each_part_is_cast_on_both_sides(case):
    built = case.build("own", device="cpu", seed=0)
    with fix_of((), "bfloat16").applied(built.model) as call:
        found = call(*built.inputs)
    with fix_by_id("full_float32").applied(copy.deepcopy(built.model)) as call:
        assert torch.equal(found[0], call(*built.inputs)[0])
    second = [part for part in parts_of(module_of(built)) if part.names == ("second",)]
    with fix_of(second, "bfloat16").applied(built.model) as call:
        found = call(*built.inputs)[0]
    by_hand = copy.deepcopy(module_of(built)).float()
    plain = by_hand.second
    narrow = copy.deepcopy(plain).bfloat16()
    by_hand.second = nn.Sequential()
    by_hand.second.forward = lambda x: narrow(x.bfloat16()).float()
    with torch.no_grad():
        assert torch.equal(found, by_hand(*built.inputs))
    assert next(module_of(built).parameters()).dtype is torch.float16  # the model itself is as it was


def test_the_policy_keeps_to_its_limit_and_is_the_longest_that_does(case, found):
    policy, _ = found
    assert policy.float32 < policy.drift <= policy.limit == pytest.approx(0.5 * policy.all_half)
    assert 0 < len(policy.parts) < len(policy.tried)
    bare = next(part for part in policy.tried if part.names == ("bare",))
    assert (bare.drift, bare.reason) == (None, NOT_CALLED)  # its weight is used without calling it
    assert ("bare", "128", "–", f"no: {NOT_CALLED}") in policy_table(policy).rows


def test_modules_of_like_layers_share_a_row():
    parts = [
        Part(names=(name,), saved_bytes=10, drift=drift, reason=reason)
        for name, drift, reason in (
            ("blocks.0.up", 3e-4, ""), ("blocks.1.up", 5e-4, ""), ("blocks.0.down", 1e-4, ""),
            ("blocks.1.down", 2e-4, ""),
            ("head.0", 7e-4, ""), ("head.2", 6e-4, ""), ("blocks.2.up", None, NOT_CALLED),
        )
    ]  # fmt: skip
    chosen = (parts[0], parts[2], parts[3])
    policy = ModulePolicy(parts=chosen, tried=tuple(parts), format="float16", drift=0, float32=0, all_half=1, limit=1)
    assert sorted(policy_table(policy, every=False).rows) == [
        ("blocks.*.down (2)", "20", "2.00e-04 to 1.00e-04", "yes"),
        ("blocks.*.up (2)", "20", "5.00e-04 to 3.00e-04", "1 of 2"),
        ("blocks.2.up", "10", "–", f"no: {NOT_CALLED}"),
        ("head.0", "10", "7.00e-04", "no"),
        ("head.2", "10", "6.00e-04", "no"),
    ]
    assert [row[0] for row in policy_table(policy).rows][1] == "head.0"
    assert len(policy_table(policy).rows) == len(parts)


def test_what_was_run_is_not_run_again(case, found, monkeypatch):
    policy, file = found
    monkeypatch.setattr("precision_eval.studies.modules._Drifts._run", None)
    assert search_modules(case, "own", seeds=(0, 1), format="bfloat16", file=file) == policy


def test_the_file_is_a_candidate_and_plain_pytorch(case, program, tmp_path):
    code, out, _ = program("modules", case.id, "--out", tmp_path, "--set", "held_out=off")
    assert code == 0
    assert "parts in bfloat16 save" in " ".join(out.split())
    assert "× the time of float32" in " ".join(out.split())
    target = f"{tmp_path / 'policy.py'}:policy"
    built = case.build("own", device="cpu", seed=5)
    with fix_by_id(target).applied(copy.deepcopy(built.model)) as call:
        drift = relative_error(built, call)
    with fix_by_id("full_float32").applied(copy.deepcopy(built.model)) as call:
        assert relative_error(built, call) < drift
    with fix_by_id("bfloat16").applied(copy.deepcopy(built.model)) as call:
        assert drift < relative_error(built, call)
    assert "precision_eval" not in (tmp_path / "policy.py").read_text(encoding="utf-8")


def test_a_policy_of_a_shipped_system_is_held_to_float64(case):
    case = case_by_id("metavoice-decode")
    built = case.build(case.sizes[0], device="cpu", seed=0)
    parts = parts_of(module_of(built))
    drifts = []
    for chosen in ((), parts[-2:]):
        with fix_of(chosen, "bfloat16").applied(copy.deepcopy(built.model)) as call:
            drifts.append(system_drift(built, call).relative_error)
    assert 0 < drifts[0] < drifts[1] < 0.1


def test_parts_are_named_as_in_the_model_that_a_step_is_around(case):
    class Step(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.voice = model

        def forward(self, ids):
            return self.voice(ids)

    built = case.build("own", device="cpu", seed=0)
    around = BuiltCase(Step(module_of(built)), built.inputs)
    names = [part.names for part in parts_of(module_of(around))]
    assert names == [part.names for part in parts_of(module_of(built))]
    held = []
    for model in (around.model, module_of(built)):
        with fix_of(parts_of(module_of(built))[1:2], "bfloat16").applied(copy.deepcopy(model)) as call:
            held.append(call(*built.inputs))
    assert torch.equal(*held)


def test_a_model_of_one_layer_has_a_part():
    model = nn.Sequential(nn.Linear(4, 4))
    for around in (model, nn.Sequential(model)):
        (part,) = parts_of(module_of(BuiltCase(around, (torch.ones(1, 4),))))
        assert part.names == ("0",)


@pytest.mark.parametrize(("verdict", "start"), [("faster", "Recommended"), ("slower", "Not recommended for speed")])
def test_a_policy_is_recommended_by_its_time(found, verdict, start):
    time = SimpleNamespace(verdict=verdict, ratio=1.0, ratio_low=1.0, ratio_high=1.0)
    assert advice(found[0], time).startswith(start)


def test_on_a_gpu_the_policy_is_judged_by_the_device_and_launched_beside(case, found, monkeypatch):
    def compare(candidates, *, timer=None, graph=False, device, **_):
        assert device == "cuda"
        low = 0.4 if graph else 1.1
        assert graph != (timer is not None)
        return {"policy": SimpleNamespace(verdict="faster", ratio=low, ratio_low=low, ratio_high=low)}

    monkeypatch.setattr(modules, "compare_latency", compare)
    monkeypatch.setattr(modules, "LaunchedTimer", lambda device: device)
    built = case.build("own", device="cpu", seed=0)
    text = advice(found[0], *modules.time_policy(found[0], built, device="cuda"))
    assert text.startswith("Recommended")
    assert text.index("0.40 ×") < text.index("on the device") < text.index("1.10 ×")


def test_bad_input_is_named(refused, tmp_path):
    refused("float8", "modules", "imaginairy-time-embed", "--out", tmp_path / "a", "--set", "format=float8")
    refused("no module with parameters", "modules", "attention-decode", "--out", tmp_path / "b")
