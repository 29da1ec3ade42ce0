"""https://github.com/huggingface/transformers/issues/30019 (2024)

A model trained by the Trainer generates one token and then stops with a dtype error in the attention.
"""
import torch
import torch.nn.functional as F
from torch import nn


def convert_to_fp32(outputs):
    if isinstance(outputs, (tuple, list)):
        return tuple(convert_to_fp32(output) for output in outputs)
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


def prepare_model(model):
    """Wrap the forward as the trainer does."""
    forward = model.forward
    model.forward = lambda *args: convert_to_fp32(forward(*args))
    return model


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(70, 32), nn.Linear(32, 70)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, tokens, past_key_values=()):
        h = self.embed(tokens)
        q, k, v = self.q(h), self.k(h), self.v(h)
        if past_key_values:
            k, v = torch.cat([past_key_values[0], k], 1), torch.cat([past_key_values[1], v], 1)
        h = h + self.o(F.scaled_dot_product_attention(q, k, v))
        return self.lm_head(h), (k, v)


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Decoder()

    def forward(self, tokens, new=4):
        step = prepare_model(self.model).forward
        generated, past = tokens, ()
        for _ in range(new):
            logits, past = step(tokens, past)
            tokens = logits[:, -1:].argmax(-1)
            generated = torch.cat([generated, tokens], 1)
        return generated


def factory():
    return Trainer().bfloat16().eval(), (torch.randint(0, 70, (1, 6)),)
