"""What an entry of the zoo is: a real model class of another library, unedited, and how a case is built from it.

Conventions: nothing here edits a class. A case's model is a :class:`~precision_eval.zoo.wrapped.ZooModel`, a thin
module around the library's own object that holds its caches as buffers and returns one tensor; the fixes reach the
library's forward code through it. Checkpoints are safetensors only, from a folder or the hub, and are loaded whole or
not at all. This module loads no torch until something is built.

Contents: :class:`ZooEntry`, :func:`imported`, :func:`load_checked`, :func:`as_dtype`, :func:`keeping_float64`.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from precision_eval.errors import ParameterError, UnsupportedError, unknown_name
from precision_eval.workloads.base import SYSTEM_MEASURES, Case, Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPES = ("float16", "bfloat16", "float32", "float64")
#: How safetensors names the dtypes that a model's ``config.json`` may promise.
STORED_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
NAMES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """A real model class with the dtypes split as its system split them.

    Attributes
    ----------
    id : str
        Name used in cells and records; begins with ``zoo-``.
    title : str
        A few words for tables.
    explanation : str
        The class, where the dtypes split, and what one call does.
    source : str
        Where class and sizes were read.
    needs : tuple of str
        Packages it imports; the extra ``zoo`` installs them.
    definition : tuple
        The constants that make the tiny case what it is, in JSON's types; hashed into the workload's digest.
    make : callable
        ``make(device=..., seed=...)`` builds the tiny case with random weights.
    load : callable
        ``load(path_or_name, dtype=..., device=..., seed=...)`` builds a case from a checkpoint.
    """

    id: str
    title: str
    explanation: str
    source: str
    needs: tuple[str, ...]
    definition: tuple[Any, ...]
    make: Callable[..., Case]
    load: Callable[..., Case]

    def tiny(self, *, device: str = "cpu", seed: int = 0) -> Case:
        """Build the tiny case, with random weights.

        Parameters
        ----------
        device : str
        seed : int
            Of weights, caches and inputs.

        Returns
        -------
        Case

        Raises
        ------
        UnsupportedError
            A package of the extra ``zoo`` is missing.
        """
        for name in self.needs:
            imported(name)
        return self.make(device=device, seed=seed)

    def from_pretrained(
        self, path_or_name: str | Path, *, dtype: str | torch.dtype, device: str = "cpu", seed: int = 0
    ) -> Case:
        """Build a case from a checkpoint, in the same split of dtypes as the tiny one.

        Parameters
        ----------
        path_or_name : str or Path
            A folder with ``config.json`` and safetensors files, or a model's name on the hub.
        dtype : str or torch.dtype
            What the weights are loaded in, before the split.
        device : str
        seed : int
            Of caches and inputs.

        Returns
        -------
        Case

        Raises
        ------
        UnsupportedError
            A package of the extra ``zoo`` is missing.
        ParameterError
            The checkpoint is no safetensors checkpoint, or does not match its config; see :func:`load_checked`.
        """
        for name in self.needs:
            imported(name)
        return self.load(path_or_name, dtype=as_dtype(dtype), device=device, seed=seed)

    def workload(self) -> Workload:
        """Offer the tiny case as a workload, so that a run can measure it when asked by name.

        Returns
        -------
        Workload
        """

        def make(size: str, *, device: str, seed: int) -> Case:
            return self.tiny(device=device, seed=seed)

        return Workload(
            id=self.id,
            title=self.title,
            explanation=self.explanation,
            source=self.source,
            sizes=("tiny",),
            default_sizes=("tiny",),
            measures=SYSTEM_MEASURES,
            definition=self.definition,
            make=make,
            by_default=False,
        )


def imported(name: str) -> ModuleType:
    """Import a package of the extra ``zoo``.

    Parameters
    ----------
    name : str
        Such as ``"transformers"``.

    Returns
    -------
    module

    Raises
    ------
    UnsupportedError
        It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own parts
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise UnsupportedError(f"{name} is not installed; pip install 'precision-eval[zoo]'") from error


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Turn a dtype's name into the dtype.

    Parameters
    ----------
    dtype : str or torch.dtype
        One of ``DTYPES``.

    Returns
    -------
    torch.dtype

    Raises
    ------
    UnknownNameError
        It is none of them.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise unknown_name("dtype to load in:", name, DTYPES)
    return cast("torch.dtype", getattr(torch, name))


def load_checked(model_class: Any, path_or_name: str | Path, *, dtype: torch.dtype, subfolder: str = "") -> nn.Module:
    """Load a checkpoint whole, or refuse it.

    Parameters
    ----------
    model_class : type
        With a ``from_pretrained`` as transformers and diffusers have it.
    path_or_name : str or Path
        A folder with ``config.json`` and safetensors files, or a model's name on the hub.
    dtype : torch.dtype
        What the weights are loaded in; modules that the class keeps in float32 stay there.
    subfolder : str
        Where in the folder the model is.

    Returns
    -------
    torch.nn.Module
        In eval mode.

    Raises
    ------
    ParameterError
        No such folder or model; no config; no safetensors file or a damaged one; a dtype in it other than its config
        says; a tensor missing, left over or of another shape than the config's.
    """
    folder = _folder(path_or_name, subfolder)
    config = _config(folder)
    _check_stored_dtypes(folder, config, model_class)
    name = model_class.__name__
    try:
        model, info = model_class.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True, local_files_only=True
        )
    except (RuntimeError, ValueError, OSError, KeyError, TypeError, _invalid_config()) as error:
        raise ParameterError(
            f"{folder} does not load as a {name}: {str(error).strip().splitlines()[0]}; expected a checkpoint whose "
            "tensors have the names and shapes of its config.json: fetch it again, or correct the config"
        ) from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        names = sorted(str(key) for key in info.get(kind) or ())
        if names:
            raise ParameterError(
                f"{folder} is no whole checkpoint of its {name} config: {kind.replace('_', ' ')}: {_some(names)}; "
                "expected every tensor of the config and no other: fetch it again, or correct config.json"
            )
    return cast("nn.Module", model.eval())


def _invalid_config() -> type[Exception]:
    """Return what huggingface_hub raises on a config whose values are of wrong types; no builtin's subclass."""
    error: type[Exception] = imported("huggingface_hub.errors").StrictDataclassError
    return error


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + rest


def _folder(path_or_name: str | Path, subfolder: str) -> Path:
    """Find the folder of a checkpoint, fetched from the hub where no such folder exists here."""
    local = Path(path_or_name).expanduser()
    if local.is_dir():
        return local / subfolder if (local / subfolder).is_dir() else local
    looks_local = isinstance(path_or_name, Path) or local.is_absolute() or str(path_or_name).startswith((".", "~"))
    if looks_local or len(local.parts) != 2:
        raise ParameterError(
            f"no folder {path_or_name}; give one with config.json and safetensors files, or the hub's 'owner/name'"
        )
    hub = imported("huggingface_hub")
    try:
        for inside in dict.fromkeys((subfolder, "")):
            prefix = f"{inside}/" if inside else ""
            patterns = [f"{prefix}*.json", f"{prefix}*.safetensors"]
            fetched = Path(hub.snapshot_download(str(path_or_name), allow_patterns=patterns))
            if (fetched / inside).is_dir():
                return fetched / inside
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"'{path_or_name}' is no folder here and the hub did not give it: {str(error).strip().splitlines()[0]}; "
            "give a folder, or a model that this machine can fetch"
        ) from error
    return fetched


def _config(folder: Path) -> dict[str, Any]:
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


def _check_stored_dtypes(folder: Path, config: dict[str, Any], model_class: Any) -> None:
    """Refuse a checkpoint with floating tensors of another dtype than its config says."""
    promised = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    # float16 checkpoints of such classes rightly hold these modules in float32
    kept = (*(getattr(model_class, "_keep_in_fp32_modules", None) or ()),) if promised == "float16" else ()
    wrong: dict[str, list[str]] = {}
    stored = _stored_dtypes(folder)
    if not promised and len(set(stored.values())) > 1:
        counts = ", ".join(f"{count} of {dtype}" for dtype, count in Counter(stored.values()).items())
        raise ParameterError(
            f"{folder}: its safetensors hold tensors of several dtypes ({counts}), and config.json names none; store "
            "it again in one, with model.to(...).save_pretrained(...)"
        )
    for name, found in stored.items():
        if not promised or found == promised or (found == "float32" and set(kept) & set(name.split("."))):
            continue
        wrong.setdefault(found, []).append(name)
    if wrong:
        found, names = sorted(wrong.items())[0]
        raise ParameterError(
            f"{folder}: config.json says dtype {promised}, but its safetensors hold {found} in {_some(sorted(names))}; "
            f"store it again with model.to(torch.{promised}).save_pretrained(...), or correct the config"
        )


def _stored_dtypes(folder: Path) -> dict[str, str]:
    """Read the dtype of each floating tensor from the headers of a folder's safetensors files."""
    from safetensors import SafetensorError, safe_open

    # a variant ("model.fp16.safetensors") is not what is loaded
    files = sorted(path for path in folder.glob("*.safetensors") if "." not in path.stem)
    if not files:
        raise ParameterError(
            f"{folder} has no safetensors file; pickled checkpoints are refused: convert it with "
            "model.save_pretrained(folder)"
        )
    found: dict[str, str] = {}
    for path in files:
        try:
            with safe_open(path, framework="numpy") as tensors:
                stored = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ParameterError(f"{path} is damaged or no safetensors file ({error}); fetch it again") from error
        found |= {name: STORED_DTYPES[kind] for name, kind in stored.items() if kind in STORED_DTYPES}
    return found


def keeping_float64(*, factories: bool = False) -> AbstractContextManager[Any]:
    """Keep float64 from being narrowed while a block runs.

    Libraries force float32 inside norms, rotary embeddings and softmax whatever they are given. Here a cast of a
    float64 tensor to a narrower floating dtype does nothing, and a function given such a ``dtype`` computes in
    float64; all else is as before.

    Parameters
    ----------
    factories : bool
        Also where a floating tensor is made from none: ``torch.arange(n, dtype=torch.float32)`` and the ``.float()``
        of an integer tensor give float64.

    Returns
    -------
    context manager
        A ``TorchFunctionMode``; for eager.
    """
    from precision_eval.zoo.wrapped import KeepingFloat64

    return KeepingFloat64(factories=factories)
