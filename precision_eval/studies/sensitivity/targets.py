"""The models whose sites are mapped: the trained voice, and real classes of transformers at stated sizes.

Conventions: a subject is a model in the state in which it ships, with inputs for all *units* in one call. A unit is an
independent input: a stream of speech, a prompt, a sequence. Units with even numbers are for choosing a policy, those
with odd numbers for proving it. This module loads no torch until a subject is built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_eval.core.errors import check_known, entry_of
from precision_eval.trace.sites import Rule

if TYPE_CHECKING:
    from precision_eval.studies.sensitivity.subjects import MapSubject

SIZES = ("tiny", "cpu")
BEATS = ("better in both", "lower drift at equal speed", "faster at equal drift", "no cure")
"""Outcomes of a policy against a fix that are for the policy."""
Progress = Callable[[int, int, str], None]
"""Told of what is done, of how many, and what comes next."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model whose sites can be mapped."""

    id: str
    shapes: dict[str, dict[str, Any]]
    rules: tuple[Rule, ...]
    make: Callable[..., MapSubject]

    def digest(self, size: str) -> str:
        """Hash of the shape and the rules, 8 hex digits: runs of unlike digests are not mixed."""
        rules = [(rule.path, rule.role, rule.layer, rule.operation) for rule in self.rules]
        text = json.dumps([self.id, self.shapes.get(size), rules], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def build(self, size: str, *, seed: int) -> MapSubject:
        """Build the model and its inputs."""
        check_known(f"size of the target '{self.id}':", size, self.shapes)
        return self.make(self.shapes[size], rules=self.rules, seed=seed)


def _built_by(name: str) -> Callable[..., MapSubject]:
    """Return the function of that name in :mod:`.subjects`, imported when it is called: it loads torch."""

    def build(shape: dict[str, Any], *, rules: tuple[Rule, ...], seed: int) -> MapSubject:
        from precision_eval.studies.sensitivity import subjects

        subject: MapSubject = getattr(subjects, name)(**shape, rules=rules, seed=seed)
        return subject

    return build


VOICE_RULES = (
    Rule(r"blocks\.(\d+)\.attention\.(?:key|value)_cache", "cache", r"\1"),
    Rule(r"blocks\.(\d+)\.attention\.qkv", "q|k|v", r"\1"),
    Rule(r"blocks\.(\d+)\.attention\.out", "output", r"\1"),
    Rule(r"blocks\.(\d+)\.attention", "positions", r"\1"),
    Rule(r"blocks\.(\d+)\.(?:attention|mlp)_norm", "norm", r"\1"),
    Rule(r"blocks\.(\d+)\.(?:gate_up|down)", "mlp", r"\1"),
    Rule(r"blocks\.(\d+)", "residual", r"\1", "add"),
    Rule(r"blocks\.(\d+)", "mlp", r"\1"),
    Rule(r"voice\.norm", "norm"),
    Rule(r"voice\.heads", "head"),
    Rule(r".*", "stem"),
)

T5_RULES = (
    Rule(r"block\.(\d+)\.layer\.0\.SelfAttention\.q", "q", r"\1"),
    Rule(r"block\.(\d+)\.layer\.0\.SelfAttention\.k", "k", r"\1"),
    Rule(r"block\.(\d+)\.layer\.0\.SelfAttention\.v", "v", r"\1"),
    Rule(r"block\.(\d+)\.layer\.0\.SelfAttention\.o", "output", r"\1"),
    Rule(r"relative_attention_bias", "positions"),
    Rule(r"block\.(\d+)\.layer\.0\.SelfAttention", "positions", r"\1"),
    Rule(r"block\.(\d+)\.layer\.\d\.layer_norm", "norm", r"\1"),
    Rule(r"block\.(\d+)\.layer\.1\.DenseReluDense.*", "mlp", r"\1"),
    Rule(r"block\.(\d+)(?:\.layer\.\d)?", "residual", r"\1"),
    Rule(r"final_layer_norm", "norm"),
    Rule(r".*", "stem"),
)

_DIA_PARTS = (
    *(
        Rule(rf"layers\.(\d+)\.{attention}{part}", role, layer)
        for attention, layer in (("self_attention", r"\1"), ("cross_attention", r"\1.cross"))
        for part, role in ((r"\.q_proj", "q"), (r"\.k_proj", "k"), (r"\.v_proj", "v"), (r"\.o_proj", "output"),
                           ("", "positions"))
    ),
    Rule(r"layers\.(\d+)\.\w+_norm", "norm", r"\1"),
    Rule(r"layers\.(\d+)\.mlp.*", "mlp", r"\1"),
    Rule(r"layers\.(\d+)", "residual", r"\1"),
    Rule(r"rotary_emb", "positions"),
    Rule(r"coder\.norm", "norm"),
    Rule(r"logits_dense", "head"),
    Rule(r".*", "stem"),
)  # fmt: skip
DIA_RULES = (
    Rule(r"self_(\d+)_(?:key|value)", "cache", r"\1"),
    Rule(r"cross_(\d+)_(?:key|value)", "cache", r"\1.cross"),
    *_DIA_PARTS,
)

ATTENTION_RULES = (Rule(r"key|value", "cache", "0"), Rule(r".*", "q", "0"))

TARGETS: tuple[Target, ...] = (
    # The miniature voice with its trained weights: one call is fed the original speech of every stream through the ring
    # cache. A unit is a stream; its drift is the mean over its frames, as in the suite's teacher-forced measure.
    Target(
        id="voice", rules=VOICE_RULES, make=_built_by("voice_subject"),
        shapes={"tiny": {"streams": 2, "frames": 24}, "cpu": {"streams": 8, "frames": 96}},
    ),
    # T5EncoderModel as from_pretrained(dtype=float16) leaves it (wo in float32), random weights: one call encodes a
    # prompt per unit.
    Target(
        id="t5-encoder", rules=T5_RULES, make=_built_by("t5_subject"),
        shapes={
            "tiny": {"layers": 2, "width": 64, "heads": 4, "head_dim": 16, "hidden": 160, "tokens": 24, "units": 4},
            "cpu": {"layers": 4, "width": 512, "heads": 6, "head_dim": 64, "hidden": 1024, "tokens": 32, "units": 8},
        },
    ),
    # DiaEncoder with half weights and float32 gains, as Dia stored them; random weights. One call reads a text per
    # unit.
    Target(
        id="dia-encoder", rules=_DIA_PARTS, make=_built_by("dia_encoder_subject"),
        shapes={
            "tiny": {"layers": 2, "width": 64, "heads": 4, "head_dim": 16, "hidden": 128, "tokens": 24, "units": 4},
            "cpu": {"layers": 4, "width": 512, "heads": 8, "head_dim": 64, "hidden": 1024, "tokens": 32, "units": 8},
        },
    ),
    # DiaForConditionalGeneration with half weights and static caches and float32 gains, as Dia stored them; random
    # weights. One call decodes one frame per unit on caches that the model filled.
    Target(
        id="dia-decoder", rules=DIA_RULES, make=_built_by("dia_decoder_subject"),
        shapes={
            "tiny": {
                "layers": 2, "width": 64, "heads": 4, "cache_heads": 2, "head_dim": 16, "hidden": 128, "text": 24,
                "slots": 64, "frames": 40, "units": 4,
            },
            "cpu": {
                "layers": 4, "width": 512, "heads": 8, "cache_heads": 4, "head_dim": 64, "hidden": 1024, "text": 128,
                "slots": 512, "frames": 384, "units": 8,
            },
        },
    ),
    # The suite's case attention-decode: one float32 query per head on a float16 cache, which is only read. A unit is a
    # head of a sequence. The query is rounded where the scores read it.
    Target(
        id="attention-decode", rules=ATTENTION_RULES, make=_built_by("attention_subject"),
        shapes={"tiny": {"shape": "tiny"}, "cpu": {"shape": "metavoice"}},
    ),
)  # fmt: skip


def target_by_id(target_id: str) -> Target:
    """Look a target up."""
    return entry_of("target", target_id, TARGETS)
