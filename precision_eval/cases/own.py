"""A case from outside the package: what a factory in a user's file or package returns, as a case.

Conventions: a case's id is where its factory is written, ``file.py:name`` or ``package.module:name``, so that every
process that runs a cell can import it. The seeds of torch, numpy and Python are set before the factory is called, so
random weights and inputs are the same in every cell. This module loads torch when something is built.
"""

from __future__ import annotations

import hashlib
import inspect
import pickle
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.base import DECODING_MEASURES, SOUND_MEASURES, SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.core.errors import ParameterError, check_known
from precision_eval.core.files import check_own_folder, written_whole
from precision_eval.core.targets import called, first_line, loaded, name_of, source_digest

if TYPE_CHECKING:
    import torch
    from torch import nn

# Begins the target of a checkpoint, by its folder or hub name.
CHECKPOINT = "hf:"

_OF_CHECKPOINT = "precision_eval.cases.huggingface.generation:generation_case"

# The one size of a case from outside.
SIZE = "own"

TOLERANCES = ("max_drift", "min_speed", "max_memory_bytes", "max_memory_ratio")

_EXPECTED = "expected (model, inputs) with a torch.nn.Module and a tuple or dict, or an OwnCase"


@dataclass(frozen=True, kw_only=True)
class OwnCase:
    """A model of one's own and what it is called with, where a pair of the two does not say enough.

    Attributes
    ----------
    model : torch.nn.Module
        In the state in which it ships, in eval mode.
    inputs : tuple, dict or callable
        What one call gets, positional or by name; or ``inputs(seed)``, which returns that.
    call : callable, optional
        ``call(model, *args, **kwargs)``, where a call is not ``model(*args, **kwargs)``.
    decode_step : callable, optional
        ``decode_step(model, tokens, state)``, which returns ``(logits, state)``, logits (..., V) for tokens (...). With
        `state`, drift over decode steps under teacher forcing and divergence under shared noise are measured.
    state : callable, optional
        ``state(model, seed)``, which returns what decoding begins with: the first tokens, and the caches.
    sample : callable, optional
        ``sample(model, inputs, pick, steps)``, in place of these two: a loop of one's own, which calls ``pick(logits)``
        once a step, so many steps, and goes on with the tokens (...) that it returns for logits (..., V).
    synthesize : callable, optional
        ``synthesize(model, script, seed)``, which returns ``(waveform, sample_rate_hz)``. Sound is measured with it.
        What it draws with torch is drawn alike in every precision.
    script : object
        What is said; of a list, each entry in turn, joined. Each stream of the measure `sound` says one of them.
    steps_per_s : float
        Decode steps in a second of time, for axes of time.
    tolerances : dict of str to float
        Limits that `choose` keeps to where it is given none: ``max_drift``, ``min_speed``, ``max_memory_bytes`` or
        ``max_memory_ratio``.
    """

    model: nn.Module
    inputs: tuple[Any, ...] | list[Any] | dict[str, Any] | Callable[[int], Any]
    call: Callable[..., Any] | None = None
    decode_step: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    state: Callable[[Any, int], tuple[Any, Any]] | None = None
    sample: Callable[[Any, Any, Callable[[Any], Any], int], Any] | None = None
    synthesize: Callable[[Any, Any, int], tuple[Any, int]] | None = None
    script: Any = "The quick brown fox jumps over the lazy dog."
    steps_per_s: float = 50.0
    tolerances: Mapping[str, float] = field(default_factory=dict)

    @property
    def decodes(self) -> bool:
        """Whether it has what decoding is measured with."""
        return self.sample is not None or self.decode_step is not None

    @property
    def scripts(self) -> list[Any]:
        """What is said, one after the other."""
        return list(self.script) if isinstance(self.script, list | tuple) else [self.script]

    @property
    def measures(self) -> tuple[str, ...]:
        sound = (*SOUND_MEASURES, "sound") if self.synthesize is not None else ()
        return (*SYSTEM_MEASURES, *(DECODING_MEASURES if self.decodes else ()), *sound)

    @property
    def not_applicable(self) -> tuple[str, ...]:
        """What cannot be measured of it, each with what to add."""
        decoding = (
            "Not measured: drift over steps and divergence (add decode_step and state to your OwnCase, or sample)"
        )
        sound = "Not measured: sound (add synthesize to your OwnCase)"
        lacks = ((self.decodes, decoding), (self.synthesize is not None, sound))
        return tuple(text for supported, text in lacks if not supported)

    def module(self) -> nn.Module:
        """Return the module whose call is the case's call."""
        return self.model if self.call is None else _calling(self.model, self.call)

    def given(self, seed: int = 0) -> Any:
        return self.inputs(seed) if callable(self.inputs) else self.inputs

    def arguments(self, seed: int = 0) -> tuple[Any, ...]:
        """Return the inputs: positional ones, or a dict alone."""
        inputs = self.given(seed)
        if isinstance(inputs, dict) and all(isinstance(key, str) for key in inputs):
            return (dict(inputs),)
        if isinstance(inputs, tuple | list):
            return tuple(inputs)
        what = "inputs with keys that are no names" if isinstance(inputs, dict) else f"a {type(inputs).__name__}"
        raise ParameterError(f"the inputs are {what}; expected a tuple, or a dict of names")


def _calling(model: nn.Module, call: Callable[..., Any]) -> nn.Module:
    from torch import nn

    from precision_eval.fixes.packing import Packed

    class Calling(Packed):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return call(self.model, *args, **kwargs)

    assert isinstance(model, nn.Module)
    return Calling(model)


def own_case(target: str | Callable[[], Any], *, seed: int = 0) -> OwnCase:
    """Call a factory, given itself or by its place, with set seeds and check what it returns."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global one is what factories use
    random.seed(seed)
    if not isinstance(target, str):
        return checked(name_of(target), called(target))
    if target.startswith(CHECKPOINT):
        case: OwnCase = loaded(_OF_CHECKPOINT)(target.removeprefix(CHECKPOINT), seed=seed)
        return case
    return checked(target, called(target))


def checked(target: str, made: Any) -> OwnCase:
    """Make an :class:`OwnCase` of what a factory returned, or refuse it."""
    from torch import nn

    if isinstance(made, nn.Module):
        raise ParameterError(f"the factory {target} returns a model without inputs; {_EXPECTED}")
    if isinstance(made, tuple | list) and len(made) == 2:
        made = _of_pair(target, *made)
    if not isinstance(made, OwnCase):
        kind = f"{len(made)} things" if isinstance(made, tuple | list) else f"a {type(made).__name__}"
        raise ParameterError(f"the factory {target} returns {kind}; {_EXPECTED}")
    if not isinstance(made.model, nn.Module):
        raise ParameterError(f"the factory {target} returns a {type(made.model).__name__} as its model; {_EXPECTED}")
    for name in ("call", "decode_step", "state", "sample", "synthesize"):
        if not (getattr(made, name) is None or callable(getattr(made, name))):
            kind = type(getattr(made, name)).__name__
            raise ParameterError(f"{name} of {target} is a {kind}; expected a function, which gets the model first")
    if (made.decode_step is None) != (made.state is None) or (made.sample and made.decode_step):
        raise ParameterError(f"{target} has to give decode_step and state together, or sample in their place")
    for name in made.tolerances:
        check_known(f"tolerance of {target}:", name, TOLERANCES)
    return made


_CASE_FILE = '''\
"""A case that was given in memory; its objects are in the pickle of the same name."""

from pathlib import Path

from precision_eval.cases.own import read_case


def factory():
    return read_case(Path(__file__).with_suffix(".pickle"), main={main!r})
'''


def write_case(made: Any, run_dir: Path) -> str:
    """Write a case in memory to a file in a run's folder, which other processes import; returns its target."""
    case = checked("in memory", made)
    path = run_dir / f"{type(case.model).__name__}_case.py"
    try:
        content = pickle.dumps(case)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise _not_importable(error) from error
    check_own_folder(run_dir, "records.jsonl")
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "records.jsonl").touch()  # the sign of a run's folder
    with written_whole(path.with_suffix(".pickle")) as partial:
        partial.write_bytes(content)
    main = getattr(sys.modules["__main__"], "__file__", None)
    path.write_text(_CASE_FILE.format(main=main and str(Path(main).resolve())), encoding="utf-8")
    return f"{path}:factory"


class _CaseReader(pickle.Unpickler):
    """Looks up in the caller's script, under a name of its own, what was written there."""

    def __init__(self, file: Any, main: str | None) -> None:
        super().__init__(file)
        self._main = main

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__" and self._main is not None:
            return loaded(f"{self._main}:{name}")
        return super().find_class(module, name)


def read_case(path: Path, *, main: str | None = None) -> OwnCase:
    """Read what :func:`write_case` wrote in a process whose script was `main`."""
    try:
        with path.open("rb") as file:  # imported by the file next to it, which is code
            case: OwnCase = _CaseReader(file, main).load()
    except (AttributeError, ImportError) as error:  # of a notebook or an interpreter
        raise _not_importable(error) from error
    return case


def _not_importable(error: Exception) -> ParameterError:
    return ParameterError(
        f"the case in memory cannot be handed to other processes ({first_line(error)}); write its classes and "
        "functions to a file, outside of other functions, or give 'my_case.py:factory'"
    )


def _of_pair(target: str, model: Any, inputs: Any) -> OwnCase:
    from torch import nn

    if not isinstance(inputs, tuple | list | dict):
        raise ParameterError(f"the factory {target} returns a {type(inputs).__name__} as its inputs; {_EXPECTED}")
    if isinstance(inputs, dict) and not all(isinstance(key, str) for key in inputs):
        raise ParameterError(f"the factory {target} returns inputs with keys that are no names; {_EXPECTED}")
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module) and inspect.ismethod(model):  # such as model.generate
        return OwnCase(model=owner, inputs=inputs, call=model.__func__)
    return OwnCase(model=model, inputs=inputs)


def built(target: str | Callable[[], Any], size: str, *, device: str, seed: int) -> BuiltCase:
    """Build the case of a target: a module that takes tensors, and those tensors."""
    from precision_eval.fixes.packing import pack

    own = own_case(target, seed=seed)
    moved = on_device(own, device, seed=seed)
    subject = pack(moved.module(), moved.arguments())
    return BuiltCase(subject, subject.tensors, replace(own, model=moved.model))


def on_device(own: OwnCase, device: str, *, seed: int = 0) -> OwnCase:
    """Move a case's model, and the inputs of a seed, to a device."""
    import torch
    from torch.utils import _pytree as pytree

    inputs = pytree.tree_map(lambda leaf: leaf.to(device) if torch.is_tensor(leaf) else leaf, own.given(seed))
    return replace(own, model=own.model.to(device), inputs=inputs)


def case_of(target: str, *, digest: str = "", measures: tuple[str, ...] = SYSTEM_MEASURES) -> Case:
    """Make a case of a target, without calling it; `digest` and `measures` are what calling it has shown."""

    def make(size: str, *, device: str, seed: int) -> BuiltCase:
        return built(target, size, device=device, seed=seed)

    return Case(
        id=target,
        title=target,
        explanation="A case from outside the package.",
        source=target,
        sizes=(SIZE,),
        default_sizes=(SIZE,),
        measures=measures,
        definition=(digest,),
        make=make,
        by_default=False,
    )


def digest_of(target: str, case: BuiltCase) -> str:
    """Hash of the sources, the stored tensors and the inputs: sha256, 64 hex digits."""
    is_checkpoint = target.startswith(CHECKPOINT)
    total = hashlib.sha256((target if is_checkpoint else source_digest(target)).encode())
    for path in sorted(_own_sources(case.model)):
        total.update(path.read_bytes())
    for name, tensor in [*_state(case), *((f"input {i}", t) for i, t in enumerate(case.inputs))]:
        _add(total, name, tensor)
    return total.hexdigest()


def _state(case: BuiltCase) -> list[tuple[str, torch.Tensor]]:
    return [*case.model.named_parameters(), *case.model.named_buffers()]


def _add(total: Any, name: str, tensor: torch.Tensor) -> None:
    import torch

    total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def parts_of(case: BuiltCase) -> dict[str, str]:
    """Hash what two versions of a case have to share: its inputs, and its weights by value, whatever their dtype."""
    inputs, weights = hashlib.sha256(), hashlib.sha256()
    for index, tensor in enumerate(case.inputs):
        _add(inputs, str(index), tensor)
    for name, tensor in _state(case):
        weights.update(f"{name} {tuple(tensor.shape)} {float(tensor.detach().double().sum())}".encode())
    return {"inputs_digest": inputs.hexdigest()[:16], "weights_digest": weights.hexdigest()[:16]}


def _own_sources(model: nn.Module) -> set[Path]:
    """Return the files, outside installed packages, that the classes of a model's parts are written in."""
    files = set()
    for kind in {type(module) for module in model.modules()}:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if file and not {"site-packages", "dist-packages", "precision_eval"} & set(Path(file).parts):
            files.add(Path(file).resolve())
    return files
