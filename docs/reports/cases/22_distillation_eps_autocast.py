# lightonai/pylate#240: the distillation loss is NaN under fp16 and fine in bf16; all gradients are NaN
# answer: the guard epsilon 1e-8 is zero in float16; clamp the denominator, or normalise the scores in float32
import torch
import torch.nn.functional as F
from torch import nn


def normalise(scores, epsilon=1e-8):
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low + epsilon)


class Distillation(nn.Module):
    """The gradient of the query projection after one batch."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(16, 16)
        self.document = nn.Linear(16, 16)

    def forward(self, queries, documents, teacher):
        with torch.enable_grad():
            with torch.autocast("cpu", dtype=torch.float16):
                scores = torch.einsum("qd,qnd->qn", self.query(queries), self.document(documents))
                student, target = normalise(scores), normalise(teacher.to(scores.dtype))
                loss = F.kl_div(student.log_softmax(-1), target.softmax(-1), reduction="batchmean")
            return torch.autograd.grad(loss, self.query.weight)[0]


def factory():
    teacher = torch.full((2, 4), 0.5)  # four documents that the teacher scores alike
    return Distillation(), (torch.randn(2, 16), torch.randn(2, 4, 16), teacher)
