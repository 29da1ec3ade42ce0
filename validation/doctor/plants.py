"""The plants: a clean model, one edit, and where the edited tensor first meets another dtype.

An edit brings to another dtype a *stored* tensor (parameter or buffer, by its path), what is *given* (an
input, by its index), or what a module *returns* (a cast at the end of its call, by its path). The module is the
innermost whose call holds the line's operation; the empty path is the model itself.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from validation.doctor import small
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


def is_held_out(name: str) -> bool:
    """Say whether a plant is not looked at while rules are settled: every second one, by the hash of its name."""
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 1


def stored(path: str, dtype: torch.dtype) -> Edit:
    """Bring a parameter or a buffer to a dtype."""

    def edit(built: Built) -> Built:
        tensors = {**dict(built[0].named_parameters()), **dict(built[0].named_buffers())}
        tensors[path].data = tensors[path].data.to(dtype)
        return built

    return edit


def given(index: int, dtype: torch.dtype) -> Edit:
    """Bring an input to a dtype."""

    def edit(built: Built) -> Built:
        inputs = list(built[1])
        inputs[index] = inputs[index].to(dtype)
        return built[0], tuple(inputs)

    return edit


def returned(path: str, dtype: torch.dtype) -> Edit:
    """Cast what a module returns."""

    def edit(built: Built) -> Built:
        built[0].get_submodule(path).register_forward_hook(partial(_cast, dtype))
        return built

    return edit


def _cast(dtype: torch.dtype, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output.to(dtype)


def marked_line(module: ModuleType, marker: str) -> int:
    """Find the line that ends in ``# @marker``."""
    lines = inspect.getsource(module).splitlines()
    (found,) = [number for number, line in enumerate(lines, start=1) if line.endswith(f"# @{marker}")]
    return found


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


def small_plants() -> tuple[Plant, ...]:
    """List the plants in the small models."""
    return tuple(_plant(*row) for row in _SMALL)


def _plant(make: Make, dtype: torch.dtype, words: str, edit: Edit, marker: str, module: str) -> Plant:
    function = make.func if isinstance(make, partial) else make
    name = f"{function.__name__} in {str(dtype).removeprefix('torch.')}: {words}"

    def built() -> Built:
        return edit(make(dtype))

    return Plant(name, built, Path(small.__file__).name, marked_line(small, marker), module)
