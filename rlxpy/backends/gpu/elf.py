"""ELF files of 64 bits, as GPU compilers write them: headers, segments, sections, symbols, notes."""
from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from rlxpy.backends.gpu.binary import Binary
from rlxpy.frozen import dataclass

MAGIC = b"\x7fELF"
AMDGPU, CUDA = 224, 190  # e_machine
SHARED_OBJECT = 3  # e_type of what a driver loads
LOADED, NOTE = 1, 4  # p_type
SYMBOLS, NO_BITS, DYNAMIC_SYMBOLS = 2, 8, 11  # sh_type
HEADER_NBYTES, SEGMENT_NBYTES, SECTION_NBYTES, SYMBOL_NBYTES = 64, 56, 64, 24


def is_for(data: bytes, machine: int) -> bool:
    """Whether it begins as an ELF file for a machine does."""
    return data.startswith(MAGIC) and data[18:20] == machine.to_bytes(2, "little")


@dataclass(frozen=True)
class Segment:
    """at, nbytes: in the file; address, memory_nbytes: once loaded, where the rest is zero."""

    type: int
    at: int
    address: int
    nbytes: int
    memory_nbytes: int


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    at: int
    nbytes: int
    link: int


@dataclass(frozen=True)
class Symbol:
    name: str
    address: int
    nbytes: int


@dataclass(frozen=True)
class Note:
    owner: str
    type: int
    content: Binary


@dataclass(frozen=True)
class Elf:
    """Every property raises CodeObjectError, with the place, for what is not as the format wants it."""

    b: Binary

    def __post_init__(self) -> None:
        if self.b.part(0, 4, "the ELF header").data != MAGIC:
            raise self.b.fault(0, "is no ELF file", f"it begins {self.b.data[:4]!r}, not {MAGIC!r}", "give compiled GPU code: what hipRTC, clang or NVRTC wrote")
        bits, order = self.b.numbers("BB", 4, "the ELF header")
        if (bits, order) != (2, 1):
            raise self.b.fault(4, "is not of 64 bits, little end first", f"class {bits}, order {order}; wanted are 2, 1", "give compiled GPU code")
        self.b.part(0, HEADER_NBYTES, "the ELF header")

    @property
    def os_abi(self) -> int:
        return self.b.number("B", 7, "the ELF header")

    @property
    def abi_version(self) -> int:
        return self.b.number("B", 8, "the ELF header")

    @property
    def type(self) -> int:
        return self.b.number("H", 16, "the ELF header")

    @property
    def machine(self) -> int:
        return self.b.number("H", 18, "the ELF header")

    @property
    def flags(self) -> int:
        return self.b.number("I", 48, "the ELF header")

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        at, each, count = self.b.number("Q", 32, "the ELF header"), *self.b.numbers("HH", 54, "the ELF header")
        found = [self.b.numbers("IIQQQQQQ", where, "a program header") for where in self._table(at, each, count, SEGMENT_NBYTES, "program headers")]
        return tuple(Segment(p[0], p[2], p[3], p[5], p[6]) for p in found)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        at, (each, count, names) = self.b.number("Q", 40, "the ELF header"), self.b.numbers("HHH", 58, "the ELF header")
        rows = [self.b.numbers("IIQQQQIIQQ", where, "a section header") for where in self._table(at, each, count, SECTION_NBYTES, "section headers")]
        if not rows:
            return ()
        if names >= len(rows):
            raise self.b.fault(62, "the section of names is not there", f"it is number {names} of {len(rows)}")
        text = self.b.part(rows[names][4], rows[names][5], "names of sections")
        return tuple(Section(text.text(r[0], "a section's name"), r[1], r[4], r[5], r[6]) for r in rows)

    def _table(self, at: int, each: int, count: int, nbytes: int, what: str) -> Iterator[int]:
        if count and each != nbytes:
            raise self.b.fault(at, f"{what} have another size", f"{each} bytes each, the format has {nbytes}")
        self.b.part(at, each * count, what)
        return iter(range(at, at + each * count, nbytes))

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """By name, of every symbol table; one name's values are alike in each."""
        return {s.name: s for table in self.sections if table.type in (SYMBOLS, DYNAMIC_SYMBOLS) for s in self.symbols_of(table)}

    def symbols_of(self, table: Section) -> tuple[Symbol, ...]:
        if table.link >= len(self.sections):
            raise self.b.fault(table.at, f"names of {table.name} are not there", f"they are section {table.link} of {len(self.sections)}")
        text, rows = self.content(self.sections[table.link]), self.content(table)
        found = [rows.numbers("IBBHQQ", at, "a symbol") for at in range(0, len(rows.data) - SYMBOL_NBYTES + 1, SYMBOL_NBYTES)]
        return tuple(Symbol(text.text(s[0], "a symbol's name"), s[4], s[5]) for s in found)

    def content(self, s: Section) -> Binary:
        return self.b.part(s.at, 0 if s.type == NO_BITS else s.nbytes, f"section {s.name}")

    def loaded(self, address: int, nbytes: int, what: str) -> Binary:
        """What lies at an address once the file is loaded."""
        for s in self.segments:
            if s.type == LOADED and s.address <= address and address + nbytes <= s.address + s.nbytes:
                return self.b.part(s.at + address - s.address, nbytes, what)
        raise self.b.fault(0, f"{what} is in no segment", f"it lies at address {address:#x}, {nbytes} bytes")

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        return tuple(n for s in self.segments if s.type == NOTE for n in _notes(self.b.part(s.at, s.nbytes, "a segment of notes")))


def _notes(b: Binary) -> Iterator[Note]:
    at = 0
    while at < len(b.data):
        owner, content, kind = b.numbers("III", at, "a note")
        begin = at + 12 + owner + -owner % 4
        name = b.part(at + 12, owner, "a note's owner")
        yield Note(name.text(0, "a note's owner", owner).rstrip("\0"), kind, b.part(begin, content, "a note"))
        at = begin + content + -content % 4
