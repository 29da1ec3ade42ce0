"""What a model that raises is advised: a kernel that is missing, integers, and which of several casts comes first."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_eval.doctor.examination import examine

D = 8
BRAIN = torch.bfloat16


def doctor(model, *inputs):
    return examine(model, *inputs, fixes=False)


def added(patch):
    return [line[1:].strip() for line in patch.diff.splitlines() if line.startswith("+") and line[1] != "+"]


class Computes(nn.Module):
    """A function of a layer's output, in one line."""

    def __init__(self, function):
        super().__init__()
        self.function, self.project, self.out = function, nn.Linear(D, D), nn.Linear(D, 2)
        nn.init.orthogonal_(self.project.weight)

    def forward(self, x):
        return self.out(self.function(self.project(x)))


def _less_a_mask(h):
    return h * (1 - (h > 0))


def _of_several(h):
    q, _ = torch.linalg.qr(h.mT @ h)
    return h @ q


def _of_one(h):
    return h @ torch.linalg.cholesky(h.mT @ h / 9 + torch.eye(D).to(h.dtype))


def _by_index(h):
    return h * torch.linalg.eigh(h.mT @ h)[0]


def _by_name(h):
    return torch.linalg.lstsq(h, h).solution


def _over_complex_numbers(h):
    return torch.fft.irfft(torch.fft.rfft(h), n=D)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (_of_several, "q, _ = (part.to(BRAIN) for part in torch.linalg.qr((h.mT @ h).float()))"),
        (_of_one, "torch.linalg.cholesky((h.mT @ h / 9 + torch.eye(D).to(h.dtype)).float()).to(BRAIN)"),
        (_by_index, "return h * torch.linalg.eigh((h.mT @ h).float())[0].to(BRAIN)"),
        (_by_name, "return torch.linalg.lstsq(h.float(), h.float()).solution.to(h.dtype)"),
        (_over_complex_numbers, "return torch.fft.irfft(torch.fft.rfft(h.float()), n=D)"),
    ],
)
def test_what_has_no_kernel_is_computed_in_float32_there_and_cast_back(function, line):
    torch.manual_seed(0)
    x = torch.randn(40, D)
    diagnosis = doctor(Computes(function).to(BRAIN), x.to(BRAIN))
    assert diagnosis.status == "raised"
    assert diagnosis.patch.verified
    assert line.replace("BRAIN", "torch.bfloat16") in "\n".join(added(diagnosis.patch))
    assert doctor(Computes(function), x).faults == ()


class Pools(nn.Module):
    """Statistics in float32 on purpose, of which a layer in half is given some."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(D, 1)

    def forward(self, x):
        wide = x.float()
        weights = self.score(wide).softmax(1)
        return (weights * wide).sum(1).to(x.dtype)


def test_a_cast_up_that_is_computed_in_stays_and_the_other_cures_come_with_their_drift():
    torch.manual_seed(0)
    diagnosis = doctor(Pools().half(), torch.randn(2, 9, D).half())
    first, *others = diagnosis.patches
    assert added(first) == ["weights = self.score(wide.to(self.score.weight.dtype)).softmax(1)"]
    assert all(patch.verified and patch.relative_error is not None for patch in (first, *others))
    assert ["wide = x"] in [added(patch) for patch in others]
    assert f"drift {others[0].relative_error:.2g}" in str(diagnosis)


def _hands_on(outputs):
    return tuple(output.float() for output in outputs)


class Wraps(nn.Module):
    """What comes out of a part is cast up for no computation."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x):
        a, b = _hands_on((self.first(x), self.second(x)))
        return self.head(a + b)


def test_a_cast_up_that_is_only_handed_on_is_named_and_taken_out():
    torch.manual_seed(0)
    diagnosis = doctor(Wraps().half(), torch.randn(2, D).half())
    assert added(diagnosis.patch) == ["return tuple(output for output in outputs)"]
    assert f"cast from float16 at {diagnosis.raised.operands[0].history[-1].place or ''}"[:22] in str(diagnosis)


class Adapter(nn.Module):
    """A factor that is trained in float32, and a fixed one."""

    def __init__(self):
        super().__init__()
        self.base, self.scale = nn.Linear(D, D), nn.Parameter(torch.ones(D))
        self.register_buffer("fixed", torch.randn(D, D))

    def forward(self, x):
        wide = x.to(self.scale.dtype) * self.scale
        return self.base(x) + (wide @ self.fixed).to(x.dtype)


def test_what_meets_a_parameter_kept_in_float32_is_kept_so_rather_than_the_parameter_narrowed():
    torch.manual_seed(0)
    model = Adapter().to(BRAIN)
    model.scale.data = model.scale.data.float()
    patches = doctor(model, torch.randn(3, D).to(BRAIN)).patches
    assert all("self.scale.to(" not in line for line in added(patches[0]))
    assert any(patch.code == "model.fixed.data = model.fixed.data.to(torch.float32)" for patch in patches)


class Mixture(nn.Module):
    """A part in half between parts in float32."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, D)
        self.middle = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)).to(BRAIN)
        self.last = nn.Linear(D, D)

    def forward(self, ids):
        return self.last(self.middle(self.embed(ids)).float())


def test_a_part_in_half_is_cast_for_or_kept_in_float32():
    torch.manual_seed(0)
    first, *others = doctor(Mixture(), torch.arange(9)).patches
    assert added(first) == ["return self.last(self.middle(self.embed(ids).to(self.middle[0].weight.dtype)).float())"]
    wide = next(patch for patch in others if patch.code == "model.middle.to(torch.float32)")
    assert wide.relative_error < first.relative_error / 10


class Masks(nn.Module):
    """A parameter in float32 is put into what autocast computes in half."""

    def __init__(self):
        super().__init__()
        self.project, self.token = nn.Linear(D, D), nn.Parameter(torch.ones(D))

    def forward(self, x, mask):
        with torch.autocast("cpu", dtype=BRAIN):
            h = self.project(x)
            return self.project(h.masked_scatter(mask, self.token.expand_as(h)))


def test_what_autocast_narrows_is_not_widened_for_what_is_put_into_it():
    torch.manual_seed(0)
    patch = doctor(Masks(), torch.randn(4, D), torch.tensor([[True], [False]] * 2)).patch
    assert added(patch) == ["return self.project(h.masked_scatter(mask, self.token.expand_as(h).to(h.dtype)))"]


class Labels(nn.Module):
    def __init__(self, cast):
        super().__init__()
        self.project, self.cast = nn.Linear(D, D), cast

    def forward(self, x, labels):
        labels = labels.to(x.dtype) if self.cast else labels
        return F.cross_entropy(self.project(x), labels)


def test_labels_are_integers():
    x, labels = torch.randn(4, D).half(), torch.arange(4)
    taken_out, cast = doctor(Labels(cast=True).half(), x, labels).patches
    assert added(taken_out) == ["labels = labels if self.cast else labels"]
    assert added(cast) == ["return F.cross_entropy(self.project(x), labels.long())"]
    diagnosis = doctor(Labels(cast=False).half(), x, labels.half())
    assert diagnosis.patch.verified
    assert "2048" in diagnosis.first_split.reason


def test_what_takes_bits_is_to_be_given_a_mask_of_them():
    (fault,) = doctor(Computes(lambda x: x & torch.ones(3, D, dtype=torch.bool)), torch.ones(3, D)).faults
    assert "takes bool or integers" in fault.reason


def test_what_raises_without_a_floating_operand_is_named():
    (fault,) = doctor(Computes(_less_a_mask), torch.randn(3, D)).faults
    assert (fault.kind, fault.place.function) == ("raise", "_less_a_mask")


class Elsewhere(nn.Module):
    """Casts its input to the format of a layer that it does not go into."""

    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Linear(D, D), nn.Linear(D, 4 * D).half()

    def forward(self, x):
        x = x.to(self.back.weight.dtype)
        return self.back(self.front(x).half())


def test_a_cast_to_the_format_of_another_layer_is_told_and_mended():
    diagnosis = doctor(Elsewhere(), torch.randn(2, D).half())
    assert added(diagnosis.patch) == ["x = x.to(torch.float32)"]
    assert "back.weight" in str(diagnosis).partition("patch")[0]


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.both = nn.EmbeddingBag(9, D, mode="sum"), nn.Bilinear(D, D, 2)

    def forward(self, ids, weights, y):
        return self.both(self.bag(ids, per_sample_weights=weights), y)


def test_what_a_layer_is_given_second_or_by_keyword_is_cast():
    torch.manual_seed(0)
    patch = doctor(Two().half(), torch.arange(6).view(2, 3), torch.rand(2, 3), torch.randn(2, D)).patch
    (line,) = added(patch)
    assert patch.verified
    assert "per_sample_weights=weights.to(self.bag.weight.dtype)" in line
    assert "y.to(self.both.weight.dtype)" in line


def test_sparse_operands_are_observed():
    class Spreads(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(D, D)

        def forward(self, x):
            return torch.sparse.mm(torch.eye(3).to_sparse(), self.project(x))

    assert doctor(Spreads(), torch.randn(3, D)).faults == ()
    assert doctor(Spreads().to(BRAIN), torch.randn(3, D).to(BRAIN)).raised.op == "_sparse_mm"
