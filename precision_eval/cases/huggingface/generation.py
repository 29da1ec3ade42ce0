"""Real generating classes of transformers, and pipelines of diffusers, as cases: one adapter, no class edited.

Conventions: a class is driven through its own ``generate``, with its cache. What takes the tokens of a step is the last
of its logits processors, so that teacher forcing and shared noise see what the class itself would have chosen from. A
call is the class's ``forward``; where that takes more than the inputs, a prefill and one step of ``generate``; of a
pipeline, its loop. Imports torch; transformers and diffusers when a case is made.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_eval.cases.huggingface.checkpoint import hold_logs, import_library, load_checkpoint, one_line
from precision_eval.cases.modes import SharedNoise
from precision_eval.cases.own import OwnCase, on_device
from precision_eval.core.errors import ParameterError
from precision_eval.fixes.outside import in_dtype

NEW_TOKENS = 100
_RATES = ("sampling_rate", "sample_rate")
_WAVES = ("waveform", "audio_values", "audio_sequences", "audios")
# Classes whose `generate` returns a waveform.
_SPEAKERS = (
    "BarkModel",
    "CsmForConditionalGeneration",
    "MoshiForConditionalGeneration",
    "MusicgenForConditionalGeneration",
    "MusicgenMelodyForConditionalGeneration",
    "SeamlessM4TForTextToSpeech",
    "SeamlessM4Tv2ForTextToSpeech",
)


def generation_case(
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    dtype: str | torch.dtype | None = None,
    rate_hz: int | None = None,
    new_tokens: int = NEW_TOKENS,
    vocoder: nn.Module | None = None,
    seed: int = 0,
    **others: Any,
) -> OwnCase:
    """Make a case of a class that generates, in the state in which it is given.

    Parameters
    ----------
    model : torch.nn.Module, diffusers.DiffusionPipeline, str or pathlib.Path
        A model of transformers or a pipeline of diffusers, or the folder or hub name of a checkpoint of one.
    inputs : mapping, optional
        What ``generate``, or the pipeline, is called with, as its processor returns it. Without, random ones are drawn
        where the class takes ``input_ids``, ``input_features``, ``input_values`` or ``pixel_values``.
    dtype : str or torch.dtype, optional
        That a checkpoint is loaded in; else in its own.
    rate_hz : int, optional
        Of the sound, where neither config says it.
    new_tokens : int
        Tokens of what is synthesised.
    vocoder : torch.nn.Module, optional
        What makes sound of what the class returns, in its own dtype under every fix: for SpeechT5, which makes a
        spectrogram, a ``SpeechT5HifiGan``; for Dia, which makes codes, a ``DacModel``.
    seed : int
        Of random inputs.
    **others
        Fields of :class:`~precision_eval.OwnCase` that take the place of what is found here.

    Returns
    -------
    OwnCase

    Raises
    ------
    ParameterError
        The folder is no checkpoint, or the class is none that is known how to drive; says what to give.
    """
    if isinstance(model, str | Path):
        model = load_checkpoint(model, dtype)
    if not hasattr(model, "config"):
        raise ParameterError(
            f"the model is a {type(model).__name__}; expected one of transformers, a pipeline of diffusers, or a folder"
        )
    module = model if isinstance(model, nn.Module) else Piped(model)
    module.eval()
    if isinstance(module, Piped):
        inputs = {"num_inference_steps": 1} | dict(inputs or {})
    given = dict(inputs) if inputs is not None else _random_inputs(module, seed)
    fields: dict[str, Any] = {"model": module, "inputs": given, "script": given}
    if _decoder(module) is not None and not hasattr(module, "generate_speech"):
        fields["sample"] = _sample
    fields["call"] = None if "call" in others else _call_of(module, given)
    rate_hz = rate_hz or _rate(module, vocoder)
    speak = _speaker(module, new_tokens, vocoder)
    if speak is not None and rate_hz is not None:
        fields["synthesize"] = partial(_synthesized, speak=speak, rate_hz=rate_hz)
    return OwnCase(**fields | others)


def case_on_device(name: str, *, dtype: str | None, device: str, seed: int) -> OwnCase:
    """Make a case of a checkpoint, on a device, with inputs in its own dtype."""
    own = generation_case(name, dtype=dtype, seed=seed)
    model = own.module()
    held = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return on_device(OwnCase(model=model, inputs=in_dtype(own.given(), held)), device)


def _random_inputs(model: Any, seed: int) -> dict[str, Any]:
    generator, config = torch.Generator().manual_seed(seed), model.config
    name = getattr(model, "main_input_name", "")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if name == "input_ids" and getattr(text, "vocab_size", None):
        return {name: torch.randint(3, text.vocab_size, (1, 8), generator=generator)}
    if name == "input_features" and hasattr(config, "num_mel_bins"):  # of Whisper, 30 s
        return {name: torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)}
    if name == "input_values":
        return {name: torch.randn(1, 16000, generator=generator)}
    if name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size if isinstance(config.image_size, list | tuple) else 2 * [config.image_size]
        return {name: torch.randn(1, config.num_channels, *size, generator=generator)}
    raise ParameterError(
        f"it is not known what {type(model).__name__} is called with; give generation_case(model, inputs) in a factory "
        "of your own"
    )


def _decoder(model: Any) -> Any:
    """Return the module whose tokens are taken; None where nothing of it generates tokens."""
    if type(model).__name__ == "BarkModel":
        return model.semantic
    return model if hasattr(model, "_get_logits_processor") and model.can_generate() else None


@contextmanager
def _picking(decoder: Any, pick: Callable[[Any], Any]) -> Iterator[None]:
    """Let `pick` take the tokens of each step: all others become impossible."""

    def forced(ids: Any, scores: Any) -> Any:
        tokens = pick(scores).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(-1, tokens[..., None], 0.0)

    made = decoder._get_logits_processor

    def with_pick(*args: Any, **kwargs: Any) -> Any:
        processors = made(*args, **kwargs)
        processors.append(forced)
        return processors

    decoder._get_logits_processor = with_pick  # not logits_processor=, which some classes (Dia) leave out
    try:
        yield
    finally:
        del decoder._get_logits_processor


def _cloned(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if hasattr(value, "clone") else copy.copy(value) for name, value in given.items()}


def _sample(model: Any, inputs: Mapping[str, Any], pick: Callable[[Any], Any], steps: int) -> None:
    decoder, given = _decoder(model), _cloned(inputs)
    if decoder is not model:  # Bark, whose semantic model takes its settings by name
        settings = import_library("transformers.models.bark.generation_configuration_bark").BarkSemanticGenerationConfig
        given["semantic_generation_config"] = settings(**model.generation_config.semantic_config)
    with _picking(decoder, pick), hold_logs("transformers"):
        decoder.generate(**given, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, num_beams=1)


def _call_of(model: Any, given: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the call of a case: forward, where a float32 copy shows that the inputs are enough for it."""
    if hasattr(model, "generate_speech"):
        return _spectrogram
    if isinstance(model, Piped):
        return _looped
    twin = copy.deepcopy(model).float()
    for call in (_forward, _prefill_and_step) if _decoder(model) is not None else (_forward,):
        try:
            with torch.no_grad(), hold_logs("transformers"):
                call(twin, **given)
            return call
        except (TypeError, ValueError, AttributeError, RuntimeError, IndexError, NotImplementedError) as error:
            last = error
    raise ParameterError(
        f"{type(model).__name__} cannot be called with {', '.join(given)}, in float32 too: {one_line(last)}; give "
        "other inputs, or call(model, **inputs)"
    )


def _forward(model: Any, **given: Any) -> Any:
    config = model.config
    start = getattr(config, "decoder_start_token_id", None)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" not in given and start is not None:
        given["decoder_input_ids"] = torch.full((1, 1), start, device=next(model.parameters()).device)
    with SharedNoise(0):
        return _tensors(model(**_cloned(given)))


def _prefill_and_step(model: Any, **given: Any) -> Any:
    logits: list[Any] = []

    def pick(scores: Any) -> Any:
        logits.append(scores.masked_fill(scores.isneginf(), 0.0))
        return scores.argmax(-1)

    with SharedNoise(0):
        _sample(model, given, pick, 2)
    return tuple(logits)


def _spectrogram(model: Any, **given: Any) -> Any:
    """Return the frames of two steps for each of the inputs, however early the class would stop."""
    with SharedNoise(0):
        return model.generate_speech(**_cloned(given), minlenratio=2.0, maxlenratio=2.0)


def _looped(model: Any, **given: Any) -> Any:
    with SharedNoise(0):
        return model(**given)


class Piped(nn.Module):
    """A pipeline of diffusers as a module: a call is its loop, and returns the first of what it makes."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self.pipeline, self.config = pipeline, pipeline.config
        self.parts = nn.ModuleDict({name: p for name, p in pipeline.components.items() if isinstance(p, nn.Module)})
        self.sounds = any("Audio" in base.__name__ or "Dance" in base.__name__ for base in type(pipeline).__mro__)
        pipeline.set_progress_bar_config(disable=True)

    def forward(self, **given: Any) -> torch.Tensor:
        kind = {} if self.sounds else {"output_type": "np"}
        made = self.pipeline(**given, **kind, return_dict=False)[0]
        return torch.from_numpy(made) if isinstance(made, np.ndarray) else torch.as_tensor(made)


def _tensors(output: Any) -> Any:
    """Take the caches out of what a class returns: they are state, and some are no plain containers."""
    return tuple(value for name, value in output.items() if name != "past_key_values") if output else output


def _speaker(model: Any, new_tokens: int, vocoder: Any) -> Callable[..., Any] | None:
    """Return what makes a waveform of a model and its inputs; None where nothing does."""
    name = type(model).__name__
    if hasattr(model, "generate_speech"):
        return None if vocoder is None else partial(_speech, vocoder=vocoder)
    if name == "DiaForConditionalGeneration":
        return None if vocoder is None else partial(_decoded, new_tokens=new_tokens, codec=vocoder)
    if name == "BarkModel":
        return partial(_generated, do_sample=True, semantic_max_new_tokens=new_tokens)
    if name in _SPEAKERS:
        settings: dict[str, Any] = {"output_audio": True} if name.startswith("Csm") else {}
        return partial(_generated, do_sample=True, max_new_tokens=new_tokens, **settings)
    makes = model.sounds if isinstance(model, Piped) else hasattr(model.config, "vocoder_config") or name == "VitsModel"
    return _called if makes else None


# not closures: a case in memory is handed to other processes
def _generated(model: Any, given: Mapping[str, Any], **settings: Any) -> Any:
    return model.generate(**given, **settings)


def _speech(model: Any, given: Mapping[str, Any], *, vocoder: Any) -> Any:
    spectrogram = model.generate_speech(**given)
    with _untouched(spectrogram):
        return vocoder(spectrogram.to(next(vocoder.parameters()).dtype))


def _decoded(model: Any, given: Mapping[str, Any], *, new_tokens: int, codec: Any) -> Any:
    """Decode what Dia generates, as its processor does: channel c is delayed by ``delay_pattern[c]`` frames."""
    config = model.config
    tokens = model.generate(**given, do_sample=True, max_new_tokens=new_tokens)  # (1, steps, channels)
    first = int((tokens[0, :, 0] == config.bos_token_id).sum())
    frames = tokens.shape[1] - first - max(config.delay_pattern)
    rows = [tokens[:, first + delay : first + delay + frames, c] for c, delay in enumerate(config.delay_pattern)]
    codes = torch.stack(rows, dim=1)  # (1, channels, frames)
    ended = (codes[0, 0] == config.eos_token_id).nonzero()
    codes = codes[..., : int(ended[0, 0]) if len(ended) else frames]
    with _untouched(codes):
        return codec.decode(audio_codes=codes.clamp_max(codec.config.codebook_size - 1)).audio_values


@contextmanager
def _untouched(given: torch.Tensor) -> Iterator[None]:
    """Keep a part that is none of the model's out of what changes dtypes: autocast, and a reference kept wide."""
    with torch._C.DisableTorchFunction(), torch.autocast(given.device.type, enabled=False):
        yield


def _called(model: Any, given: Mapping[str, Any]) -> Any:
    return model(**given)


def _synthesized(model: Any, script: Any, seed: int, *, speak: Callable[..., Any], rate_hz: int) -> tuple[Any, int]:
    return _mono(speak(model, _cloned(script))), rate_hz


def _rate(model: Any, vocoder: Any) -> int | None:
    """Find the sample rate in a model's configs."""
    parts = model.parts.values() if isinstance(model, Piped) else ()
    places = [model.config, getattr(model, "generation_config", None), *(part.config for part in parts)]
    places += [getattr(model.config, name, None) for name in ("audio_encoder", "codec_config", "vocoder_config")]
    places += [] if vocoder is None else [vocoder.config]
    found = (getattr(place, name, None) for place in places for name in _RATES)
    return next((int(rate) for rate in found if isinstance(rate, int)), None)


def _mono(output: Any) -> Any:
    """Return the first waveform of what a class returns, as one row."""
    value = next((getattr(output, name) for name in _WAVES if getattr(output, name, None) is not None), output)
    while isinstance(value, list | tuple):
        value = value[0]
    while value.ndim > 1:
        value = value[0]
    return value
