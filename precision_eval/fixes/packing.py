"""A model in a shape in which everything can call it: tensors in, floating tensors out; imports torch.

A fix casts and stores positional tensors, and a user's model may take anything: what it is called with is taken apart
here, and put together again inside each call.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from precision_eval.core.cells import is_out_of_memory
from precision_eval.core.errors import ParameterError
from precision_eval.core.targets import first_line
from precision_eval.fixes.storage import tensors_in

Model = TypeVar("Model", bound=nn.Module)

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type)


class Packed(nn.Module):
    """A module around a user's model, which is its attribute ``model``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # not train(), which sets every part of the user's model


class ExaminedModel(Packed):
    """A model with its inputs taken apart: called with the tensors among them, it returns floating tensors."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(model)
        self.prefix = "model."  # what the paths of the user's model begin with here
        inner = model
        while isinstance(inner, Packed):
            self.prefix, inner = self.prefix + "model.", inner.model
        paths, spec = pytree.tree_flatten_with_path((args, kwargs))
        self._rebuild = _Rebuild(spec)
        leaves = [leaf for _, leaf in paths]
        names = [_name(path, _parameters(model)) for path, _ in paths]
        self.names = tuple(name for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, torch.Tensor))
        self._other_names = names
        self.listener: Callable[[str, Any], None] | None = None
        self.drawn: tuple[torch.dtype, ...] | None = None  # formats in which it draws, once it has been called
        self.trains = takes_gradients(model)
        self.updated: tuple[str, ...] = ()  # parameters that a call changes in place, once it has been called
        self.computes_in: torch.dtype | None = None  # the format to which a call itself brings its parameters
        self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        self._others = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]

    @property
    def unwrapped(self) -> nn.Module:
        """The user's model."""
        return self.get_submodule(self.prefix.rstrip("."))

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put inputs together again; objects that a call may change are copied."""
        rest = iter(tensors)
        leaves = []
        for name, other in zip(self._other_names, self._others, strict=True):
            if other is None:
                leaves.append(next(rest))
            elif isinstance(other[0], _PLAIN):
                leaves.append(other[0])
            else:
                leaves.append(copy.deepcopy(other[0]))
                if self.listener is not None:
                    self.listener(name, leaves[-1])
        args, kwargs = self._rebuild(leaves)
        return args, kwargs

    def objects(self) -> list[tuple[str, Any]]:
        """List what is neither tensor nor plain value among the inputs, such as caches, by name."""
        others = zip(self._other_names, self._others, strict=True)
        return [(name, other[0]) for name, other in others if other and not isinstance(other[0], _PLAIN)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the model; where it returns no floating tensors, those inside an object, such as a cache, or tokens.

        Of a call that changes parameters, these are what it returns.
        """
        args, kwargs = self.arguments(tensors)
        with torch.enable_grad() if self.trains else nullcontext():
            output = self.model(*args, **kwargs)
        if self.updated:
            return tuple(self.get_parameter(name) for name in self.updated)
        inside = tuple(tensor for _, tensor in tensors_in("output", output))
        return floating_leaves(output) or inside or token_leaves(output)


class _Rebuild:
    """Puts leaves together again; one for all copies, as torch's tree specs copy with a warning."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __call__(self, leaves: list[Any]) -> Any:
        return pytree.tree_unflatten(leaves, self._spec)

    def __deepcopy__(self, memo: Any) -> _Rebuild:
        return self


def takes_gradients(model: nn.Module) -> bool:
    """Say whether a call reaches code of the user's that names autograd's ``backward`` or ``grad``."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__ if not _is_of_torch(kind)}
    waiting: list[Any] = [vars(kind).get("forward") for kind in classes]
    seen: set[Any] = set()
    while waiting:
        value = waiting.pop()
        function = inspect.unwrap(value) if callable(value) else value
        code = getattr(function, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        names = set(_names_of(code))
        if "backward" in names or {"autograd", "grad"} <= names:
            return True
        known = function.__globals__
        beside = (known.get(name) for name in names)
        waiting += [value for value in beside if inspect.isfunction(value) and value.__globals__ is known]
        waiting += [vars(kind)[name] for kind in classes for name in names & vars(kind).keys()]
        with suppress(ValueError):  # a cell that is empty yet
            waiting += [cell.cell_contents for cell in function.__closure__ or ()]
    return False


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def _is_of_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] == "torch"


def _parameters(model: nn.Module) -> list[str]:
    try:
        return list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return []


def _name(path: tuple[Any, ...], parameters: list[str]) -> str:
    """Write the path of an input: the parameter's name, then what is inside it."""
    kind, first = path[0].idx, path[1]
    if kind == 0:
        index = first.idx
        name = parameters[index] if index < len(parameters) and parameters[index] != "args" else f"input_{index}"
    else:
        name = str(first.key)
    return name + pytree.keystr(path[2:])


def floating_leaves(value: Any) -> tuple[torch.Tensor, ...]:
    """List the floating tensors of what a model returned, in order, those in fields of dataclasses too."""
    tensors: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            tensors += [leaf] if leaf.is_floating_point() else []
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += [tensor for entry in fields(leaf) for tensor in floating_leaves(getattr(leaf, entry.name, None))]
    return tuple(tensors)


def token_leaves(value: Any) -> tuple[torch.Tensor, ...]:
    """List the integer tensors of what a model returned, such as tokens; conditions are none."""
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return tuple(leaf for leaf in leaves if leaf.dtype is not torch.bool and not leaf.is_complex())


def in_dtype(values: Any, dtype: torch.dtype | None) -> Any:
    """Bring the floating tensors among nested values into a dtype, if any; those of objects such as caches in place."""
    if dtype is None:
        return values

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        for _, tensor in tensors_in("", value):
            tensor.data = tensor.data.to(dtype)
        return value

    return pytree.tree_map(cast, values)


def as_arguments(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: one dict alone holds inputs by name."""
    if len(inputs) == 1 and isinstance(inputs[0], dict) and all(isinstance(key, str) for key in inputs[0]):
        return (), dict(inputs[0])
    return inputs, {}


def pack(model: Any, inputs: tuple[Any, ...]) -> ExaminedModel:
    """Put a model and its inputs together; one dict alone holds inputs by name."""
    if not isinstance(model, nn.Module):
        raise ParameterError(f"the model is a {type(model).__name__}; expected a torch.nn.Module")
    args, kwargs = as_arguments(inputs)
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        kinds = f"{len(args)} positional and {', '.join(kwargs) or 'no'} keyword inputs"
        raise ParameterError(
            f"{type(model).__name__}.forward cannot be called with the inputs given ({kinds}): {error}; give the "
            "factory's inputs as a tuple in the order of its parameters, or as a dict by their names"
        ) from error
    except ValueError:  # no signature to be had, as of a ScriptModule
        pass
    return ExaminedModel(model, args, kwargs)


def copy_model(model: Model) -> Model:
    """Copy a model, and what weight_norm and others compute and keep as attributes; torch alone copies leaves only."""
    values = [value for module in model.modules() for value in vars(module).values()]
    computed = [value for value in values if isinstance(value, torch.Tensor) and not value.is_leaf]
    try:
        return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise ParameterError(
            f"the model cannot be copied ({first_line(error)}); fixes are put on copies, and calls made of them: make "
            "it deep-copyable, as by detaching tensors kept as attributes or taking off a wrapper such as FSDP"
        ) from error
