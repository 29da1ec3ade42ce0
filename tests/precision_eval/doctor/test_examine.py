"""Bad input, state, repeatability, the references, the suggested change, and that nothing is left behind."""

from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from precision_eval.core.errors import ParameterError
from precision_eval.doctor import remedies
from precision_eval.doctor.diagnosis import Remedy
from precision_eval.doctor.examination import examine
from precision_eval.fixes.packing import ExaminedModel
from precision_eval.measure import float64_reference as reference
from precision_eval.measure.model_calls import base_dtype, observe_call, relative_error, seed_all, subject_of

D = 8


def quick(model, *inputs, **options):
    return examine(model, *inputs, **{"fixes": False, "compiled": False} | options)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("model", (), "the model is a str; expected a torch.nn.Module"),
        (nn.Linear(D, D), (), "cannot be called with the inputs given .* missing a required argument: 'input'"),
        (nn.Linear(D, D), ({"x": torch.ones(2, D)},), "x keyword inputs.*missing a required argument: 'input'"),
        (nn.Linear(D, D), (torch.ones(2, D + 1),), "raises RuntimeError at .*: .* not a dtype error"),
    ],
)
def test_bad_input_is_one_clear_line(model, inputs, message):
    with pytest.raises(ParameterError, match=message):
        quick(model, *inputs)
    with pytest.raises(ParameterError, match="available_bytes is -1"):
        quick(nn.Linear(D, D), torch.ones(2, D), available_bytes=-1)


class Counting(nn.Module):
    """Carries state from call to call, in a buffer and as a plain number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.count += 1.0
        return x * self.count


def test_state_is_reported_and_put_back():
    model = Counting()
    found = quick(model, torch.ones(3))
    assert "carries state from call to call (count)" in found.doubts[0]
    assert (float(model.count), model.calls) == (0.0, 0)
    trials = examine(model, torch.ones(3), compiled=False)
    assert "latency and memory were not measured" in " ".join(trials.doubts)
    assert all(remedy.latency_ratio is None for remedy in trials.remedies)


class Unrepeatable(nn.Module):
    made = 0

    def forward(self, x):
        Unrepeatable.made += 1
        return x * Unrepeatable.made


def test_what_does_not_repeat_is_refused_where_drift_is_asked_for():
    with pytest.raises(ParameterError, match=r"Unrepeatable does not repeat: two calls .* differ by"):
        examine(Unrepeatable(), torch.ones(3), compiled=False)
    assert any("two calls from the same state differ" in doubt for doubt in quick(Unrepeatable(), torch.ones(3)).doubts)


def test_observing_changes_nothing_and_leaves_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D))
    subject = ExaminedModel(model, (torch.randn(4, D),), {})
    with torch.no_grad():
        plain = model(*subject.tensors)
    observer, outcome = observe_call(
        subject, lambda: subject(*subject.tensors), subject.tensors, base=torch.float32, values=True
    )
    assert torch.equal(outcome.outputs[0], plain)
    assert observer.number > 0
    assert not module_hooks._global_forward_hooks
    assert not module_hooks._global_forward_pre_hooks
    assert not torch.overrides._get_current_function_mode_stack()


class Box:
    """A cache that is no module and no container."""

    def __init__(self):
        self.keys = torch.ones(2, D)


def test_tensors_inside_objects_are_named_and_put_back():
    class Appending(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(D, D).half()

        def forward(self, x, box):
            box.keys = torch.cat((box.keys, self.project(x)))
            return box.keys

    box = Box()
    found = quick(Appending(), torch.ones(1, D).half(), box)
    assert (found.first_split.op, found.first_split.operands[0].brought_by) == ("cat", "input box.keys")
    assert box.keys.shape == (2, D)


def test_layer_by_layer_is_float64_and_gives_the_same_numbers():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(D, D), nn.Tanh()) for _ in range(3))).half()
    subject = subject_of(model, (torch.randn(4, D).half(),))
    whole = reference.reference_of(subject, available_bytes=2**30)
    layers = reference.reference_of(subject, available_bytes=0)
    assert (whole.name, layers.name) == ("float64", "float64, layer by layer")
    assert whole.outputs[0].dtype is layers.outputs[0].dtype is torch.float64
    assert torch.equal(whole.outputs[0], layers.outputs[0])
    assert "float64 needs" in layers.doubts[0]
    exact = model[:].double()(subject.tensors[0].double())
    assert relative_error(whole.outputs[0], exact) < 1e-14


def test_float32_is_the_last_resort_and_says_so():
    class Refusing(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D))

        def forward(self, x):
            if x.dtype is torch.float64:
                raise RuntimeError("no kernel for float64")
            return x * self.gain

    found = reference.reference_of(subject_of(Refusing(), (torch.ones(2, D),)), available_bytes=2**30)
    assert found.name == "float32"
    assert "no kernel for float64" in found.doubts[0]
    assert "held to float32" in found.doubts[-1]


class Sampling(nn.Module):
    """Adds noise from a generator of its own, drawn in the format of what it is given, as samplers do."""

    def __init__(self, draw, dtype):
        super().__init__()
        self.draw = draw
        self.dtype = dtype
        self.weight = nn.Parameter(torch.full((D,), 1 / 3, dtype=dtype))

    def forward(self, x):
        draws = torch.Generator().manual_seed(5)
        return x * self.weight + self.draw(x, draws)


DRAWING = {
    "named": lambda x, draws: torch.randn(x.shape, dtype=x.dtype, generator=draws),
    "alike": lambda x, draws: torch.randn_like(x),
    "in place": lambda x, draws: torch.empty_like(x).uniform_(-1, 3, generator=draws),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("way", list(DRAWING))
def test_the_reference_draws_the_numbers_that_the_model_draws(way, dtype):
    x = torch.ones(2, D, dtype=dtype)
    subject = subject_of(Sampling(DRAWING[way], dtype), (x,))
    found = reference.reference_of(subject, available_bytes=2**30)
    with seed_all(0):
        drawn = DRAWING[way](x, torch.Generator().manual_seed(5))
    assert torch.equal(found.outputs[0], subject.model.weight.double() + drawn.double())
    assert subject.drawn == (dtype,)


def test_ranking_puts_the_undominated_first_by_drift():
    def remedy(fix, error, ratio, peak, *, cures=True):
        return Remedy(
            fix=fix, title=fix, mode="eager", status="passed", cures=cures, relative_error=error,
            latency_ratio=ratio, allocated_peak_bytes=peak, stored_bytes=1,
        )  # fmt: skip

    found = remedies._rank(
        [
            remedy("slow and coarse", 0.1, 2.0, 9),
            remedy("fast", 0.01, 0.5, 5),
            remedy("exact", 1e-6, 1.0, 5),
            remedy("no cure", 0.0, 0.1, 1, cures=False),
        ]
    )
    assert [(r.fix, r.is_best) for r in found] == [
        ("exact", True), ("fast", True), ("slow and coarse", False), ("no cure", False),
    ]  # fmt: skip


def test_relative_error_by_hand():
    assert relative_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)
    infinite = torch.tensor([3.0, float("inf")])
    assert relative_error(infinite, infinite) == 0.0
    assert relative_error(infinite, torch.ones(2)) == float("inf")
    assert relative_error(torch.tensor([3, 5, 7, 9]), torch.tensor([3, 5, 7, 1000])) == 0.25  # of tokens, the share


def test_base_is_what_most_elements_are_in():
    model = nn.ModuleList([nn.Linear(D, D).half(), nn.LayerNorm(D)])
    assert base_dtype(ExaminedModel(model, (), {})) is torch.float16
    assert base_dtype(ExaminedModel(nn.Identity(), (torch.ones(2).bfloat16(),), {})) is torch.bfloat16


class Split(nn.Module):
    """A float32 gain in a half model, before a part."""

    def __init__(self, part):
        super().__init__()
        self.project, self.gain = part, nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.project(x * self.gain)


def split_model(part=None):
    model = Split(nn.Linear(D, D) if part is None else part).half()
    model.gain.data = model.gain.data.float()
    return model.eval().requires_grad_(False)


class Sharded(torch.Tensor):
    """What stands for a shard: a tensor that holds another one, as DTensor does."""

    @staticmethod
    def __new__(cls, whole):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)

    def __init__(self, whole):
        self.whole = whole

    def __tensor_flatten__(self):
        return ["whole"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Sharded(inner["whole"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def test_what_holds_no_plain_values_is_one_line():
    model = split_model()
    with pytest.raises(ParameterError, match=r"the parameter 'gain' is on meta and has no values; load the weights"):
        quick(split_model().to("meta"), torch.ones(2, D).half())
    model.register_buffer("shard", Sharded(torch.ones(D)))
    with pytest.raises(ParameterError, match=r"the buffer 'shard' is a Sharded, .* gather it \(full_tensor\(\)\)"):
        quick(model, torch.ones(2, D).half())


def test_a_model_of_which_memory_holds_no_copy_is_one_line():
    with pytest.raises(ParameterError, match=r"a copy of Linear needs 352 B, 100 B are free; .* fewer layers"):
        quick(nn.Linear(D, D), torch.ones(2, D), available_bytes=100)


def test_hooks_are_part_of_what_is_examined_and_stay_where_they_were():
    model, calls = split_model(), []
    model.project.register_forward_pre_hook(lambda module, args: (args[0].half(),))
    model.project.register_forward_hook(lambda *_: calls.append(1))
    found = quick(model, torch.ones(2, D).half())
    assert (found.status, [f.severity for f in found.findings]) == ("passed", ["risk"])
    assert calls
    assert (len(model.project._forward_pre_hooks), len(model.project._forward_hooks)) == (1, 1)


@pytest.mark.parametrize("how", ["as a whole", "in place", "a part"])
def test_what_is_compiled_is_examined_in_eager(how):
    model = split_model(nn.Identity() if how != "a part" else torch.compile(nn.Linear(D, D).half(), backend="eager"))
    if how == "in place":
        model.compile(backend="eager")
    elif how == "as a whole":
        model = torch.compile(model, backend="eager")
    first = quick(model, torch.ones(2, D).half()).first_split
    assert (first.op, first.module, first.place.text) == ("mul", "", "return self.project(x * self.gain)")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_scripted_model_has_no_line_and_gets_a_change_of_what_is_stored():
    found = quick(torch.jit.script(split_model()), torch.ones(2, D).half())
    assert (found.status, found.first_split.place) == ("raised", None)
    assert any("inside ScriptModules are not seen" in doubt for doubt in found.doubts)
    assert found.patch.code == "model.gain.data = model.gain.data.to(torch.float16)"
    assert "findings.py" not in str(found)


HOOKS = """def wrapped(module):
    module.forward, module._old_forward = lambda *args: module._old_forward(*args), module.forward
"""


def test_a_line_is_none_of_the_hooks_that_take_a_forwards_place(tmp_path):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "hooks.py").write_text(HOOKS, encoding="utf-8")
    spec = spec_from_file_location("hooks_of_accelerate", tmp_path / "accelerate" / "hooks.py")
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    model = nn.Sequential(nn.Linear(D, D).half())
    hooks.wrapped(model[0])

    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            return self.net[0](x)

    found = quick(Hooked(), torch.ones(2, D))
    assert found.first_split.place.text == "return self.net[0](x)"
    assert "self.net[0](x.to(self.net[0].weight.dtype))" in next(patch.diff for patch in found.patches if patch.diff)


@pytest.mark.filterwarnings("ignore:.*quantiz.*", "ignore:.*torch.ao.*")
def test_a_dynamically_quantised_layer_beside_half_is_located_and_cured_from_outside():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter = nn.Linear(D, D).half()
            plain = nn.Sequential(nn.Linear(D, D))
            self.codes = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)

        def forward(self, x):
            return self.codes(self.enter(x))

    found = quick(Beside().eval().requires_grad_(False), torch.ones(2, D).half(), fixes=True, latency=False)
    assert (found.status, found.first_split.module) == ("raised", "codes.0")
    assert "is float16 by" in str(found).split("why")[1].splitlines()[0]
    assert found.patch.verified
    assert "self.codes(self.enter(x).float())" in found.patch.diff  # a packed layer has no weight to ask


class Talker(nn.Module):
    """Greedy decoding of one step, with scores that some models leave out before the choice."""

    def __init__(self, gain=1.0, excluded=False):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, 100)
        self.norm, self.excluded = nn.LayerNorm(32), excluded
        with torch.no_grad():
            self.up.weight.mul_(gain)
            self.down.weight.mul_(gain)

    def forward(self, h):
        scores = self.head(self.norm(h + self.down(torch.relu(self.up(h)))))
        if self.excluded:
            scores = scores + torch.log((torch.arange(100) > 50).to(scores.dtype))
        return scores.argmax(-1)


def test_an_overflow_ahead_of_tokens_is_a_fault_with_its_line():
    torch.manual_seed(0)
    diagnosis = examine(Talker(gain=600.0).half().eval(), torch.randn(3, 32).half(), latency=False)
    assert diagnosis.status == "non_finite"
    assert [(fault.kind, fault.module) for fault in diagnosis.faults] == [("first_non_finite", "down")]
    cures = {remedy.fix: remedy.cures for remedy in diagnosis.remedies}
    assert cures["full_float32"]
    assert cures["bfloat16"]
    assert not cures["query_to_half"]


def test_infinities_that_change_no_token_are_no_fault():
    torch.manual_seed(0)
    for model in (Talker(), Talker(excluded=True)):
        diagnosis = examine(model.half().eval(), torch.randn(3, 32).half(), fixes=False)
        assert diagnosis.status == "passed"
        assert diagnosis.faults == ()
        assert any("silent rounding is not seen; 0 % of the tokens" in doubt for doubt in diagnosis.doubts)
