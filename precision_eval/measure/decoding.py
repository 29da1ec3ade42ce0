"""Decoding and sound of a case from outside, step by step, in a precision; imports torch.

Conventions: a stream is one run of decoding, begun with a seed of its own. The noise of a step is the voice's: a
function of seed, step and logit alone, so that every precision sees the same. Teacher forcing feeds what the float64
reference emitted under the run's noise. A loop of one's own (``sample``, ``synthesize``) runs eagerly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.modes import KeepingWide, SharedNoise
from precision_eval.cases.own import OwnCase, own_case
from precision_eval.cases.systems.system import in_float64
from precision_eval.cases.voice.conditions import noise_seed
from precision_eval.cases.voice.synthesis import GumbelNoise
from precision_eval.core.cells import Cell, role_of
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.fixes.packing import Packed, in_dtype


def score_step(logits: torch.Tensor, reference: torch.Tensor) -> dict[str, np.ndarray]:
    """Compare the logits of one frame; what the reference rules out, at −∞, is ruled out of the comparison.

    Per stream: ``‖l − o‖ / ‖o‖`` over the K·V logits of a frame, ``KL(o ‖ l)`` in nats, total variation ``½ Σ|p − q|``,
    and whether the most likely token flipped; softmax at temperature 1.
    """
    candidate, out = logits.double(), reference.isneginf()
    log_p, log_q = (
        values.masked_fill(out, -math.inf).log_softmax(-1).masked_fill(out, 0.0) for values in (reference, candidate)
    )
    p, q = (values.exp().masked_fill(out, 0.0) for values in (log_p, log_q))
    candidate, reference = candidate.masked_fill(out, 0.0), reference.masked_fill(out, 0.0)
    error = (candidate - reference).flatten(1).norm(dim=1) / reference.flatten(1).norm(dim=1)
    # Σ p(log p − log q) + q − p is the same KL, without the cancellation that makes tiny values negative
    kl = (p * (log_p - log_q) + q - p).sum(-1).mean(-1)
    return {
        "relative_error": error.numpy(),
        "kl_nats": kl.clamp_min(0.0).numpy(),
        "total_variation": (p - q).abs().sum(-1).mul(0.5).mean(-1).numpy(),
        "top1_flip": (candidate.argmax(-1) != reference.argmax(-1)).double().mean(-1).numpy(),
    }


@dataclass
class Picks:
    """What takes the tokens of each step: those given, or the most likely under shared noise; keeps the logits."""

    noise_seed: int = 0
    forced: np.ndarray | None = None
    logits: list[torch.Tensor] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    noise: GumbelNoise | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the tokens of a step, of the shape of `logits` without its last axis."""
        rows = logits.detach().to("cpu", torch.float64).reshape(-1, logits.shape[-1])
        self.noise = self.noise or GumbelNoise(self.noise_seed, 1, (rows.shape[0], rows.shape[1]))
        step = len(self.tokens)
        if self.forced is None:
            chosen = (rows + self.noise(step)[0]).argmax(-1)
        elif step < len(self.forced):
            chosen = torch.from_numpy(self.forced[step])
        else:
            raise ParameterError(f"the loop calls pick more than the {len(self.forced)} times that it is to")
        self.logits.append(rows)
        self.tokens.append(chosen.numpy())
        return chosen.reshape(logits.shape[:-1]).to(logits.device)


class _Decoding(Packed):
    """A model whose call is one step of its case's decoding, or the whole loop."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__(model)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self.model, *inputs)


Loop = Callable[[int, Picks, int], None]
"""``loop(seed, picks, steps)`` decodes so many steps."""


@contextmanager
def under(cell: Cell, condition: str, model: nn.Module, function: Callable[..., Any]) -> Iterator[Any]:
    """Yield ``function(model, ...)`` under a condition, and the dtype that it is stored in; a fix, or float64."""
    subject = _Decoding(model, function).to(cell.device)
    if role_of(condition) != "fix":
        twin = in_float64(subject)
        with KeepingWide(torch.float64), torch.no_grad():
            yield twin, twin.model, torch.float64
        return
    with fix_by_id(condition).applied(subject, mode=cell.mode) as applied:
        yield applied, applied.model.model, applied.dtype


@contextmanager
def decoding(cell: Cell, condition: str, own: OwnCase | None = None) -> Iterator[Loop]:
    """Open the decoding of a cell's case under a condition."""
    own = own or own_case(cell.case, seed=cell.options.seed)
    check_mode(cell, own.sample is not None)
    function, begin = own.sample or own.decode_step, own.state
    assert function is not None
    with under(cell, condition, own.model, function) as (call, model, dtype):

        @torch.no_grad()
        def decode(seed: int, picks: Picks, steps: int) -> None:
            if begin is None:
                call(in_dtype(own.given(seed), dtype), picks, steps)
            else:
                tokens, state = _pair(begin(model, seed), "state", "the first tokens and the caches")
                state = in_dtype(state, dtype)
                for _ in range(steps):
                    logits, state = _pair(call(tokens, state), "decode_step", "logits and the state")
                    tokens = picks(logits).reshape(tokens.shape)
            if len(picks.tokens) != steps:
                raise ParameterError(f"sample called pick {len(picks.tokens)} times; expected {steps}, once a step")

        def loop(seed: int, picks: Picks, steps: int) -> None:
            with nullcontext() if cell.mode == "compiled" else SharedNoise(seed):
                decode(seed, picks, steps)

        yield loop


def check_mode(cell: Cell, is_loop: bool) -> None:
    """Refuse a loop in Python where the model is to be compiled."""
    if is_loop and cell.mode == "compiled":
        raise UnsupportedError(
            "a loop of one's own (sample, generate, synthesize) runs in eager alone, as its Python is no part of the "
            "model; for a compiled step give OwnCase(decode_step=, state=)"
        )


def _pair(value: Any, hook: str, expected: str) -> tuple[Any, Any]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise ParameterError(f"{hook} returns a {type(value).__name__}; expected a pair: {expected}")
    return value


def free_running(cell: Cell, condition: str, *, streams: int) -> np.ndarray:
    """Tokens of free-running streams, (steps, streams, rows)."""
    with decoding(cell, condition) as loop:
        return np.stack([_run(loop, cell, condition, stream).tokens for stream in range(streams)], axis=1)


def _run(loop: Loop, cell: Cell, condition: str, stream: int, forced: np.ndarray | None = None) -> Picks:
    picks = Picks(noise_seed(condition, cell.options.seed) + stream, forced)
    loop(cell.options.seed + stream, picks, cell.options.steps)
    return picks


def forced_logits(cell: Cell, condition: str, tokens: np.ndarray | None, *, streams: int) -> tuple[Any, np.ndarray]:
    """Logits of each step, (steps, streams, rows, V), along given tokens or the condition's own; and the tokens."""
    with decoding(cell, condition) as loop:
        runs = [
            _run(loop, cell, condition, stream, None if tokens is None else tokens[:, stream])
            for stream in range(streams)
        ]
    logits = np.stack([torch.stack(run.logits).numpy() for run in runs], axis=1)
    return logits, np.stack([run.tokens for run in runs], axis=1)


def synthesised(cell: Cell, condition: str, own: OwnCase | None = None) -> tuple[np.ndarray, int]:
    """Say the script of a cell's case under a condition; returns mono float32 samples and their rate in Hz."""
    own = own or own_case(cell.case, seed=cell.options.seed)
    seed = noise_seed(condition, cell.options.seed)
    parts, rate_hz = said(cell, condition, own, [(script, seed + n) for n, script in enumerate(own.scripts)])
    return np.concatenate(parts), rate_hz


def said(cell: Cell, condition: str, own: OwnCase, passages: Sequence[tuple[Any, int]]) -> tuple[list[np.ndarray], int]:
    """Say each script under its noise seed and a condition; returns mono float32 samples of each, and their rate."""
    check_mode(cell, is_loop=True)
    assert own.synthesize is not None
    parts, rates = [], set()
    with under(cell, condition, own.model, own.synthesize) as (call, _, dtype):
        for script, seed in passages:
            with SharedNoise(seed):
                wave, rate_hz = _pair(call(in_dtype(script, dtype), seed), "synthesize", "waveform and sample rate")
            wave = wave.detach().cpu().double().numpy() if isinstance(wave, torch.Tensor) else np.asarray(wave)
            if wave.size != max(wave.shape, default=0) or not wave.size or int(rate_hz) != rate_hz:
                raise ParameterError(f"synthesize returns an array of shape {wave.shape} at {rate_hz}; give mono, Hz")
            parts.append(wave.reshape(-1).astype(np.float32))
            rates.add(int(rate_hz))
    if len(rates) != 1:
        raise ParameterError(f"synthesize returns several sample rates, {sorted(rates)}; expected one throughout")
    return parts, rates.pop()
