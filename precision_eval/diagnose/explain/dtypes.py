"""Names of dtypes as torch, its kernels and its neighbours print them, and the one name this package uses for each.

Conventions: canonical names are those of ``torch.dtype`` without the prefix (``"float16"``). This module loads no
torch.
"""

from __future__ import annotations

import re
from string import ascii_lowercase, ascii_uppercase

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def lowered(text: str) -> str:
    """Turn ASCII capitals into small letters; every character keeps its place, which ``str.lower`` does not promise."""
    return text.translate(_LOWER)


_SCALAR_TYPES: dict[str, tuple[str, ...]] = {
    "float16": ("Half", "c10::Half", "half", "f16", "fp16"),
    "bfloat16": ("BFloat16", "c10::BFloat16", "bf16"),
    "float32": ("Float", "float", "f32", "fp32"),
    "float64": ("Double", "double", "f64", "fp64"),
    "float8_e4m3fn": ("Float8_e4m3fn", "c10::Float8_e4m3fn"),
    "float8_e5m2": ("Float8_e5m2", "c10::Float8_e5m2"),
    "float8_e4m3fnuz": ("Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"),
    "float8_e5m2fnuz": ("Float8_e5m2fnuz", "c10::Float8_e5m2fnuz"),
    "float8_e8m0fnu": ("Float8_e8m0fnu", "c10::Float8_e8m0fnu"),
    "complex32": ("ComplexHalf", "c10::complex<c10::Half>"),
    "complex64": ("ComplexFloat", "c10::complex<float>"),
    "complex128": ("ComplexDouble", "c10::complex<double>"),
    "int64": ("Long", "long int", "long", "long long", "__int64"),
    "int32": ("Int", "int"),
    "int16": ("Short", "short int", "short"),
    "int8": ("Char", "signed char", "char"),
    "uint8": ("Byte", "unsigned char"),
    "uint16": ("UInt16", "unsigned short", "short unsigned int"),
    "uint32": ("UInt32", "unsigned int"),
    "uint64": ("UInt64", "unsigned long", "long unsigned int", "unsigned long long", "unsigned __int64"),
    "bool": ("Bool", "bool"),
    "qint8": ("QInt8", "c10::qint8"),
    "quint8": ("QUInt8", "c10::quint8"),
}

_TENSOR_TYPES = {
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}

_BACKENDS = ("", "cuda.", "xpu.", "mps.", "npu.", "mtia.")
_TYPE_PREFIXES = ("CUDA", "CPU", "MPS", "XPU", "PrivateUse1")


def _spellings() -> dict[str, str]:
    spellings = {spelling: name for name, spellings in _SCALAR_TYPES.items() for spelling in spellings}
    spellings |= {f"torch.{name}": name for name in _SCALAR_TYPES}
    for short, name in _TENSOR_TYPES.items():
        spellings |= {f"torch.{backend}{short}Tensor": name for backend in _BACKENDS}
        spellings |= {f"{prefix}{short}Type": name for prefix in _TYPE_PREFIXES}
    return spellings


SPELLINGS: dict[str, str] = _spellings()
"""Canonical name of each spelling, without ``struct`` or ``class`` before it."""

_BY_LOWERED = {lowered(spelling): name for spelling, name in SPELLINGS.items()}

DTYPE_PATTERN = (
    r"(?:(?:struct|class)\s+)?(?:"
    + "|".join(re.escape(spelling).replace(r"\ ", r"\s+") for spelling in sorted(_BY_LOWERED, key=len, reverse=True))
    + r")(?![\w:<])"
)
"""Regular expression of every spelling in lowered text, the longest first; it has no groups and does not end inside a
word."""


def dtype_name(spelling: str) -> str:
    """Bring a spelling to its canonical name."""
    return _BY_LOWERED[re.sub(r"^(struct|class) ", "", lowered(" ".join(spelling.split())))]


def is_floating(name: str) -> bool:
    """Say whether a canonical name is that of a real floating format."""
    return name.startswith(("float", "bfloat"))
