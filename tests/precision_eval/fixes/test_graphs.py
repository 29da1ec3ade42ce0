"""Cache writes in compiled graphs: the cast that the graph gets where no function mode sees the assignment."""

import pytest
import torch
from torch import fx, nn

from precision_eval.cases.systems import case_by_id
from precision_eval.fixes import apply, fix_by_id
from precision_eval.fixes.apply import AppliedFix
from precision_eval.fixes.patches import add_write_casts, modes_see_writes


def write(cache, index, value):
    cache[:, index] = value
    return cache * 1


def written(function, cache_dtype, *arguments):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=add_write_casts("eager"))
    return compiled(torch.zeros(2, 4, dtype=cache_dtype), *arguments)


def test_a_write_with_a_tensor_index_is_cast():
    index, value = torch.tensor([1, 3]), torch.full((2, 2), 0.1)
    with pytest.raises(RuntimeError, match="Index put requires"):
        write(torch.zeros(2, 4, dtype=torch.float16), index, value)
    found = written(write, torch.float16, index, value)
    assert found.dtype is torch.float16
    assert torch.equal(found[:, index], value.half())
    assert found[:, [0, 2]].count_nonzero() == 0


def test_a_plain_slice_and_equal_dtypes_get_no_cast():
    graphs = []

    def watched(module, inputs):
        add_write_casts("eager")(module, inputs)
        graphs.append([node.target for node in module.graph.nodes if node.op == "call_method"])
        return module

    def slice_write(cache, value):
        cache[:, 1:3] = value
        return cache * 1

    torch._dynamo.reset()
    torch.compile(slice_write, backend=watched)(torch.zeros(2, 4, dtype=torch.float16), torch.ones(2, 2))
    torch.compile(write, backend=watched)(torch.zeros(2, 4), torch.tensor([1]), torch.ones(2, 1))
    assert graphs == [[], []]


@pytest.mark.parametrize("fix_id", ["query_to_half", "kv_to_query"])
def test_a_fix_cures_a_cache_write_without_the_mode(monkeypatch, fix_id):
    built = case_by_id("metavoice-decode").build("tiny", device="cpu", seed=1)
    with fix_by_id(fix_id).applied(built.model) as call:
        expected = call(*call.prepare(built.inputs))[0]
    monkeypatch.setattr(apply, "modes_see_writes", lambda: False)
    torch._dynamo.reset()
    applied = apply.AppliedFix(fix_by_id(fix_id), built.model, mode="compiled", backend="eager")
    writes = {original for original in applied_mode(applied)._wrappers if original.__name__ == "__setitem__"}
    assert len(writes) == 1
    for original in writes:  # as if Dynamo did not ask the mode
        applied_mode(applied)._wrappers[original] = original
    with applied:
        found = applied(*applied.prepare(built.inputs))[0]
    assert torch.equal(found, expected)


def applied_mode(applied):
    cells = dict(zip(applied.function.__code__.co_freevars, applied.function.__closure__, strict=True))
    return cells["agreement"].cell_contents


def test_the_version_at_hand_does_what_it_is_said_to(monkeypatch):
    """Without the cast in the graph, a fix cures the write exactly where modes see it."""
    built = case_by_id("metavoice-decode").build("tiny", device="cpu", seed=1)
    monkeypatch.setattr(apply, "modes_see_writes", lambda: True)
    torch._dynamo.reset()
    with apply.AppliedFix(fix_by_id("query_to_half"), built.model, mode="compiled", backend="eager") as applied:
        try:
            message = "" if applied(*applied.prepare(built.inputs))[0].isfinite().all() else "not finite"
        except RuntimeError as error:
            message = str(error)
    assert (message == "") == modes_see_writes()
    assert message == "" or "Index put requires" in message


def test_a_compiled_call_that_raises_inside_autocast_leaves_it():
    """The graph's own exit from autocast is never reached; left inside, casts of weights would be kept for good."""
    built = case_by_id("metavoice-decode").build("tiny", device="cpu", seed=1)
    torch._dynamo.reset()
    applied = apply.AppliedFix(fix_by_id("autocast"), built.model, mode="compiled", backend="eager")
    with pytest.raises(RuntimeError, match="Index put requires"), applied:
        applied(*applied.prepare(built.inputs))
    assert not torch.is_autocast_enabled("cpu")
    weight = torch.nn.Linear(4, 4, bias=False)
    for value in (1.0, 2.0):
        with torch.no_grad():
            weight.weight.fill_(value)
        with torch.autocast("cpu"):
            assert weight(torch.ones(1, 4))[0, 0] == 4 * value


class TestCompileMode:
    """What a mode of the compiler asks of inductor; inductor and CUDA take no part."""

    @pytest.fixture
    def compiled(self, monkeypatch):
        given, steps = {}, []

        def compile_(function, *, backend, **options):
            given.update(backend=backend, **options)
            return lambda *inputs: steps.append("call") or function(*inputs)

        monkeypatch.setattr(torch, "compile", compile_)
        monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append("step"))
        return given, steps

    @pytest.mark.parametrize(
        ("mode", "settings", "steps"),
        [
            (None, {}, ["call"]),
            ("reduce-overhead", {"triton.cudagraphs": True}, ["step", "call"]),
            ("max-autotune", {"triton.cudagraphs": True, "max_autotune": True}, ["step", "call"]),
        ],
    )
    def test_settings_and_steps(self, compiled, mode, settings, steps):
        call = AppliedFix(fix_by_id("full_float32"), nn.Linear(2, 2), mode="compiled", compile_mode=mode)
        with call:
            call(torch.ones(1, 2))
        given, made = compiled
        assert settings.items() <= given.get("options", {}).items()
        assert ("options" in given) == bool(settings)
        assert made == steps

    def test_casts_in_the_graph_hand_them_on(self, monkeypatch):
        given = []
        monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lambda module, inputs, **kw: given.append(kw))
        module = fx.symbolic_trace(nn.Linear(2, 2))
        add_write_casts("inductor", {"triton.cudagraphs": True})(module, [])
        add_write_casts("inductor")(module, [])
        assert given == [{"config_patches": {"triton.cudagraphs": True}}, {}]
