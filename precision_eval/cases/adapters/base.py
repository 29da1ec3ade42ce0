"""How a real model class of another library, unedited, becomes a case, and how its checkpoints are loaded.

Conventions: nothing here edits a class. A case's model is a
:class:`~precision_eval.cases.adapters.models.WrappedModel`, a thin module around the library's own object that holds
its caches as buffers and returns one tensor; the fixes reach the library's forward code through it. Checkpoints are
safetensors only, from a folder or the hub, and are loaded whole or not at all: what a config and the files' headers
say is checked before a weight is read, and what was loaded before it is handed out. This module loads no torch until
something is built.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from precision_eval.cases.adapters.checkpoints import (
    WIDTHS,
    check_buffers,
    check_dtypes,
    check_family,
    check_finite,
    check_fits,
    check_memory,
    check_whole,
    held_back,
    one_line,
    read_config,
    stored_tensors,
)
from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.core.errors import ParameterError, UnsupportedError, check_known
from precision_eval.core.formats import short

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPES = ("float16", "bfloat16", "float32", "float64")
LIBRARIES = ("transformers", "diffusers")


def tiny_case(make: Callable[..., BuiltCase], *, needs: str, **facts: Any) -> Case:
    """Offer ``make(device=..., seed=...)``, which needs a module of the extra ``zoo``, as a case of one tiny size."""
    return Case(
        **facts,
        sizes=("tiny",),
        default_sizes=("tiny",),
        measures=SYSTEM_MEASURES,
        make=partial(_built_tiny, make, needs),
        by_default=False,
        modules=(needs, "precision_eval.cases.adapters.models"),
    )


def _built_tiny(make: Callable[..., BuiltCase], needs: str, size: str, *, device: str, seed: int) -> BuiltCase:
    imported(needs)  # which says what to install
    return make(device=device, seed=seed)


def imported(name: str) -> ModuleType:
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
    """Turn a dtype's name into the dtype."""
    import torch

    name = short(dtype)
    check_known("dtype to load in:", name, DTYPES)
    return cast("torch.dtype", getattr(torch, name))


def load_checked(model_class: Any, path_or_name: str | Path, *, dtype: torch.dtype) -> nn.Module:
    """Load a checkpoint whole, or refuse it."""
    folder = checkpoint_folder(path_or_name)
    config = read_config(folder)
    check_family(model_class, config, folder)
    tensors = stored_tensors(folder)
    kept_wide = tuple(getattr(model_class, "_keep_in_fp32_modules", None) or ())
    check_dtypes(folder, config, tensors, kept_wide=kept_wide)
    check_memory(folder, tensors, dtype=short(dtype), kept_wide=kept_wide)
    with held_back(*LIBRARIES):
        _check_config_fits(model_class, config, folder, dtype)
        model, info = _built(model_class, folder, dtype)
        check_whole(model_class.__name__, info, folder)
        check_buffers(model, tensors, folder)
        check_finite(model, folder)
    return cast("nn.Module", model.eval())


def _refusals() -> tuple[type[Exception], ...]:
    """Return what the libraries raise on a config or a file that they cannot use."""
    # of a value of the wrong type; no builtin's subclass
    invalid: type[Exception] = imported("huggingface_hub.errors").StrictDataclassError
    return (RuntimeError, ValueError, OSError, LookupError, TypeError, AttributeError, ArithmeticError, invalid)


def _check_config_fits(model_class: Any, config: Mapping[str, Any], folder: Path, dtype: torch.dtype) -> None:
    """Refuse a config of a model that main memory does not hold; sizes are read off a model without storage."""
    import torch

    config_class = getattr(model_class, "config_class", None)  # of transformers' classes
    if config_class is not None:
        try:
            complete = config_class.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except _refusals() as error:
            raise ParameterError(
                f"{folder / 'config.json'} is no {config_class.__name__}: {one_line(error)}; expected a config that "
                "the class takes: fetch it again, or correct it"
            ) from error
    try:
        with torch.device("meta"):
            model = model_class.from_config(config) if config_class is None else model_class(complete)
    except _refusals():
        return  # what does not fit together is named when the library loads
    name = short(dtype)
    elements = sum(parameter.numel() for parameter in model.parameters())
    check_fits(f"{folder / 'config.json'} asks for", f"weights in {name}", elements * WIDTHS[name])


def _built(model_class: Any, folder: Path, dtype: torch.dtype) -> tuple[Any, Mapping[str, Any]]:
    """Let the library load, which says what does not fit; shapes that differ are told and not raised."""
    import torch

    default_dtype = torch.get_default_dtype()
    try:
        model, info = model_class.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # else both raise without a name; refused by check_whole
            output_loading_info=True,
            local_files_only=True,
            **({"trust_remote_code": False} if getattr(model_class, "config_class", None) is not None else {}),
        )
    except _refusals() as error:
        raise ParameterError(
            f"{folder} does not load as a {model_class.__name__}: {one_line(error)}; expected a checkpoint whose "
            "tensors have the names and shapes of its config.json: fetch it again, or correct the config"
        ) from error
    finally:
        torch.set_default_dtype(default_dtype)  # which diffusers leaves at the model's where a class raises
    return model, info


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
    hub = imported("huggingface_hub")
    try:
        return Path(hub.snapshot_download(str(path_or_name), allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"'{path_or_name}' is no folder here and the hub did not give it: {one_line(error)}; "
            "give a folder, or a model that this machine can fetch"
        ) from error
