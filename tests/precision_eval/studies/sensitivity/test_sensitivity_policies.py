"""Policies that really run: both ends, what each part is stored in, attention in blocks, and the contest."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from precision_eval.fixes.catalog import fix_by_id
from precision_eval.studies.sensitivity import search as contests
from precision_eval.studies.sensitivity.mapping import prepare
from precision_eval.studies.sensitivity.policies import MixedPolicy, attention_in_blocks, put_on
from precision_eval.studies.sensitivity.search import CONTROL, PolicyRun, contest, finalists, outcome_of, search
from precision_eval.studies.sensitivity.targets import target_by_id


@pytest.fixture(scope="module", params=["t5-encoder", "dia-encoder", "dia-decoder", "voice"])
def one(request):
    return prepare(target_by_id(request.param), size="tiny", seed=0, format="bfloat16")


def executed(subject, policy):
    applied = put_on(subject, policy)
    with applied.agreeing():
        return applied()


def uniform(subject, fix):
    with fix_by_id(fix).applied(copy.deepcopy(subject.model)) as call:
        return call(*call.prepare(subject.inputs))


def test_both_ends_are_the_uniform_fixes_bit_for_bit(one):
    assert torch.equal(executed(one.subject, MixedPolicy()), uniform(one.subject, "bfloat16"))
    roles = tuple(dict.fromkeys(site.role for site in one.tape.sites))
    wide = executed(one.subject, MixedPolicy(held=roles))
    assert torch.equal(wide, executed(one.subject, MixedPolicy(format="float32")))
    assert torch.equal(wide, uniform(one.subject, "full_float32"))


def test_the_map_foretells_what_a_policy_that_runs_drifts(one):
    narrow = one.subject.drift(executed(one.subject, MixedPolicy()), one.reference).mean()
    for held in (("residual", "stem"), ("mlp",), ("residual", "stem", "norm", "output", "mlp")):
        policy = MixedPolicy(held=held)
        found = one.subject.drift(executed(one.subject, policy), one.reference).mean()
        assert found == pytest.approx(one.drift(policy.foretold(one.tape.sites)).mean(), rel=0.5)
        assert found < narrow


def test_parts_are_stored_as_the_policy_says():
    subject = target_by_id("dia-decoder").build("tiny", seed=0)
    before = {name: (t.dtype, t.clone()) for name, t in subject.model.state_dict().items()}
    model = put_on(subject, MixedPolicy(held=("norm", "positions", "1.output"), cache="float16")).model
    dtypes = {name: t.dtype for name, t in (*model.named_parameters(), *model.named_buffers())}
    assert dtypes["dia.model.decoder.layers.0.pre_sa_norm.weight"] is torch.float32
    assert dtypes["dia.model.decoder.layers.1.self_attention.o_proj.weight"] is torch.float32
    assert dtypes["dia.model.decoder.layers.0.self_attention.o_proj.weight"] is torch.bfloat16
    assert dtypes["dia.model.decoder.rotary_emb.inv_freq"] is torch.float32
    assert dtypes["self_0_key"] is dtypes["cross_1_value"] is torch.float16
    after = subject.model.state_dict()
    assert all(after[name].dtype is dtype and torch.equal(after[name], t) for name, (dtype, t) in before.items())


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("masked", ["none", "bool", "per head", "floating"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention_in_blocks_is_attention(heads, masked, dtype):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, heads[0], 1, 8, generator=generator)
    key, value = (torch.randn(2, heads[1], 12, 8, generator=generator).to(dtype) for _ in range(2))
    mask = {
        "none": None,
        "bool": (torch.arange(12) < 9)[None, None, None],
        "per head": torch.rand(2, heads[0], 1, 12, generator=generator) < 0.7,
        "floating": torch.randn(1, heads[0], 1, 12, generator=generator),
    }[masked]
    expected = F.scaled_dot_product_attention(
        query, key.float(), value.float(), attn_mask=mask, scale=0.3, enable_gqa=heads[0] != heads[1]
    )
    found = attention_in_blocks(query, key, value, mask, scale=0.3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bounds", [(math.nan, math.nan), (1.2, 1.1), (0.5, 0.8)])
def test_an_interval_that_does_not_hold_its_ratio_decides_nothing(bounds):
    drift = np.array([1e-3, 2e-3, 3e-3, 4e-3])
    uniform = contests._Fix(id="bfloat16", status="passed", message="", drift=drift)
    ratio = SimpleNamespace(ratio=1.0, verdict_low=bounds[0], verdict_high=bounds[1], median_s=1e-3, doubts=())
    found = contests._versus(uniform, drift / 2, ratio)
    assert (found.time_low, found.time_high, found.outcome) == (0.0, contests.UNBOUNDED, "undecided")


@pytest.mark.parametrize(
    ("drift", "time_s", "expected"),
    [
        ((0.5, 0.6), (0.7, 0.9), "better in both"),
        ((0.5, 0.6), (0.95, 1.04), "lower drift at equal speed"),
        ((0.98, 1.05), (0.7, 0.9), "faster at equal drift"),
        ((1.5, 2.0), (0.7, 0.9), "faster, more drift"),
        ((0.5, 0.6), (1.2, 1.4), "slower, less drift"),
        ((1.5, 2.0), (1.2, 1.4), "worse"),
        ((0.5, 0.6), (0.9, 1.2), "undecided"),
        ((0.9, 1.2), (0.7, 0.9), "undecided"),
        ((1.5, 2.0), (0.95, 1.04), "undecided"),
    ],
)
def test_outcomes_are_decided_by_intervals(drift, time_s, expected):
    assert outcome_of(drift, time_s) == expected


def point(held, drift, time_ratio, format="bfloat16", cache="", narrow=3):
    policy = MixedPolicy(format=format, held=held, cache=cache)
    return PolicyRun(policy=policy, drift=drift, foretold=None, time_ratio=time_ratio, narrow=narrow)


def test_finalists_follow_their_rules():
    plain = [point((), 1e-2, 1.0), point((), 1e-7, 2.0, format="float32")]
    cheap, dear = point(("norm",), 5e-3, 1.02), point(("norm", "mlp"), 1e-3, 1.3)
    close = point((), 1.05e-7, 1.5, format="float32", cache="float16")
    found = finalists([*plain, cheap, dear, close])
    assert found == {"equal_speed": cheap.policy, "equal_drift": close.policy}
    assert finalists([*plain, dear]) == {"balanced": dear.policy}
    assert finalists(plain) == {}
    assert finalists([*plain, point(("norm", "mlp"), 1e-7, 1.0, narrow=0)]) == {}  # float32 by another name
    assert finalists([*plain, point(("norm",), math.inf, 1.0)]) == {}


def test_search_and_contest_run_end_to_end():
    one = prepare(target_by_id("attention-decode"), size="tiny", seed=0, format="bfloat16")
    points = search(one, budget_s=0.005)
    by_id = {found.policy.id: found for found in points}
    assert by_id["bf16"].time_ratio == 1.0
    assert by_id["f32, cache f16 in blocks"].drift < 1e-6
    assert by_id["bf16"].drift > 1e-4
    policies = {"equal_drift": MixedPolicy(format="float32", cache="float16", in_blocks=True)}
    (found,) = contest(
        "attention-decode", policies, size="tiny", seed=0, processes=1, budget_s=0.01, fixes=("bfloat16", "as_shipped")
    )
    versus = {one.fix: one for one in found.versus}
    assert versus["as_shipped"].outcome == "no cure"
    assert "same dtype" in versus["as_shipped"].message
    assert versus["bfloat16"].drift_high < 0.01
    assert versus["bfloat16"].time_low <= versus["bfloat16"].time_ratio <= versus["bfloat16"].time_high
    assert versus[CONTROL].drift_ratio == pytest.approx(1.0, rel=0.2)
    assert found.beats_all == all(v.outcome in contests.BEATS for v in found.versus if v.fix != CONTROL)
