"""https://github.com/deepbeepmeep/Wan2GP/issues/1962 (2026)

ACE-Step v1.5 XL Turbo under the profiles that load weights on demand: generation stops before the first
diffusion step, "mat1 and mat2 must have the same dtype, but got Float and BFloat16".
"""
import torch
from torch import nn


class ResidualFSQ(nn.Module):
    def __init__(self, dim, levels=(8, 5, 5)):
        super().__init__()
        self.levels = torch.tensor(levels, dtype=torch.float32)
        self.project_in, self.project_out = nn.Linear(dim, len(levels)), nn.Linear(len(levels), dim)

    def forward(self, x):
        x = self.project_in(x)
        half = (self.levels - 1) / 2
        codes = (torch.tanh(x) * half).round() / half
        return self.project_out(codes.to(x.dtype)), codes


class AceStepAudioTokenizer(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.audio_acoustic_proj = nn.Linear(16, dim)
        self.quantizer = ResidualFSQ(dim)

    def forward(self, latents):
        hidden_states = self.audio_acoustic_proj(latents)
        quantized, indices = self.quantizer(hidden_states.float())
        return quantized.to(latents.dtype)


class Offload:
    """Keeps a copy of every weight in main memory and puts it back when the module is needed."""

    def __init__(self, model, checkpoint):
        self.checkpoint = checkpoint
        model.register_forward_pre_hook(self.check_change_module)

    def check_change_module(self, module, args):
        for name, param in module.named_parameters():
            param.data = self.checkpoint[name]


def factory():
    torch.manual_seed(0)
    model = AceStepAudioTokenizer().to(torch.bfloat16).eval()
    checkpoint = {k: v.clone() for k, v in model.state_dict().items()}
    model.quantizer.float()
    Offload(model, checkpoint)
    return model, (torch.randn(1, 10, 16, dtype=torch.bfloat16),)
