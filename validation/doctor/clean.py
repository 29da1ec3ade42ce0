"""Models without a fault: the small ones and transformers' own in several dtypes, and three that mix on purpose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from validation.doctor import library, small, sounding
from validation.doctor.plants import BRAIN, HALF, SINGLE, Built

_SMALL = (
    small.decoder, small.classifier, small.diffuser, small.experts, small.recurrent, small.state_space, small.biased,
    sounding.mel, sounding.quantiser, sounding.vocoder, sounding.cross_reader, sounding.float_island,
    sounding.wide_residual, sounding.interleaved,
)  # fmt: skip
# dia-encode is clean where torch's RMS norm gives back half, from torch 2.8 on
_CASES = ("dia-encode", "cogvideo-t5-encoder-stock", "metavoice-t4")


def clean_models() -> dict[str, Callable[[], Built]]:
    """List the clean models."""
    found: dict[str, Callable[[], Built]] = {}
    for make in (*_SMALL, *library.MODELS):
        for dtype in (HALF, BRAIN, SINGLE):
            found[f"{make.__name__} in {_name(dtype)}"] = partial(make, dtype)
    for make in (small.decoder, small.biased, sounding.cross_reader, library.whisper):
        found[f"{make.__name__} in float32 under autocast"] = partial(_autocast, make)
    for case in _CASES:
        found[f"case {case}"] = partial(_case, case)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Autocast(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        with torch.autocast("cpu"):
            return self.model(*args, **kwargs)


def _autocast(make: Callable[[torch.dtype], Built]) -> Built:
    model, inputs = make(SINGLE)
    return _Autocast(model).eval(), inputs


def _case(case: str) -> Built:
    from precision_eval.cases.systems import case_by_id

    built = case_by_id(case).build("tiny", device="cpu", seed=0)
    return built.model, tuple(built.inputs)
