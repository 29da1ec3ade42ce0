"""Reads a model's configuration from JSON: this package's own schema, or the ``config.json`` of a Hugging Face model.

Conventions: errors name the file, the key, the value found, the value expected and the remedy; nothing is half-read.

The own schema is :class:`~precision_eval.studies.memory.models.ModelConfig` as JSON: ``name``, ``decoder`` and/or
``encoder`` (fields of :class:`~precision_eval.studies.memory.models.Stack`), ``encoder_length``, ``guidance_rows``,
``shipped`` (fields of :class:`~precision_eval.studies.memory.models.Shipped`). Keys that it does not know are refused.
A Hugging Face file is told by its ``model_type``; keys without a bearing on memory are passed over there.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

from precision_eval.core.errors import ParameterError, unknown_name
from precision_eval.core.formats import FORMATS
from precision_eval.studies.memory.hugging_face import READERS
from precision_eval.studies.memory.models import ModelConfig, Shipped, Stack

MOST_PARTS = 1000
"""Layers or embedding tables of a stack; published models have some hundred layers."""

_ZERO_ALLOWED = (
    "outputs", "relative_buckets", "condition_width", "cross_heads", "cross_kv_heads", "cross_head_dim", "cross_width",
    "encoder_length",
)  # fmt: skip


def _checked(where: str, key: str, value: Any, expected: Any) -> Any:
    """Return a value of a dataclass field, or refuse its type."""
    choices = get_args(expected)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ParameterError(f"{where}: '{key}' is {value!r}; expected one of {', '.join(choices)}")
        return value
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise ParameterError(f"{where}: '{key}' is {value!r}; expected {expected.__name__}")
    if expected is int and value < (0 if key in _ZERO_ALLOWED else 1):
        raise ParameterError(
            f"{where}: '{key}' is {value}; expected {'0 or more' if key in _ZERO_ALLOWED else '1 or more'}"
        )
    return value


def _built(where: str, data: Any, kind: type[Any], **given: Any) -> Any:
    """Build a dataclass from JSON, refusing unknown keys, wrong types and missing ones."""
    if not isinstance(data, dict):
        raise ParameterError(f"{where}: found {type(data).__name__}; expected an object")
    hints = get_type_hints(kind)
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise unknown_name(f"key of {where}:", key, fields)
    values = {key: _checked(where, key, value, hints[key]) for key, value in data.items() if key not in given}
    missing = [
        name
        for name, entry in fields.items()
        if name not in data and name not in given and entry.default is entry.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ParameterError(f"{where} lacks {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}")
    return kind(**values, **given)


def _own(where: str, data: dict[str, Any]) -> ModelConfig:
    given: dict[str, Any] = {"source": where}
    for part, kind in (("encoder", Stack), ("decoder", Stack), ("shipped", Shipped)):
        if part in data:
            given[part] = _built(f"{where}: {part}", data[part], kind)
    for part in ("published_parameters", "published_source"):
        given[part] = None if part == "published_parameters" else ""
        if part in data:
            raise unknown_name(f"key of {where}:", part, ("name", "encoder", "decoder", "shipped"))
    config: ModelConfig = _built(where, data, ModelConfig, **given)
    return config


def _check_stack(where: str, stack: Stack) -> None:
    for name in ("layers", "tables"):
        count = getattr(stack, name)
        if count > MOST_PARTS:
            raise ParameterError(
                f"{where}: {name} is {count}; a plan goes through each, and takes {MOST_PARTS} at most: correct it"
            )
    if stack.heads % stack.kv_heads:
        raise ParameterError(
            f"{where}: {stack.heads} heads are no multiple of {stack.kv_heads} kv heads; each kv head serves a whole "
            f"number of heads"
        )
    if stack.fused_qkv and stack.heads * stack.head_dim != stack.width:
        raise ParameterError(
            f"{where}: heads × head_dim = {stack.heads} × {stack.head_dim} = {stack.heads * stack.head_dim}, but the "
            f"fused projection of width {stack.width} demands {stack.width}; correct one of the three"
        )
    cross = (stack.cross_heads, stack.cross_kv_heads, stack.cross_head_dim, stack.cross_width)
    if any(cross) and not all(cross):
        raise ParameterError(f"{where}: cross_heads, cross_kv_heads, cross_head_dim and cross_width go together")
    if stack.cross_heads and stack.cross_heads % stack.cross_kv_heads:
        raise ParameterError(f"{where}: {stack.cross_heads} cross heads are no multiple of {stack.cross_kv_heads}")


def check_config(config: ModelConfig) -> ModelConfig:
    """Refuse a configuration that contradicts itself."""
    if config.encoder is None and config.decoder is None:
        raise ParameterError(f"{config.name}: neither 'encoder' nor 'decoder'; give one")
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack is not None:
            _check_stack(f"{config.name}: {name}", stack)
    for entry in dataclasses.fields(Shipped):
        dtype = getattr(config.shipped, entry.name)
        if dtype and dtype not in {known.name for known in FORMATS}:
            raise unknown_name(f"dtype of {config.name}, shipped {entry.name}:", dtype, (f.name for f in FORMATS))
    decoder, encoder = config.decoder, config.encoder
    if decoder is not None and decoder.cross_heads:
        if config.encoder_length < 1:
            raise ParameterError(f"{config.name}: cross attention needs an 'encoder_length' of 1 or more")
        if encoder is not None and encoder.width != decoder.cross_width:
            raise ParameterError(
                f"{config.name}: cross_width is {decoder.cross_width}, the encoder's width {encoder.width}; "
                f"make them equal"
            )
    return config


def read_config(path: Path) -> ModelConfig:
    """Read a configuration."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}; give a JSON file or a model's name") from error
    except ValueError as error:
        raise ParameterError(f"{path} is no JSON: {error}; mend it, or give a model's name") from error
    if not isinstance(data, dict):
        raise ParameterError(f"{path} holds {type(data).__name__}; expected an object")
    if "model_type" not in data:
        return check_config(_own(path.name, data))
    kind = data["model_type"]
    if not isinstance(kind, str) or kind not in READERS:
        known = ", ".join(sorted(READERS))
        raise ParameterError(
            f"{path}: model_type {kind!r} is not among {known}; describe it in this package's own schema instead"
        )
    return check_config(READERS[kind](path.name, data))
