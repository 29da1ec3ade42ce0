"""What a set of scenes shares: a plant is one function between two linear layers, and its truth is marked lines.

``self.part`` of the function has a dtype: in the careful twin float32, or the model's own where the fault is to widen;
in the careless one what its row says. A set marks the lines of its truth by ``# @name``; some lie in a library.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from precision_eval.core.formats import short

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
WIDTH, LENGTH, HEADS = 32, 12, 4
Built = tuple[nn.Module, tuple[Any, ...]]
Make = Callable[[torch.dtype], Built]
Body = Callable[["Stage", Tensor], Tensor]
Library = dict[str, tuple[tuple[str, str, str], ...]]
_BODIES: dict[str, Body] = {}


@dataclass(frozen=True)
class Plant:
    """A planted fault; `truths` are the (file, line, module) at which it counts as located."""

    name: str
    make: Callable[[], Built]
    truths: tuple[tuple[str, int, str], ...]


def source_of(path: str) -> Any:
    """Find a class, or a function in it, by its dotted path."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(source_of(module), name)


class Scene(NamedTuple):
    """A model's dtype; that of its part, in the careless twin (none: the model's) and in the careful one."""

    words: str
    of: torch.dtype
    careless: torch.dtype | None
    careful: torch.dtype | None
    follows: bool
    inner: Callable[[], nn.Module]
    whole: bool
    raises: bool
    costs: bool

    @property
    def kind(self) -> str:
        return "raises" if self.raises else "widens" if self.costs else "drifts"


class Stage(nn.Module):
    """A linear layer, what a scene says around a module of its own, and a linear layer."""

    inner: Any

    def __init__(self, name: str, fixed: torch.dtype | None, *, is_careful: bool) -> None:
        super().__init__()
        self.name, self.fixed, self.is_careful = name, fixed, is_careful
        self.front, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    @property
    def part(self) -> torch.dtype:
        return self.fixed or self.front.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.back(_BODIES[self.name](self, self.front(x)))


class SceneSet:
    """The scenes of one file; lines of a library that are a fault's too; where a marked line runs."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)
        self.scenes: dict[str, Scene] = {}
        self.library: Library = {}
        self.within: dict[str, str] = {}

    def scene(
        self, words: str, *, of: torch.dtype = SINGLE, careless: torch.dtype | None = None,
        careful: torch.dtype | None = None, follows: bool = False, inner: Callable[[], nn.Module] = nn.Identity,
        whole: bool = False, raises: bool = False, costs: bool = False,
    ) -> Callable[[Body], Body]:  # fmt: skip
        """Add a scene.

        ``follows``: the careful part has the model's dtype, as it has by default where the careless one is float32;
        ``whole``: all of the inner module has the part's dtype; ``costs``: nothing is wrong but the casts.
        """

        def added(body: Body) -> Body:
            if _BODIES.setdefault(body.__name__, body) is not body:
                raise ValueError(f"two scenes are called {body.__name__}")
            self.scenes[body.__name__] = Scene(words, of, careless, careful, follows, inner, whole, raises, costs)
            return body

        return added

    def twin(self, name: str, dtype: torch.dtype, *, careful: bool) -> Built:
        """Build the careful twin in any dtype, or the careless one."""
        row = self.scenes[name]
        fixed = row.careless
        if careful:
            fixed = row.careful or (None if row.careless is SINGLE else SINGLE)
            fixed = None if row.follows or (fixed is SINGLE and dtype is DOUBLE) else fixed
        torch.manual_seed(0)
        inner = row.inner()  # draws its weights before the linear layers around it
        stage = Stage(name, fixed, is_careful=careful).to(dtype)
        stage.inner = inner.to(stage.part if row.whole else dtype)
        modules: Any = stage.modules()
        for module in modules:
            module.fixed = fixed
        x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(3))
        return stage.eval().requires_grad_(False), ({"x": x.to(dtype)},)

    def truths(self, name: str) -> list[tuple[str, int, str]]:
        """List the lines at which a plant counts as located, each with the module."""
        lines = self.file.read_text().splitlines()
        marked = [number for number, text in enumerate(lines, 1) if text.endswith(f"# @{name}")]
        within = self.within.get(name, "inner")
        accepted = [(self.file.name, number, module) for module in ("", within) for number in marked]
        for owner, pattern, module in self.library.get(name, ()):
            source = source_of(owner)
            text, start = inspect.getsourcelines(source)
            there = [number for number, line in enumerate(text, start) if re.search(pattern, line.rstrip())]
            accepted += [(Path(inspect.getfile(source)).name, number, module) for number in there]
        return accepted

    def plants(self) -> Iterator[Plant]:
        for name, row in self.scenes.items():
            words = f"{name} in {short(row.of)}: {row.words}"
            yield Plant(words, partial(self.twin, name, row.of, careful=False), tuple(self.truths(name)))

    def clean(self) -> Iterator[tuple[str, Make]]:
        for name in self.scenes:
            yield name, partial(self.twin, name, careful=True)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def exact(*shape: int, seed: int = 0) -> Tensor:
    """Draw multiples of 1/32, below 4 in size: every format holds them."""
    return (normal(*shape, seed=seed) * 32).round().clamp(-127, 127) / 32


def wide(x: Tensor) -> Tensor:
    """Bring to float32 what is narrower."""
    return x if x.dtype is DOUBLE else x.float()


def spread(inner: nn.Module, scale: float = 0.3) -> nn.Module:
    """Give every parameter seeded values; some classes leave them empty."""
    for seed, parameter in enumerate(inner.parameters()):
        parameter.data = scale * normal(*parameter.shape, seed=seed)
    return inner


TABLE = exact(512, WIDTH, seed=5)  # an embedding
WIDENED: dict[str, Any] = {"careless": SINGLE, "raises": True}
