"""Error messages read: the sentences of ``messages.toml`` found in a text, and a reason in short.

Conventions: terminal colours, box-drawing frames and the prefixes of distributed launchers are taken off first, and a
traceback that was written into one line, as in a log of JSON, is put back into lines. Positions are those in the
cleaned text; capitals do not count. A dtype's spelling (``Half``, ``c10::Half``, ``torch.cuda.HalfTensor``) is brought
to torch's name. Where several sentences are found, the last is the one that surfaced: a compiler's error that was
suppressed, or a chained exception, comes before it. Nothing here loads torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from string import ascii_lowercase, ascii_uppercase

from precision_eval.core.formatting import shortened
from precision_eval.explain.mismatches import Member, family

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def lowered(text: str) -> str:
    """Turn ASCII capitals into small letters; every character keeps its place, which ``str.lower`` does not promise."""
    return text.translate(_LOWER)


_SCALAR_TYPES: dict[str, tuple[str, ...]] = {
    "float16": ("Half", "c10::Half", "half", "f16", "fp16"),
    "bfloat16": ("BFloat16", "c10::BFloat16", "bf16"),
    "float32": ("Float", "float", "f32", "fp32"),
    "float64": ("Double", "double", "f64", "fp64"),
    "float8_e4m3fn": ("Float8_e4m3fn", "c10::Float8_e4m3fn", "fp8e4nv"),
    "float8_e5m2": ("Float8_e5m2", "c10::Float8_e5m2", "fp8e5"),
    "float8_e4m3fnuz": ("Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"),
    "float8_e5m2fnuz": ("Float8_e5m2fnuz", "c10::Float8_e5m2fnuz"),
    "float8_e8m0fnu": ("Float8_e8m0fnu", "c10::Float8_e8m0fnu"),
    "complex32": ("ComplexHalf", "c10::complex<c10::Half>"),
    "complex64": ("ComplexFloat", "c10::complex<float>"),
    "complex128": ("ComplexDouble", "c10::complex<double>"),
    "int64": ("Long", "long int", "long", "long long", "__int64"),
    "int32": ("Int", "int"),
    "int16": ("Short", "short int", "short"),
    "int8": ("Char", "signed char", "char", "int8"),
    "uint8": ("Byte", "unsigned char", "uint8"),
    "uint16": ("UInt16", "unsigned short", "short unsigned int"),
    "uint32": ("UInt32", "unsigned int"),
    "uint64": ("UInt64", "unsigned long", "long unsigned int", "unsigned long long", "unsigned __int64"),
    "bool": ("Bool", "bool"),
    "qint8": ("QInt8", "c10::qint8"),
    "quint8": ("QUInt8", "c10::quint8"),
}

# with types of tensors that bear their first spelling, as torch.HalfTensor does
_TENSOR_TYPES = ("float16", "bfloat16", "float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
_BACKENDS = ("", "cuda.", "xpu.", "mps.", "npu.", "mtia.")
_TYPE_PREFIXES = ("CUDA", "CPU", "MPS", "XPU", "PrivateUse1")


def _spellings() -> dict[str, str]:
    spellings = {spelling: name for name, spellings in _SCALAR_TYPES.items() for spelling in spellings}
    for prefix in ("torch.", ""):  # numpy, ONNX and Triton name them without torch
        spellings |= {f"{prefix}{name}": name for name in _SCALAR_TYPES}
    for name in _TENSOR_TYPES:
        short = _SCALAR_TYPES[name][0]
        spellings |= {f"torch.{backend}{short}Tensor": name for backend in _BACKENDS}
        spellings |= {f"{prefix}{short}Type": name for prefix in _TYPE_PREFIXES}
    return spellings


# Canonical name of each spelling, without ``struct`` or ``class`` before it.
SPELLINGS: dict[str, str] = _spellings()

_BY_LOWERED = {lowered(spelling): name for spelling, name in SPELLINGS.items()}

DTYPE_PATTERN = (
    r"(?:(?:struct|class)\s+)?(?:"
    + "|".join(re.escape(spelling).replace(r"\ ", r"\s+") for spelling in sorted(_BY_LOWERED, key=len, reverse=True))
    + r")(?![\w<]|::)"
)
"""Regular expression of every spelling in lowered text, the longest first; it has no groups and does not end inside a
word."""


def dtype_name(spelling: str) -> str:
    """Bring a spelling to its canonical name."""
    return _BY_LOWERED[re.sub(r"^(struct|class) ", "", lowered(" ".join(spelling.split())))]


def is_continuous(name: str) -> bool:
    return is_floating(name) or name.startswith("complex")


def is_floating(name: str) -> bool:
    return name.startswith(("float", "bfloat"))


_PLACEHOLDER = re.compile(r"\{([a-z_0-9]+|#|\*)\}")
_LOOSE = {"#": r"\d+", "*": r"[^\n]{0,160}?"}
# Pattern of a run of white space, which is escaped in a ``repr`` and in JSON.
WHITE_SPACE = r"(?:\s|\\[nrt])+"


@cache
def compiled_sentence(sentence: str) -> re.Pattern[str]:
    """Compile a sentence to a regular expression for lowered text."""
    parts = _PLACEHOLDER.split(lowered(sentence))
    pattern = [_literal(parts[0])]
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        pattern.append(_LOOSE.get(name) or f"(?P<{name}>{DTYPE_PATTERN})")
        pattern.append(_literal(text))
    return re.compile("".join(pattern))


def _literal(text: str) -> str:
    """Escape text; white space is flexible, a quote may be escaped as in a ``repr``, a backtick lost to Markdown."""
    escaped = re.escape(text).replace("'", r"\\?'").replace("`", "`?")
    return re.sub(r"(?:\\\s)+", lambda _: WHITE_SPACE, escaped)


_NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # terminal colours
    r"|[│┃╭╮╰╯─━❱]"  # rich's frames around tracebacks
    r"|^[^\S\n]*\[rank\d+\]:"  # torchrun
    r"|^(?:>\s)+",  # quoted in a thread
    re.MULTILINE,
)


@dataclass(frozen=True)
class SentenceMatch:
    member: Member
    start: int
    end: int
    sentence: str
    dtypes: dict[str, str]


_FRAME_IN_ONE_LINE = re.compile(r'\\n\s*File \\?"')
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_LONGEST_REASON = 200
_ESCAPED = re.compile(r"\\([\\nrt\"'])")
_UNESCAPED = {"n": "\n", "r": "", "t": " "}


def cleaned(text: str) -> str:
    """Take colours, frames and prefixes off a pasted text, and put an escaped traceback back into lines."""
    if _FRAME_IN_ONE_LINE.search(text):  # elsewhere a backslash may be a path's
        text = _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), text)
    return _NOISE.sub(" ", text)


def find_members(text: str) -> tuple[list[SentenceMatch], list[str]]:
    matches: list[SentenceMatch] = []
    cut: list[SentenceMatch] = []
    refused: list[tuple[SentenceMatch, str]] = []
    searched = lowered(text)
    for member in family():
        for sentence in member.sentences:
            for match in _matches(member, sentence, text, searched):
                reason = _not_of_the_family(member, match.dtypes)
                if reason:
                    refused.append((match, reason))
                else:
                    matches.append(match)
        for beginning in member.beginnings:
            cut += _matches(member, beginning, text, searched)
    cut = [match for match in cut if not any(whole.start <= match.start < whole.end for whole, _ in refused)]
    return _longest(matches + cut), [reason for _, reason in refused]


@cache
def _words(sentence: str) -> tuple[str, ...]:
    """Return the runs of letters outside a sentence's placeholders, lowered, the longest first."""
    found = set(re.findall("[a-z]+", " ".join(_PLACEHOLDER.split(lowered(sentence))[::2])))
    return tuple(sorted(found, key=len, reverse=True))


def _matches(member: Member, sentence: str, text: str, searched: str) -> list[SentenceMatch]:
    """Find one sentence, or the beginning of one, in a text and its lowered copy."""
    matches: list[SentenceMatch] = []
    if not all(word in searched for word in _words(sentence)):  # spares compiling a pattern that cannot match
        return matches
    for match in compiled_sentence(sentence).finditer(searched):
        dtypes = {name: dtype_name(spelling) for name, spelling in match.groupdict().items()}
        words = re.sub(WHITE_SPACE, " ", text[match.start() : match.end()])
        matches.append(SentenceMatch(member, match.start(), match.end(), words, dtypes))
    return matches


def _not_of_the_family(member: Member, dtypes: dict[str, str]) -> str | None:
    """Say why a matched sentence tells of something else than unlike formats; None where it does not."""
    names = list(dtypes.values())
    if member.kind == "mismatch" and len(names) > 1:
        if len(set(names)) == 1:
            return f"the sentence is that of '{member.id}', but every operand is {names[0]}: devices or shapes disagree"
        if not member.do and not any(is_continuous(name) for name in names):
            return (
                f"the sentence is that of '{member.id}', but none of {', '.join(sorted(set(names)))} is a float format"
            )
    if member.kind == "format" and names and not any(is_continuous(name) for name in names):
        return f"the sentence is that of '{member.id}', but none of {', '.join(sorted(set(names)))} is a float format"
    return None


def _longest(matches: list[SentenceMatch]) -> list[SentenceMatch]:
    """Keep the longest of overlapping matches, of these the most particular one, in the order of the text."""
    kept: list[SentenceMatch] = []
    for match in sorted(matches, key=lambda f: (f.start - f.end, f.start, len(f.dtypes))):
        if all(match.end <= other.start or match.start >= other.end for other in kept):
            kept.append(match)
    return sorted(kept, key=lambda f: f.start)


def short_reason(reason: str | None) -> str:
    """Shorten an error message to the known sentence in it, or else to its first line."""
    if reason is None or not reason.strip():
        return "no reason recorded"
    members, _ = find_members(cleaned(reason))
    if members:
        return members[-1].sentence
    return shortened(_ADDRESS.sub("0x…", reason.strip().splitlines()[0]), limit=_LONGEST_REASON)
