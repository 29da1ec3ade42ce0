"""Where a model comes from on the command line: a factory, a checkpoint, a case; loads torch when asked.

Conventions: a target is a model and its inputs, a tuple or a dict, as
:func:`~precision_eval.diagnose.doctor.examine` takes them. A factory is a callable without required parameters.
Checkpoints are safetensors only; their example inputs are made from the config: token ids, log-mel features, samples
or pixels.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.own import own_case
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import first_line

if TYPE_CHECKING:
    from torch import nn

TOKENS = 16
SAMPLES = 16_000


@dataclass(frozen=True)
class DoctorTarget:
    """A model and what it is called with."""

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]


def from_factory(path: str) -> DoctorTarget:
    """Call a factory."""
    own = own_case(path)
    return DoctorTarget(path, own.module(), own.arguments())


def from_case(case_id: str, *, size: str | None, device: str, seed: int) -> DoctorTarget:
    """Build a case of this suite, as shipped; without a size at its smallest."""
    from precision_eval.cases.systems import case_by_id

    case = case_by_id(case_id)
    built = case.build(size or case.sizes[0], device=device, seed=seed)
    return DoctorTarget(case_id, built.model, tuple(built.inputs))


def from_checkpoint(path_or_name: str, *, dtype: str, device: str, seed: int) -> DoctorTarget:
    """Load a checkpoint of transformers, and make inputs for it."""
    import torch

    from precision_eval.cases.adapters.base import as_dtype, checkpoint_folder, imported, load_checked
    from precision_eval.cases.adapters.checkpoints import read_config

    transformers = imported("transformers")
    folder = checkpoint_folder(path_or_name)
    read_config(folder)  # refuses a checkpoint that names code of its own
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"no configuration of a transformers model at '{path_or_name}': {first_line(error)}; give a folder with "
            "config.json and safetensors files, or a name on the hub"
        ) from error
    names = list(config.architectures or ())
    model_class = getattr(transformers, str(names[0]), None) if names else None
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise ParameterError(f"{path_or_name}: config.json names no class of transformers ({names or 'none'})")
    wanted = dtype or str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    model = load_checked(model_class, folder, dtype=as_dtype(wanted)).to(device)
    generator = torch.Generator().manual_seed(seed)
    inputs = {name: value.to(device) for name, value in example_inputs(model, generator).items()}
    return DoctorTarget(Path(path_or_name).name, model, (inputs,))


def example_inputs(model: Any, generator: Any) -> dict[str, Any]:
    """Make inputs for a model of transformers from its config."""
    import torch

    from precision_eval.cases.adapters.checkpoints import check_fits

    config, main = model.config, model.main_input_name
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)

    def ids(count: int) -> torch.Tensor:
        entries = model.get_input_embeddings().num_embeddings
        return torch.randint(entries, (1, count), generator=generator)

    shapes = {
        "input_features": (1, getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)),
        "input_values": (1, SAMPLES),
        "pixel_values": (1, getattr(config, "num_channels", 3), *2 * (getattr(config, "image_size", 224),)),
    }
    if main == "input_ids":
        inputs = {main: ids(TOKENS)}
    elif main in shapes and all(isinstance(size, int) for size in shapes[main]):
        check_fits("config.json asks for", f"an example of {main}", 4 * math.prod(shapes[main]))
        inputs = {main: torch.randn(shapes[main], generator=generator).to(dtype)}
    else:
        raise ParameterError(
            f"no example inputs can be made for {type(model).__name__}, whose main input is '{main}'; write a factory "
            "that returns the model and its inputs, and give package.module:factory"
        )
    if "decoder_input_ids" in inspect.signature(model.forward).parameters:
        inputs["decoder_input_ids"] = torch.full((1, 1), getattr(config, "decoder_start_token_id", None) or 0)
    return inputs
