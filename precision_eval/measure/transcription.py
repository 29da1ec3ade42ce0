"""The measure ``transcription``: what a fix does to the words that a recogniser hears, under greedy decoding.

Conventions: every utterance is transcribed by float64 and by the fix; the drift of the logits is along float64's
tokens, and the fix runs freely where any of its own choices along them differs. Words are compared after Whisper's own
English normaliser. *WER* is against what is said, where that is known; the *word divergence* is against float64's
transcript and says nothing of how good either is. Intervals are 95 %, by resampling utterances, the two precisions of
one together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from precision_eval.cases.adapters.base import imported
from precision_eval.cases.adapters.speech import Utterance, digest_of, utterances
from precision_eval.core.cells import Cell, Outcome, failed, failure_of, passed
from precision_eval.measure.decoding import check_mode, score_step, under
from precision_eval.stats import bootstrap_interval

MOST_TOKENS = 224
"""Of an utterance, as in openai/whisper."""

RESAMPLES = 9999


class Greedy:
    """What takes the tokens of each step: those given, else the likeliest; keeps the logits and its own choices."""

    def __init__(self, forced: Sequence[int] | None = None) -> None:
        self.forced = forced
        self.logits: list[torch.Tensor] = []
        self.own: list[int] = []

    def __call__(self, logits: torch.Tensor) -> int:
        """Return the token of a step, of logits (V,)."""
        from precision_eval.cases.adapters.whisper_model import likeliest

        self.logits.append(logits.detach().cpu().double())
        self.own.append(likeliest(self.logits[-1], first=not self.own))
        return self.own[-1] if self.forced is None else self.forced[len(self.own) - 1]


@dataclass
class _Heard:
    """What one fix has heard so far, utterance by utterance; `outcome` says why it hears no more."""

    tokens: list[tuple[list[int], list[int]]] = field(default_factory=list)
    scores: list[list[dict[str, np.ndarray]]] = field(default_factory=list)
    outcome: Outcome | None = None


def transcription(cell: Cell, run_dir: Path) -> list[Outcome]:
    """Transcribe every utterance in float64, once, and under each fix."""
    from precision_eval.cases.adapters.whisper_model import decoder, spectrogram

    check_mode(cell, is_loop=True)
    spoken, model = utterances(cell.options.speech), decoder()
    heard = {fix: _Heard() for fix in cell.fixes}
    for one in spoken:
        features, reference = spectrogram(one.samples).to(cell.device), Greedy()
        truth = _run(cell, "reference", model, features, reference)
        for fix, so_far in heard.items():
            if so_far.outcome is None:
                _hear(cell, fix, so_far, (model, features, truth, reference.logits))
    return [one.outcome or passed(fix, _figures(cell, spoken, one)) for fix, one in heard.items()]


def _run(cell: Cell, condition: str, model: Any, features: torch.Tensor, pick: Greedy) -> list[int]:
    with under(cell, condition, model, _transcribe) as (call, _, dtype), torch.no_grad():
        tokens: list[int] = call(features if dtype is None else features.to(dtype), pick, MOST_TOKENS)
        return tokens


def _hear(cell: Cell, fix: str, so_far: _Heard, given: tuple[Any, torch.Tensor, list[int], list[torch.Tensor]]) -> None:
    """Transcribe one utterance under a fix: along float64's tokens, and freely where it would leave them."""
    model, features, truth, exact = given
    along = Greedy(truth)
    try:
        _run(cell, fix, model, features, along)
        if not all(bool(logits.isfinite().all()) for logits in along.logits):
            so_far.outcome = failed(fix, "non_finite", "a logit is NaN or infinite")
            return
        own = truth if along.own == truth else _run(cell, fix, model, features, Greedy())
    except Exception as error:  # noqa: BLE001 - whatever a model raises under a fix is that fix's result
        so_far.outcome = failure_of(fix, error)
        return
    so_far.tokens.append((own, truth))
    steps = zip(along.logits, exact, strict=True)
    so_far.scores.append([score_step(logits[None, None], wide[None, None]) for logits, wide in steps])


def _figures(cell: Cell, spoken: Sequence[Utterance], heard: _Heard) -> dict[str, Any]:
    from precision_eval.cases.adapters.whisper_model import text_of

    seconds = sum(one.duration_s for one in spoken)
    data = {"speech": cell.options.speech or "wheel", "speech_sha256": digest_of(spoken), "speech_s": seconds}
    texts = [(text_of(own), text_of(truth)) for own, truth in heard.tokens]
    words = word_figures(texts, [one.said for one in spoken])
    return data | token_figures(heard.tokens) | _drift(heard.scores, cell) | words


def _transcribe(model: Any, features: torch.Tensor, pick: Callable[[torch.Tensor], int], steps: int) -> list[int]:
    found: list[int] = model.transcribe(features, pick, steps)
    return found


def _drift(scores: Sequence[Sequence[dict[str, np.ndarray]]], cell: Cell) -> dict[str, float]:
    """Means over steps, then utterances."""
    means = {name: [float(np.mean([step[name] for step in steps])) for steps in scores] for name in scores[0][0]}
    error = bootstrap_interval(means["relative_error"], seed=cell.options.seed)
    flips = sum(float(step["top1_flip"].sum()) for steps in scores for step in steps)
    return {
        "relative_error": error.estimate,
        "relative_error_low": error.low,
        "relative_error_high": error.high,
        "kl_nats": float(np.mean(means["kl_nats"])),
        "top1_flip_fraction": flips / sum(map(len, scores)),
    }


def token_figures(tokens: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Any]:
    """Say in how many utterances the fix's tokens leave the reference's, and at which token, counted from 0."""
    from scipy.stats import binomtest

    first = [_first_difference(own, truth) for own, truth in tokens]
    diverged = sum(step is not None for step in first)
    share = binomtest(diverged, len(tokens)).proportion_ci(0.95)
    return {
        "utterances": len(tokens),
        "tokens": sum(len(truth) for _, truth in tokens),
        "diverged": diverged,
        "diverged_fraction_high": float(share.high),
        "first_divergent_token": first,
    }


def _first_difference(own: Sequence[int], truth: Sequence[int]) -> int | None:
    same = next((i for i, (a, b) in enumerate(zip(own, truth, strict=False)) if a != b), min(len(own), len(truth)))
    return None if len(own) == len(truth) == same else same


def word_figures(texts: Sequence[tuple[str, str]], said: Sequence[str | None], *, seed: int = 0) -> dict[str, Any]:
    """Return words changed against the reference's transcript, and WER against what is said.

    Parameters
    ----------
    texts : sequence of (str, str)
        The fix's transcript of each utterance and the reference's.
    said : sequence of str or None
        What is said in it, where that is known.
    """
    heard = [(_words(own), _words(truth)) for own, truth in texts]
    changed = [word_errors(truth, own) for own, truth in heard]
    counts = [len(truth) for _, truth in heard]
    data: dict[str, Any] = {"words_heard": sum(counts), "words_changed": sum(changed)}
    data |= _ratio("word_divergence", changed, counts, seed)
    known = [(*pair, _words(text)) for pair, text in zip(heard, said, strict=True) if text is not None]
    if not known:
        return data
    own, exact = ([word_errors(text, one[index]) for *one, text in known] for index in (0, 1))
    words = [len(text) for *_, text in known]
    data |= {"words_said": sum(words), "wer": sum(own) / sum(words), "reference_wer": sum(exact) / sum(words)}
    data |= {"errors": own, "reference_errors": exact, "utterances_said": len(words)}
    return data | _ratio("wer_difference", np.subtract(own, exact), words, seed)


def _ratio(name: str, numerators: Any, denominators: Any, seed: int) -> dict[str, float]:
    """Ratio of sums with its interval over utterances; of a single one, without."""
    from scipy.stats import bootstrap

    values = tuple(np.asarray(part, dtype=np.float64) for part in (numerators, denominators))
    data = {name: float(values[0].sum() / max(values[1].sum(), 1.0))}
    if len(values[0]) < 2:
        return data
    ends = bootstrap(
        values,
        lambda a, b, axis: a.sum(axis) / np.maximum(b.sum(axis), 1.0),
        paired=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return data | {f"{name}_low": float(ends.low), f"{name}_high": float(ends.high)}


@cache
def _normaliser() -> Callable[[str], str]:
    imported("transformers")
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    made: Callable[[str], str] = EnglishTextNormalizer({})  # no table of British spellings
    return made


def normalised(text: str) -> str:
    """Return a text as Whisper's English normaliser writes it."""
    return _normaliser()(text)


def _words(text: str) -> list[str]:
    return normalised(text).split()


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest words to put in, leave out or replace that make `said` of `heard`."""
    return _levenshtein(said, heard)[-1][-1]


def _levenshtein(said: Sequence[str], heard: Sequence[str]) -> list[list[int]]:
    """Fewest edits between the first i words of the one and the first j of the other."""
    rows = [list(range(len(heard) + 1))]
    for i, word in enumerate(said, start=1):
        above, row = rows[-1], [i]
        for j, other in enumerate(heard, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
        rows.append(row)
    return rows


def words_skipped_and_doubled(said: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
    """Count words that are left out, and words put in that repeat what stands before or after them.

    Among the ways to make `heard` of `said` with the fewest edits it is one that replaces words where that is as short.
    """
    row = _levenshtein(said, heard)
    skipped, put_in, i, j = 0, set[int](), len(said), len(heard)
    while i or j:
        if i and j and row[i][j] == row[i - 1][j - 1] + (said[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
        elif i and row[i][j] == row[i - 1][j] + 1:
            i, skipped = i - 1, skipped + 1
        else:
            j -= 1
            put_in.add(j)
    return skipped, sum(len(run) for run in _runs(put_in) if _repeats(heard, run))


def _runs(places: set[int]) -> list[range]:
    firsts = (place for place in sorted(places) if place - 1 not in places)
    return [range(first, next(end for end in count(first) if end not in places)) for first in firsts]


def _repeats(heard: Sequence[str], run: range) -> bool:
    """Whether every word of a run is the one a period before it, or after it."""
    for period in range(1, len(run) + 1):
        for places in ([i - period for i in run], [i + period for i in run]):
            inside = min(places) >= 0 and max(places) < len(heard)
            if inside and all(heard[i] == heard[place] for i, place in zip(run, places, strict=True)):
                return True
    return False
