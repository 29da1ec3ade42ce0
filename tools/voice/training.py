"""Training of the miniature voice: one resumable command, seeded, on the CPU.

Conventions: a *step* consumes ``ranks × BATCH × CROP_FRAMES`` frames; loss in nats per token, averaged over the
codebooks. Rank processes are single-threaded and average their gradients over gloo, which on two cores is several
times faster than one process with two threads. A training in float16 scales its loss, and sums its products in float32,
as accelerators do. Everything on disk is safetensors or JSON; nothing is pickled.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from precision_eval.cases.voice.model import Positions, VoiceConfig, VoiceModel, delayed
from precision_eval.core.errors import IntegrityError, ParameterError, UnsupportedError, unknown_name
from precision_eval.core.workers import context_of

BATCH = 2
CROP_FRAMES = 1024
TOKEN_NOISE = 0.06
MUON_LR = 6e-3
ADAMW_LR = 3e-3
WARMUP_STEPS = 100
LOG_EVERY_STEPS = 25
CHECKPOINT_EVERY_S = 60.0
VALIDATION_CROPS = 8
FORMATS = ("bfloat16", "float16", "float32")
CODEC_MINUTES, VOCODER_MINUTES = 12.0, 24.0
"""Of speech that no codec is shipped for."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What determines a training run, bit for bit given the same machine and build."""

    out_dir: str
    million_frames: float
    corpus_hours: float
    ranks: int
    seed: int
    speech: str = "espeak"
    qk_norm: bool = False
    number_format: str = "bfloat16"

    @property
    def config(self) -> VoiceConfig:
        """Shape of the model."""
        return replace(VoiceConfig(), qk_norm=self.qk_norm)

    @property
    def frames_per_step(self) -> int:
        """Frames that all ranks consume in a step."""
        return self.ranks * BATCH * CROP_FRAMES

    @property
    def n_steps(self) -> int:
        """Steps of the whole run."""
        return max(1, round(self.million_frames * 1e6 / self.frames_per_step))


def _synthesise_speaker(job: tuple[int, float, TrainingPlan, str]) -> Path:
    """Write one speaker's tokens (T, K) uint8 and segments (n, 3) int32, all passages end to end, unless they exist."""
    from precision_eval.cases.voice.codec import Codec, log_mel
    from tools.voice.corpus import generate_passages
    from tools.voice.encoding import encode

    speaker, minutes, plan, codec_path = job
    path = Path(plan.out_dir) / f"speaker-{speaker}.safetensors"
    if path.exists():
        return path
    codec = Codec.load(Path(codec_path))
    tokens, segments, offset = [], [], 0
    for passage in generate_passages(
        world="train", speaker=speaker, minutes=minutes, seed=plan.seed, speech=plan.speech
    ):
        codes = encode(codec, log_mel(passage.audio))[: int(passage.segments[-1, 2])]
        tokens.append(codes)
        segments.append(passage.segments + np.array([0, offset, offset], np.int32))
        offset += len(codes)
    arrays = {f"tokens.{speaker}": np.concatenate(tokens), f"segments.{speaker}": np.concatenate(segments)}
    return _written(path, arrays, {})


def _written(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> Path:
    partial = path.with_suffix(".partial")
    save_arrays(arrays, partial, metadata=metadata)
    return partial.replace(path)


def codec_of(plan: TrainingPlan) -> Path:
    """The shipped codec for the speech it was fitted on; for other speech the folder's, fitted if it is missing."""
    from precision_eval.cases.voice.assets import asset_path

    if plan.speech == "espeak":
        return asset_path("codec.safetensors")
    path = Path(plan.out_dir) / "codec.safetensors"
    if not path.exists():
        from tools.voice.fitting import fit_codec

        minutes = min(CODEC_MINUTES, 60 * plan.corpus_hours)
        fit_codec(minutes=minutes, seed=plan.seed, refinements=4, speech=plan.speech).save(path)
    return path


def _fit_vocoder(plan: TrainingPlan) -> None:
    """Train the network of a codec that is not the shipped one, unless the folder already holds it."""
    path = Path(plan.out_dir) / "vocoder.safetensors"
    if plan.speech != "espeak" and not path.exists():
        from precision_eval.cases.voice.codec import Codec
        from tools.voice.fitting import fit_network

        minutes = min(VOCODER_MINUTES, 60 * plan.corpus_hours)
        codec = Codec.load(codec_of(plan))
        fit_network(minutes=minutes, seed=plan.seed, epochs=5, speech=plan.speech, codec=codec).save(path)


def prepare_corpus(plan: TrainingPlan, *, on_speaker: Callable[[int, int], None]) -> Path:
    """Synthesise and encode the training speech, speaker by speaker, unless the folder already holds it."""
    path = Path(plan.out_dir) / "corpus.safetensors"
    made_with = {"seed": str(plan.seed), "corpus_hours": str(plan.corpus_hours), "speech": plan.speech}
    if path.exists():
        with safe_open(path, framework="np") as file:
            found = {"speech": "espeak"} | file.metadata()
        if found != made_with:
            raise IntegrityError(f"{path} was made with {found}, expected {made_with}; choose another --out or --fresh")
        return path
    from tools.voice.corpus import source_by_name

    n_speakers = len(source_by_name(plan.speech).speakers)
    codec_path = str(codec_of(plan))
    jobs = [(speaker, plan.corpus_hours * 60 / n_speakers, plan, codec_path) for speaker in range(n_speakers)]
    arrays: dict[str, np.ndarray] = {}
    parts = []
    with ProcessPoolExecutor(max_workers=plan.ranks, mp_context=context_of("spawn")) as pool:
        for done, part in enumerate(pool.map(_synthesise_speaker, jobs), start=1):
            arrays |= load_arrays(part)
            parts.append(part)
            on_speaker(done, len(jobs))
    _written(path, arrays, made_with)
    for part in parts:
        part.unlink()
    return path


class Crops:
    """Random training crops of the corpus; the last 2 % of each speaker is held out for validation."""

    def __init__(self, path: Path) -> None:
        from tools.voice.corpus import conditioning_from_segments

        self._tokens, self._conditioning = [], []
        arrays = load_file(path)
        for speaker in range(len(arrays) // 2):
            self._tokens.append(arrays[f"tokens.{speaker}"].to(torch.int64))
            self._conditioning.append(conditioning_from_segments(arrays[f"segments.{speaker}"].numpy()))

    def batch(self, rng: np.random.Generator, size: int, *, validation: bool) -> dict[str, Tensor]:
        """Draw ``size`` crops: target tokens (B, T, K), phonemes (B, T), progress (B, T, 2)."""
        rows: dict[str, list[Tensor]] = {"tokens": [], "phoneme": [], "next_phoneme": [], "progress": []}
        for _ in range(size):
            speaker = int(rng.integers(len(self._tokens)))
            total = len(self._tokens[speaker])
            border = min(int(total * 0.98), total - CROP_FRAMES - 1)
            first, last = (border, total - CROP_FRAMES) if validation else (0, border - CROP_FRAMES)
            start = int(rng.integers(first, max(first + 1, last)))
            frames = slice(start, start + CROP_FRAMES)
            crop = self._conditioning[speaker][frames]
            rows["tokens"].append(self._tokens[speaker][frames])
            rows["phoneme"].append(torch.from_numpy(crop.phoneme))
            rows["next_phoneme"].append(torch.from_numpy(crop.next_phoneme))
            rows["progress"].append(torch.from_numpy(crop.progress))
        return {name: torch.stack(values) for name, values in rows.items()}


def sequence_mask(n_frames: int, window_frames: int) -> Tensor:
    """Causal band mask, shape (n_frames, n_frames): what a ring of ``window_frames`` lets each step see."""
    distance = torch.arange(n_frames)[:, None] - torch.arange(n_frames)[None, :]
    return (distance >= 0) & (distance < window_frames)


def sequence_loss(
    model: VoiceModel, batch: dict[str, Tensor], *, noise: np.random.Generator | None, number_format: str = "bfloat16"
) -> Tensor:
    """Teacher-forced cross-entropy of a batch of crops."""
    config = model.config
    empty = config.codebook_size
    targets = delayed(batch["tokens"], empty=empty)  # (B, T, K)
    inputs = torch.full_like(targets, empty)
    inputs[:, 1:] = targets[:, :-1]
    if noise is not None:
        hit = torch.from_numpy(noise.random(tuple(inputs.shape)) < TOKEN_NOISE) & (inputs != empty)
        random_tokens = torch.from_numpy(noise.integers(0, empty, tuple(inputs.shape)))
        inputs = torch.where(hit, random_tokens, inputs)
    T = targets.shape[1]
    cos, sin = Positions(config, dtype=torch.float32)(0, T)
    mask = sequence_mask(T, config.window_frames)
    with torch.autocast("cpu", dtype=getattr(torch, number_format), enabled=number_format != "float32"):
        logits = model(inputs, batch["phoneme"], batch["next_phoneme"], batch["progress"], cos, sin, mask, None)
    targets = targets.masked_fill(targets == empty, -100)
    return F.cross_entropy(logits.float().flatten(0, 2), targets.flatten())


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_PRODUCTS = {
    *(torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default),
    *(_ATTENTION, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default),
}


class Float16Products(TorchDispatchMode):
    """Products of float16 operands in float32, rounded once: a CPU's own for float16 may take ten times as long."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, forwards or backwards."""
        given = [x.dtype for x in args if isinstance(x, Tensor)]
        if func not in _PRODUCTS or torch.float16 not in given:
            return func(*args, **(kwargs or {}))
        found = func(
            *_rounded(args, torch.float16, torch.float32), **_rounded(kwargs or {}, torch.float16, torch.float32)
        )
        if func is _ATTENTION:
            return found[0].half(), found[1]  # the softmax's normaliser stays in float32
        return _rounded(found, torch.float32, torch.float16)


def _rounded(tree: Any, of: torch.dtype, to: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda x: x.to(to) if x.dtype == of else x, tree)


def _products(number_format: str) -> AbstractContextManager[Any]:
    return Float16Products() if number_format == "float16" else nullcontext()


def _optimizers(model: VoiceModel) -> list[torch.optim.Optimizer]:
    if not hasattr(torch.optim, "Muon"):
        raise UnsupportedError(
            f"training needs torch ≥ 2.9 for torch.optim.Muon, found {torch.__version__}; upgrade torch"
        )
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.01),
    ]


def learning_rate_factor(step: int, n_steps: int) -> float:
    """Linear warm-up over 100 steps, then a cosine to zero at ``n_steps``."""
    warmup = min(1.0, (step + 1) / WARMUP_STEPS)
    return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, step / n_steps)))


def _average_gradients(model: VoiceModel) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _save_checkpoint(
    path: Path,
    model: VoiceModel,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    step: int,
) -> None:
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, optimizer in enumerate(optimizers):
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{number}.{key}": value for key, value in state.items()}
    partial = path.with_suffix(".partial")
    metadata = {"step": str(step), "scaler": json.dumps(scaler.state_dict())}
    save_file({name: value.contiguous().clone() for name, value in tensors.items()}, partial, metadata)
    partial.replace(path)


def _load_checkpoint(
    path: Path, model: VoiceModel, optimizers: list[torch.optim.Optimizer], scaler: torch.amp.GradScaler
) -> int:
    tensors = load_file(path)
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
    for index, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith(f"optimizer.{index}."):
                _, _, number, key = name.split(".", 3)
                state.setdefault(int(number), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if state_of_scaler := json.loads(metadata.get("scaler", "{}")):
        scaler.load_state_dict(state_of_scaler)
    return int(metadata["step"])


def _validate(model: VoiceModel, crops: Crops, number_format: str) -> float:
    rng = np.random.default_rng(0)
    with torch.no_grad(), _products(number_format):
        losses = [
            sequence_loss(model, crops.batch(rng, 1, validation=True), noise=None, number_format=number_format)
            for _ in range(VALIDATION_CROPS)
        ]
    return float(torch.stack(losses).mean())


def _forget_rows_after(path: Path, step: int) -> None:
    """Drop log rows of steps that a resumed run will do again."""
    if path.exists():
        kept = [line for line in path.read_text().splitlines() if json.loads(line)["step"] <= step]
        path.write_text("".join(line + "\n" for line in kept))


def _train_rank(rank: int, plan: TrainingPlan, rendezvous: str, reports: object) -> None:
    """Train in one process; rank 0 also logs, validates and writes checkpoints."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=plan.ranks)
    out_dir = Path(plan.out_dir)
    crops = Crops(out_dir / "corpus.safetensors")
    torch.manual_seed(plan.seed)
    model = VoiceModel(plan.config)
    optimizers = _optimizers(model)
    scaler = torch.amp.GradScaler("cpu", enabled=plan.number_format == "float16")
    checkpoint = out_dir / "checkpoint.safetensors"
    first = _load_checkpoint(checkpoint, model, optimizers, scaler) if checkpoint.exists() else 0
    if rank == 0:
        _forget_rows_after(out_dir / "training_log.jsonl", first)
    saved_at, losses = time.monotonic(), []
    for step in range(first, plan.n_steps):
        rng = np.random.default_rng([plan.seed, step, rank])
        batch = crops.batch(rng, BATCH, validation=False)
        with _products(plan.number_format):
            loss = sequence_loss(model, batch, noise=rng, number_format=plan.number_format)
            scaler.scale(loss).backward()
        _average_gradients(model)
        factor = learning_rate_factor(step, plan.n_steps)
        for optimizer, base in zip(optimizers, (MUON_LR, ADAMW_LR), strict=True):
            optimizer.param_groups[0]["lr"] = base * factor
            scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=False)
        scaler.update()
        losses.append(float(loss.detach()))
        last = step + 1 == plan.n_steps
        if rank == 0 and ((step + 1) % LOG_EVERY_STEPS == 0 or last):
            done = {"step": step + 1, "frames": (step + 1) * plan.frames_per_step}
            row = {**done, "train_loss": round(float(np.mean(losses)), 4)}
            row |= {"loss_scale": scaler.get_scale()} if scaler.is_enabled() else {}
            if (step + 1) % (8 * LOG_EVERY_STEPS) == 0 or last:
                row["validation_loss"] = round(_validate(model, crops, plan.number_format), 4)
            with (out_dir / "training_log.jsonl").open("a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
            reports.put(row)  # type: ignore[attr-defined]
            losses = []
        if rank == 0 and (last or time.monotonic() - saved_at > CHECKPOINT_EVERY_S):
            _save_checkpoint(checkpoint, model, optimizers, scaler, step + 1)
            saved_at = time.monotonic()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def train_voice(
    plan: TrainingPlan,
    *,
    fresh: bool = False,
    on_progress: Callable[[str, float, dict[str, float]], None] = lambda stage, fraction, row: None,
) -> Path:
    """Train the voice from synthesised speech to float32 weights; interrupted, it resumes where it stopped."""
    if min(plan.million_frames, plan.corpus_hours, plan.ranks) <= 0:
        raise ParameterError("million_frames, corpus_hours and ranks must be positive")
    if plan.number_format not in FORMATS:
        raise unknown_name("format of training", plan.number_format, FORMATS)
    out_dir = Path(plan.out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    if fresh:
        for path in out_dir.glob("speaker-*.safetensors"):
            path.unlink()
        for name in _MADE:
            (out_dir / name).unlink(missing_ok=True)
    _hold_plan(plan)
    prepare_corpus(plan, on_speaker=lambda done, of: on_progress("corpus", done / of, {}))
    _fit_vocoder(plan)
    queue = torch.multiprocessing.get_context("spawn").Queue()
    rendezvous = out_dir / f"rendezvous-{os.getpid()}"
    arguments = (plan, str(rendezvous.resolve()), queue)
    ranks_at_work = torch.multiprocessing.spawn(_train_rank, arguments, nprocs=plan.ranks, join=False, daemon=True)
    try:
        while not ranks_at_work.join(timeout=1.0):  # ends the others and raises where one has died
            while not queue.empty():
                row = queue.get()
                on_progress("train", row["step"] / plan.n_steps, row)
    except (torch.multiprocessing.ProcessExitedException, torch.multiprocessing.ProcessRaisedException) as error:
        raise IntegrityError(f"a training process died ({error}); run the command again to resume") from error
    finally:
        rendezvous.unlink(missing_ok=True)
    return export_weights(out_dir)


_MADE = (
    *("checkpoint.safetensors", "training_log.jsonl", "corpus.safetensors", "codec.safetensors"),
    *("vocoder.safetensors", "plan.json"),
)


FORMER_PLAN = {"speech": "espeak", "qk_norm": False, "number_format": "bfloat16"}  # of plans that do not say


def _hold_plan(plan: TrainingPlan) -> None:
    """Refuse to resume under another plan: the learning-rate schedule would break in silence."""
    path = Path(plan.out_dir) / "plan.json"
    wanted = {key: value for key, value in asdict(plan).items() if key != "out_dir"}
    if path.exists() and (found := {**FORMER_PLAN, **json.loads(path.read_text())}) != wanted:
        raise IntegrityError(
            f"{path} holds another plan ({found}), expected {wanted}; give the same options or --fresh"
        )
    path.write_text(json.dumps(wanted) + "\n")


def export_weights(out_dir: Path) -> Path:
    """Write the checkpoint's weights alone, in float32, as ``voice.safetensors``."""
    tensors = load_file(out_dir / "checkpoint.safetensors")
    weights = {name[6:]: value.float() for name, value in tensors.items() if name.startswith("model.")}
    path = out_dir / "voice.safetensors"
    save_file(weights, path)
    return path
