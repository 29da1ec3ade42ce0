"""What a case is, and a case of it: a system in the state in which the bug occurs, at a stated size.

Cases are append-only: a changed definition gets a new digest, and records of unlike digests are not compared.
This module loads torch only when a case is built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_eval.core.cells import role_of
from precision_eval.core.errors import ParameterError, check_known
from precision_eval.core.targets import imported

if TYPE_CHECKING:
    import torch
    from torch import nn


SYSTEM_MEASURES = ("trace", "drift", "memory", "latency")
"""What can be measured of any model: it needs nothing but a call."""

DECODING_MEASURES = ("teacher_forced_drift", "streams", "divergence")
SOUND_MEASURES = ("synthesis", "audio")


@dataclass(frozen=True)
class BuiltCase:
    """A case built at one size: ``case.model(*case.inputs)`` is one repeatable call, as shipped and in eval mode.

    `own` is what a case from outside was built from. Where a process measures the case several times, `kept` holds what
    depends on the case alone, by name.
    """

    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    own: Any = None
    kept: dict[str, Any] | None = None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returns, a tensor or several, calculated once where the case is kept."""
        if self.kept is None:
            return make()
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A system that had the bug.

    Attributes
    ----------
    id : str
        Name used in cells and records.
    title : str
        A few words for tables.
    explanation : str
        Where the dtypes split, and what one call does.
    source : str
        Where the sizes and the bug were read.
    sizes : tuple of str
        Every size it can be built at; ``tiny`` is for tests.
    default_sizes : tuple of str
        What a run takes when none is named.
    measures : tuple of str
        The measures that have a meaning here.
    definition : tuple
        The constants that make it what it is, in JSON's types; hashed into the digest.
    make : callable
        ``make(size, device=..., seed=...)`` builds the case; loads torch.
    full_parameters : int
        Parameters at the size ``full``; 0 where it fits anywhere.
    bytes_per_parameter : float
        As shipped, on average.
    by_default : bool
        Part of a run that names no case.
    upstream : str
        What landed in its project, or that nothing did, with references; empty where the case stands for no one
        project. The fix ``upstream`` is planned only where this says something.
    controls : tuple of str
        Pseudo fixes that are known to degrade it.
    """

    id: str
    title: str
    explanation: str
    source: str
    sizes: tuple[str, ...]
    default_sizes: tuple[str, ...]
    measures: tuple[str, ...]
    definition: tuple[Any, ...]
    make: Callable[..., BuiltCase]
    full_parameters: int = 0
    bytes_per_parameter: float = 2.0
    by_default: bool = True
    upstream: str = ""
    controls: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the definition: sha256, 64 hex digits; changes when the definition changes."""
        # A size that is a length says what it is, so that one more leaves the records of the others comparable.
        sizes = [size for size in self.sizes if not size.isdecimal()]
        text = json.dumps([self.id, sizes, self.definition], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def takes(self, fix: str) -> bool:
        """Say whether a fix, or a control, has a meaning here: what landed upstream needs one project that is meant."""
        if role_of(fix) == "control":
            return fix in self.controls
        return fix != "upstream" or bool(self.upstream)

    def check_fits(
        self, size: str, *, available_bytes: int, copies: float = 0.0, holder: str = "", remedy: str = "--size cpu"
    ) -> None:
        """Refuse a size whose weights alone do not fit, before anything is loaded.

        `available_bytes` is of the memory in which weights are drawn; `copies`, bytes per parameter held beside the
        weights as shipped, are those of `holder`.
        """
        needed_bytes = (self.bytes_per_parameter + copies) * self.full_parameters if size == "full" else 0
        if needed_bytes > available_bytes:
            what = f"its weights and those that {holder} copies" if copies else "its weights"
            raise ParameterError(
                f"size 'full' of the case '{self.id}' needs {needed_bytes / 2**30:.3g} GiB for {what}, "
                f"{available_bytes / 2**30:.3g} GiB are free; take {remedy}, or a larger machine"
            )

    def build(self, size: str, *, device: str, seed: int) -> BuiltCase:
        """Build the case at a size.

        Parameters
        ----------
        size : str
            One of ``sizes``.
        device : str
            Such as ``"cpu"`` or ``"cuda"``. Values are drawn on the CPU, so they are the same on every device; those
            of the size ``full`` on a CUDA device itself, where they depend on the kind of card.
        seed : int
            Of weights, caches and inputs.
        """
        check_known(f"size of the case '{self.id}':", size, self.sizes)
        return self.make(size, device=device, seed=seed)


def built_by(place: str, size: str, *, device: str, seed: int, **state: Any) -> BuiltCase:
    """Build a case by the function at ``module:function``; its module, which loads torch, is imported only here."""
    case: BuiltCase = imported(place)(size, device=device, seed=seed, **state)
    return case
