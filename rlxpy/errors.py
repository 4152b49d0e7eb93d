"""Every error rlxpy raises on purpose.

RlxError
├── BuildError                 a graph that cannot mean anything (arity, shape, dtype, attrs)
│   └── CustomOpError          an extension op: AlreadyRegistered, NotRegistered, ArityMismatch, HookMismatch
├── InputError                 what the caller passed to a compiled graph or a command (shape, dtype, option, file)
│   └── IndexOutOfRange        also an IndexError: a gather outside its axis
├── VerifyError                a pass broke an invariant: a bug in the pass, never the user's
├── LegaliseError              no kernel, decomposition or fallback fits a node on this backend (all reasons)
├── CompileError               the C / HIP / CUDA compiler refused generated source (log attached)
├── KernelFault                a kernel on a simulated device did what hardware forbids or leaves undefined (instruction, block, wave, lane)
├── LoadError                  a damaged or foreign file: weights (GgufError, SafetensorsError), compiled GPU code (CodeObjectError)
├── BackendMissing             the backend exists but this machine cannot run it
├── DeviceError                a GPU's runtime refused something, or a kernel broke off
├── NonDifferentiableError     no gradient rule and nothing to differentiate instead
├── FusionError                `assert_fusion_clean` met a near miss
└── RegistryError              two things claim one name, or one is not what it claims: SchemaConflict, AbiMismatch, AmbiguousRank
"""
from __future__ import annotations


class RlxError(Exception):
    """What happened, where (the user's line or the node's text), why (two concrete values), how to fix it."""

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        labelled = (("at", where), ("because", why), ("try", fix))
        super().__init__("\n".join([what, *(f"  {label}: {text}" for label, text in labelled if text)]))

    def at(self, where: str, *, prefix: str = "") -> RlxError:
        """The same error with a place, for rules that know what is wrong but not whose line it is."""
        return type(self)(f"{prefix}{self.what}", where=self.where or where, why=self.why, fix=self.fix)

    def to_json(self) -> dict[str, str]:
        return {"error": type(self).__name__, "what": self.what, "where": self.where, "why": self.why, "fix": self.fix}


class BuildError(RlxError): ...
class CustomOpError(BuildError): ...
class AlreadyRegistered(CustomOpError): ...
class NotRegistered(CustomOpError): ...
class ArityMismatch(CustomOpError): ...
class HookMismatch(CustomOpError): ...
class InputError(RlxError): ...
class IndexOutOfRange(InputError, IndexError): ...
class VerifyError(RlxError): ...
class LegaliseError(RlxError): ...
class CompileError(RlxError):
    """log: all that the compiler said; options: what it was called with, where it is a GPU's."""

    log: str = ""
    options: tuple[str, ...] = ()
class KernelFault(RlxError):
    """kind: a few words, as "race" or "out of range"."""

    kind: str = ""
    kernel: str = ""
    pc: int = 0
    block: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0
    lane: int = 0


class LoadError(RlxError): ...
class GgufError(LoadError): ...
class SafetensorsError(LoadError): ...
class CodeObjectError(LoadError): ...
class BackendMissing(RlxError): ...
class DeviceError(RlxError): ...
class NonDifferentiableError(RlxError): ...
class FusionError(RlxError): ...
class RegistryError(RlxError): ...
class SchemaConflict(RegistryError): ...
class AbiMismatch(RegistryError): ...
class AmbiguousRank(RegistryError): ...


def nearest(name: str, known: list[str] | tuple[str, ...], count: int = 3) -> str:
    """Known names closest to a mistyped one, as text for an error's `fix`; "none" when nothing is near."""
    from difflib import get_close_matches

    return ", ".join(get_close_matches(name, known, count, 0.5)) or "none"
