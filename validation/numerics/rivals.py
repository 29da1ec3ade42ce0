"""The rules that others judge low-precision attention by, called or written as they are used.

Conventions: a rule looks at a *candidate* output and answers whether it raises an alarm. Anything that is not finite in
the candidate raises one, as every one of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Z_LIMIT, RMS_LIMIT = 5.0, 2.0


@dataclass(frozen=True)
class Reference:
    """What a candidate is held to."""

    reference: Tensor
    yardstick: Tensor

    @cached_property
    def rounded(self) -> Tensor:
        """The reference, returned in the dtype."""
        return self.reference.to(self.yardstick.dtype)

    @cached_property
    def plain_max(self) -> float:
        """Largest error of the yardstick to :attr:`rounded`."""
        return float((self.yardstick.double() - self.rounded.double()).abs().max())

    @cached_property
    def rounding_atol(self) -> float:
        """What any arithmetic on the rounded reference may cost; see [2]_ of the module."""
        return 2.0 * float((self.rounded + 0.3 - 0.3 - self.rounded).abs().max())

    @cached_property
    def plain_rms(self) -> float:
        """RMS error of the yardstick to the reference: the format's own error."""
        return float((self.yardstick.double() - self.reference).square().mean().sqrt())


def _flash_2max(candidate: Tensor, reference: Reference) -> bool:
    error = float((candidate.double() - reference.rounded.double()).abs().max())
    return not error <= 2.0 * reference.plain_max


def _flash_2max_atol(candidate: Tensor, reference: Reference) -> bool:
    error = float((candidate.double() - reference.rounded.double()).abs().max())
    return not error <= 2.0 * reference.plain_max + reference.rounding_atol


def _assert_close(candidate: Tensor, reference: Reference) -> bool:
    try:
        torch.testing.assert_close(candidate, reference.yardstick)
    except AssertionError:
        return True
    return False


def _allclose(candidate: Tensor, reference: Reference) -> bool:
    return not torch.allclose(candidate, reference.yardstick, rtol=1e-2, atol=1e-2)


def _bias_or_rms(candidate: Tensor, reference: Reference) -> bool:
    noise = candidate.double() - reference.reference
    rms = float(noise.square().mean().sqrt())
    if not math.isfinite(rms) or rms > RMS_LIMIT * reference.plain_rms:
        return True
    signed = (noise * reference.reference.sign()).flatten()
    spread = float(signed.std()) / math.sqrt(len(signed))
    return bool(spread) and abs(float(signed.mean())) > Z_LIMIT * spread


RIVALS: dict[str, Callable[[Tensor, Reference], bool]] = {
    "flash_2max": _flash_2max,
    "flash_2max_atol": _flash_2max_atol,
    "assert_close": _assert_close,
    "allclose_1e-2": _allclose,
    "bias_or_rms": _bias_or_rms,
}


def alarms(candidate: Tensor, reference: Reference) -> dict[str, bool]:
    """Ask every rival."""
    return {name: rule(candidate, reference) for name, rule in RIVALS.items()}
