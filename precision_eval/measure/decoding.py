"""Decoding and sound of a case from outside, step by step, in a precision; imports torch.

Conventions: a stream is one run of decoding, begun with a seed of its own. The noise of a step is the voice's: a
function of seed, step and logit alone, so that every precision sees the same. Teacher forcing feeds what the float64
reference emitted under the run's noise. A loop of one's own (``sample``, ``synthesize``) runs eagerly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.modes import KeepingWide, SharedNoise
from precision_eval.cases.own import OwnCase, built, digest_of, own_case
from precision_eval.cases.systems.system import in_float64
from precision_eval.cases.voice.conditions import noise_seed
from precision_eval.cases.voice.synthesis import GumbelNoise
from precision_eval.core.cells import Cell, role_of
from precision_eval.core.errors import ParameterError, UnsupportedError
from precision_eval.core.files import written_whole
from precision_eval.fixes.catalog import fix_by_id
from precision_eval.fixes.packing import Packed, in_dtype
from precision_eval.measure.sound import (
    DROP_OUT_S,
    MAX_TEACHER_FORCED_STREAMS,
    SHORTEST_S,
    append_samples,
    distances,
    keep_arrays,
    open_wav,
    relate_to_noise_floor,
    streams_data,
    with_drop_outs,
)
from precision_eval.trace.attention import AttentionSharpness

LENGTH = "length_error"
_OTHER_NOISE = 2_000_003  # of no condition


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


# ``loop(seed, picks, steps)`` decodes so many steps.
Loop = Callable[[int, Picks, int], None]


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
def decoding(cell: Cell, condition: str, case: OwnCase | None = None) -> Iterator[Loop]:
    """Open the decoding of a cell's case under a condition."""
    case = case or own_case(cell.case, seed=cell.options.seed)
    check_mode(cell, case.sample is not None)
    function, begin = case.sample or case.decode_step, case.state
    assert function is not None
    with under(cell, condition, case.model, function) as (call, model, dtype):

        @torch.no_grad()
        def decode(seed: int, picks: Picks, steps: int) -> None:
            if begin is None:
                call(in_dtype(case.given(seed), dtype), picks, steps)
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


def _run(loop: Loop, cell: Cell, condition: str, stream: int, forced: np.ndarray | None = None) -> Picks:
    picks = Picks(noise_seed(condition, cell.options.seed) + stream, forced)
    loop(cell.options.seed + stream, picks, cell.options.steps)
    return picks


def synthesize_scripts(cell: Cell, condition: str, case: OwnCase) -> tuple[np.ndarray, int]:
    """Say the script of a case under a condition; returns mono float32 samples and their rate in Hz."""
    seed = noise_seed(condition, cell.options.seed)
    parts, rate_hz = say(cell, condition, case, [(script, seed + n) for n, script in enumerate(case.scripts)])
    return np.concatenate(parts), rate_hz


def say(cell: Cell, condition: str, case: OwnCase, passages: Sequence[tuple[Any, int]]) -> tuple[list[np.ndarray], int]:
    """Say each script under its noise seed and a condition; returns mono float32 samples of each, and their rate."""
    check_mode(cell, is_loop=True)
    assert case.synthesize is not None
    parts, rates = [], set()
    with under(cell, condition, case.model, case.synthesize) as (call, _, dtype):
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


class OwnSpeech:
    """The decoding and the speech of a case from outside, in the streams that a cell asks for.

    Such a case has no original. Each stream of the measure ``sound`` is compared with the reference's own speech of the
    same script under noise that no condition is given: a fix that speaks as the reference does lies as far from it as
    the reference does. What counts as no worse is then how far the drop-outs of the margin move the reference's own
    streams: no change of a distance to anything else can be larger. Where another seed gives the same sound, distances
    are to the reference itself.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @cached_property
    def _own(self) -> OwnCase:
        return own_case(self._cell.case, seed=self._cell.options.seed)

    @property
    def rate_hz(self) -> float:
        """Decode steps in a second of time."""
        return self._own.steps_per_s

    @contextmanager
    def forced(self, condition: str, run_dir: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor, AttentionSharpness]]:
        """Follow the reference's own tokens."""
        streams, steps = min(self._cell.options.streams, MAX_TEACHER_FORCED_STREAMS), self._cell.options.steps
        name = f"reference-logits.{self._digest()}.{streams}x{steps}.torch{torch.__version__}.npz"

        def reference() -> dict[str, np.ndarray]:
            logits, tokens = self._forced_logits("reference", None, streams=streams)
            return {"logits": logits, "tokens": tokens}

        stored = keep_arrays(run_dir / "streams" / name, reference)
        logits, _ = self._forced_logits(condition, stored["tokens"], streams=streams)
        yield torch.from_numpy(logits), torch.from_numpy(stored["logits"]), AttentionSharpness()

    def _digest(self) -> str:
        cell = self._cell
        return digest_of(cell.case, built(cell.case, cell.size, device=cell.device, seed=cell.options.seed))[:12]

    def _forced_logits(
        self, condition: str, tokens: np.ndarray | None, *, streams: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits of each step, (steps, streams, rows, V), along given tokens or the condition's own; and the tokens."""
        with decoding(self._cell, condition) as loop:
            runs = [
                _run(loop, self._cell, condition, stream, None if tokens is None else tokens[:, stream])
                for stream in range(streams)
            ]
        logits = np.stack([torch.stack(run.logits).numpy() for run in runs], axis=1)
        return logits, np.stack([run.tokens for run in runs], axis=1)

    def tokens(self, condition: str) -> np.ndarray:
        """Tokens of free-running streams, (steps, streams, rows)."""
        with decoding(self._cell, condition) as loop:
            runs = [_run(loop, self._cell, condition, stream) for stream in range(self._cell.options.streams)]
        return np.stack([run.tokens for run in runs], axis=1)

    def speak(self, condition: str, wav_path: Path) -> tuple[dict[str, Any], list[Path]]:
        cpu_start_s = time.process_time()
        samples, rate_hz = synthesize_scripts(self._cell, condition, self._own)
        cpu_s = time.process_time() - cpu_start_s
        with written_whole(wav_path) as partial, open_wav(partial, n_samples=len(samples), rate_hz=rate_hz) as wav:
            append_samples(wav, samples)
        duration_s = len(samples) / rate_hz
        data = {"duration_s": duration_s, "real_time_factor": duration_s / cpu_s, "clock": "process CPU"}
        return data, [wav_path]

    def compare(self, wav_path: Path, *, reference_path: Path, null_path: Path) -> dict[str, Any]:
        """Compare a recording with the reference's over what fix, reference and noise floor have in common."""
        import soundfile

        import audio_metrics

        waves = [soundfile.read(path, dtype="float32") for path in (wav_path, reference_path, null_path)]
        rate_hz = waves[0][1]
        lengths = [len(samples) for samples, _ in waves]
        _check_length(min(lengths), rate_hz)
        audio, reference, noise_floor = (samples[: min(lengths)] for samples, _ in waves)
        draws = not np.array_equal(reference, noise_floor)
        compare = partial(audio_metrics.compare, reference, sample_rate_hz=rate_hz)
        compared = relate_to_noise_floor(compare(audio), partial(compare, noise_floor) if draws else None)
        doubts = _comparison_doubts([length / rate_hz for length in lengths], draws=draws)
        return {"duration_s": min(lengths) / rate_hz, "against_reference": compared, "doubts": doubts}

    def hear(self, condition: str, run_dir: Path) -> dict[str, Any]:
        """Hear as many streams as asked for, each of the next script; the reference's also with drop-outs."""
        seed = self._cell.options.seed
        cpu_start_s = time.process_time()
        waves, rate_hz = say(self._cell, condition, self._own, self._passages(noise_seed(condition, seed)))
        cpu_s = time.process_time() - cpu_start_s
        others = self._others(run_dir)
        stream_s = round(sum(map(len, others)) / rate_hz / len(waves), 2)
        length_s = sum(map(len, waves)) / rate_hz
        heard = _distances_of_streams(others, waves, rate_hz)
        data = streams_data(waves, heard, stream_s=stream_s, length_s=length_s, cpu_s=cpu_s)
        if condition == "reference":
            dropped = [with_drop_outs(wave, rate_hz=rate_hz, seed=seed + n) for n, wave in enumerate(waves)]
            moved = _distances_of_streams(waves, dropped, rate_hz)
            data["margins"] = {name: float(np.mean(values)) for name, values in moved.items()}
            data["margins"][LENGTH] = 100.0 * DROP_OUT_S
        return data

    def _passages(self, seed: int) -> list[tuple[Any, int]]:
        scripts = self._own.scripts
        return [(scripts[stream % len(scripts)], seed + stream) for stream in range(self._cell.options.streams)]

    def _others(self, run_dir: Path) -> list[np.ndarray]:
        """Speech of the reference under noise of its own; made once per run and kept in its folder."""
        count, seed = self._cell.options.streams, self._cell.options.seed

        def spoken() -> dict[str, np.ndarray]:
            eager = replace(self._cell, mode="eager")
            waves, _ = say(eager, "reference", self._own, self._passages(seed + _OTHER_NOISE))
            return {"samples": np.concatenate(waves), "ends": np.cumsum([len(wave) for wave in waves])}

        stored = keep_arrays(run_dir / "streams" / f"other-sound.{self._digest()}.{count}.{seed}.npz", spoken)
        return np.split(stored["samples"], stored["ends"][:-1])


def _check_length(n_samples: int, rate_hz: int) -> None:
    if n_samples < rate_hz * SHORTEST_S:
        raise UnsupportedError(f"synthesize made {n_samples / rate_hz:.3f} s of sound; expected {SHORTEST_S} s or more")


def _comparison_doubts(lengths_s: Sequence[float], *, draws: bool) -> list[str]:
    doubts = []
    if len(set(lengths_s)) > 1:
        texts = ", ".join(f"{length_s:.2f} s" for length_s in lengths_s)
        doubts.append(
            f"the sounds of fix, reference and noise floor last {texts}; what they have in common was compared"
        )
    if not draws:
        doubts.append("another seed gives the very same sound, so there is no noise floor to hold the distance to")
    return doubts


def _distances_of_streams(
    others: Sequence[np.ndarray], waves: Sequence[np.ndarray], rate_hz: int
) -> dict[str, list[float]]:
    """Distances over what two renderings have in common, and by how many per cent their lengths differ."""
    rows = []
    for other, wave in zip(others, waves, strict=True):
        common = min(len(other), len(wave))
        _check_length(common, rate_hz)
        row = distances(other[:common], wave[:common], rate_hz=rate_hz)
        row[LENGTH] = 100.0 * abs(len(wave) - len(other)) / len(other)
        rows.append(row)
    return {name: [row[name] for row in rows] for name in rows[0]}
