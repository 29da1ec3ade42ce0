"""The planted faults, as data. The list was fixed before any rule judged it.

A fault sits in a *host*, a kernel that is correct without it; where several hosts can have it, the seed
picks one. Its effect is the difference between the host with it and the host without it, so that what an honest kernel
does to the last bits is not counted as the fault's. Some change nothing on some inputs; those trials are counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from validation.faults import plants
from validation.faults.families import DTYPES, Operands
from validation.faults.kernels import FLASH, FUSED, PLAIN, Kernel, attend

F16, BF16, F32 = DTYPES
HALVES = (F16, BF16)
SEEDS_PER_HOST = 4
"""Neighbouring seeds share a host, so that calls pooled by fours come from one implementation."""
ALL_HOSTS = (PLAIN, FUSED, FLASH)


@dataclass(frozen=True)
class Fault:
    """One fault."""

    id: str
    what: str
    dtypes: tuple[torch.dtype, ...] = DTYPES
    hosts: tuple[Kernel, ...] = ALL_HOSTS
    inside: Mapping[str, Any] = field(default_factory=dict)
    before: plants.OnOperands | None = None
    after: plants.OnOutput | None = None
    on: plants.OnOperands | None = None

    def host(self, operands: Operands) -> Kernel:
        """The kernel that the seed of the operands picks."""
        return self.hosts[operands.seed // SEEDS_PER_HOST % len(self.hosts)]

    def inputs(self, operands: Operands) -> Operands:
        """What the trial is on; `operands` themselves for most faults."""
        return operands if self.on is None else self.on(operands)

    def apply(self, operands: Operands) -> Tensor:
        """Compute attention with the fault in it, on operands from :meth:`inputs`; (1, H, L, D) in their dtype."""
        kernel = replace(self.host(operands), **self.inside)
        output = attend(operands if self.before is None else self.before(operands), kernel)
        return output if self.after is None else self.after(output, operands)


def _times(factor: float) -> plants.OnOperands:
    return partial(plants.scale_times, factor=factor)


def _store(how: str, parts: str) -> plants.OnOperands:
    return partial(plants.store_as, how=how, parts=parts)


_BLOCKS_OF_8 = replace(FLASH, block=8)
_CHUNKED_DOT = replace(FUSED, dot_chunk=8)
_NO_MAXIMUM = {"subtract_maximum": False, "exponentials": "same"}

FAULTS: tuple[Fault, ...] = (
    # gain and offset of the output
    Fault("gain_0.05%", "output 0.05 % too large", inside={"on_result": plants.gain(1.0005)}),
    Fault("gain_0.2%", "output 0.2 % too large", inside={"on_result": plants.gain(1.002)}),
    Fault("gain_1%", "output 1 % too large", inside={"on_result": plants.gain(1.01)}),
    Fault("gain_2e-7", "output 2.4e-7 too large, two steps", (F32,), inside={"on_result": plants.gain(1.0 + 2.0**-22)}),
    Fault("offset_0.05%", "0.05 % of the output's RMS added", inside={"on_result": plants.offset(5e-4)}),
    Fault("offset_1%", "1 % of the output's RMS added", inside={"on_result": plants.offset(1e-2)}),
    Fault("channel_gain_1%", "one channel of one head 1 % too large", after=partial(plants.channel_gain, factor=1.01)),
    # rounding of the output
    Fault("truncated_output", "output rounded toward zero", inside={"output": "truncated"}),
    Fault("upward_output", "output rounded toward +∞", inside={"output": "upward"}),
    Fault("stochastic_output", "output rounded stochastically", inside={"output": "stochastic"}),
    Fault("bfloat16_output", "output rounded to bfloat16 first", (F16, F32), inside={"output": "via_bfloat16"}),
    Fault("float16_output", "output rounded to float16 first", (F32,), inside={"output": "float16"}),
    Fault("flushed_output", "subnormal outputs set to zero", (F16,), inside={"output": "flushed"}),
    Fault("head_via_bfloat16", "one head stored in bfloat16", (F16, F32), after=plants.head_through_bfloat16),
    # softmax stored or computed too coarsely
    Fault("bfloat16_weights", "softmax matrix silently bfloat16", (F16, F32), inside={"weights": "bfloat16"}),
    Fault("float16_weights", "softmax matrix silently float16", (F32,), inside={"weights": "float16"}),
    Fault("fp8_weights", "softmax matrix in fp8 e4m3", inside={"weights": "fp8"}),
    Fault("truncated_weights", "softmax matrix rounded toward zero", HALVES, inside={"weights": "truncated"}),
    Fault("flushed_weights", "subnormal weights set to zero", (F16,), inside={"weights": "flushed"}),
    Fault("skipped_weights_1e-4", "weights under 1e-4 skipped", inside={"exp": plants.skip_small(1e-4)}),
    Fault("skipped_weights_1e-2", "weights under 1 % skipped", inside={"exp": plants.skip_small(1e-2)}),
    Fault("bfloat16_logits", "logits silently bfloat16", (F16, F32), inside={"scaled": "bfloat16"}),
    Fault("float16_logits", "logits silently float16", (F32,), inside={"scaled": "float16"}),
    Fault("half_softmax", "exp and sum of softmax stored in half", HALVES, (PLAIN,),
          {"exponentials": "same", "total": "same"}),
    Fault("half_total", "sum of weights accumulated in half", HALVES, (_BLOCKS_OF_8,), {"total": "same"}),
    # accumulation and merging
    Fault("half_accumulator", "weights·v accumulated in half", HALVES, (_BLOCKS_OF_8,), {"accumulator": "same"}),
    Fault("bfloat16_accumulator", "weights·v accumulated in bfloat16", (F16, F32), (_BLOCKS_OF_8,),
          {"accumulator": "bfloat16"}),
    Fault("float16_accumulator", "weights·v accumulated in float16", (F32,), (_BLOCKS_OF_8,),
          {"accumulator": "float16"}),
    Fault("half_dot", "q·k accumulated in half", HALVES, (_CHUNKED_DOT,), {"dot": "same"}),
    Fault("bfloat16_dot", "q·k accumulated in bfloat16", (F16, F32), (_CHUNKED_DOT,), {"dot": "bfloat16"}),
    Fault("half_rescale", "rescale factors stored in half", HALVES, (FLASH,), {"rescale": "same"}),
    Fault("half_merge", "partial results merged in half", HALVES, (FLASH,), {"rescale": "same", "accumulator": "same"}),
    Fault("bfloat16_rescale", "rescale factors stored in bfloat16", (F16, F32), (FLASH,), {"rescale": "bfloat16"}),
    Fault("forgotten_rescale", "earlier blocks not rescaled to the new maximum", hosts=(FLASH,),
          inside={"rescale": "left_out"}),
    # operands read too coarsely
    Fault("tf32", "TF32 products posing as float32", (F32,), inside={"product": "tf32"}),
    Fault("tf32_logits", "TF32 in q·k alone", (F32,), before=_store("tf32", "qk")),
    Fault("tf32_values", "TF32 values", (F32,), before=_store("tf32", "v")),
    Fault("bfloat16_products", "bfloat16 products posing as float32", (F32,), inside={"product": "bfloat16"}),
    Fault("bfloat16_query", "query rounded to bfloat16", (F16, F32), before=_store("bfloat16", "q")),
    Fault("fp8_keys", "keys in fp8 e4m3", before=_store("fp8", "k")),
    Fault("fp8_values", "values in fp8 e4m3", before=_store("fp8", "v")),
    Fault("int8_keys", "keys in int8, one scale per head", before=_store("int8", "k")),
    Fault("int8_values", "values in int8, one scale per head", before=_store("int8", "v")),
    Fault("half_cache", "keys and values from a float16 cache", (F32,), before=_store("float16", "kv")),
    # approximations
    Fault("exp_quadratic", "exp by a quadratic", inside={"exp": plants.exp_polynomial(1.0, 0.6565, 0.3435)}),
    Fault("exp_cubic", "exp by a cubic, good to 1e-4", (F16, F32),
          inside={"exp": plants.exp_polynomial(1.0, 0.695146, 0.227564, 0.077119)}),
    Fault("exp_schraudolph", "exp by a straight line per binade", inside={"exp": plants.exp_schraudolph}),
    Fault("log2e_float16", "exp2 with log₂e in float16", (F16, F32),
          inside={"exp": plants.exp_with_log2_e(1.4423828125)}),
    Fault("log2e_bfloat16", "exp2 with log₂e in bfloat16", inside={"exp": plants.exp_with_log2_e(1.4453125)}),
    Fault("reciprocal_8_bits", "reciprocal to 8 bits", inside={"reciprocal": plants.reciprocal_of(8)}),
    Fault("reciprocal_12_bits", "reciprocal to 12 bits", (F16, F32), inside={"reciprocal": plants.reciprocal_of(12)}),
    Fault("sum_epsilon_1e-3", "1e-3 added to the sum of weights",
          inside={"reciprocal": plants.guarded_reciprocal(1e-3)}),
    Fault("log2e_4_decimals", "exp2 with log₂e as 1.4427", (F16, F32), inside={"exp": plants.exp_with_log2_e(1.4427)}),
    Fault("reciprocal_22_bits", "reciprocal to 22 bits", (F32,), inside={"reciprocal": plants.reciprocal_of(22)}),
    Fault("sum_epsilon_1e-6", "1e-6 added to the sum of weights", (F32,),
          inside={"reciprocal": plants.guarded_reciprocal(1e-6)}),
    Fault("no_maximum", "exp in half without the maximum: overflow", (F16,), (FUSED,), _NO_MAXIMUM),
    Fault("overflow_saturated", "the same, infinity set to the largest number", (F16,), (FUSED,),
          {"subtract_maximum": False, "exponentials": "saturated"}),
    Fault("overflow_zeroed", "the same, NaN set to zero", (F16,), (FUSED,), _NO_MAXIMUM, after=plants.nan_to_zero),
    Fault("nan_hidden", "a NaN of the input set to zero in the output", on=plants.nan_in_value,
          after=plants.nan_to_zero),
    # scale
    Fault("scale_1e-6", "logits 1e-6 too large", (F32,), inside={"on_logits": plants.gain(1.0 + 1e-6)}),
    Fault("scale_0.1%", "logits 0.1 % too large", before=_times(1.001)),
    Fault("scale_1%", "logits 1 % too large", before=_times(1.01)),
    Fault("scale_root_2", "logits √2 too large", before=_times(2**0.5)),
    Fault("no_scale", "1/√d left out", before=plants.no_scale),
    Fault("no_scale_in_a_head", "1/√d left out in one head", before=plants.no_scale_in_a_head),
    Fault("clipped_logits", "logits clipped at ±8", inside={"on_logits": plants.clip_at(8.0)}),
    Fault("softcap_50", "logits soft-capped at 50", inside={"on_logits": plants.softcap_at(50.0)}),
    # indices, masks, caches
    Fault("dropped_key", "one key left out", before=plants.drop_key),
    Fault("doubled_key", "one key taken twice", before=plants.double_key),
    Fault("mask_shows_future", "mask one key too long", before=partial(plants.shift_mask, by=1)),
    Fault("mask_hides_newest", "mask one key too short", before=partial(plants.shift_mask, by=-1)),
    Fault("mask_leak", "one masked position gets in", before=plants.leak_one),
    Fault("tail_skipped", "last four keys never visited", before=partial(plants.skip_tail, keys=4)),
    Fault("stale_slot", "one cache slot from an earlier call", before=plants.stale_slot),
    Fault("stale_value", "the value of one slot from an earlier call", before=partial(plants.stale_slot, parts="v")),
    Fault("stale_head", "one head from an earlier call", before=plants.stale_head),
    Fault("swapped_key_value", "key and value of one slot exchanged", before=plants.swap_key_and_value),
    Fault("late_values", "values one slot late", before=plants.late_values),
    Fault("wrong_value_head", "one head reads its neighbour's values", before=plants.wrong_value_head),
    Fault("padded_key", "a zero key attends", before=plants.padded_key),
    Fault("rope_off_by_one", "query one position late", before=plants.rope_off_by_one),
    Fault("rope_bfloat16", "keys rotated by bfloat16 angles", before=plants.rope_in_bfloat16),
    # the output's places
    Fault("zeros", "nothing written", after=plants.zeros),
    Fault("last_row_missing", "last row not written", after=plants.last_row_left_out),
    Fault("last_row_repeated", "last row a copy of the one before", after=plants.last_row_repeated),
    Fault("tile_missing", "an 8 × 8 tile not written", after=plants.tile_left_out),
    Fault("tile_transposed", "an 8 × 8 tile transposed", after=plants.tile_transposed),
    Fault("swapped_heads", "two heads exchanged", after=plants.heads_swapped),
    Fault("swapped_channels", "two channels of one head exchanged", after=plants.channels_swapped),
    Fault("flipped_bit", "top fraction bit of one element flipped", after=plants.flipped_bit),
)  # fmt: skip
"""What a rule should catch where it moves the output by more than the format's own error."""

HELD_OUT_FAULTS: tuple[Fault, ...] = (
    Fault("head_gain_0.1%", "one head 0.1 % too large", inside={"on_result": plants.gain_at(plants.at[:, 1], 1.001)}),
    Fault("last_row_gain_1%", "last row 1 % too large",
          inside={"on_result": plants.gain_at(plants.at[:, :, -1], 1.01)}),
    Fault("channel_offset_0.5%", "0.5 % of the RMS on one channel", inside={"on_result": plants.channel_offset(5e-3)}),
    Fault("shrunk_0.1%", "output 0.1 % too small", inside={"on_result": plants.gain(0.999)}),
    Fault("noise_2^-11", "noise of 2⁻¹¹ on each element", inside={"on_result": plants.noise(2.0**-11)}),
    Fault("noise_2^-8", "noise of 2⁻⁸ on each element", inside={"on_result": plants.noise(2.0**-8)}),
    Fault("row_leak_0.2%", "0.2 % of the row before", inside={"on_result": plants.leak(2e-3, dim=2)}),
    Fault("channel_leak_0.1%", "0.1 % of the channel before", inside={"on_result": plants.leak(1e-3, dim=3)}),
    Fault("saturated_2.5_rms", "output clipped at 2.5 RMS", inside={"on_result": plants.clip_at_rms(2.5)}),
    Fault("small_to_zero", "output under 0.5 % of the RMS set to zero",
          inside={"on_result": plants.small_to_zero(5e-3)}),
    Fault("one_less_bit", "output with one bit less", HALVES, after=plants.one_less_bit),
    Fault("truncated_logits", "logits rounded toward zero", HALVES, (PLAIN,), {"scaled": "truncated"}),
    Fault("stochastic_weights", "weights rounded stochastically", HALVES, inside={"weights": "stochastic"}),
    Fault("truncated_accumulator", "accumulator truncated", HALVES, (_BLOCKS_OF_8,), {"accumulator": "truncated"}),
    Fault("exp_by_powers", "exp as (1 + x/1024)¹⁰²⁴", inside={"exp": plants.exp_by_powers}),
    Fault("exp_floored", "weights not below e⁻¹⁰", inside={"exp": plants.exp_floored}),
    Fault("position_bias", "a bias of 0.001 per position", hosts=(PLAIN, FUSED),
          inside={"on_logits": plants.position_bias(1e-3)}),
    Fault("clipped_logits_12", "logits clipped at ±12", inside={"on_logits": plants.clip_at(12.0)}),
    Fault("scale_in_fp8", "scale 2.8 % too small", before=_times(0.9722)),
    Fault("int8_query", "query in int8", before=_store("int8", "q")),
    Fault("keys_lose_a_bit", "keys with one bit less", before=partial(plants.fewer_bits, bits=1, parts="k")),
    Fault("values_lose_two_bits", "values with two bits less", before=partial(plants.fewer_bits, bits=2, parts="v")),
    Fault("wrong_page", "one slot read from the one before", before=plants.wrong_page),
    Fault("merged_keys", "two slots replaced by their mean", before=plants.merged_keys),
    Fault("value_pages_swapped", "two pages of values exchanged", before=plants.swap_value_pages),
    Fault("evicted_4", "oldest four keys forgotten", before=partial(plants.evict, keys=4)),
    Fault("dropout_0.2%", "dropout of 0.2 % left on", before=partial(plants.dropout, rate=2e-3)),
    Fault("stale_row", "one row from an earlier call", after=plants.stale_row),
    Fault("one_nan", "one element NaN", after=partial(plants.one_element, value=math.nan)),
    Fault("one_zero", "one element zero", after=partial(plants.one_element, value=0.0)),
)  # fmt: skip
"""Faults that the suite's rule was developed and calibrated without; unchanged since it first judged them."""
