"""https://github.com/facebookresearch/fairseq2/pull/447 (2024)

Training wav2vec2 in bfloat16 stops in the masker: Index put requires the source and destination dtypes match.
"""
import torch
from torch import nn


class Wav2Vec2Masker(nn.Module):
    def __init__(self, model_dim, span=3):
        super().__init__()
        self.span = span
        self.temporal_mask_embed = nn.Parameter(torch.rand(model_dim))

    def forward(self, seqs, starts):
        temporal_mask = torch.zeros(seqs.shape[:2], dtype=torch.bool)
        for offset in range(self.span):
            temporal_mask.scatter_(1, starts + offset, True)
        seqs = seqs.clone()
        seqs[temporal_mask] = self.temporal_mask_embed
        return seqs, temporal_mask


class Wav2Vec2(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature_extractor = nn.Conv1d(1, 24, 10, stride=5)
        self.post_extract_proj, self.masker = nn.Linear(24, 32), Wav2Vec2Masker(32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, wave, starts):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seqs = nn.functional.gelu(self.feature_extractor(wave[:, None])).transpose(1, 2)
            seqs, mask = self.masker(self.post_extract_proj(seqs), starts)
            return self.encoder(seqs)[mask]


def factory():
    return Wav2Vec2().eval(), (0.1 * torch.randn(2, 400), torch.randint(0, 60, (2, 5)))
