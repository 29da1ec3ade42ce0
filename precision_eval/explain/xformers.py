"""Why xformers has no kernel for a call: the reasons that it lists for each, and which of them are about dtypes."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"`([\w@.+-]+)` is not supported because:")
_BY_DTYPE = re.compile(r"dtype=torch\.\w+ \(supported: \{([^}]*)\}\)|bf16 is only supported on A100\+ GPUs")
_LONGEST_LIST = 4000


def refusals(text: str, end: int) -> dict[str, list[str]]:
    """Read the reasons for each kernel from the list behind the sentence, which ends at `end`."""
    parts = _BLOCK.split(text[end : end + _LONGEST_LIST])
    blocks = zip(parts[1::2], parts[2::2], strict=True)
    return {name: [line.strip() for line in block.strip().split("\n\n")[0].splitlines()] for name, block in blocks}


def change_for(reasons: dict[str, list[str]]) -> str | None:
    """Say what to change, from the kernel with the fewest reasons besides the dtype; None where no dtype is refused."""
    by_dtype = {
        name: [line for line in lines if not _BY_DTYPE.search(line)]
        for name, lines in reasons.items()
        if any(_BY_DTYPE.search(line) for line in lines)
    }
    if not by_dtype:
        return None if reasons else "cast query, key and value to float16 or bfloat16, or use torch's own attention"
    name = min(by_dtype, key=lambda name: len(by_dtype[name]))
    listed = " ".join(reasons[name])
    supported = re.findall(r"float16|bfloat16|float32", " ".join(_BY_DTYPE.findall(listed)))
    formats = sorted(set(supported)) or ["float16 (bfloat16 needs compute capability 8.0)"]
    other = f"; it also refuses: {by_dtype[name][0]}" if by_dtype[name] else ""
    return f"cast query, key and value for {name.partition('@')[0]}: {' or '.join(formats)}{other}"
