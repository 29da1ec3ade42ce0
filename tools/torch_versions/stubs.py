"""Empty stub libraries for CUDA's libraries, so that a CUDA build of torch imports on a machine that has none of them.

A wheel of torch from the default index of Linux needs 2 to 5 GB of NVIDIA's libraries, of which the CPU's code calls
none; but the loader wants each library by its name, and in it each symbol by its name and version.
:func:`put_stand_ins` reads what torch's own libraries need and writes that much beside them: every function returns
100, "no device" in the runtime's and in the driver's numbers, or a text that says so, and so
``torch.cuda.is_available()`` is False. For x86-64 Linux only.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from precision_eval.core.errors import IntegrityError

CUDA_LIBRARY = re.compile(
    r"lib(cu|nv|nccl)[\w.+-]*\.so"
)  # cudart, cublas, cudnn, cusparseLt, cuda, nvrtc, nvshmem, ...
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE
CODE = b"\xb8" + struct.pack("<I", NO_DEVICE) + b"\xc3"  # mov eax, 100; ret
TEXT_CODE = b"\x48\x8d\x05\x01\x00\x00\x00\xc3no CUDA device\0"  # lea rax, [what follows]; ret
_TEXTS = re.compile(r"(?!cu[A-Z])\w+Get(Error|Status)(String|Name)$|ncclGetLastError$")
"""Functions that return a text; of the driver's, whose names go on with a capital, it is an argument."""
X86_64 = 62
PAGE = 0x1000

_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 1, 4, 5, 6, 10, 11, 14
_VERSYM_TAG, _VERDEF, _VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  # segments
_DYNAMIC_SECTION, _DYNSYM, _VERNEED, _VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF  # sections
_WEAK, _GLOBAL, _FUNCTION = 2, 1, 2

Symbol = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class SharedObject:
    """What a shared object asks of others, and what it gives."""

    needed: tuple[str, ...]
    wanted: frozenset[Symbol]
    version_home: Mapping[str, str]
    defined: frozenset[str]


def put_stubs(torch_folder: Path) -> tuple[str, ...]:
    """Write a stub library for every CUDA library that torch needs and does not carry."""
    library = torch_folder / "lib"
    paths = [*sorted(library.glob("*.so*")), *sorted(torch_folder.glob("*.so"))]
    objects = [read_object(path) for path in paths]
    present = {path.name for path in paths}
    missing = sorted({name for one in objects for name in one.needed if CUDA_LIBRARY.match(name)} - present)
    for name, symbols in _shares(objects, missing).items():
        (library / name).write_bytes(stub(name, symbols))
    return tuple(missing)


def _shares(objects: list[SharedObject], missing: list[str]) -> dict[str, set[Symbol]]:
    """Give each wanted symbol to the missing library that its version names; those without a version to the first."""
    shares: dict[str, set[Symbol]] = {name: set() for name in missing}
    defined = frozenset().union(*(one.defined for one in objects))
    for one in objects if missing else ():
        for name, version in one.wanted:
            home = one.version_home.get(version)
            if version and home in shares:
                shares[home].add((name, version))
            elif not version and name not in defined and not name.startswith(("Py", "_Py")):
                shares[missing[0]].add((name, ""))  # any library that is loaded may answer
    return shares


def read_object(path: Path) -> SharedObject:
    """Read a shared object, as linkers write it: with a table of its sections."""
    with path.open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", head, 18)[0] != X86_64:
            raise IntegrityError(
                f"{path} is no x86-64 shared object; a slim torch can be made on x86-64 Linux only: use a CPU build"
            )
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data)


def _read(data: mmap.mmap) -> SharedObject:
    """Read the sections that the loader goes by: libraries and versions that are needed, and the dynamic symbols."""
    (start,), (entry, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
    # section: name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * entry) for i in range(count)]
    by_type = {one[1]: one for one in sections}

    def content(section: Sequence[int] | None) -> bytes:
        return data[section[4] : section[4] + section[5]] if section else b""

    table = by_type.get(_DYNSYM)
    strings = content(sections[table[6]] if table else None)

    def text(at: int) -> str:
        return strings[at : strings.find(b"\0", at)].decode()

    versions: dict[int, Symbol] = {}  # (version, library) by the version's index
    needs, at, following = content(by_type.get(_VERNEED)), 0, 1
    while needs and following:
        _, names, file, first, following = struct.unpack_from("<HHIII", needs, at)
        one = at + first
        for _ in range(names):
            _, _, index, name, step = struct.unpack_from("<IHHII", needs, one)
            versions[index & 0x7FFF] = (text(name), text(file))
            one += step
        at += following
    wanted, defined = set(), set()
    numbers = [number for (number,) in struct.iter_unpack("<H", content(by_type.get(_VERSYM)))]
    symbols = struct.iter_unpack("<IBBHQQ", content(table))
    for (name_at, info, _, section, _, _), number in zip(symbols, numbers or repeat(1), strict=False):
        if section:
            defined.add(text(name_at))
        elif name_at and info >> 4 != _WEAK:
            wanted.add((text(name_at), versions.get(number & 0x7FFF, ("", ""))[0]))
    tags = struct.iter_unpack("<QQ", content(by_type.get(_DYNAMIC_SECTION)))
    return SharedObject(
        needed=tuple(text(value) for tag, value in tags if tag == _NEEDED),
        wanted=frozenset(wanted),
        version_home=dict(versions.values()),
        defined=frozenset(defined),
    )


def stub(soname: str, symbols: Iterable[Symbol]) -> bytes:
    """Return a shared object for x86-64 each of whose symbols returns :data:`NO_DEVICE`, or its text."""
    ordered = sorted(set(symbols))
    versions = sorted({version for _, version in ordered if version})
    strings = _Strings()
    name_ats = [strings.add(name) for name, _ in ordered]
    numbers = [0, *(versions.index(version) + 2 if version else 1 for _, version in ordered)]
    definitions = _version_definitions([soname, *versions], strings)
    soname_at = strings.add(soname)
    code_at = 64 + 56 * 4  # behind the header and four program headers
    code = CODE + TEXT_CODE
    code += bytes(-len(code) % 16)
    tables_at = code_at + len(code)
    starts = [len(CODE) if _TEXTS.match(name) else 0 for name, _ in ordered]
    symbol_table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", at, _GLOBAL << 4 | _FUNCTION, 0, 1, code_at + start, len(CODE))
        for at, start in zip(name_ats, starts, strict=True)
    )
    parts = {
        _SYMTAB: symbol_table,
        _HASH: _hash_table([name for name, _ in ordered]),
        _VERDEF: definitions,
        _VERSYM_TAG: struct.pack(f"<{len(numbers)}H", *numbers),
        _STRTAB: bytes(strings.data),
    }
    tags, body = {}, b""
    for tag, part in parts.items():
        tags[tag] = tables_at + len(body)
        body += part + bytes(-len(part) % 8)
    tags |= {_STRSZ: len(strings.data), _SYMENT: 24, _SONAME: soname_at, _VERDEFNUM: len(versions) + 1}
    read_only = code + body
    dynamic = b"".join(struct.pack("<QQ", *pair) for pair in (*tags.items(), (0, 0)))
    return _framed(read_only, code_at, dynamic)


def _framed(read_only: bytes, read_only_at: int, dynamic: bytes) -> bytes:
    """Put the ELF header and the program headers before the two segments."""
    end = read_only_at + len(read_only)
    dynamic_at = end + -end % PAGE
    segments = (
        (_LOAD, 5, 0, end, PAGE),
        (_LOAD, 6, dynamic_at, len(dynamic), PAGE),
        (_DYNAMIC, 6, dynamic_at, len(dynamic), 8),
        (_STACK, 6, 0, 0, 16),  # without it the loader makes stacks executable, or refuses
    )
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, X86_64, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
        for kind, flags, at, size, align in segments
    )
    return header + table + read_only + bytes(dynamic_at - end) + dynamic


class _Strings:
    """A table of strings, each ended by a zero."""

    def __init__(self) -> None:
        self.data = bytearray(1)

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def _version_definitions(names: list[str], strings: _Strings) -> bytes:
    """Return the version definitions; the first is the library itself."""
    entries = []
    for index, name in enumerate(names, start=1):
        last = index == len(names)
        head = struct.pack("<HHHHIII", 1, int(index == 1), index, 1, elf_hash(name), 20, 0 if last else 28)
        entries.append(head + struct.pack("<II", strings.add(name), 0))
    return b"".join(entries)


def _hash_table(names: list[str]) -> bytes:
    """Return the table by which the loader finds a name: buckets, and chains through the symbols (from 1)."""
    buckets = [0] * max(1, len(names) // 2)
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        bucket = elf_hash(name) % len(buckets)
        chains[index], buckets[bucket] = buckets[bucket], index
    numbers = (len(buckets), len(chains), *buckets, *chains)
    return struct.pack(f"<{len(numbers)}I", *numbers)


def elf_hash(name: str) -> int:
    """Return the hash of a name after [1]_."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value
