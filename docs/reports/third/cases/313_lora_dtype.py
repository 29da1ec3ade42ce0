"""https://github.com/modelscope/ms-swift/issues/9694 (2026)

--lora_dtype bfloat16 has no effect with the peft backend: the adapter and the saved checkpoint are always
float32, twice as large as asked for.
"""
import torch
from torch import nn


class LoraLayer(nn.Module):
    def __init__(self, base_layer, r=8):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base_layer.out_features, bias=False)

    def forward(self, x):
        result = self.base_layer(x)
        return result + self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype))).to(result.dtype)


class LoraModel(nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.model = nn.Sequential(*[LoraLayer(m) for m in model])
        self._convert_dtype(config["lora_dtype"])

    def _convert_dtype(self, lora_dtype):
        for name, p in self.named_parameters():
            if "lora_" in name:
                p.data = p.data.to(lora_dtype)

    def _cast_adapter_dtype(self, autocast_adapter_dtype=True):
        for name, p in self.named_parameters():
            if "lora_" in name and autocast_adapter_dtype and p.dtype in (torch.float16, torch.bfloat16):
                p.data = p.data.to(torch.float32)


class PeftModel(nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.base_model = LoraModel(model, config)
        self.base_model._cast_adapter_dtype(autocast_adapter_dtype=True)

    def forward(self, x):
        return self.base_model.model(x)


def factory():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).to(torch.bfloat16)
    return PeftModel(model, {"lora_dtype": torch.bfloat16}), (torch.randn(4, 32, dtype=torch.bfloat16),)
