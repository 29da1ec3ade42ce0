"""transformers' T5 encoder as its own loader leaves it in float16: ``wo`` in float32, all else in float16.

``_keep_in_fp32_modules`` works in ``from_pretrained`` only, and only for float16. The tiny case therefore goes through
a checkpoint: random weights are saved and loaded again by the library itself. ``.half()`` afterwards turns ``wo`` into
float16 too, without a word.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.adapters.base import as_dtype, imported, load_checked, tiny_case
from precision_eval.cases.base import BuiltCase

if TYPE_CHECKING:
    from torch import nn

DTYPE = "float16"
TOKENS = 24
PROMPT = 10

#: T5-v1.1's architecture at a tiny size.
CONFIG: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 160,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
    "dropout_rate": 0.0,
}


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hold transformers' progress bars back; a tiny checkpoint is no progress worth a line."""
    log = imported("transformers.utils.logging")
    shown = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            log.enable_progress_bar()


def drawn_encoder(config: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Draw an encoder in float32, and let the library save it and load it in float16."""
    import torch

    transformers = imported("transformers")
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder, _no_progress_bars():
        torch.manual_seed(seed)
        transformers.T5EncoderModel(transformers.T5Config(**config)).save_pretrained(folder)
        return load_checked(transformers.T5EncoderModel, Path(folder), dtype=as_dtype(DTYPE))


def _make(*, device: str, seed: int) -> BuiltCase:
    """Put token ids beside an encoder: a prompt with its end, and padding."""
    import torch

    from precision_eval.cases.adapters.models import T5Hidden

    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros((1, TOKENS), dtype=torch.int64)
    ids[0, : PROMPT - 1] = torch.randint(2, CONFIG["vocab_size"], (PROMPT - 1,), generator=generator)
    ids[0, PROMPT - 1] = 1
    model = T5Hidden(drawn_encoder(CONFIG, seed=seed), working_dtype=as_dtype(DTYPE))
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ids.to(device),))


T5_ENCODER = tiny_case(
    _make,
    id="zoo-t5-encoder",
    title="transformers' T5 encoder",
    explanation=(
        "T5EncoderModel as from_pretrained(dtype=float16) leaves it: wo in float32, so that the residual is float32 "
        "after the first feed-forward, and the norm returns float16. One call encodes a padded prompt without a mask."
    ),
    source="huggingface/transformers, src/transformers/models/t5/modeling_t5.py; PR #20683, PR #45723",
    needs="transformers.models.t5.modeling_t5",
    definition=(DTYPE, CONFIG, TOKENS, PROMPT, "the library's own initialisation, saved and loaded, v1"),
)
