"""MessagePack as AMD's metadata uses it: maps with names as keys, lists, text, whole numbers, and truth."""
from __future__ import annotations

from typing import Any

from rlxpy.backends.gpu.binary import Binary

DEEPEST = 16  # nested maps and lists; AMD's own are 4 deep
NUMBERS = {0xcc: (1, False), 0xcd: (2, False), 0xce: (4, False), 0xcf: (8, False), 0xd0: (1, True), 0xd1: (2, True), 0xd2: (4, True), 0xd3: (8, True)}  # bytes, signed
LENGTHS = {0xc4: ("bytes", 1), 0xc5: ("bytes", 2), 0xc6: ("bytes", 4), 0xd9: ("text", 1), 0xda: ("text", 2), 0xdb: ("text", 4),
           0xdc: ("list", 2), 0xdd: ("list", 4), 0xde: ("map", 2), 0xdf: ("map", 4)}  # kind, bytes of the length
SHORT = ((0xe0, 0x1f, "text", 0xa0), (0xf0, 0x0f, "list", 0x90), (0xf0, 0x0f, "map", 0x80))  # mask of the kind, mask of the length, kind, its bits
PLAIN = {0xc0: None, 0xc2: False, 0xc3: True}


def unpack(b: Binary) -> Any:
    """The one value that the data holds.  Raises CodeObjectError with the place."""
    value, end = _value(b, 0, 0)
    if end != len(b.data):
        raise b.fault(end, "metadata goes on after its end", f"{len(b.data) - end} bytes are left over")
    return value


def _value(b: Binary, at: int, depth: int) -> tuple[Any, int]:
    """A value, and where the next begins."""
    head = b.number("B", at, "metadata")
    if head < 0x80:
        return head, at + 1
    if head >= 0xe0:
        return head - 0x100, at + 1
    if head in PLAIN:
        return PLAIN[head], at + 1
    if head in NUMBERS:
        nbytes, signed = NUMBERS[head]
        return _number(b, at + 1, nbytes, signed), at + 1 + nbytes
    kind, count, begin = _counted(b, at, head)
    if kind == "text":
        return b.text(begin, "text of the metadata", count), begin + count
    if kind == "bytes":
        return b.part(begin, count, "bytes of the metadata").data, begin + count
    if depth == DEEPEST:
        raise b.fault(at, "metadata is nested too deeply", f"{DEEPEST} lists and maps lie in one another")
    return _list(b, begin, count, depth) if kind == "list" else _map(b, begin, count, depth)


def _counted(b: Binary, at: int, head: int) -> tuple[str, int, int]:
    """What has a length: its kind, the length, where it begins."""
    for mask, rest, kind, bits in SHORT:
        if head & mask == bits:
            return kind, head & rest, at + 1
    if head not in LENGTHS:
        raise b.fault(at, "metadata of an unknown kind", f"{head:#04x} is no map, list, text, whole number or truth value")
    kind, nbytes = LENGTHS[head]
    return kind, _number(b, at + 1, nbytes), at + 1 + nbytes


def _number(b: Binary, at: int, nbytes: int, signed: bool = False) -> int:
    return int.from_bytes(b.part(at, nbytes, "a number of the metadata").data, "big", signed=signed)  # unlike all else in the file


def _list(b: Binary, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _value(b, at, depth + 1)
        found.append(value)
    return found, at


def _map(b: Binary, at: int, count: int, depth: int) -> tuple[dict[str, Any], int]:
    found = dict[str, Any]()
    for _ in range(count):
        key, after = _value(b, at, depth + 1)
        if not isinstance(key, str) or key in found:
            raise b.fault(at, "metadata has a bad key", f"{key!r:.40} is there twice" if isinstance(key, str) else f"a {type(key).__name__} is no name")
        found[key], at = _value(b, after, depth + 1)
    return found, at
