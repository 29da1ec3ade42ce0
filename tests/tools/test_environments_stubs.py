import ctypes
import platform
import struct

import pytest

from precision_eval.core.errors import IntegrityError
from tools.torch_versions import stubs
from tools.torch_versions.stubs import elf_hash, put_stubs, read_object, stub

LOADS = (platform.system(), platform.machine()) == ("Linux", "x86_64")


def wanting(needed, loose=(), defines=()):
    """The bytes of a library that needs others: needed = {library: {version: [names]}}; loose names have no version."""
    strings = stubs._Strings()
    symbols = [(name, version) for versions in needed.values() for version, names in versions.items() for name in names]
    versions = [version for found in needed.values() for version in found]
    symbols += [(name, None) for name in loose]
    symbols += [(name, None) for name in defines]
    homes = [int(name in defines) for name, _ in symbols]
    entries = zip([strings.add(name) for name, _ in symbols], homes, strict=True)
    table = bytes(24) + b"".join(struct.pack("<IBBHQQ", at, 0x12, 0, home, 0, 0) for at, home in entries)
    numbers = [0] + [1 if version is None else versions.index(version) + 2 for _, version in symbols]
    needs = b""
    for place, (library, found) in enumerate(needed.items(), start=1):
        step = 16 + 16 * len(found)
        needs += struct.pack("<HHIII", 1, len(found), strings.add(library), 16, 0 if place == len(needed) else step)
        for count, version in enumerate(found, start=1):
            following = 0 if count == len(found) else 16
            index = versions.index(version) + 2
            needs += struct.pack("<IHHII", elf_hash(version), 0, index, strings.add(version), following)
    names_at = [strings.add(library) for library in needed]
    origin_at = strings.add("$ORIGIN")
    parts = {
        6: table,
        4: stubs._hash_table([name for name, _ in symbols]),
        0x6FFFFFFE: needs,
        0x6FFFFFF0: struct.pack(f"<{len(numbers)}H", *numbers),
        5: bytes(strings.data),
        7: bytes(24 * len(symbols)),
    }
    start, body, tags = 64 + 56 * 4, b"", [(1, at) for at in names_at]
    for tag, part in parts.items():
        tags.append((tag, start + len(body)))
        body += part + bytes(-len(part) % 8)
    sizes = [(10, len(strings.data)), (11, 24), (8, 24 * len(symbols)), (9, 24), (24, 0), (29, origin_at)]
    tags += [*sizes, (0x6FFFFFFF, len(needed)), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags)
    end = start + len(body)
    slots = end + -end % 4096 + len(dynamic)
    relocations = b"".join(  # each symbol's address is wanted in a slot of its own (R_X86_64_GLOB_DAT)
        struct.pack("<QQq", slots + 8 * i, (i + 1) << 32 | 6, 0) for i in range(len(symbols))
    )
    body = body[: -len(relocations)] + relocations if relocations else body
    framed = stubs._framed(body, start, dynamic + bytes(16 * len(symbols)))
    places = dict(tags[len(names_at) :])
    sections = [(0, 0, 0, 0), (11, places[6], len(table), 2), (3, places[5], len(strings.data), 0)]
    sections += [(0x6FFFFFFE, places[0x6FFFFFFE], len(needs), 2), (0x6FFFFFFF, places[0x6FFFFFF0], 2 * len(numbers), 1)]
    sections += [(6, end + -end % 4096, len(dynamic), 2)]
    rows = (struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0) for kind, at, size, link in sections)
    head = struct.pack("<Q", len(framed)) + framed[48:58] + struct.pack("<HH", 64, len(sections))
    return framed[:40] + head + framed[62:] + b"".join(rows)


NEEDED = {
    "libcudart.so.12": {"libcudart.so.12": ["cudaGetDeviceCount", "cudaMalloc"]},
    "libcublas.so.12": {"libcublas.so.12": ["cublasCreate_v2"], "libcublas.so.12.1": ["cublasNew"]},
}


@pytest.fixture
def torch_folder(tmp_path):
    library = tmp_path / "torch" / "lib"
    library.mkdir(parents=True)
    (library / "libtorch_cuda.so").write_bytes(wanting(NEEDED, loose=["nvrtcVersion", "ours", "PyNumber_Add"]))
    (library / "libours.so").write_bytes(wanting({}, defines=["ours"]))
    return tmp_path / "torch"


def test_reader_sees_what_a_library_wants(torch_folder):
    found = read_object(torch_folder / "lib" / "libtorch_cuda.so")
    assert found.needed == ("libcudart.so.12", "libcublas.so.12")
    assert ("cudaMalloc", "libcudart.so.12") in found.wanted
    assert ("cublasNew", "libcublas.so.12.1") in found.wanted
    assert ("nvrtcVersion", "") in found.wanted
    assert found.version_home["libcublas.so.12.1"] == "libcublas.so.12"
    assert not found.defined - {""}


def test_each_missing_library_gets_its_symbols(torch_folder):
    assert put_stubs(torch_folder) == ("libcublas.so.12", "libcudart.so.12")
    found = {name: (torch_folder / "lib" / name).read_bytes() for name in NEEDED}
    assert all(name in found["libcudart.so.12"] for name in (b"cudaGetDeviceCount", b"cudaMalloc"))
    # symbols of no version go to the first library, except those that torch itself or Python defines
    assert all(name in found["libcublas.so.12"] for name in (b"cublasCreate_v2", b"cublasNew", b"nvrtcVersion"))
    assert not any(name in content for content in found.values() for name in (b"ours", b"PyNumber_Add"))


def test_what_is_there_is_left_alone(torch_folder):
    own = torch_folder / "lib" / "libcudart.so.12"
    own.write_bytes(stub("libcudart.so.12", []))
    before = own.read_bytes()
    assert put_stubs(torch_folder) == ("libcublas.so.12",)
    assert own.read_bytes() == before


def test_a_cpu_build_needs_none(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cpu.so").write_bytes(wanting({"libc.so.6": {"GLIBC_2.2.5": ["malloc"]}}))
    assert put_stubs(tmp_path) == ()


def test_hash_of_names_is_the_published_one():
    assert elf_hash("printf") == 0x077905A6  # by hand after the ABI's definition, and as readelf -V shows such
    assert elf_hash("GLIBC_2.2.5") == 0x09691A75


@pytest.mark.parametrize("content", [b"", b"MZ" + bytes(100), b"\x7fELF\x02\x01" + bytes(100)])
def test_no_x86_64_library_is_refused(tmp_path, content):
    path = tmp_path / "libtorch.so"
    path.write_bytes(content)
    with pytest.raises(IntegrityError, match="no x86-64 shared object"):
        read_object(path)


@pytest.mark.skipif(not LOADS, reason="the loader of x86-64 Linux is asked")
class TestLoader:
    def test_loads_only_with_the_stand_ins(self, torch_folder):
        path = torch_folder / "lib" / "libtorch_cuda.so"
        path.write_bytes(wanting(NEEDED))
        with pytest.raises(OSError, match="cannot open shared object file"):
            ctypes.CDLL(str(path))
        put_stubs(torch_folder)
        ctypes.CDLL(str(path))  # every symbol of every version is found
        runtime = ctypes.CDLL(str(torch_folder / "lib" / "libcudart.so.12"))
        assert runtime.cudaGetDeviceCount() == 100

    @pytest.mark.parametrize(
        ("name", "is_text"),
        [
            *((name, True) for name in ("cudaGetErrorString", "cudaGetErrorName", "cudnnGetErrorString")),
            *((name, True) for name in ("cublasGetStatusString", "ncclGetLastError", "nvrtcGetErrorString")),
            *((name, False) for name in ("cudaGetLastError", "cuGetErrorString", "cudaMalloc")),
        ],
    )
    def test_what_torch_reads_as_a_text_is_one(self, tmp_path, name, is_text):
        (tmp_path / "libone.so").write_bytes(stub("libone.so", [("aaa", ""), (name, ""), ("zzz", "")]))
        function = getattr(ctypes.CDLL(str(tmp_path / "libone.so")), name)
        function.restype = ctypes.c_char_p if is_text else ctypes.c_int
        assert function() == (b"no CUDA device" if is_text else 100)

    @pytest.mark.parametrize(
        ("symbols", "message"),
        [
            ([("cudaMalloc", "one")], "undefined symbol: cudaGetDeviceCount"),
            ([("cudaMalloc", "two"), ("cudaGetDeviceCount", "two")], "version `one' not found"),
        ],
    )
    def test_a_planted_fault_is_seen_by_the_loader(self, tmp_path, symbols, message):
        (tmp_path / "libasks.so").write_bytes(wanting({"libfault.so.1": {"one": ["cudaGetDeviceCount", "cudaMalloc"]}}))
        (tmp_path / "libfault.so.1").write_bytes(stub("libfault.so.1", symbols))
        with pytest.raises(OSError, match=message):
            ctypes.CDLL(str(tmp_path / "libasks.so"))
