"""AMD code objects: read as LLVM's own tools read them, and refused, with the place, where they are damaged or foreign."""
from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_objects import STORED, compiled, descriptors, needs_llvm, tool
from sim_device import needs_clang

from rlxpy.backends.gpu.arch import FAMILIES, NUMBERS, Target, best, names, target
from rlxpy.backends.gpu.binary import Binary
from rlxpy.backends.gpu.codeobject import BITS, METADATA, read
from rlxpy.backends.gpu.elf import Elf
from rlxpy.backends.gpu.msgpack import unpack
from rlxpy.backends.gpu.offline import compile_hip
from rlxpy.backends.gpu.sim.isa import load
from rlxpy.errors import CodeObjectError, InputError, LoadError

ARCHES = ("gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
arches = pytest.mark.parametrize("arch", ARCHES)


def patched(at: int, new: bytes, data: bytes = STORED) -> bytes:
    return data[:at] + new + data[at + len(new):]


# ---- what is in them -----------------------------------------------------------------------------------------------
def test_the_stored_object_says_what_its_source_says() -> None:
    o = read(STORED)
    (k,) = o.kernels
    assert (str(o.target), o.version, k.name, k.wave, k.max_threads, k.kernarg_nbytes) == ("gfx1151", 5, "vadd_asm", 32, 256, 28)
    assert [(a.name, a.offset, a.nbytes, a.kind) for a in k.args] == [("a", 0, 8, "global_buffer"), ("b", 8, 8, "global_buffer"), ("c", 16, 8, "global_buffer"), ("n", 24, 4, "by_value")]
    assert (k.vgprs, k.sgprs, k.lds_nbytes, k.scratch_nbytes, k.dynamic_stack) == (4, 10, 0, 0, False)
    assert k.descriptor.bits("user_sgpr_count") == 2
    assert o.kernel("vadd_asm") is k
    with pytest.raises(CodeObjectError, match=r"no kernel 'vadd'(?s:.*)there are vadd_asm"):
        o.kernel("vadd")


def flat(value: Any) -> Iterator[str]:
    """Scalars in the order in which LLVM prints them."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from flat(value[key]) if isinstance(value[key], (dict, list)) else (f"{key} {str(value[key]).lower() if isinstance(value[key], bool) else value[key]}",)
    elif isinstance(value, list):
        for v in value:
            yield from flat(v) if isinstance(v, (dict, list)) else (str(v),)


@needs_llvm
@arches
def test_metadata_is_what_llvm_reads(arch: str, tmp_path: Path) -> None:
    data = compiled(arch)
    (at := tmp_path / "k.hsaco").write_bytes(data)
    text = tool("llvm-readelf-22", "--notes", at)
    shown = re.findall(r"^ *(?:- )*(?:([.\w]+): +)?(\S.*)$", text[text.index("---") + 3:text.index("...")], re.M)
    note = next(n for n in read(data).elf.notes if (n.owner, n.type) == METADATA)
    want = [f"{key} {value}".strip() for key, value in shown if not value.endswith(":")]
    got = list(flat(unpack(note.content)))
    assert len(got) > 100
    assert [w.replace("'", "") for w in want] == got


@needs_llvm
@arches
def test_descriptors_are_what_llvm_disassembles(arch: str) -> None:
    o = read(compiled(arch))
    shown = descriptors(compiled(arch))
    assert set(shown) == {k.name for k in o.kernels}
    compared = set()
    for k in o.kernels:
        d, want = k.descriptor, shown[k.name]
        assert (d.lds_nbytes, d.scratch_nbytes, d.kernarg_nbytes) == tuple(want[f"{n}_size"] for n in ("group_segment_fixed", "private_segment_fixed", "kernarg"))
        assert (d.lds_nbytes, d.scratch_nbytes, d.kernarg_nbytes) == (k.lds_nbytes, k.scratch_nbytes, k.kernarg_nbytes)
        assert d.entry == o.elf.symbols[k.name].address
        assert k.wave == (32 if want.get("wavefront_size32") else 64)
        for field in want.keys() & BITS.keys() - {"accum_offset"}:
            assert d.bits(field) == want[field], field
            compared.add(field)
        if "accum_offset" in want:
            assert 4 * (d.bits("accum_offset") + 1) == want["accum_offset"]
    assert len(compared) > 12


@needs_llvm
def test_bits_that_kernels_rarely_set_lie_where_llvm_has_them() -> None:
    """Every bit of the descriptor's words, one at a time, in the stored object."""
    k = read(STORED).kernel("vadd_asm")
    at = STORED.index(struct.pack("<III", k.lds_nbytes, k.scratch_nbytes, k.kernarg_nbytes))
    seen = set()
    for field, (word, low, count) in BITS.items():
        where = at + {"rsrc3": 44, "rsrc1": 48, "rsrc2": 52, "code_properties": 56, "preload": 58}[word]
        size = 2 if word in ("code_properties", "preload") else 4
        value = int.from_bytes(STORED[where:where + size], "little") ^ 1 << low + count - 1
        data = patched(where, value.to_bytes(size, "little"))
        shown = descriptors(data).get(k.name, {})  # of what is not for this chip LLVM prints nothing
        if field in shown:
            assert read(data).kernel(k.name).descriptor.bits(field) == shown[field] != k.descriptor.bits(field)
            seen.add(field)
    assert len(seen) > 15


@needs_llvm
def test_every_number_is_the_chip_that_llvm_names(tmp_path: Path) -> None:
    for number in NUMBERS:
        (tmp_path / f"{number:02x}").write_bytes(patched(48, struct.pack("<I", 0x500 | number)))
    shown = re.findall(r"Flags: +0x5(\w\w), (gfx[\w-]+)", tool("llvm-readelf-22", "-h", *(tmp_path / f"{n:02x}" for n in NUMBERS)))
    got = {int(number, 16): name for number, name in shown}
    assert len(got) > 50
    assert got == {n: name for n, name in NUMBERS.items() if n in got}
    assert {name for n, name in NUMBERS.items() if n not in got} <= {"gfx940", "gfx941"}  # which LLVM has given up


@pytest.mark.parametrize(("flags", "version", "text"), [
    (0x03f, 5, "gfx90a"), (0x53f, 5, "gfx90a"), (0x63f, 5, "gfx90a:xnack-"), (0x73f, 5, "gfx90a:xnack+"), (0x93f, 5, "gfx90a:sramecc-"), (0xd3f, 5, "gfx90a:sramecc+"),
    (0xe3f, 5, "gfx90a:sramecc+:xnack-"), (0x13f, 3, "gfx90a:xnack+"), (0x33f, 3, "gfx90a:sramecc+:xnack+"), (0x1000054, 6, "gfx11-generic")])
def test_modes_are_read_from_the_flags(flags: int, version: int, text: str) -> None:
    assert str(read(patched(48, struct.pack("<I", flags), patched(8, bytes([version - 2])))).target) == text
    assert str(target(text)) == text


# ---- which code runs where -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("card", "carried", "runs"), [
    ("gfx1151", ("gfx11-generic", "gfx1151", "gfx1100"), 1),
    ("gfx1103", ("gfx90a", "gfx11-generic"), 1),
    ("gfx90a:sramecc+:xnack-", ("gfx90a", "gfx90a:xnack+", "gfx90a:xnack-", "gfx90a:sramecc+:xnack-"), 3),
    ("gfx90a:sramecc+:xnack+", ("gfx90a", "gfx90a:xnack-"), 0),
    ("gfx950", ("gfx9-generic", "gfx9-4-generic"), 1),
    ("gfx90a:sramecc+:xnack-", ("gfx9-generic", "gfx90a:xnack+", "gfx942"), None),
    ("gfx1201", ("gfx90a", "gfx942"), None),
    ("gfx90a", ("gfx90a:xnack-",), None)])
def test_the_chips_own_code_comes_before_its_familys_and_fixed_modes_before_both(card: str, carried: tuple[str, ...], runs: int | None) -> None:
    assert best(tuple(map(target, carried)), target(card)) == runs
    back = best(tuple(map(target, reversed(carried))), target(card))
    assert back == (None if runs is None else len(carried) - 1 - runs)


def test_a_refusal_has_both_sides() -> None:
    assert target("gfx90a").refusal(target("gfx1201")) == "it is for gfx90a, the card runs gfx1201 and gfx12-generic"
    assert target("gfx90a:xnack+").refusal(target("gfx90a:sramecc+:xnack-")) == "it is for xnack+, the card has xnack-"
    assert target("gfx90a:xnack+").refusal(target("gfx90a")) == "it is for xnack+, the card has no xnack"


def test_families_and_waves() -> None:
    assert {chip for chips in FAMILIES.values() for chip in chips} | set(FAMILIES) <= set(NUMBERS.values())
    waves = {name: Target(name).wave for name in NUMBERS.values()}
    assert {n for n, w in waves.items() if w == 32} == {n for n in waves if re.match(r"gfx1\d", n)}
    assert names(target("gfx90a")) == ("gfx90a",)
    assert target("gfx950").lds_nbytes == 163_840
    assert target("gfx1100").lds_nbytes == 65_536


@needs_clang
@pytest.mark.parametrize("family", FAMILIES)
def test_code_for_a_family_runs_on_each_of_its_chips(family: str) -> None:
    """As machine code, executed in simulation."""
    code = compile_hip('extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }', family)
    assert (str(read(code).target), read(code).version) == (family, 6)
    for chip in FAMILIES[family]:
        x = np.arange(70, dtype=np.float32)
        load(code, chip).launch("twice", (1, 1, 1), (70, 1, 1), struct.pack("<Q", x.ctypes.data), ranges=[(x.ctypes.data, x.nbytes)])
        np.testing.assert_array_equal(x, 2 * np.arange(70))
    with pytest.raises(LoadError, match="it is for"):
        load(code, "gfx908")


@pytest.mark.parametrize("text", ["", "gfx", "gfx1", "gfx90a:", "gfx90a:xnack", "gfx90a:xnack+:xnack-", "gfx9999", "sm_90", "gfx90a:tgsplit+", " gfx90a"])
def test_what_names_no_target_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"no AMD target {text!r}")):
        target(text)


# ---- damaged and foreign -------------------------------------------------------------------------------------------
def outcome(data: bytes) -> str:
    """"read", else what stood against it: with the place, the reason and what to do."""
    try:
        found = read(data, "k.hsaco")
    except CodeObjectError as error:
        refused = error
    else:
        assert all(value >= 0 for k in found.kernels for value in vars(k).values() if isinstance(value, int))
        return "read"
    assert refused.what.startswith("k.hsaco: ")
    assert re.fullmatch(r"byte -?0x[0-9a-f]+ of 0x[0-9a-f]+", refused.where)
    assert refused.why
    assert refused.fix
    return refused.what


def test_every_shorter_file_is_refused_with_the_place() -> None:
    got = [outcome(STORED[:n]) for n in range(len(STORED))]
    assert "read" not in got
    assert {w.split(": ")[1] for w in got} >= {"the ELF header lies outside of the file", "section headers lies outside of the file"}


def test_random_damage_is_refused_or_read_and_never_a_traceback() -> None:
    rng = random.Random(5)
    seen = set()
    for _ in range(1500):
        data = bytearray(STORED)
        for _ in range(rng.choice((1, 1, 2, 9))):
            at = rng.randrange(rng.choice((64, 0x600, len(data))))
            data[at] = rng.choice((0, 0xff, 0x80, data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
        seen.add(outcome(bytes(data)))
    assert len(seen) > 20


def test_random_metadata_is_refused_or_read() -> None:
    rng = random.Random(6)
    begin = STORED.index(b"\x83\xaeamdhsa.kernels")
    seen = set()
    for _ in range(1500):
        noise = bytes(rng.choice((rng.randrange(256), rng.randrange(0x80, 0xe0), 1)) for _ in range(rng.randrange(1, 40)))
        seen.add(outcome(patched(begin + rng.choice((0, rng.randrange(500))), noise)))
    assert len(seen) > 10


FOREIGN = {
    "empty": (b"", "the ELF header lies outside"),
    "text": (b"extern \"C\" __global__ void k() { }" * 9, "is no ELF file"),
    "a processor's": (patched(18, b"\x3e"), "is no code for AMD's GPUs(?s:.*)its machine is 62"),
    "32 bits": (patched(4, b"\1"), "is not of 64 bits"),
    "big end first": (patched(5, b"\2"), "is not of 64 bits, little end first"),
    "an NVIDIA one": (patched(18, b"\xbe"), "its machine is 190"),
    "not linked": (patched(16, b"\1"), "is not linked"),
    "graphics": (patched(7, b"\x41"), "its OS ABI is 65"),
    "V2": (patched(8, b"\0"), "its ABI version is 0, read are"),
    "V7": (patched(8, b"\5"), "its ABI version is 5"),
    "an unknown chip": (patched(48, b"\xfe"), "its number is 0xfe"),
    "no note": (STORED.replace(b"AMDGPU\0\0", b"NVIDIA\0\0"), "notes are NVIDIA 32, wanted is AMDGPU 32"),
    "no descriptor": (STORED.replace(b"vadd_asm.kd\0", b"vadd_asn.kd\0"), "no descriptor vadd_asm.kd"),
    "a missing field": (STORED.replace(b".wavefront_size", b".wavefrond_size"), "wavefront_size is not as it should be(?s:.*)is not there"),
    "a field of another kind": (STORED.replace(b".sgpr_count\x0a", b".sgpr_count\xff"), "sgpr_count is not(?s:.*)it is -1, a whole number from 0 is wanted"),
    "a key twice": (STORED.replace(b".vgpr_count", b".sgpr_count"), "bad key(?s:.*)'.sgpr_count' is there twice"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_ours_to_read_has_its_reason(what: str) -> None:
    data, says = FOREIGN[what]
    with pytest.raises(CodeObjectError, match=says):
        read(data)


@pytest.mark.parametrize(("data", "want"), [
    (b"\x00", 0), (b"\x7f", 127), (b"\xff", -1), (b"\xe0", -32), (b"\xcc\xff", 255), (b"\xcd\x01\x02", 258), (b"\xce\x00\x01\x00\x00", 65536), (b"\xcf" + b"\xff" * 8, 2**64 - 1),
    (b"\xd0\x80", -128), (b"\xd1\xff\xfe", -2), (b"\xd2\x80\x00\x00\x00", -2**31), (b"\xd3" + b"\xff" * 8, -1), (b"\xc0", None), (b"\xc2", False), (b"\xc3", True),
    (b"\xa3abc", "abc"), (b"\xd9\x02hi", "hi"), (b"\xda\x00\x01x", "x"), (b"\xdb\x00\x00\x00\x01y", "y"), (b"\xc4\x02\x00\x01", b"\x00\x01"), (b"\xc5\x00\x01z", b"z"),
    (b"\x92\x01\x02", [1, 2]), (b"\xdc\x00\x01\x07", [7]), (b"\xdd\x00\x00\x00\x01\x08", [8]), (b"\x81\xa1a\x01", {"a": 1}), (b"\xde\x00\x01\xa1b\x90", {"b": []}), (b"\xdf\x00\x00\x00\x00", {})])
def test_each_kind_of_messagepack(data: bytes, want: object) -> None:
    """Values by hand from MessagePack's specification."""
    assert unpack(Binary(data, "m")) == want
    for n in range(len(data)):
        with pytest.raises(CodeObjectError, match="lies outside of the file"):
            unpack(Binary(data[:n], "m"))


@pytest.mark.parametrize(("data", "says"), [
    (b"\x01\x01", "goes on after its end"), (b"\x91" * 17 + b"\x01", "nested too deeply"), (b"\xca\0\0\0\0", "unknown kind"), (b"\xd4\x01\x01", "unknown kind"),
    (b"\x81\x01\x01", "a int is no name"), (b"\x82\xa1a\x01\xa1a\x02", "'a' is there twice"), (b"\xa1\xff", "0xff is not UTF-8"), (b"\xdd\xff\xff\xff\xff\x01", "lies outside")])
def test_messagepack_that_metadata_cannot_be(data: bytes, says: str) -> None:
    with pytest.raises(CodeObjectError, match=says):
        unpack(Binary(data, "m"))


@needs_llvm
def test_sections_and_symbols_are_what_llvm_reads(tmp_path: Path) -> None:
    data = compiled("gfx90a")
    (at := tmp_path / "k.hsaco").write_bytes(data)
    elf = Elf(Binary(data, "k"))
    shown = re.findall(r"^ +\d+: ([0-9a-f]{16}) +(\d+) \w+ +\w+ +\w+ +\w+ (\S+)$", tool("llvm-readelf-22", "-sW", at), re.M)
    assert len(shown) > 20
    for address, nbytes, name in shown:
        assert (elf.symbols[name].address, elf.symbols[name].nbytes) == (int(address, 16), int(nbytes))
    sections = re.findall(r"^ +\[ *\d+\] (\S*) +\w+ +[0-9a-f]{16} ([0-9a-f]{6}) ([0-9a-f]{6})", tool("llvm-readelf-22", "-SW", at), re.M)
    assert [(s.name, s.at, s.nbytes) for s in elf.sections] == [(name, int(a, 16), int(n, 16)) for name, a, n in sections]
