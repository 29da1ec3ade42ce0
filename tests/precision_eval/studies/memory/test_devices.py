"""Which format a device is to be used in, from data alone."""

import pytest

from precision_eval.core.formats import cpu_flags, support
from precision_eval.studies.memory.devices import (
    DEVICES,
    Capability,
    choose_format,
    device_by_name,
    native,
)


def cuda(*compute):
    return Capability(name="card", kind="cuda", compute=compute)


@pytest.mark.parametrize(
    ("capability", "dtype", "fix", "bfloat16"),
    [
        (device_by_name("t4"), "float16", "float16", "emulated"),
        (device_by_name("v100"), "float16", "float16", "emulated"),
        (device_by_name("p100"), "float16", "float16", "emulated"),
        (device_by_name("a100"), "bfloat16", "bfloat16", "native"),
        (device_by_name("h100"), "bfloat16", "bfloat16", "native"),
        (cuda(6, 1), "float32", "full_float32", "emulated"),
        (cuda(5, 0), "float32", "full_float32", "emulated"),
        (cuda(12, 0), "bfloat16", "bfloat16", "native"),
        (Capability(name="old", kind="cpu"), "float32", "full_float32", "emulated"),
        (Capability(name="epyc", kind="cpu", flags=frozenset({"avx512_bf16"})), "bfloat16", "bfloat16", "native"),
        (Capability(name="xeon", kind="cpu", flags=frozenset({"amx_bf16"})), "bfloat16", "bfloat16", "native"),
        (Capability(name="arm", kind="cpu", flags=frozenset({"asimdhp"})), "float16", "float16", "emulated"),
        (Capability(name="mac", kind="mps"), "float16", "float16", "emulated"),
    ],
)
def test_the_format_to_take(capability, dtype, fix, bfloat16):
    choice = choose_format(capability)
    assert (choice.dtype, choice.fix) == (dtype, fix)
    assert choice.formats["bfloat16"].kind == choice.fixes["bfloat16"].kind == bfloat16
    assert choice.fixes["full_float32"].kind == "native"


def test_autocast_computes_in_the_device_s_own_half():
    assert choose_format(device_by_name("t4")).fixes["autocast"].kind == "native"  # float16
    assert choose_format(Capability(name="old", kind="cpu")).fixes["autocast"].kind == "emulated"  # bfloat16


def test_the_description_agrees_with_the_device_at_hand():
    here = Capability(name="here", kind="cpu", flags=cpu_flags())
    for dtype in ("float16", "bfloat16", "float32"):
        assert native(here, dtype).kind == support("cpu", dtype).kind


def test_published_devices_have_sources_and_memory():
    assert all(device.source and device.memory_bytes and len(device.compute) == 2 for device in DEVICES)
