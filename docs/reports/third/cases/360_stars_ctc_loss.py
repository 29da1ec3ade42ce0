"""https://github.com/gwx314/STARS/issues/9 (2026)

Fine-tuning STARS with mixed precision on Japanese data: ph_ctc_loss is negative, which a negative
log-likelihood of a phoneme sequence cannot be.
"""
import torch
from torch import nn


class StarsTask(nn.Module):
    def __init__(self, phonemes=12, steps=30):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, phonemes))
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-4)
        self.steps = steps

    def add_ctc_loss(self, ph_frame_logits, ph, frame_lens, ph_lens):
        log_probs = ph_frame_logits.float().transpose(0, 1)
        return nn.functional.ctc_loss(log_probs, ph, frame_lens, ph_lens, blank=0, zero_infinity=True)

    def training_step(self, mel, ph, frame_lens, ph_lens):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ph_frame_logits = self.encoder(mel)
        loss = self.add_ctc_loss(ph_frame_logits, ph, frame_lens, ph_lens)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def forward(self, mel, ph, frame_lens, ph_lens):
        return torch.stack([self.training_step(mel, ph, frame_lens, ph_lens) for _ in range(self.steps)])


def factory():
    torch.manual_seed(0)
    ph = torch.randint(1, 12, (4, 6))
    return StarsTask().train(), (torch.randn(4, 40, 20), ph, torch.full((4,), 40), torch.full((4,), 6))
