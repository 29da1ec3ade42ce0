"""https://github.com/NVIDIA-NeMo/Speech/pull/15763 (2026)

Cache-aware streaming ASR pipeline with use_amp=false and compute_dtype=bfloat16 stops at the first chunk with a dtype
mismatch; with use_amp=true it runs.
"""
import torch
from torch import nn


class StreamingConformerEncoder(nn.Module):
    def __init__(self, features=40, d_model=64, left_context=12):
        super().__init__()
        self.d_model, self.left_context = d_model, left_context
        self.pre_encode = nn.Linear(features, d_model)
        self.attn = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.ffn = nn.Linear(d_model, d_model)

    def get_initial_cache_state(self, batch_size, dtype=torch.float32):
        return torch.zeros(batch_size, self.left_context, self.d_model, dtype=dtype)

    def cache_aware_stream_step(self, processed_signal, cache_last_channel):
        x = self.pre_encode(processed_signal)
        context = torch.cat([cache_last_channel, x], dim=1)
        x = x + self.attn(x, context, context, need_weights=False)[0]
        return x + self.ffn(nn.functional.silu(x)), context[:, -self.left_context:]


class CacheAwareRNNTInferenceWrapper(nn.Module):
    def __init__(self, encoder, compute_dtype, use_amp):
        super().__init__()
        self.use_amp, self.compute_dtype = use_amp, compute_dtype
        self.cast_dtype = torch.float32 if use_amp else compute_dtype
        self.encoder = encoder.to(self.cast_dtype)

    def get_initial_cache_state(self, batch_size):
        return self.encoder.get_initial_cache_state(batch_size)

    def stream_step(self, processed_signal, cache):
        processed_signal = processed_signal.to(cache.device)
        with torch.autocast("cpu", dtype=self.compute_dtype, enabled=self.use_amp):
            return self.encoder.cache_aware_stream_step(processed_signal, cache)

    def forward(self, features):
        cache, encoded = self.get_initial_cache_state(features.shape[0]), []
        for chunk in features.split(8, dim=1):
            out, cache = self.stream_step(chunk, cache)
            encoded.append(out)
        return torch.cat(encoded, dim=1)


def factory():
    torch.manual_seed(0)
    wrapper = CacheAwareRNNTInferenceWrapper(StreamingConformerEncoder(), torch.bfloat16, use_amp=False)
    return wrapper.eval(), (torch.randn(1, 32, 40),)
