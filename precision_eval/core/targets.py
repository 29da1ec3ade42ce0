"""What a user names on the command line, ``file.py:name`` or ``package.module:name``, imported and called.

Conventions: a module is found from the working directory, a file also beside its own neighbours. Everything that can
go wrong in a user's file ends as one :class:`~precision_eval.core.errors.ParameterError`. Loads no torch of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from precision_eval.core.errors import ParameterError


def is_target(name: str) -> bool:
    """Say whether a name is a place to import from, and no id of a registry."""
    return ":" in name


def target_of(function: Any) -> str:
    """Return where a function is written, ``module:name`` or ``file.py:name``, for other processes to import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<unnamed>")
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if module is None or file is None or "<" in name:
        raise ParameterError(
            f"{name} is in no file, and each measurement is made by a process that imports it; write it to a file "
            "(in a notebook: %%writefile my_case.py) and give 'my_case.py:function'"
        )
    return f"{file if module == '__main__' else module}:{name}"


def plugins(group: str) -> dict[str, str]:
    """Return the names that installed packages give in a group of entry points, and the target of each."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


def imported(place: str) -> Any:
    """Import what is at ``module:name``, a place of this package's own."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def loaded(target: str, *, kind: str = "factory") -> Any:
    """Import what a target names."""
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise ParameterError(f"'{target}' names no {kind}; write package.module:function or file.py:function")
    value: Any = _module(place)
    try:
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        module = _module(place)
        own = [name for name, member in vars(module).items() if getattr(member, "__module__", "") == module.__name__]
        known = ", ".join(own[:8]) or "nothing"
        raise ParameterError(f"{place} has no '{attribute}'; it has: {known}") from error
    return value


def called(target: str | Callable[[], Any]) -> Any:
    """Import a factory, unless it is given itself, and return what it makes."""
    factory = loaded(target) if isinstance(target, str) else target
    target = name_of(target)
    if not callable(factory):
        raise ParameterError(
            f"{target} is a {type(factory).__name__}; expected a callable that returns model and inputs"
        )
    required = _required(factory)
    if required:
        raise ParameterError(
            f"the factory {target} needs {', '.join(required)}; give one that is called without arguments"
        )
    try:
        return factory()
    except SystemExit as error:
        raise ParameterError(
            f"the factory {target} ends the program; expected that it returns (model, inputs)"
        ) from error
    except Exception as error:
        raise ParameterError(f"the factory {target} raises {type(error).__name__}: {first_line(error)}") from error


def name_of(target: Any) -> str:
    """Return what messages call a factory or fix that is given by its place, or itself."""
    return target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)


def first_line(error: BaseException, *, empty: str = "no message") -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [empty])[0]


def source_digest(target: str) -> str:
    """Hash of the file in which a target is written: sha256, 64 hex digits."""
    file = getattr(_module(target.rpartition(":")[0]), "__file__", None)
    return hashlib.sha256(Path(file).read_bytes() if file else target.encode()).hexdigest()


def _required(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


_importing: list[str] = []  # the files that are being imported, the innermost last


class ScriptImportedError(ParameterError):
    """A script starts a run while a worker imports it for what is written there."""


def check_not_importing() -> None:
    """Refuse to start a run from a file that is being imported, as each worker would import it once more."""
    if _importing:
        raise ScriptImportedError(
            f"{_importing[-1]} calls evaluate() while it is imported, and every worker imports it; put the call below "
            "`if __name__ == '__main__':`, or write the factory to a file of its own"
        )


def _module(place: str) -> ModuleType:
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise ParameterError(f"there is no file {place}; write file.py:function, from {Path.cwd()}")
    try:
        return _file_module(Path(place)) if is_file else _package_module(place)
    except SystemExit as error:
        raise ParameterError(
            f"importing {place} ends the program; put what it runs under `if __name__ == '__main__'`"
        ) from error
    except ScriptImportedError:
        raise
    except SyntaxError as error:
        where = f"{error.filename or place}, line {error.lineno}"
        raise ParameterError(f"{place} does not import: {type(error).__name__}: {error.msg} ({where})") from error
    except Exception as error:
        remedy = f"`python {place}`" if is_file else f"`python -c 'import {place}'`"
        raise ParameterError(
            f"{place} does not import: {type(error).__name__}: {first_line(error)}; run where {remedy} works"
        ) from error


def _package_module(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - as sys.path has it
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _file_module(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that two files of one name do not meet."""
    path = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    _importing.append(path.name)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        _importing.pop()
    return module
