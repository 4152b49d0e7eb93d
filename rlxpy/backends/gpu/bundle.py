"""Files with code for several AMD chips: clang's offload bundles, and which of their code objects a card runs."""
from __future__ import annotations

from rlxpy.backends.gpu.arch import Target, best, names, target
from rlxpy.backends.gpu.binary import Binary
from rlxpy.backends.gpu.codeobject import CodeObject, read
from rlxpy.errors import BackendMissing, InputError
from rlxpy.frozen import dataclass

MAGIC, COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
VENDOR = "amdgcn-amd-amdhsa"
MOST = 256  # entries; there are fewer chips


@dataclass(frozen=True)
class Entry:
    """One part of a bundle.  id: as the bundle names it; code: None for a part that is not for AMD's GPUs."""

    id: str
    nbytes: int
    code: CodeObject | None


@dataclass(frozen=True)
class Bundle:
    """A file's parts; a file that is one code object has one part without an id."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def codes(self) -> tuple[CodeObject, ...]:
        return tuple(e.code for e in self.entries if e.code)

    def code_for(self, card: Target) -> CodeObject:
        """The chip's own code before its family's.  Raises BackendMissing that says what there is and what the card runs."""
        found = best(tuple(c.target for c in self.codes), card)
        if found is None:
            raise BackendMissing(f"{self.name} has no code for {card}", why=f"it carries [{', '.join(str(c.target) for c in self.codes)}], this card runs [{', '.join(names(card))}]"
                                 + "".join(f"; of {c.target}, {c.target.refusal(card)}" for c in self.codes if c.target.arch in names(card)), fix=f"compile it for {card} too")
        return self.codes[found]


def read_bundle(data: bytes, name: str = "bundle") -> Bundle:
    """A bundle, or a code object by itself.  Raises CodeObjectError as `read` does."""
    if not data.startswith((MAGIC, COMPRESSED)):
        return Bundle(name, (Entry("", len(data), read(data, name)),))
    b = Binary(data, name)
    if data.startswith(COMPRESSED):
        raise b.fault(0, "is a compressed bundle", f"it begins {COMPRESSED!r}, and its parts are not unpacked here", "build it with --no-offload-compress")
    count, at = b.number("Q", len(MAGIC), "the bundle's header"), len(MAGIC) + 8
    if count > MOST:
        raise b.fault(len(MAGIC), "is no bundle that anybody writes", f"it says that it has {count} parts, at most {MOST} are read")
    entries = []
    for _ in range(count):
        begin, nbytes, length = b.numbers("QQQ", at, "a bundle's entry")
        id = b.text(at + 24, "the name of a bundle's entry", length)
        entries.append(_entry(b, at, id, b.part(begin, nbytes, f"part {id}")))
        at += 24 + length
    return Bundle(name, tuple(entries))


def _entry(b: Binary, at: int, id: str, part: Binary) -> Entry:
    _, found, chip = id.partition(VENDOR)
    if not found:
        return Entry(id, len(part.data), None)
    code = read(part.data, f"{b.name} part {id}")
    try:
        named = target(chip.lstrip("-"))
    except InputError as e:
        raise b.fault(at, f"part {id} names no chip", e.what, e.fix) from None
    if named != code.target:
        raise b.fault(at, f"part {id} is mislabelled", f"its name says {named}, its ELF header {code.target}", "bundle it again")
    return Entry(id, len(part.data), code)
