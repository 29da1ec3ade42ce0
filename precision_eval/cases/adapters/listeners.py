"""Two listeners with their real weights: DistillMOS's transformer, and Resemblyzer's speaker encoder, an LSTM.

As shipped here each is in float16 and hears float32 features, as where somebody halves a model and not what feeds it;
DistillMOS keeps its batch norms in float32. One call hears the package's own espeak speech. Both are judges of speech
too (:mod:`precision_eval.measure.judges`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from precision_eval.cases.adapters.wheels import Wheel
from precision_eval.cases.base import SYSTEM_MEASURES, Case, built_by

ENCODER = "resemblyzer/pretrained.pt"
RESEMBLYZER = Wheel(
    name="resemblyzer",
    version="0.1.4",
    alone=True,  # what it needs does not install everywhere: webrtcvad is built, and typing hides Python's own
    licence="Apache-2.0",
    files=((ENCODER, "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e"),),
)

MOS_WEIGHTS, _MOS_CLASS = "distillmos/weights/distill_mos_v7.pt", "xls_r_sqa/sqa_model.py"
DISTILLMOS = Wheel(
    name="distillmos",
    version="0.9.1",
    licence="MIT",
    alone=True,  # it asks for torchaudio, which it reads files with, and which wants a torch of its own
    files=((MOS_WEIGHTS, "b18b3ac60227267cfb91e5d00ce22cc7b73716fd92f269484da1446e27031a40"),),
)
XLS_R_SQA = Wheel(
    name="xls-r-sqa",
    version="0.1.0",
    licence="MIT",
    alone=True,
    files=((_MOS_CLASS, "3c3cbe8b1d35976dd060759bfc7e11250f896a93eff20056443e3b2ff7201ff5"),),
)
"""The classes of which DistillMOS is made."""

_MODEL = "precision_eval.cases.adapters.listener_models"


def require_distillmos() -> None:
    """Refuse, in one line, where a wheel is missing or another."""
    DISTILLMOS.path(MOS_WEIGHTS)
    XLS_R_SQA.path(_MOS_CLASS)


DISTILLMOS_CASE = Case(
    id="distillmos",
    title="DistillMOS, transformer",
    explanation="7.7 s of float32 features through float32 batch norms into seven float16 layers; linear_proj refuses.",
    source="microsoft/Distill-MOS; lcn-kul/xls-r-analysis-sqa, sqa_model.py",
    sizes=("v7",),
    default_sizes=("v7",),
    measures=SYSTEM_MEASURES,
    definition=(DISTILLMOS.files[0], XLS_R_SQA.files[0], "speech.flac from second 30 · seed, v1"),
    make=partial(built_by, f"{_MODEL}:distillmos_case"),
    by_default=False,
    modules=(_MODEL,),
)

RESEMBLYZER_CASE = replace(
    DISTILLMOS_CASE,
    id="resemblyzer",
    title="Resemblyzer, LSTM",
    explanation="Parts of 1.6 s of a float32 mel spectrogram into three float16 LSTM layers, which refuse it.",
    source="resemble-ai/Resemblyzer, resemblyzer/voice_encoder.py",
    sizes=("pretrained",),
    default_sizes=("pretrained",),
    definition=(RESEMBLYZER.files[0], "speech.flac from second 30 · seed, v1"),
    make=partial(built_by, f"{_MODEL}:resemblyzer_case"),
    modules=(_MODEL, "librosa.feature"),
)

LISTENER_CASES: tuple[Case, ...] = (DISTILLMOS_CASE, RESEMBLYZER_CASE)
