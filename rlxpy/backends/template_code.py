"""Templates compiled once for all processes: Jinja spends most of the time that writing a program takes on parsing them."""
from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b

from jinja2.bccache import Bucket, BytecodeCache, bc_magic

from rlxpy.backends.cache import publish
from rlxpy.frozen import dataclass
from rlxpy.settings import cache_home

PART = "templates"
DIGEST_NBYTES = 16


@dataclass(frozen=True)
class TemplateCode(BytecodeCache):
    """In the user's cache, where one can be written; a file is the digest of what follows, so that nothing damaged is run.

    variant: the options of the environment that change what a template compiles to."""

    variant: str

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError):
            kept = (cache_home() / PART / self._name(bucket)).read_bytes()
            if _digest(kept[DIGEST_NBYTES:]) == kept[:DIGEST_NBYTES]:
                bucket.bytecode_from_string(kept[DIGEST_NBYTES:])

    def dump_bytecode(self, bucket: Bucket) -> None:
        code = bucket.bytecode_to_string()
        with suppress(OSError):
            publish(PART, self._name(bucket), _digest(code) + code)

    def _name(self, bucket: Bucket) -> str:
        """By the template's name, place and text, and by versions of Python and of Jinja's code."""
        facts = json.dumps([bc_magic.hex(), self.variant, bucket.key, bucket.checksum])
        return f"{blake2b(facts.encode(), digest_size=20).hexdigest()}.bin"


def _digest(code: bytes) -> bytes:
    return blake2b(code, digest_size=DIGEST_NBYTES).digest()
