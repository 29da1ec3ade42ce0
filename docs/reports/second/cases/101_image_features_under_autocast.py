"""https://github.com/huggingface/transformers/issues/47689 (2026)

Kosmos-2 under torch.autocast raises where the image features are put between the text embeddings.
"""
import torch
from torch import nn


class Kosmos2(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(48, 64), nn.GELU())
        self.image_to_text_projection = nn.Linear(64, 32)
        self.embed_tokens = nn.Embedding(100, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.lm_head = nn.Linear(32, 100)

    def forward_embedding(self, input_ids, image_embeds, img_input_mask):
        inputs_embeds = self.embed_tokens(input_ids)
        inputs_embeds[img_input_mask.to(dtype=torch.bool)] = image_embeds.to(inputs_embeds.device).view(
            -1, image_embeds.size(-1)
        )
        return inputs_embeds

    def forward(self, input_ids, pixel_patches, img_input_mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            image_embeds = self.image_to_text_projection(self.vision(pixel_patches))
            hidden = self.forward_embedding(input_ids, image_embeds, img_input_mask)
            return self.lm_head(self.layer(hidden))


def factory():
    mask = torch.zeros(1, 12, dtype=torch.long)
    mask[:, 2:6] = 1
    return Kosmos2().eval(), (torch.randint(0, 100, (1, 12)), torch.randn(1, 4, 48), mask)
