"""Bytes of a file that say what was being read, and where, when they end too soon or mean nothing."""
from __future__ import annotations

import struct

from rlxpy.errors import CodeObjectError
from rlxpy.frozen import dataclass


@dataclass(frozen=True)
class Binary:
    """Little-endian data.  name: of the file, for errors; start: where the data lies in that file."""

    data: bytes
    name: str
    start: int = 0

    def fault(self, at: int, what: str, why: str, fix: str = "build it again; it may have been cut short or changed on its way") -> CodeObjectError:
        return CodeObjectError(f"{self.name}: {what}", where=f"byte {self.start + at:#x} of {self.start + len(self.data):#x}", why=why, fix=fix)

    def part(self, at: int, nbytes: int, what: str) -> Binary:
        """The same file's bytes from `at` on.  Raises CodeObjectError where it has fewer."""
        if not 0 <= at <= at + nbytes <= len(self.data):
            raise self.fault(at, f"{what} lies outside of the file", f"{nbytes} bytes are wanted from {self.start + at:#x} on, the file ends at {self.start + len(self.data):#x}")
        return Binary(self.data[at:at + nbytes], self.name, self.start + at)

    def numbers(self, form: str, at: int, what: str) -> tuple[int, ...]:
        """As struct unpacks them."""
        form = f"<{form}"
        return struct.unpack(form, self.part(at, struct.calcsize(form), what).data)

    def number(self, form: str, at: int, what: str) -> int:
        return self.numbers(form, at, what)[0]

    def text(self, at: int, what: str, nbytes: int | None = None) -> str:
        """UTF-8: of so many bytes, else up to a zero."""
        if nbytes is None:
            if not 0 <= at <= len(self.data) or (end := self.data.find(b"\0", at)) < 0:
                raise self.fault(at, f"{what} has no end", f"no zero byte follows before {self.start + len(self.data):#x}")
            nbytes = end - at
        raw = self.part(at, nbytes, what).data
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            raise self.fault(at + e.start, f"{what} is no text", f"{raw[e.start]:#04x} is not UTF-8 there") from None
