"""Load a model of transformers or a pipeline of diffusers from a folder or the hub: safetensors only, whole or not.

No code of a checkpoint runs. The libraries do the reading; this module refuses what they would fill in or leave out
silently, in one line. It loads torch and the libraries when something is loaded.
"""

from __future__ import annotations

import importlib
import json
import logging
import logging.handlers
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from precision_eval.core.errors import ParameterError, UnsupportedError, check_known
from precision_eval.core.formats import short

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPES = ("float16", "bfloat16", "float32", "float64")
MOST_NAMES = 4
MOST_LINES = 3


def import_library(name: str) -> ModuleType:
    """Import a package of the extra ``zoo``, or a module of it."""
    package = name.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own parts
            importlib.import_module(package)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise UnsupportedError(f"{package} is not installed; pip install 'precision-eval[zoo]'") from error


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    import torch

    name = short(dtype)
    check_known("dtype to load in:", name, DTYPES)
    return cast("torch.dtype", getattr(torch, name))


def load_checkpoint(place: str | Path, dtype: str | torch.dtype | None) -> Any:
    """Load a model of transformers or a pipeline of diffusers, in its stored dtype where none is given."""
    folder = checkpoint_folder(place)
    if (folder / "model_index.json").is_file():
        wanted = {} if dtype is None else {"torch_dtype": as_dtype(dtype)}
        return _from_pretrained(
            import_library("diffusers").DiffusionPipeline, folder, trust_remote_code=False, **wanted
        )
    config = read_config(folder)
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    return load_model(_class_of(config, folder), folder, dtype=as_dtype(dtype or stored))


def load_model(model_class: Any, folder: Path, *, dtype: torch.dtype) -> nn.Module:
    """Load a checkpoint as a class of transformers; refuse one with tensors missing, left over or not finite."""
    check_memory(folder)
    with hold_logs("transformers"):
        model, info = _from_pretrained(
            model_class, folder, dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True,
            trust_remote_code=False,
        )  # fmt: skip
        check_whole(model_class.__name__, info, folder)
        check_finite(model, folder)
    return cast("nn.Module", model.eval())


def _from_pretrained(loader: Any, folder: Path, **settings: Any) -> Any:
    try:
        return loader.from_pretrained(folder, use_safetensors=True, local_files_only=True, **settings)
    except _refusals() as error:
        raise ParameterError(
            f"{folder} does not load as a {loader.__name__}: {one_line(error)}; expected a folder that save_pretrained "
            "wrote, with safetensors: fetch it again, or store it again"
        ) from error


def _refusals() -> tuple[type[Exception], ...]:
    """Return what the libraries raise on a config or a file that they cannot use."""
    # The last one is no subclass of a builtin.
    invalid: type[Exception] = import_library("huggingface_hub.errors").StrictDataclassError
    damaged: type[Exception] = import_library("safetensors").SafetensorError
    return (RuntimeError, ValueError, OSError, LookupError, TypeError, AttributeError, ImportError, damaged, invalid)


def checkpoint_folder(path_or_name: str | Path) -> Path:
    """Find the folder of a checkpoint, fetched from the hub where no such folder exists here."""
    local = Path(path_or_name).expanduser()
    if local.is_dir():
        return local
    looks_local = isinstance(path_or_name, Path) or local.is_absolute() or str(path_or_name).startswith((".", "~"))
    if looks_local or len(local.parts) != 2:
        raise ParameterError(
            f"no folder {path_or_name}; give one with config.json and safetensors files, or the hub's 'owner/name'"
        )
    hub = import_library("huggingface_hub")
    try:
        return Path(hub.snapshot_download(str(path_or_name), allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"'{path_or_name}' is no folder here and the hub did not give it: {one_line(error)}; "
            "give a folder, or a model that this machine can fetch"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ParameterError(f"{folder} has no config.json; give the folder that save_pretrained wrote")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParameterError(f"{path} is no JSON ({error}); fetch it again") from error
    if not isinstance(config, dict):
        raise ParameterError(f"{path} holds a {type(config).__name__}; expected an object; fetch it again")
    return config


def _class_of(config: dict[str, Any], folder: Path) -> Any:
    names = config.get("architectures") or []
    transformers = import_library("transformers")
    model_class = getattr(transformers, str(names[0]), None) if names else None
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise ParameterError(
            f"{folder / 'config.json'} names {names or 'no class'} as its architectures; expected a class of "
            "transformers: load the model in your own factory, and pass it to generation_case"
        )
    return model_class


def check_memory(folder: Path) -> None:
    """Refuse a checkpoint whose files alone do not fit in main memory, where they are loaded for every device."""
    import psutil

    needed_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        raise ParameterError(
            f"{folder} holds {needed_bytes / 2**30:.3g} GiB of weights, {free_bytes / 2**30:.3g} GiB of memory are "
            "free; take a larger machine"
        )


def check_whole(name: str, info: dict[str, Any], folder: Path) -> None:
    """Refuse a model with tensors missing, left over, or of another shape."""
    for kind in ("mismatched_keys", "missing_keys", "unexpected_keys", "error_msgs"):
        wrong = [_describe_key(key) for key in info.get(kind) or ()]
        if wrong:
            raise ParameterError(
                f"{folder} is no whole checkpoint of its {name} config: {kind.replace('_', ' ')}: {_some(wrong)}; "
                "expected every tensor of the config and no other: fetch it again, or correct config.json"
            )


def _describe_key(key: Any) -> str:
    if not isinstance(key, tuple):
        return str(key)
    name, stored, expected = key
    return f"{name} is {tuple(stored)} in the file and {tuple(expected)} by the config"


def check_finite(model: nn.Module, folder: Path) -> None:
    """Refuse a model with a NaN or an infinity among its weights."""
    wrong = [
        f"{name} in {short(weight.dtype)}"
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and weight.numel() and not weight.detach().abs().max().isfinite()
    ]
    if wrong:
        raise ParameterError(
            f"{folder} holds values that are not finite in {_some(wrong)}; expected finite weights: load it in a dtype "
            "of a wider range, bfloat16 or float32, or fetch it again"
        )


def _some(names: Iterable[str]) -> str:
    """Join the first names, and say how many more there are."""
    every = sorted(names)
    rest = f" and {len(every) - MOST_NAMES} more" if len(every) > MOST_NAMES else ""
    return ", ".join(every[:MOST_NAMES]) + rest


def one_line(error: Exception) -> str:
    """Join the first lines of a library's error, whose first line alone is often a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:MOST_LINES]) or type(error).__name__


@contextmanager
def hold_logs(*libraries: str) -> Iterator[None]:
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
