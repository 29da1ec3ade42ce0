"""Dia's delay pattern: channel *c* runs ``delays[c]`` frames late, so that a frame's codes come one after another.

Conventions: codes are integers of shape (batch, frames, channels). Imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from precision_eval.core.errors import ParameterError


def _shifted(codes: torch.Tensor, shifts: torch.Tensor, *, before: int, after: int) -> torch.Tensor:
    """Read frame ``t − shifts[c]`` of each channel; the given codes where that lies outside."""
    frames = codes.shape[1]
    wanted = torch.arange(frames, device=codes.device)[:, None] - shifts.to(codes.device)  # (frames, channels)
    read = codes.gather(1, wanted.clamp(0, frames - 1).expand_as(codes))
    read = torch.where(wanted < 0, torch.full_like(read, before), read)
    return torch.where(wanted >= frames, torch.full_like(read, after), read)


def _checked(codes: torch.Tensor, delays: Sequence[int]) -> torch.Tensor:
    if codes.ndim != 3 or codes.shape[2] != len(delays) or codes.is_floating_point():
        raise ParameterError(
            f"codes of shape {tuple(codes.shape)} and {codes.dtype} with {len(delays)} delays; expected integers of "
            "shape (batch, frames, channels) and one delay per channel"
        )
    if min(delays) < 0:
        raise ParameterError(f"a delay of {min(delays)} frames; expected 0 or more")
    return torch.tensor(delays)


def apply_delay(codes: torch.Tensor, *, delays: Sequence[int], bos: int) -> torch.Tensor:
    """Delay each channel; what is delayed past the end is dropped."""
    return _shifted(codes, _checked(codes, delays), before=bos, after=bos)


def revert_delay(delayed: torch.Tensor, *, delays: Sequence[int], pad: int) -> torch.Tensor:
    """Bring the channels of a frame together again."""
    return _shifted(delayed, -_checked(delayed, delays), before=pad, after=pad)
