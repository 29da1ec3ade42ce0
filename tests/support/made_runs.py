"""Synthetic records: a run with every measure, every status and every role, from a seed."""

import json

import numpy as np
import pytest

RAISED = (
    "RuntimeError: Expected query, key, and value to have the same dtype, but got query.dtype: float key.dtype: "
    "c10::Half and value.dtype: c10::Half instead."
)
RAISED_COMPILED = (
    "TorchRuntimeError: Dynamo failed to run FX node with fake tensors: call_function <built-in function "
    "scaled_dot_product_attention>(*(FakeTensor(...), FakeTensor(...)), **{}): got RuntimeError('" + RAISED[14:] + "')"
)
# fix: latency ratio, attention drift, voice drift, storage MB, peak MB, audio distance relative to the noise floor
TRUTH = {
    "query_to_half": (1.31, 4.6e-4, 1.44e-4, 33.6, 8.5, 0.14),
    "kv_to_query": (0.72, 3.1e-7, 1.2e-4, 33.6, 33.6, 0.12),
    "full_float32": (1.0, 2.7e-7, 4.2e-7, 67.1, 0.3, 0.0),
    "bfloat16": (0.71, 3.6e-3, 7.7e-3, 33.6, 0.2, 0.39),
    "float16": (1.02, 4.6e-4, 9.6e-4, 33.6, 0.2, 0.35),
    "autocast": (0.86, 5.4e-3, 6.1e-3, 33.6, 21.0, 0.37),
}
COMPARATORS = {
    "reference": "reference",
    "noise_floor": "noise_floor",
    "control_rope_bfloat16": "control",
    "control_long_window": "control",
}


class Synthetic:
    """Writes records the way a run does, without a run."""

    def __init__(self, run_dir, *, seed=7, minutes=5.0):
        self.run_dir = run_dir
        self.rng = np.random.default_rng(seed)
        self.minutes = minutes
        self.records = []

    def add(self, case, size, mode, fix, measure, data=None, *, role="fix", status="passed", reason=None):
        self.records.append(
            {
                "schema_version": 2, "cell": f"{case}/{fix}/{mode}@cpu:{size}#{measure}", "case": case,
                "case_digest": "0123456789abcdef", "fix": fix, "role": role, "mode": mode, "device": "cpu",
                "size": size, "threads": 1, "measure": measure, "status": status, "reason": reason, "data": data,
                "wall_s": 0.5, "started_at": "2026-11-20T10:00:00+00:00", "environment": "f00d", "options": {},
            }
        )  # fmt: skip

    def attention(self, case, size, mode):
        for fix in ("as_shipped", "dynamo_fallback"):
            if fix == "dynamo_fallback" and mode == "eager":
                continue
            for measure in ("trace", "latency", "memory", "drift"):
                reason = RAISED if mode == "eager" or fix == "dynamo_fallback" else RAISED_COMPILED
                self.add(case, size, mode, fix, measure, status="raised", reason=reason)
        for fix, (ratio, drift, _, storage, peak, _) in TRUTH.items():
            self.add(case, size, mode, fix, "trace", trace(fix))
            self.add(case, size, mode, fix, "latency", self.latency(ratio * (1 + 0.1 * self.rng.normal()), fix))
            self.add(case, size, mode, fix, "memory", memory(storage, peak))
            self.add(case, size, mode, fix, "drift", tensor_drift(drift * self.rng.uniform(0.8, 1.2)))

    def latency(self, ratio, fix):
        if fix == "full_float32":
            ratio, half, verdict = 1.001, 0.0015, "equivalent"  # the baseline against itself
        else:
            half = ratio * self.rng.uniform(0.002, 0.02)
            verdict = "faster" if ratio + half < 0.998 else "slower" if ratio - half > 1.002 else "undecided"
        blocks = 1e-3 * ratio * (1 + 0.02 * self.rng.normal(size=12))
        return {
            "baseline": "full_float32",
            "ratio": ratio,
            "ratio_low": ratio - half,
            "ratio_high": ratio + half,
            "confidence": 0.95,
            "verdict": verdict,
            "margin": 0.002,
            "minimum_detectable_effect": 0.004,
            "median_s": float(np.median(blocks)),
            "baseline_median_s": 1e-3,
            "blocks": 12,
            "calls_per_block": 5,
            "block_median_s": blocks.tolist(),
            "baseline_block_median_s": [1e-3] * 12,
            "doubts": ["few blocks: 12 of the 20 asked for"] if fix == "autocast" else [],
            "threads": 1,
            "clock": "wall",
            "error_rate": 0.01,
        }

    def voice(self, mode="eager"):
        for fix in ("as_shipped", "dynamo_fallback"):
            self.add("voice", "default", "compiled", fix, "trace", status="raised", reason=RAISED)
        for fix in ("as_shipped",):
            for measure in ("trace", "latency", "memory", "teacher_forced_drift", "divergence", "synthesis"):
                self.add("voice", "default", mode, fix, measure, status="raised", reason=RAISED)
        for fix, (ratio, _, drift, storage, peak, distance) in TRUTH.items():
            self.add("voice", "default", mode, fix, "trace", trace(fix))
            self.add("voice", "default", mode, fix, "latency", self.latency(0.5 + ratio / 2, fix))
            self.add("voice", "default", mode, fix, "memory", memory(storage / 2, peak / 9))
            self.add("voice", "default", mode, fix, "teacher_forced_drift", self.voice_drift(drift))
            self.add("voice", "default", mode, fix, "divergence", self.divergence(drift))
            self.add("voice", "default", mode, fix, "audio", self.audio(distance, 3.75))
            self.add("voice", "default", mode, fix, "sound", streams_heard(0.0, apart=distance))
        for fix, role in COMPARATORS.items():
            distance, original = {"reference": (0.0, 3.75), "noise_floor": (1.0, 3.75)}.get(fix, (0.98, 4.5))
            self.add("voice", "default", "eager", fix, "audio", self.audio(distance, original), role=role)
            self.add(
                "voice", "default", "eager", fix, "sound", streams_heard(original - 3.75, apart=distance), role=role
            )
            if role == "noise_floor":
                self.add("voice", "default", "eager", fix, "divergence", self.divergence(10.0), role=role)
            if fix == "control_rope_bfloat16":
                self.add("voice", "default", "eager", fix, "teacher_forced_drift", self.voice_drift(0.2), role=role)

    def voice_drift(self, drift):
        time_s = np.arange(400) / 50.0
        error = drift * np.exp(0.35 * self.rng.normal(size=400)) * (1 + 0.4 * (1 - np.exp(-time_s)))
        kl = 4.0 * error**2
        return {
            "relative_error": float(error.mean()), "relative_error_low": float(error.mean() * 0.93),
            "relative_error_high": float(error.mean() * 1.08), "kl_nats": float(kl.mean()),
            "kl_nats_low": float(kl.mean() * 0.85), "kl_nats_high": float(kl.mean() * 1.2),
            "total_variation": float(error.mean() / 3), "top1_flip_fraction": float(min(1.0, error.mean() / 5)),
            "max_abs_logit": 61.5, "attention_entropy_nats": 1.31, "streams": 8, "steps": 400,
            "series": {"time_s": time_s.tolist(), "relative_error": error.tolist(), "kl_nats": kl.tolist()},
        }  # fmt: skip

    def divergence(self, drift, *, streams=64, steps=400):
        rate = min(1.0, 6.0 * drift**0.5)
        first = np.floor(self.rng.exponential(steps / max(rate, 1e-9) / 3, size=streams)).astype(int)
        first_or_none = [int(step) if step < steps else None for step in first]
        time_s = np.arange(0, steps, 10) / 50.0
        fraction = np.array([(first > t * 50).mean() for t in time_s])
        half = 1.96 * np.sqrt(fraction * (1 - fraction) / streams)
        return {
            "streams": streams,
            "steps": steps,
            "frame_rate_hz": 50,
            "diverged": sum(step is not None for step in first_or_none),
            "first_divergent_step": first_or_none,
            "token_difference_fraction": 0.3 * rate,
            "survival": {
                "time_s": time_s.tolist(),
                "fraction": fraction.tolist(),
                "low": np.clip(fraction - half, 0, 1).tolist(),
                "high": np.clip(fraction + half, 0, 1).tolist(),
            },
        }

    def audio(self, distance, original):
        reference = {
            "log_spectral_distance_db": self.metric(7.5 * distance, ratio=distance),
            "mel_mcd_db": self.metric(3.9 * distance, ratio=distance),
            "si_sdr_db": self.metric(None if distance == 0 else -20 * np.log10(distance + 0.05) - 8, ratio=None),
        }
        speech = {
            "log_spectral_distance_db": self.metric(original * 2.2, ratio=original / 3.75),
            "mel_mcd_db": self.metric(original, ratio=original / 3.75, grow=0.2 if original > 4 else 0.0),
        }
        accuracy = 0.886 if original < 4 else 0.82
        return {
            "duration_s": self.minutes * 60,
            "against_reference": reference,
            "against_original": speech,
            "phoneme_accuracy": {
                "value": accuracy,
                "first_third": accuracy + 0.004,
                "last_third": accuracy - (0.002 if original < 4 else 0.04),
                "original": 0.941,
            },
        }

    def metric(self, level, *, ratio, grow=0.0):
        if level is None:
            return {"mean": None, "ratio_to_null": None, "series": {"time_s": [], "value": []}}
        time_s = np.arange(2.0, self.minutes * 60, 4.0)
        value = level * (1 + 0.08 * self.rng.normal(size=time_s.size)) + grow * time_s / 60
        slope = float(np.polyfit(time_s / 60, value, 1)[0])
        return {
            "mean": float(value.mean()), "median": float(np.median(value)), "p95": float(np.quantile(value, 0.95)),
            "worst": float(value.max()), "slope_per_min": slope, "slope_low": slope - 0.05,
            "slope_high": slope + 0.05, "first_third": float(value[: value.size // 3].mean()),
            "last_third": float(value[-value.size // 3 :].mean()), "ratio_to_null": ratio,
            "series": {"time_s": time_s.tolist(), "value": value.tolist()},
        }  # fmt: skip

    def write(self):
        self.run_dir.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(record, allow_nan=False) for record in self.records]
        (self.run_dir / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return self.run_dir


def streams_heard(worse_db, *, phonemes=None, apart=1.0, streams=16):
    """What is heard of a condition: the reference's values made worse, and `apart` from them as another seed is."""
    base, own = np.random.default_rng(0), np.random.default_rng(round(1e6 * (abs(worse_db) + apart)))
    phonemes = -0.1 * worse_db if phonemes is None else phonemes
    levels = {
        "mel_mcd_db": (4.4, 0.25, worse_db),
        "log_spectral_distance_db": (8.4, 0.3, worse_db),
        "level_error_db": (2.4, 0.15, 0.5 * worse_db),
        "phonemes_right": (0.86, 0.03, phonemes),
    }
    heard = {
        name: (level + base.normal(size=streams) * spread + apart * spread * _without_mean(own, streams) + change)
        for name, (level, spread, change) in levels.items()
    }
    heard["phonemes_right"] = np.clip(heard["phonemes_right"], 0.0, 1.0)
    return {
        "streams": streams,
        "stream_s": 5.0,
        "heard": {name: values.tolist() for name, values in heard.items()},
        "tokens": [],
        "real_time_factor": 15.0,
        "clock": "process CPU",
    }


def _without_mean(rng, count):
    drawn = rng.normal(size=count)
    return (drawn - drawn.mean()) / drawn.std()


def trace(fix):
    query = {"bfloat16": "bfloat16", "autocast": "bfloat16", "float16": "float16", "query_to_half": "float16"}
    dtype = query.get(fix, "float32")
    casts = [{"site": "sdpa", "operand": "key", "from": "float16", "to": "float32", "count": 8}]
    operands = {"query": dtype, "key": dtype, "value": dtype, "output": dtype, "count": 4}
    return {"sdpa": [operands], "linear": [], "backend": "math", "casts": casts if fix == "kv_to_query" else []}


def memory(storage_mb, peak_mb):
    peak = int(peak_mb * 1e6)
    return {"allocated_peak_bytes": peak, "storage_bytes": int(storage_mb * 1e6), "rss_peak_bytes": 400_000_000 + peak}


def tensor_drift(error):
    return {
        "relative_error": error, "rms_error": error / 3, "yardstick_dtype": "float16", "rms_ratio": 1.1,
        "bias_z": 0.4, "ulp_quantiles": {"0.5": 0.2, "0.99": 1.4, "1.0": 3.0}, "max_abs_error": error * 4,
        "cosine_distance": error**2,
        "split": {
            "input_cast_mse": 0.2 * error**2, "compute_mse": 0.5 * error**2, "output_rounding_mse": 0.3 * error**2,
            "cross_mse": 0.0, "total_mse": error**2,
        },
    }  # fmt: skip


@pytest.fixture
def synthetic():
    """The class itself, so that a test can write what it needs."""
    return Synthetic


@pytest.fixture
def full_run(tmp_path):
    run = Synthetic(tmp_path / "full")
    for mode in ("eager", "compiled"):
        for size in ("metavoice", "dia"):
            run.attention("attention-decode", size, mode)
    run.attention("attention-prefill", "metavoice", "eager")
    run.voice()
    return run.write()
