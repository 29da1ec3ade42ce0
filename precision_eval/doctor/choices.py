"""Where the dtype that a line names was chosen: followed through variables, arguments, functions and attributes.

Conventions: the frames that ran are known with their modules and tensors, the innermost first; an attribute that a
model had before the call is a *setting*, and what chose it is only read in the file. The source of a dtype comes last.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import nn

from precision_eval.doctor.source import (
    Insertion,
    append_call,
    calls_of,
    class_around,
    dtype_node,
    function_of,
    node_at,
    nodes_in,
    replace_text,
    short_path,
    text_of,
)
from precision_eval.trace.observer import ModuleCall
from precision_eval.trace.provenance import CallFrame

MOST_CHOICES = 12


@dataclass(frozen=True)
class DtypeChoice:
    file: str
    node: ast.expr
    function: ast.FunctionDef | None
    at: int | None  # which frame it stands in, if any
    frame: CallFrame | None
    setting: str = ""  # path of an attribute that the model has from before the call

    @property
    def text(self) -> str:
        return text_of(self.file, self.node)


def choices_of(frames: tuple[CallFrame, ...]) -> list[DtypeChoice]:
    """List the expressions that the dtype of a call comes from, the source last; empty where it names a literal."""
    node = dtype_node(*frames[0][:2]) if frames else None
    choices: list[DtypeChoice] = []
    if node is None:
        return choices
    code = frames[0].code
    at: DtypeChoice | None = _choice(frames, code.co_filename, node, function_of(code), 0)
    while at is not None and len(choices) < MOST_CHOICES:
        choices.append(at)
        at = _before(at, frames)
    return choices


def _choice(
    frames: tuple[CallFrame, ...], file: str, node: ast.expr, function: ast.FunctionDef | None, at: int | None
) -> DtypeChoice:
    frame = frames[at] if at is not None else None
    return DtypeChoice(file, node, function, at, frame, _setting(node, frame))


def _before(choice: DtypeChoice, frames: tuple[CallFrame, ...]) -> DtypeChoice | None:
    """Find what an expression has its value from."""
    node, file, function = choice.node, choice.file, choice.function
    if isinstance(node, ast.Name) and function is not None:
        if (value := _assigned(function, node)) is not None:
            return _choice(frames, file, value, function, choice.at)
        return _argument_of(choice, node.id, function, frames)
    if isinstance(node, ast.Attribute) and (node.attr != "dtype" or choice.setting):
        kind = type(_resolve(node.value, choice.frame)[1])
        values = _set_in_class(file, node.attr, None if kind is type(None) else kind.__name__)
        return _choice(frames, file, values[0][1], values[0][0], None) if len(values) == 1 else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "getattr" and len(node.args) > 1:
            return _choice(frames, file, node.args[1], function, choice.at)
        called = [n for n in nodes_in(file) if isinstance(n, ast.FunctionDef) and n.name == node.func.id]
        returns = [n.value for n in ast.walk(called[0]) if isinstance(n, ast.Return)] if len(called) == 1 else []
        return _choice(frames, file, returns[0], called[0], None) if len(returns) == 1 and returns[0] else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        tables = [n for n in nodes_in(file) if isinstance(n, ast.Dict)]
        pairs = [pair for table in tables for pair in zip(table.keys, table.values, strict=True)]
        given = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == node.slice.value]
        return _choice(frames, file, given[0], None, None) if len(given) == 1 else None
    return None


def _assigned(function: ast.FunctionDef, name: ast.Name) -> ast.expr | None:
    """Find what a variable was last given above a line."""
    given: list[tuple[int, ast.expr]] = []
    for target, value in _assignments(function):
        if isinstance(target, ast.Name) and target.id == name.id and target.lineno < name.lineno:
            given.append((target.lineno, value))
    return max(given, key=lambda pair: pair[0])[1] if given else None


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a function assigns to, the parts of a tuple one by one, and what that is given."""
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            yield target, node.value


def _argument_of(
    choice: DtypeChoice, name: str, function: ast.FunctionDef, frames: tuple[CallFrame, ...]
) -> DtypeChoice | None:
    """Find what a function was given for a parameter: in the frame that called it, else where the file calls it."""
    file, at = choice.file, None if choice.at is None else choice.at + 1
    if at is not None and at < len(frames):
        code, instruction = frames[at][:2]
        file, calls = code.co_filename, [node_at(code, instruction)]
    else:
        owner, at = class_around(file, function), None
        calls = [*calls_of(file, owner if owner and function.name == "__init__" else function.name)]
    if len(calls) != 1 or not isinstance(call := calls[0], ast.Call):
        return None
    given = _arguments(call, function).get(name)
    caller = function_of(frames[at].code) if at is not None else None
    return None if given is None else _choice(frames, file, given, caller, at)


def _arguments(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr]:
    names = [part.arg for part in (*function.args.posonlyargs, *function.args.args)]
    given = {word.arg: word.value for word in call.keywords if word.arg}
    return given | dict(zip(names[1 if names[:1] == ["self"] else 0 :], call.args, strict=False))


def with_cast_argument(code: CodeType, names: Iterable[str], dtype: str) -> tuple[Insertion, ...]:
    """Cast arguments of a function where its file calls it, if it does so once: for every line of the function."""
    function, file = function_of(code), code.co_filename
    calls = [] if function is None else calls_of(file, function.name)
    given = _arguments(calls[0], function) if function is not None and len(calls) == 1 else {}
    return tuple(i for name in names if name in given for i in append_call(file, given[name], f".to({dtype})"))


def _set_in_class(file: str, name: str, owner: str | None) -> list[tuple[ast.FunctionDef, ast.expr]]:
    """List what the methods of a class, or of all in a file, give an attribute."""
    classes = [n for n in nodes_in(file) if isinstance(n, ast.ClassDef) and owner in (None, n.name)]
    given = [one for kind in classes for one in _attributes_of(kind)]
    return [(function, value) for function, attribute, value in given if attribute == name]


@lru_cache(maxsize=256)
def _attributes_of(kind: ast.ClassDef) -> tuple[tuple[ast.FunctionDef, str, ast.expr], ...]:
    functions = [n for n in ast.walk(kind) if isinstance(n, ast.FunctionDef)]
    given = [(function, *pair) for function in functions for pair in _assignments(function)]
    return tuple((function, at.attr, value) for function, at, value in given if isinstance(at, ast.Attribute))


def _resolve(node: ast.AST, frame: CallFrame | None) -> tuple[str, Any]:
    """Find the module, or the object that one holds, that an expression stands for, with its path."""
    if frame is None:
        return "", None
    if isinstance(node, ast.Name):
        call = frame.modules.get(node.id)
        return ("", None) if call is None else (call.path, call.module)
    if isinstance(node, ast.Attribute):
        path, holder = _resolve(node.value, frame)
        parts = {**vars(holder), **(holder._modules if isinstance(holder, nn.Module) else {})} if holder else {}
        return (f"{path}.{node.attr}".lstrip("."), parts.get(node.attr)) if hasattr(holder, "__dict__") else ("", None)
    return "", None


def _setting(node: ast.expr, frame: CallFrame | None) -> str:
    path, value = _resolve(node, frame)
    named = getattr(torch, value, None) if isinstance(value, str) else value
    return path if isinstance(named, torch.dtype) else ""


def as_path(parts: Iterable[str]) -> str:
    """Write the way to a module's tensor as code: ``.layers[0].keys``."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)


def change_of(choice: DtypeChoice, names: Iterable[str], base: torch.dtype) -> tuple[Insertion, ...] | dict[Any, Any]:
    """Have an expression give a dtype: by the setting, by the part of the model that is asked, or by a tensor's name.

    `names` are those of the parameters in that dtype that the stray tensor meets.
    """
    if choice.setting:
        return {("dtype", choice.setting): base}
    if choice.frame is None:
        return ()
    node = choice.node
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else node
    parts = [*ast.walk(inner)] if isinstance(inner, ast.Call) else []
    for part in parts:  # `next(model.parameters()).dtype`, `dtype_of(model)`
        path, module = _resolve(part, choice.frame)
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(module, nn.Module):
            below = next(_parts_in(path, module, names, base), "")
            return append_call(choice.file, part, below) if below else ()
    text = dtype_in(choice.frame, names, base)
    return replace_text(choice.file, node, text) if text and text != text_of(choice.file, node) else ()


def _parts_in(path: str, module: nn.Module, names: Iterable[str], base: torch.dtype) -> Iterator[str]:
    """Yield the ways from a module to the outermost of its parts whose first parameter is in a dtype."""
    for name in names:
        parts = name.removeprefix(f"{path}." if path else "").split(".")
        inside = not path or name.startswith(f"{path}.")
        for end in range(1, len(parts)) if inside else ():
            below = module.get_submodule(".".join(parts[:end]))
            first = next((p for p in below.parameters() if p.is_floating_point()), None)
            if first is not None and first.dtype is base:
                yield as_path(parts[:end])


def dtype_in(frame: CallFrame, names: Iterable[str], base: torch.dtype) -> str:
    """Write a dtype as that of a parameter of a module, or of a tensor, that has a name in a function; else nothing."""
    calls = sorted(frame.modules.items(), key=lambda pair: (pair[0] != "self", -len(pair[1].path)))
    for name, call in calls:
        if text := _parameter_in(call, names, base, any_other=name == "self"):
            return f"{name}{text}.dtype"
    given = frame.code.co_varnames[: frame.code.co_argcount + frame.code.co_kwonlyargcount]
    return next((f"{name}.dtype" for name in given if frame.tensors.get(name) is base), "")


def _parameter_in(call: ModuleCall, names: Iterable[str], base: torch.dtype, *, any_other: bool) -> str:
    inside = {name: p for name, p in call.module.named_parameters() if p.dtype is base}
    met = [name.removeprefix(f"{call.path}." if call.path else "") for name in names]
    all_names = [*met, *(inside if any_other else ())]
    matrices = [name for name in all_names if name in inside and inside[name].dim() > 1]
    name = next(iter([*matrices, *(name for name in all_names if name in inside)]), None)
    return "" if name is None else as_path(name.split("."))


def words_of(choices: list[DtypeChoice]) -> str:
    """Say what a dtype is set to, the source last; a name that is only passed on is left out."""
    words, file = "", ""
    for choice, is_last in zip(choices[1:], [*(False for _ in choices[2:]), True], strict=False):
        if is_last or not isinstance(choice.node, ast.Name):
            place = "line " if choice.file == file else f"{short_path(choice.file)}:"
            words += f"{', ' if words else ''}set to {choice.text} at {place}{choice.node.lineno}"
            file = choice.file
    return words
