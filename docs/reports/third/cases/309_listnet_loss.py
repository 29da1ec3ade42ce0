"""https://github.com/huggingface/sentence-transformers/pull/3800 (2026)

Training a CrossEncoder reranker in bf16 with a learning-to-rank loss crashes:
RuntimeError: Index put requires the source and destination dtypes match, got Float for the destination and
BFloat16 for the source.
"""
import torch
from torch import nn


class ListNetLoss(nn.Module):
    def __init__(self, model, activation_fn=None):
        super().__init__()
        self.model = model
        self.activation_fn = activation_fn or nn.Identity()
        self.cross_entropy_loss = nn.CrossEntropyLoss()

    def forward(self, features, labels, docs_per_query):
        logits = self.activation_fn(self.model(features).view(-1))
        rows = torch.repeat_interleave(torch.arange(len(docs_per_query)), docs_per_query)
        cols = torch.cat([torch.arange(int(n)) for n in docs_per_query])
        shape = (len(docs_per_query), int(docs_per_query.max()))
        logits_matrix = torch.full(shape, -1e16)
        logits_matrix[rows, cols] = logits
        labels_matrix = torch.full(shape, float("-inf"))
        labels_matrix[rows, cols] = labels.float()
        loss = self.cross_entropy_loss(logits_matrix, labels_matrix.softmax(dim=1))
        loss.backward()
        return loss


def factory():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 1)).to(torch.bfloat16)
    features = torch.randn(7, 24, dtype=torch.bfloat16)
    labels = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0])
    return ListNetLoss(model), (features, labels, torch.tensor([3, 4]))
