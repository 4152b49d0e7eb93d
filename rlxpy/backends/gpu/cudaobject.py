"""Compiled CUDA code read from bytes, as far as it is easily told: the chip, and of every kernel its arguments, registers and memory."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rlxpy.backends.gpu.binary import Binary
from rlxpy.backends.gpu.elf import CUDA, Elf, Section, Symbol, is_for
from rlxpy.frozen import dataclass

INFO, TEXT, TOOLS = ".nv.info", ".text.", ".note.nv.tkinfo"
REGISTERS, FRAME, PARAMETER, MOST_THREADS = 0x2f, 0x11, 0x17, 0x05  # attributes in sections .nv.info
SIZED = 4  # the format of an attribute whose value has a length
CHIP_SHIFTED = 8  # from this ABI version on the chip's number lies one byte higher in the flags
RESERVED, RESERVED_FROM = 1 << 10, 90  # bytes of shared memory that the driver keeps in each block, from sm_90 on
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)\{", re.S)
PARAMETERS = re.compile(r"\.param\s+(?:\.align\s+([1-9]\d{0,3})\s+)?\.[a-z]+(8|16|32|64|128)(?:\s+\.ptr[^,]*?)?\s+[\w$]+(?:\[(\d{1,9})\])?")
MOST = re.compile(r"\.maxntid\s+(\d{1,9})(?:\s*,\s*(\d{1,9}))?(?:\s*,\s*(\d{1,9}))?")
WRITTEN = re.compile(rb"-arch (sm_\d+[af]?)\b")  # in the note of tools: the flags do not tell sm_90a from sm_90
TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.M)


@dataclass(frozen=True)
class CudaKernel:
    """args: (offset, bytes) of each; None: what the file does not tell.  shared_nbytes: of a block, without what a launch adds."""

    name: str
    args: tuple[tuple[int, int], ...]
    max_threads: int | None
    registers: int | None = None
    shared_nbytes: int | None = None
    local_nbytes: int | None = None


@dataclass(frozen=True)
class CudaObject:
    """name: of the file.  kind: "cubin" or "PTX", which the driver compiles for its card and which therefore knows no registers."""

    name: str
    kind: str
    arch: str
    kernels: tuple[CudaKernel, ...]


def read_cuda(data: bytes, name: str = "CUDA code") -> CudaObject:
    """Raises CodeObjectError for what is neither cubin nor PTX, or damaged."""
    b = Binary(data, name)
    return _cubin(Elf(b)) if data.startswith(b"\x7fELF") else _ptx(b)


def is_cubin(data: bytes) -> bool:
    """Whether it begins as one."""
    return is_for(data, CUDA)


def _cubin(elf: Elf) -> CudaObject:
    if elf.machine != CUDA:
        raise elf.b.fault(18, "is no code for NVIDIA's GPUs", f"its machine is {elf.machine}, NVIDIA's is {CUDA}", "give what NVRTC or nvcc wrote")
    chip = elf.flags >> (8 if elf.abi_version >= CHIP_SHIFTED else 0) & 0xff
    sections = {s.name: s for s in elf.sections}
    common = _by_kernel(elf, sections.get(INFO))
    kernels = (_kernel(elf, sections, s.name.removeprefix(TEXT), common, chip) for s in elf.sections if s.name.startswith(TEXT) and f"{INFO}.{s.name.removeprefix(TEXT)}" in sections)
    written = WRITTEN.search(elf.content(sections[TOOLS]).data) if TOOLS in sections else None
    arch = written[1].decode() if written else ""
    return CudaObject(elf.b.name, "cubin", arch if arch.rstrip("af") == f"sm_{chip}" else f"sm_{chip}", tuple(kernels))


def _kernel(elf: Elf, sections: Mapping[str, Section], name: str, common: Mapping[tuple[str, int], int], chip: int) -> CudaKernel:
    args, threads = list[tuple[int, int]](), None
    for attribute, value in _attributes(elf.content(sections[f"{INFO}.{name}"])):
        if attribute == PARAMETER:
            _, place, size = value.numbers("III", 0, f"an argument of {name}")
            args.append((place >> 16, size >> 18))
        elif attribute == MOST_THREADS:
            x, y, z = value.numbers("III", 0, f"the threads of {name}")
            threads = x * y * z
    shared = sections.get(f".nv.shared.{name}")
    reserved = RESERVED if chip >= RESERVED_FROM else 0
    return CudaKernel(name, tuple(sorted(args)), threads, common.get((name, REGISTERS)), max(shared.nbytes - reserved, 0) if shared else 0, common.get((name, FRAME)))


def _by_kernel(elf: Elf, section: Section | None) -> dict[tuple[str, int], int]:
    """What the common section says of each kernel, by name and attribute."""
    if section is None or section.link >= len(elf.sections):
        return {}
    symbols: tuple[Symbol, ...] = elf.symbols_of(elf.sections[section.link])
    found = {}
    for attribute, value in _attributes(elf.content(section)):
        if attribute in (REGISTERS, FRAME):
            at, number = value.numbers("II", 0, "a kernel's registers")
            if at >= len(symbols):
                raise value.fault(0, "a kernel is not there", f"it is symbol {at} of {len(symbols)}")
            found[symbols[at].name, attribute] = number
    return found


def _attributes(b: Binary) -> Iterator[tuple[int, Binary]]:
    at = 0
    while at < len(b.data):
        form, attribute, nbytes = b.numbers("BBH", at, "an attribute")
        at += 4
        if form == SIZED:
            yield attribute, b.part(at, nbytes, "an attribute's value")
            at += nbytes


def _ptx(b: Binary) -> CudaObject:
    text = b.text(0, "PTX", len(b.data.rstrip(b"\0")))
    found = TARGET.search(text)
    if not found:
        raise b.fault(0, "is neither cubin nor PTX", f"it begins {text[:20]!r} and has no .target", "give what NVRTC or nvcc wrote")
    return CudaObject(b.name, "PTX", found[1], tuple(CudaKernel(m[1], tuple(_parameters(m[2] or "")), _threads(m[3])) for m in ENTRY.finditer(text)))


def _parameters(text: str) -> Iterator[tuple[int, int]]:
    end = 0
    for align, bits, count in PARAMETERS.findall(text):
        nbytes = int(bits) // 8
        end += -end % int(align or nbytes)
        yield end, nbytes * int(count or 1)
        end += nbytes * int(count or 1)


def _threads(directives: str) -> int | None:
    found = MOST.search(directives)
    return int(found[1]) * int(found[2] or 1) * int(found[3] or 1) if found else None
