"""C functions of downstream packages: read for what they ask, wrapped so that every one is called alike, compiled, called."""
from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rlxpy.backends.cpu import ctext
from rlxpy.backends.cpu.build import build, prelude
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.cpu.isa import detect
from rlxpy.backends.fences import Fenced
from rlxpy.errors import BackendMissing, CompileError, HookMismatch
from rlxpy.frozen import dataclass
from rlxpy.ir.attrs import Attrs, field_types
from rlxpy.ir.dtypes import Array, DType
from rlxpy.ir.types import TensorType

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
NAME = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
SUFFIXES = ("", "_numel", "_rank", "_shape")
OUTPUT = re.compile(r"out\d*(_numel|_rank|_shape)?$")
# a pointer to another type, or a write to an input, is no warning here; nor is a function that nobody declared
STRICT = {"gcc": ("-Werror=incompatible-pointer-types", "-Werror=discarded-qualifiers", "-Werror=implicit-function-declaration"),
          "clang": ("-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration")}
STRICT["zig"] = STRICT["clang"]
Numbers = tuple[Any, ...]


@dataclass(frozen=True)
class CFunction:
    """`entry_point` of a C text.  Its parameters say by their names what it is given: docs/add_an_op.md.

    inputs, attrs: of the op.  where: who registered it."""

    op: str
    source: str
    entry_point: str
    inputs: tuple[str, ...]
    attrs: type[Attrs]
    where: str = ""

    def __post_init__(self) -> None:
        kinds = field_types(self.attrs)
        if taken := [n for n in (*self.inputs, *kinds) if OUTPUT.match(n)]:
            raise HookMismatch(f"{self.op} has an input or parameter named {', '.join(taken)}", why="in a C kernel that is its result", fix="name it otherwise")
        known = [*kinds, *(f"{k}_count" for k in kinds), *(f"{n}{s}" for n in self.inputs for s in SUFFIXES), "inputs", "inputs_count"]
        if several := [p for p in self.parameters if known.count(p) > 1]:
            raise HookMismatch(f"the C kernel of {self.op} asks for {', '.join(several)}", why="that may be two things", fix="rename an input or a parameter of the op")
        unknown = [p for p in self.parameters if p not in known and not OUTPUT.match(p) and not re.match(r"x\d+(_numel|_rank|_shape)?$", p)]
        if unknown:
            raise HookMismatch(f"the C kernel of {self.op} asks for {', '.join(unknown)}", why=f"its parameters are {', '.join(self.parameters)}",
                               fix=f"names are {', '.join((*self.inputs, 'out', *kinds))}, and of an array NAME_numel, NAME_rank, NAME_shape")

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names.  Raises HookMismatch where there is no such function."""
        text = COMMENT.sub(" ", self.source)
        found = re.search(rf"\b{re.escape(self.entry_point)}\s*\(([^)]*)\)\s*\{{", text)
        if not found:
            raise HookMismatch(f"the C kernel of {self.op} has no function {self.entry_point!r}", why=f"its source begins {' '.join(text.split())[:60]!r}",
                               fix=f"void {self.entry_point}(const float *x, float *out, ..) {{ .. }}, or name yours by entry_point=")
        names = [NAME.search(p.strip()) for p in found[1].split(",") if p.strip() not in ("", "void")]
        return tuple(n[1] for n in names if n)

    def missing(self) -> str | None:
        """Why it cannot be compiled here."""
        found = find_compiler()
        return found if isinstance(found, str) else None

    @lru_cache(maxsize=256)  # noqa: B019 (kernels are few, and live as long as their op)
    def launcher(self, ins: tuple[TensorType, ...], outs: tuple[TensorType, ...], attrs: Attrs) -> CLaunch:
        """For operands of these types; sizes may still change from call to call."""
        given = arguments(self.inputs, ins, outs, field_types(self.attrs), attrs.params())
        if lacking := [p for p in self.parameters if p not in given]:
            raise HookMismatch(f"the C kernel of {self.op} asks for {', '.join(lacking)}", where=self.where,
                               why=f"of {', '.join(map(str, ins)) or 'no inputs'} to {', '.join(map(str, outs))} there are {', '.join(given)}", fix="ask for these")
        places, asked, banks = list[str](), list[Argument](), {"p": 0, "n": 0, "r": 0, "": 0}
        for name in self.parameters:
            a = given[name]
            places.append(a.c.replace("@", str(banks[a.bank])))
            asked.append(a)
            banks[a.bank] += a.width
        return CLaunch(self, self._unit(places, ins, outs), tuple(asked), (len(ins), len(outs)))

    def _unit(self, places: Sequence[str], ins: Sequence[TensorType], outs: Sequence[TensorType]) -> str:
        typed = "\n".join(f"typedef {ctext.storage(t.dtype)} {name}_type;" for name, t in (*zip(input_names(self.inputs, len(ins)), ins, strict=True), *named(outs)))
        call = f"{self.entry_point}({', '.join(places)});"
        return f"{prelude()}\n{typed}\n{self.source}\nRLX_EXPORT void rlx_call(void *const *p, const i64 *n, const f64 *r) {{ (void)p; (void)n; (void)r; {call} }}\n"


class Argument(NamedTuple):
    """c: the wrapper's text, with @ for its place in a bank: pointers p, whole numbers n, reals r, of which it takes `width`.  get: what to put there."""

    c: str
    bank: str
    width: int
    get: Callable[[Sequence[Array], Sequence[Array], Mapping[str, Any]], Numbers]


def input_names(inputs: Sequence[str], count: int) -> tuple[str, ...]:
    return tuple(inputs[k] if k < len(inputs) else f"x{k}" for k in range(count))


def named(outs: Sequence[TensorType]) -> list[tuple[str, TensorType]]:
    """`out`, or out0, out1, .. of several."""
    return [("out" if len(outs) == 1 else f"out{k}", t) for k, t in enumerate(outs)]


def arguments(inputs: Sequence[str], ins: Sequence[TensorType], outs: Sequence[TensorType], kinds: Mapping[str, str], params: Mapping[str, Any]) -> dict[str, Argument]:
    """Everything that a function may ask for, by name."""
    found: dict[str, Argument] = {"inputs": Argument("(const void *const *)(p + @)", "p", len(ins), lambda i, o, a: tuple(x.ctypes.data for x in i)),
                                  "inputs_count": _number(len(ins))}
    for k, (name, t) in enumerate(zip(input_names(inputs, len(ins)), ins, strict=True)):
        found |= _array(name, t, "const ", lambda i, o, a, k=k: i[k])
    for name in inputs[len(ins):]:  # left out
        found |= {name: Argument("0", "", 0, lambda i, o, a: ()), f"{name}_numel": _number(0), f"{name}_rank": _number(0)}
    for k, (name, t) in enumerate(named(outs)):
        found |= _array(name, t, "", lambda i, o, a, k=k: o[k])
    for name, kind in kinds.items():
        found |= _parameter(name, kind, params[name])
    return found


def _number(n: int) -> Argument:
    return Argument(str(n), "", 0, lambda i, o, a: ())


def _array(name: str, t: TensorType, const: str, of: Callable[..., Array]) -> dict[str, Argument]:
    return {name: Argument(f"({const}{ctext.storage(t.dtype)} *)p[@]", "p", 1, lambda i, o, a: (of(i, o, a).ctypes.data,)),
            f"{name}_numel": Argument("n[@]", "n", 1, lambda i, o, a: (of(i, o, a).size,)),
            f"{name}_rank": _number(t.rank),
            f"{name}_shape": Argument("n + @", "n", t.rank, lambda i, o, a: of(i, o, a).shape)}


def _parameter(name: str, kind: str, value: Any) -> dict[str, Argument]:
    """Of kinds that C knows; others cannot be asked for."""
    if isinstance(value, (str, DType)):
        escaped = "".join(f"\\{b:03o}" for b in (value.text if isinstance(value, DType) else value).encode())
        return {name: Argument(f'"{escaped}"', "", 0, lambda i, o, a: ())}
    one = {"bool": "n", "int": "n", "Dim": "n", "float": "r"}.get(kind)
    if one:
        return {name: Argument(f"{one}[@]", one, 1, lambda i, o, a: (a[name],))}
    many = {"Shape": "n", "tuple[int, ...]": "n", "tuple[float, ...]": "r"}.get(kind)
    if many:
        return {name: Argument(f"{many} + @", many, len(value), lambda i, o, a: a[name]), f"{name}_count": _number(len(value))}
    return {}


@dataclass(frozen=True)
class CLaunch:
    """A compiled function on arrays: what a host row launches.  counts: of its inputs and results."""

    function: CFunction
    unit: str
    asked: tuple[Argument, ...]
    counts: tuple[int, int]

    def prepare(self) -> Any:
        """Compile now.  Raises CompileError, with what the compiler said; BackendMissing where there is none."""
        try:
            return _loaded(self.unit)
        except CompileError as e:
            told = CompileError(f"the C kernel of {self.function.op} does not compile", where="\n".join(filter(None, (self.function.where, e.where))), why=e.why,
                                fix="mend its source; `log` of this error has all that the compiler said")
            told.log = e.log
            raise told from None

    @property
    def fenced(self) -> Fenced:
        """The same, held to its operands: for debugging, and as the meaning of an op."""
        f = self.function
        return Fenced(self, f"the C kernel of {f.op}", input_names(f.inputs, self.counts[0]), ["out"] if self.counts[1] == 1 else [f"out{k}" for k in range(self.counts[1])], self.prepare)

    def __call__(self, ins: Sequence[Array], outs: Sequence[Array], attrs: Mapping[str, Any]) -> None:
        call = self.prepare()
        ins = [np.ascontiguousarray(a) for a in ins]
        made = [o if o.flags.c_contiguous else np.empty(o.shape, o.dtype) for o in outs]
        banks: dict[str, list[Any]] = {"p": [], "n": [], "r": [], "": []}
        for a in self.asked:
            banks[a.bank] += a.get(ins, made, attrs)
        call((ctypes.c_void_p * (len(banks["p"]) + 1))(*banks["p"]), (ctypes.c_int64 * (len(banks["n"]) + 1))(*banks["n"]), (ctypes.c_double * (len(banks["r"]) + 1))(*banks["r"]))
        for o, m in zip(outs, made, strict=True):
            if o is not m:
                o[...] = m


@lru_cache(maxsize=256)
def _loaded(unit: str) -> Any:
    compiler = find_compiler()
    if not isinstance(compiler, Compiler):
        raise BackendMissing("a C kernel needs a C compiler", why=compiler, fix="pip install 'rlxpy[cc]'")
    library = build(unit, detect(), compiler, STRICT[compiler.family])
    try:
        call = ctypes.CDLL(str(library)).rlx_call
    except OSError as e:
        told = CompileError("the compiled kernel cannot be loaded", why=str(e).removeprefix(f"{library}: "))
        told.log = str(e)
        raise told from None
    call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), None
    return call
