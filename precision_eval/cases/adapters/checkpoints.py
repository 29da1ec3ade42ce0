"""What a checkpoint says of itself before a weight is read: its ``config.json`` and its safetensors headers.

Conventions: dtypes go by torch's names without the prefix; *kind* is safetensors' name of one, such as ``F8_E4M3``;
sizes are in elements, memory in bytes. Every refusal is one line: what was found, what was expected, the remedy. This
module loads no torch.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import ParameterError
from precision_eval.core.formats import short

if TYPE_CHECKING:
    from torch import nn

#: How safetensors names the dtypes that a model's ``config.json`` may promise.
STORED_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
#: Masks, positions and counters, which a floating model may keep as buffers. Never a weight.
BUFFER_KINDS = frozenset(("BOOL", "U8", "I32", "I64"))
WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
#: The files that transformers and diffusers load, each whole or in parts with an index beside them.
WEIGHT_FILES = ("model", "diffusion_pytorch_model")
#: Keys under which a config says that its weights are packed.
PACKED_BY = ("quantization_config", "compression_config")
NAMES_SHOWN = 4
LINES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as a safetensors header describes it."""

    kind: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many values it holds."""
        return math.prod(self.shape)


def some(names: Iterable[str]) -> str:
    """Join the first names, and say how many more there are."""
    every = sorted(names)
    rest = f" and {len(every) - NAMES_SHOWN} more" if len(every) > NAMES_SHOWN else ""
    return ", ".join(every[:NAMES_SHOWN]) + rest


def one_line(error: Exception) -> str:
    """Join the first lines of a library's error, whose first line alone is often a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:LINES_SHOWN]) or type(error).__name__


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's config."""
    path = folder / "config.json"
    if not path.is_file():
        raise ParameterError(f"{folder} has no config.json; give the folder that save_pretrained wrote")
    check_links(folder)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParameterError(f"{path} is no JSON ({error}); fetch it again") from error
    if not isinstance(config, dict):
        raise ParameterError(f"{path} holds a {type(config).__name__}; expected an object; fetch it again")
    if _names_code(config):
        raise ParameterError(
            f"{path} has an auto_map, which names Python code of the checkpoint; expected data, none of it runs here: "
            "give a checkpoint whose class the library has itself, or write a factory that imports your own class"
        )
    for key in PACKED_BY:
        if config.get(key) is not None:
            how = config[key].get("quant_method", "") if isinstance(config[key], dict) else config[key]
            raise ParameterError(
                f"{path} has a {key}{f' ({how})' if how else ''}; expected weights stored as floats: give the "
                "checkpoint that was quantised, as it was before"
            )
    return config


def check_links(folder: Path) -> None:
    """Refuse a file that lies elsewhere; in the hub's cache, which is all links, outside of that checkpoint's part."""
    home = folder.resolve()
    cached = (path.parents[1] for path in (home, *home.parents) if path.parent.name == "snapshots")
    home = next(cached, home)
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if not path.resolve().is_relative_to(home):
            raise ParameterError(f"{path} is a link out of the checkpoint's folder; expected files: copy it there")


def _names_code(config: Mapping[str, Any]) -> bool:
    """Say whether a config, or one inside it, names classes in the checkpoint's own Python files."""
    inner = (part for part in config.values() if isinstance(part, dict))
    return bool(config.get("auto_map")) or any(_names_code(part) for part in inner)


def check_family(model_class: Any, config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a config of another class, from which the library would build its own defaults."""
    config_class = getattr(model_class, "config_class", None)
    key = "_class_name" if config_class is None else "model_type"
    expected = model_class.__name__ if config_class is None else config_class.model_type
    parts = [part.get(key) for part in config.values() if isinstance(part, dict)]
    if expected in (config.get(key), *parts):
        return
    found = f"says {key} {config[key]!r}" if config.get(key) is not None else f"names no {key}"
    raise ParameterError(
        f"{folder / 'config.json'} {found}; expected {expected!r}: give a folder that "
        f"{model_class.__name__}.save_pretrained wrote"
    )


def _weight_files(folder: Path) -> list[Path]:
    """Find the safetensors files that are loaded: one, or those of an index; a variant is not."""
    for stem in WEIGHT_FILES:
        index = folder / f"{stem}.safetensors.index.json"
        if (folder / f"{stem}.safetensors").is_file():
            return [folder / f"{stem}.safetensors"]
        if index.is_file():
            return _indexed(index)
    # "model.fp16.safetensors" is a variant
    files = sorted(path for path in folder.glob("*.safetensors") if "." not in path.stem)
    if not files:
        raise ParameterError(
            f"{folder} has no safetensors file; pickled checkpoints are refused: convert it with "
            "model.save_pretrained(folder)"
        )
    return files


def _indexed(index: Path) -> list[Path]:
    try:
        names = sorted({str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParameterError(f"{index} is no index of safetensors files ({error!r}); fetch it again") from error
    absent = [name for name in names if Path(name).name != name or not (index.parent / name).is_file()]
    if absent or not names:
        raise ParameterError(f"{index} names {some(absent) or 'no file'}, not found beside it; fetch it again")
    return [index.parent / name for name in names]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Read the headers of the safetensors files that a folder's model is loaded from."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    part = tensors.get_slice(name)
                    found[name] = StoredTensor(kind=part.get_dtype(), shape=tuple(part.get_shape()))
        except SafetensorError as error:
            raise ParameterError(f"{path} is damaged or no safetensors file ({error}); fetch it again") from error
    return found


def check_dtypes(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, StoredTensor], *, kept_wide: Collection[str]
) -> None:
    """Refuse packed tensors, and floating ones of another dtype than the config says."""
    promised = short(str(config.get("dtype") or config.get("torch_dtype") or ""))
    floating = {name: STORED_DTYPES[held.kind] for name, held in tensors.items() if held.kind in STORED_DTYPES}
    if not promised and len(set(floating.values())) > 1:
        counts = ", ".join(f"{count} of {dtype}" for dtype, count in Counter(floating.values()).items())
        raise ParameterError(
            f"{folder}: its safetensors hold tensors of several dtypes ({counts}), and config.json names none; store "
            "it again in one, with model.to(...).save_pretrained(...)"
        )
    wrong: dict[str, list[str]] = {}
    for name, held in tensors.items():
        found = floating.get(name, held.kind)
        stays = (promised, found) == ("float16", "float32") and set(kept_wide) & set(name.split("."))
        if held.kind not in BUFFER_KINDS and (found not in WIDTHS or promised not in ("", found)) and not stays:
            wrong.setdefault(found, []).append(name)
    for found, names in sorted(wrong.items()):
        if found not in WIDTHS:
            raise ParameterError(
                f"{folder}: its safetensors hold {found} in {some(names)}; expected "
                f"{promised or ' or '.join(WIDTHS)}: give the checkpoint that was quantised or packed, as it was before"
            )
        raise ParameterError(
            f"{folder}: config.json says dtype {promised}, but its safetensors hold {found} in {some(names)}; "
            f"store it again with model.to(torch.{promised}).save_pretrained(...), or correct the config"
        )


def free_bytes() -> int:
    """Return the main memory that can be taken now."""
    import psutil

    return int(psutil.virtual_memory().available)


def check_memory(folder: Path, tensors: Mapping[str, StoredTensor], *, dtype: str, kept_wide: Collection[str]) -> None:
    """Refuse a checkpoint whose weights alone do not fit in main memory, where they are loaded for every device."""
    needed_bytes = 0
    for name, held in tensors.items():
        stays = dtype == "float16" and set(kept_wide) & set(name.split("."))
        needed_bytes += held.elements * (WIDTHS["float32"] if stays else WIDTHS[dtype])
    check_fits(f"{folder} needs", f"its weights in {dtype}", needed_bytes, is_wide=WIDTHS[dtype] > WIDTHS["float16"])


def check_fits(what: str, whose: str, needed_bytes: int, *, is_wide: bool = False) -> None:
    """Refuse what does not fit in the main memory that is free."""
    available_bytes = free_bytes()
    if needed_bytes > available_bytes:
        remedy = "load it in float16 or bfloat16, or take" if is_wide else "take"
        raise ParameterError(
            f"{what} {needed_bytes / 2**30:.3g} GiB for {whose}, {available_bytes / 2**30:.3g} GiB are free; "
            f"{remedy} a larger machine"
        )


@contextmanager
def held_back(*libraries: str) -> Iterator[None]:
    """Hold the log lines of libraries back, and show them where the block ends well."""
    holder = logging.handlers.BufferingHandler(sys.maxsize)
    loggers = [logging.getLogger(name) for name in libraries]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [holder], False
    try:
        yield
    finally:
        for logger, (handlers, propagates) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagates
    for record in holder.buffer:
        logging.getLogger(record.name).handle(record)


def _described(key: Any) -> str:
    """Describe what a library found wrong: a name, or a name and the two shapes."""
    if not isinstance(key, tuple):
        return str(key)
    name, found, expected = key
    return f"{name} is {tuple(found)} in the file and {tuple(expected)} by the config"


def check_whole(name: str, info: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model with tensors missing, left over, or of another shape."""
    for kind in ("mismatched_keys", "missing_keys", "unexpected_keys", "error_msgs"):
        wrong = [_described(key) for key in info.get(kind) or ()]
        if wrong:
            raise ParameterError(
                f"{folder} is no whole checkpoint of its {name} config: {kind.replace('_', ' ')}: {some(wrong)}; "
                "expected every tensor of the config and no other: fetch it again, or correct config.json"
            )


def check_buffers(model: nn.Module, tensors: Mapping[str, StoredTensor], folder: Path) -> None:
    """Refuse a model that took an integer tensor of the file for a floating one of its own."""
    state = model.state_dict()
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    wrong = []
    for name, held in tensors.items():
        own = [state[known] for known in (name, prefix + name, name.removeprefix(prefix)) if known in state]
        if held.kind not in STORED_DTYPES and any(tensor.is_floating_point() for tensor in own):
            wrong.append(f"{name} ({held.kind})")
    if wrong:
        raise ParameterError(
            f"{folder}: its safetensors hold integers in {some(wrong)}, which are floating in the model; expected "
            "floating tensors: give the checkpoint that was quantised or packed, as it was before"
        )


def check_finite(model: nn.Module, folder: Path) -> None:
    """Refuse a model with a NaN or an infinity among its weights."""
    import torch

    nan, infinite = [], []
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or not weight.numel():
            continue
        extremes = torch.stack(torch.aminmax(weight.detach()))  # NaN where one is
        if extremes.isnan().any():
            nan.append(name)
        elif extremes.isinf().any():
            infinite.append(f"{name} in {short(weight.dtype)}")
    if nan:
        raise ParameterError(f"{folder} holds NaN in {some(nan)}; expected finite weights: fetch it again")
    if infinite:
        raise ParameterError(
            f"{folder} holds infinities in {some(infinite)}; expected finite weights: load it in a dtype of a wider "
            "range, bfloat16 or float32, or, if they are stored as infinities, fetch it again"
        )
