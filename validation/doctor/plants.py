"""The plants: a clean model, one edit, and where the edited tensor first meets another dtype.

An edit brings to another dtype a *stored* tensor (parameter or buffer, by its path), what is *given* (an
input, by its index), or what a module *returns* (a cast at the end of its call, by its path). The line of a plant's
truth is the one line of the source that matches a pattern: of this package's own models a comment at its end
(``# @name``), of transformers' an operation. The module is the innermost whose call holds the line's operation; the
empty path is the model itself.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from precision_eval.core.formats import short
from validation.doctor import library, small
from validation.doctor.small import Built, Make

Edit = Callable[[Built], Built]
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Plant:
    """A planted fault and its truth."""

    name: str
    make: Callable[[], Built]
    file: str
    line: int
    module: str
    others: tuple[tuple[str, int, str], ...] = ()
    """Lines, and modules, at which it counts as located too."""

    @property
    def is_held_out(self) -> bool:
        """Whether it is not looked at while rules are settled: every second one, by the hash of its name."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1


def stored(path: str, dtype: torch.dtype) -> Edit:
    """Bring a parameter or a buffer to a dtype."""

    def edit(built: Built) -> Built:
        tensors = {**dict(built[0].named_parameters()), **dict(built[0].named_buffers())}
        tensors[path].data = tensors[path].data.to(dtype)
        return built

    return edit


def given(index: int | str, dtype: torch.dtype) -> Edit:
    """Bring an input to a dtype, by its index or by its name in the dictionary that is the input."""

    def edit(built: Built) -> Built:
        inputs: Any = {**built[1][0]} if isinstance(index, str) else list(built[1])
        inputs[index] = inputs[index].to(dtype)
        return built[0], (inputs,) if isinstance(index, str) else tuple(inputs)

    return edit


def returned(path: str, dtype: torch.dtype) -> Edit:
    """Cast what a module returns."""

    def edit(built: Built) -> Built:
        built[0].get_submodule(path).register_forward_hook(lambda module, args, output: output.to(dtype))
        return built

    return edit


def line_of(source: Any, pattern: str) -> int:
    """Find the one line of a module or class that matches."""
    lines, first = inspect.getsourcelines(source)
    (line,) = [number for number, text in enumerate(lines, start=max(first, 1)) if re.search(pattern, text)]
    return line


#: Model, its dtype, what is edited in words, the edit, marker of the line, path of the module.
_SMALL: tuple[tuple[Make, torch.dtype, str, Edit, str, str], ...] = (
    (small.decoder, HALF, "positions float32", stored("positions", SINGLE), "positions", ""),
    (small.decoder, BRAIN, "positions float32", stored("positions", SINGLE), "positions", ""),
    (small.decoder, BRAIN, "positions float16", stored("positions", HALF), "positions", ""),
    (small.decoder, HALF, "first gain float32", stored("first_norm.gain", SINGLE), "norm_gain", "first_norm"),
    (small.decoder, BRAIN, "last gain float32", stored("last_norm.gain", SINGLE), "norm_gain", "last_norm"),
    (small.decoder, HALF, "query float32", stored("attention.query.weight", SINGLE), "query", "attention.query"),
    (small.decoder, BRAIN, "value float16", stored("attention.value.weight", HALF), "value", "attention.value"),
    (small.decoder, SINGLE, "key float16", stored("attention.key.weight", HALF), "key", "attention.key"),
    (small.decoder, HALF, "cosine float32", stored("attention.cosine", SINGLE), "rotation", "attention"),
    (small.decoder, BRAIN, "sine float32", stored("attention.sine", SINGLE), "rotation", "attention"),
    (small.decoder, SINGLE, "keys float16", stored("attention.keys", HALF), "keys_sliced", "attention"),
    (small.decoder, SINGLE, "values bfloat16", stored("attention.values", BRAIN), "values_sliced", "attention"),
    (small.decoder, BRAIN, "keys float16", stored("attention.keys", HALF), "keys_sliced", "attention"),
    (partial(small.decoder, indexed=True), SINGLE, "indexed keys float16", stored("attention.keys", HALF),
     "keys_indexed", "attention"),
    (partial(small.decoder, indexed=True), BRAIN, "indexed values float16", stored("attention.values", HALF),
     "values_indexed", "attention"),
    (small.decoder, HALF, "scale float32", stored("scale", SINGLE), "scale", ""),
    (small.decoder, SINGLE, "scale bfloat16", stored("scale", BRAIN), "scale", ""),
    (small.decoder, BRAIN, "head float32", stored("head.weight", SINGLE), "head", "head"),
    (small.decoder, HALF, "first norm returns float32", returned("first_norm", SINGLE), "query", "attention.query"),
    (small.decoder, BRAIN, "attention returns float32", returned("attention", SINGLE), "residual", ""),
    (small.classifier, HALF, "class token float32", stored("token", SINGLE), "class_token", ""),
    (small.classifier, BRAIN, "places float32", stored("places", SINGLE), "places", ""),
    (small.classifier, BRAIN, "in-projection float32", stored("attention.in_proj_weight", SINGLE), "multihead",
     "attention"),
    (small.classifier, HALF, "out-projection float32", stored("attention.out_proj.weight", SINGLE), "multihead",
     "attention"),
    (small.classifier, BRAIN, "mean float32", stored("mean", SINGLE), "mean", ""),
    (small.classifier, HALF, "pictures float32", given(0, SINGLE), "patches", "patches"),
    (small.classifier, HALF, "class head float32", stored("head.weight", SINGLE), "class_head", "head"),
    (small.diffuser, HALF, "sigmas float32", stored("sigmas", SINGLE), "sigmas", ""),
    (small.diffuser, BRAIN, "context float32", given(2, SINGLE), "context", ""),
    (small.diffuser, HALF, "time float32", stored("time.0.weight", SINGLE), "time", "time.0"),
    (small.diffuser, BRAIN, "inner float32", stored("inner.weight", SINGLE), "inner", "inner"),
    (small.diffuser, BRAIN, "mix float32", stored("mix", SINGLE), "mix", ""),
    (small.diffuser, HALF, "time returns float32", returned("time", SINGLE), "modulated", ""),
    (small.diffuser, HALF, "enter returns float32", returned("enter", SINGLE), "modulated", "norm"),
    (small.experts, HALF, "experts float32", stored("into", SINGLE), "experts", ""),
    (small.experts, BRAIN, "offset float32", stored("offset", SINGLE), "offset", ""),
    (small.experts, BRAIN, "router float32", stored("router.weight", SINGLE), "router", "router"),
    (small.experts, SINGLE, "input float16", given(0, HALF), "router", "router"),
    (small.recurrent, HALF, "input float32", given(0, SINGLE), "rnn", "rnn"),
    (small.recurrent, BRAIN, "first state float32", stored("state", SINGLE), "rnn", "rnn"),
    (small.recurrent, HALF, "cell state float32", stored("cell_state", SINGLE), "cell", "cell"),
    (small.recurrent, BRAIN, "decay float32", stored("decay", SINGLE), "decay", ""),
    (small.state_space, SINGLE, "state float16", stored("state", HALF), "state", ""),
    (small.state_space, SINGLE, "state bfloat16", stored("state", BRAIN), "state", ""),
    (small.state_space, HALF, "decay float32", stored("decay", SINGLE), "state_decay", ""),
    (small.state_space, BRAIN, "bias in place float32", stored("bias", SINGLE), "bias_in_place", ""),
    (small.state_space, HALF, "into returns float32", returned("into", SINGLE), "state", ""),
    (small.biased, HALF, "temperature float32", stored("temperature", SINGLE), "temperature", ""),
    (small.biased, BRAIN, "project bias float32", stored("project.bias", SINGLE), "project", "project"),
    (small.biased, HALF, "out float32", stored("out.weight", SINGLE), "biased_out", "out"),
    (small.mel, HALF, "window float32", stored("window", SINGLE), "window", ""),
    (small.mel, BRAIN, "bank float32", stored("bank", SINGLE), "bank", ""),
    (small.mel, BRAIN, "mean float32", stored("mean", SINGLE), "mel_mean", ""),
    (small.quantiser, HALF, "first codebook float32", stored("first", SINGLE), "distance", ""),
    (small.quantiser, BRAIN, "weights float32", stored("weights", SINGLE), "weights", ""),
    (small.quantiser, HALF, "enter returns float32", returned("enter", SINGLE), "weights", ""),
    (small.vocoder, HALF, "alpha float32", stored("alpha", SINGLE), "alpha", ""),
    (small.vocoder, BRAIN, "noise float32", given(1, SINGLE), "noise", ""),
    (small.vocoder, HALF, "level float32", stored("level", SINGLE), "noise", ""),
    (small.vocoder, BRAIN, "raise rate float32", stored("raise_rate.weight", SINGLE), "raise_rate", "raise_rate"),
    (small.cross_reader, HALF, "memory float32", given(1, SINGLE), "memory", "key"),
    (small.cross_reader, BRAIN, "speaker float16", given(2, HALF), "speaker", "speaker"),
    (small.cross_reader, HALF, "gate float32", stored("gate", SINGLE), "gate", ""),
    (small.cross_reader, HALF, "key returns float32", returned("key", SINGLE), "read", ""),
    (small.cross_reader, BRAIN, "speaker returns float32", returned("speaker", SINGLE), "speaker", ""),
)  # fmt: skip


def _weight(make: Make, dtype: torch.dtype, other: torch.dtype, owner: str, module: str) -> tuple[Any, ...]:
    """A projection whose weight is in another dtype, met where its owner calls it."""
    name = module.rpartition(".")[2]
    edit = stored(f"{module}.weight", other)
    return make, dtype, f"{name} {short(other)}", edit, owner, rf"self\.{name}\(", module


#: Model, its dtype, what is edited in words, the edit, class of the library, pattern of the line, path of the module.
_LIBRARY: tuple[tuple[Any, ...], ...] = (
    _weight(library.t5, HALF, SINGLE, "t5.T5Attention", "encoder.block.1.layer.0.SelfAttention.q"),
    (library.t5, BRAIN, "norm float32", stored("encoder.block.0.layer.0.layer_norm.weight", SINGLE), "t5.T5Attention",
     r"self\.q\(", "encoder.block.0.layer.0.SelfAttention.q"),
    _weight(library.t5, BRAIN, HALF, "t5.T5DenseGatedActDense", "encoder.block.0.layer.1.DenseReluDense.wi_0"),
    (library.t5_after_half, HALF, "wo float16", lambda built: built, "t5.T5DenseGatedActDense", r"self\.wo\(",
     "encoder.block.0.layer.1.DenseReluDense.wo"),
    (library.dia, HALF, "decoder norm float32", stored("model.decoder.layers.0.pre_sa_norm.weight", SINGLE),
     "dia.DiaRMSNorm", r"self\.weight \*", "model.decoder.layers.0.pre_sa_norm"),
    (library.dia, BRAIN, "encoder norm float32", stored("model.encoder.layers.0.pre_sa_norm.weight", SINGLE),
     "dia.DiaRMSNorm", r"self\.weight \*", "model.encoder.layers.0.pre_sa_norm"),
    _weight(library.dia, HALF, BRAIN, "dia.DiaSelfAttention", "model.decoder.layers.1.self_attention.k_proj"),
    (library.bark, BRAIN, "positions float32", stored("position_embeds_layer.weight", SINGLE), "bark.BarkCausalModel",
     r"inputs_embeds \+ position_embeds", ""),
    _weight(library.bark, HALF, SINGLE, "bark.BarkCausalModel", "lm_head"),
    _weight(library.bark, HALF, SINGLE, "bark.BarkMLP", "layers.1.mlp.in_proj"),
    (library.musicgen, HALF, "positions float32", stored("model.decoder.embed_positions.weights", SINGLE),
     "musicgen.MusicgenDecoder", r"hidden_states = inputs_embeds \+ positions", "model.decoder"),
    _weight(library.musicgen, BRAIN, SINGLE, "musicgen.MusicgenDecoderLayer", "model.decoder.layers.0.fc1"),
    (library.whisper, HALF, "positions float32", stored("encoder.embed_positions.weight", SINGLE),
     "whisper.WhisperEncoder", r"inputs_embeds \+ self\.embed_positions", "encoder"),
    _weight(library.whisper, BRAIN, SINGLE, "whisper.WhisperAttention", "decoder.layers.0.encoder_attn.v_proj"),
    (library.whisper, HALF, "features float32", given("input_features", SINGLE), "whisper.WhisperEncoder",
     r"self\.conv1\(input_features\)", "encoder.conv1"),
    (library.speecht5, BRAIN, "pe float32", stored("speecht5.encoder.prenet.encode_positions.pe", SINGLE),
     "speecht5.SpeechT5ScaledPositionalEncoding", r"emb = emb \+ self\.alpha",
     "speecht5.encoder.prenet.encode_positions"),
    _weight(library.speecht5, HALF, SINGLE, "speecht5.SpeechT5SpeechDecoderPostnet", "speech_decoder_postnet.prob_out"),
    (library.hifigan, BRAIN, "mean float32", stored("mean", SINGLE), "speecht5.SpeechT5HifiGan", r"- self\.mean\) /",
     ""),
    (library.hifigan, HALF, "spectrogram float32", given(0, SINGLE), "speecht5.SpeechT5HifiGan", r"- self\.mean\) /",
     ""),
    _weight(library.vits, BRAIN, SINGLE, "vits.VitsTextEncoder", "text_encoder.project"),
    (library.vits, BRAIN, "k_proj float32", stored("text_encoder.encoder.layers.0.attention.k_proj.weight", SINGLE),
     "vits.VitsAttention", r"self\.k_proj\(hidden_states\)", "text_encoder.encoder.layers.0.attention.k_proj"),
    (library.csm, HALF, "norm float32", stored("layers.1.post_attention_layernorm.weight", SINGLE), "csm.CsmRMSNorm",
     r"self\.weight \*", "layers.1.post_attention_layernorm"),
    (library.csm, BRAIN, "embedding float32", stored("embed_tokens.embed_audio_tokens.weight", SINGLE),
     "csm.CsmRMSNorm", r"self\.weight \*", "layers.0.input_layernorm"),
    _weight(library.csm, BRAIN, HALF, "csm.CsmAttention", "layers.0.self_attn.o_proj"),
)  # fmt: skip


def plants() -> Iterator[Plant]:
    """Yield the plants in the small models, then those in transformers' classes."""
    for make, dtype, words, edit, marker, module in _SMALL:
        yield _plant(make, dtype, words, edit, small, f"# @{marker}$", module)
    for make, dtype, words, edit, owner, pattern, module in _LIBRARY:
        room, name = owner.split(".")
        source = getattr(importlib.import_module(f"transformers.models.{room}.modeling_{room}"), name)
        yield _plant(make, dtype, words, edit, source, pattern, module)


def _plant(make: Make, dtype: torch.dtype, words: str, edit: Edit, source: Any, pattern: str, module: str) -> Plant:
    function = make.func if isinstance(make, partial) else make
    file = Path(inspect.getfile(source)).name
    name = f"{function.__name__} in {short(dtype)}: {words}"
    return Plant(name, lambda: edit(make(dtype)), file, line_of(source, pattern), module)
