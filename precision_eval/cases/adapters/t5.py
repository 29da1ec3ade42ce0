"""transformers' T5 encoder as its own loader leaves it in float16: ``wo`` in float32, all else in float16.

``_keep_in_fp32_modules`` works in ``from_pretrained`` only, and only for float16. The tiny case therefore goes through
a checkpoint: random weights are saved and loaded again by the library itself. ``.half()`` afterwards turns ``wo`` into
float16 too, without a word: what :func:`kept_wide` is there to see.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_eval.cases.adapters.base import Adapter, as_dtype, imported, load_checked
from precision_eval.cases.adapters.checkpoints import check_whole_number
from precision_eval.cases.base import BuiltCase
from precision_eval.core.errors import ParameterError

if TYPE_CHECKING:
    import torch
    from torch import nn

DTYPE = "float16"
TOKENS = 24
PROMPT = 10
PIPELINE_FOLDER = "text_encoder"
"""Where a diffusers pipeline, such as CogVideoX's, keeps the encoder."""

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

#: The smallest that a call can use of what a config says; ids 0 and 1 are padding and end.
LEAST = {
    **dict.fromkeys(("d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_max_distance"), 1),
    "vocab_size": 3,
    "relative_attention_num_buckets": 4,
}


def kept_wide(model: nn.Module) -> dict[str, torch.dtype]:
    """Look at the dtypes of the projections that transformers keeps in float32."""
    return {name: weight.dtype for name, weight in model.named_parameters() if "wo" in name.split(".")}


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


def _built(encoder: nn.Module, *, vocabulary: int, tokens: int, prompt: int, device: str, seed: int) -> BuiltCase:
    """Put token ids beside a loaded encoder: a prompt with its end, and padding."""
    import torch

    from precision_eval.cases.adapters.models import T5Hidden

    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros((1, tokens), dtype=torch.int64)
    ids[0, : prompt - 1] = torch.randint(2, vocabulary, (prompt - 1,), generator=generator)
    ids[0, prompt - 1] = 1
    model = T5Hidden(encoder, working_dtype=next(encoder.parameters()).dtype)
    return BuiltCase(model.eval().requires_grad_(False).to(device), (ids.to(device),))


def drawn_encoder(config: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Draw an encoder in float32, and let the library save it and load it in float16."""
    import torch

    transformers = imported("transformers")
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder, _no_progress_bars():
        torch.manual_seed(seed)
        transformers.T5EncoderModel(transformers.T5Config(**config)).save_pretrained(folder)
        return load_checked(transformers.T5EncoderModel, Path(folder), dtype=as_dtype(DTYPE))


def _tiny(*, device: str, seed: int) -> BuiltCase:
    encoder = drawn_encoder(CONFIG, seed=seed)
    return _built(encoder, vocabulary=CONFIG["vocab_size"], tokens=TOKENS, prompt=PROMPT, device=device, seed=seed)


def _check_config(config: Any, path: Path) -> None:
    """Refuse what transformers' config takes and a call cannot use: see :func:`load_checked`."""
    for name, least in LEAST.items():
        check_whole_number(config, name, least=least, path=path)
    buckets, farthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
    if farthest <= buckets // 4:  # half the buckets are for either side, and half of those hold one distance each
        raise ParameterError(
            f"{path} says relative_attention_max_distance {farthest} and relative_attention_num_buckets {buckets}; "
            f"expected a distance beyond {buckets // 4}; correct the config"
        )
    named, gated = config.feed_forward_proj, config.feed_forward_proj.startswith("gated-")
    activation = "gelu_new" if named == "gated-gelu" else named.removeprefix("gated-")
    if (config.is_gated_act, config.dense_act_fn) != (gated, activation):
        raise ParameterError(
            f"{path} says feed_forward_proj {named!r}, but is_gated_act {config.is_gated_act} and dense_act_fn "
            f"{config.dense_act_fn!r}, which win; expected {gated} and {activation!r}, or neither; correct the config"
        )


def _load(path_or_name: str | Path, *, dtype: torch.dtype, device: str, seed: int) -> BuiltCase:
    """Load a T5 encoder: its own folder, or that of a pipeline; of a name on the hub, the pipeline's."""
    transformers = imported("transformers")
    encoder = load_checked(
        transformers.T5EncoderModel, path_or_name, dtype=dtype, subfolder=PIPELINE_FOLDER, check=_check_config
    )
    vocabulary: int = encoder.config.vocab_size  # type: ignore[union-attr, assignment]
    return _built(encoder, vocabulary=vocabulary, tokens=226, prompt=60, device=device, seed=seed)


T5_ENCODER = Adapter(
    id="zoo-t5-encoder",
    title="transformers' T5 encoder",
    explanation=(
        "T5EncoderModel as from_pretrained(dtype=float16) leaves it: wo in float32, so that the residual is float32 "
        "after the first feed-forward, and the norm returns float16. One call encodes a padded prompt without a mask."
    ),
    source="huggingface/transformers, src/transformers/models/t5/modeling_t5.py; PR #20683, PR #45723",
    needs=("transformers.models.t5.modeling_t5",),
    definition=(DTYPE, CONFIG, TOKENS, PROMPT, "the library's own initialisation, saved and loaded, v1"),
    make=_tiny,
    load=_load,
)
