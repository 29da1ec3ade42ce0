"""MetaVoice-1B on a GPU without bfloat16 (T4, compute capability 7.5): what each of its loaders leaves there.

metavoiceio/metavoice-src #27: the first release asked for bfloat16 and autocast refused ("Current CUDA Device does not
support bfloat16. Please switch dtype to float16."); with ``--dtype=float16`` it ran out of memory instead. Later
``get_default_dtype`` (``fam/llm/utils.py``) asked for float16 by itself where the compute capability is 7 or less, or
where there is no CUDA. Two loaders follow it:
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, cast

from precision_eval.cases.base import SYSTEM_MEASURES, BuiltCase, Case
from precision_eval.cases.systems.metavoice import FULL_PARAMETERS, SIZES, metavoice_case

T4 = (7, 5)
LAST_MAJOR_WITHOUT_BFLOAT16 = 7


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Dtypes that a loader leaves a model in."""

    weights: str
    speaker: str
    cache: str
    autocast: str

    @property
    def agrees(self) -> bool:
        """Nothing disagrees: autocast brings operands together, or there is one dtype."""
        return bool(self.autocast) or len({self.weights, self.speaker, self.cache}) == 1


def default_dtype(capability: tuple[int, int] | None) -> str:
    """Dtype that the source asks for."""
    old = capability is None or capability[0] <= LAST_MAJOR_WITHOUT_BFLOAT16
    return "float16" if old else "bfloat16"


def loaded(capability: tuple[int, int] | None, *, loader: Literal["sample", "fast"]) -> Loaded:
    """Dtypes after loading on a device."""
    asked = default_dtype(capability)
    if loader == "fast":
        return Loaded(weights="bfloat16", speaker=asked, cache=asked, autocast="")
    return Loaded(weights="float32", speaker="float32", cache=asked, autocast="" if capability is None else asked)


_STATE = loaded(T4, loader="sample")


def build_metavoice_t4(size: str, *, device: str, seed: int) -> BuiltCase:
    """Build a decode step as ``sample.py`` runs it on a T4."""
    from precision_eval.cases.systems.metavoice_model import MetaVoice
    from precision_eval.cases.systems.metavoice_t4_model import MetaVoiceUnderAutocast

    built = metavoice_case(
        SIZES[size], device=device, seed=seed, prefill=False, indexed=False, weight_dtype=_STATE.weights,
        speaker_dtype=_STATE.speaker,
    )  # fmt: skip
    decoder = cast(MetaVoice, built.model.requires_grad_(True))
    return BuiltCase(MetaVoiceUnderAutocast(decoder, autocast_dtype=_STATE.autocast).eval(), built.inputs)


METAVOICE_T4 = Case(
    id="metavoice-t4",
    title="MetaVoice, one token, T4",
    explanation=(
        "What runs where bfloat16 is not native: float32 weights, a float16 cache, and the source's own autocast in "
        "float16. Nothing disagrees as shipped; the weights take twice what half storage does, and autocast's copies "
        "half as much again. This first stage alone fits a T4, and does not explain that its memory ran out: the "
        "second stage, the codec and loading are not in it."
    ),
    source="metavoiceio/metavoice-src #27: fam/llm/sample.py, fam/llm/layers/attn.py, fam/llm/utils.py",
    upstream=(
        "nothing landed for #27, which is open: float16 became the default on compute capability 7 and below, which is "
        "the state as shipped here"
    ),
    sizes=tuple(SIZES),
    default_sizes=("cpu",),
    measures=SYSTEM_MEASURES,
    definition=(
        "decode", "slice", asdict(_STATE), {name: asdict(size) for name, size in SIZES.items()}, "metavoice v1",
    ),
    make=build_metavoice_t4,
    full_parameters=FULL_PARAMETERS,
    bytes_per_parameter=4.0,
    by_default=False,
)  # fmt: skip
