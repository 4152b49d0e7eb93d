"""What can be wrong with a kernel library whatever it is asked: told when it is made."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from rlxpy.errors import RegistryError
from rlxpy.extend.constraints import Constraint
from rlxpy.extend.hooks import ask
from rlxpy.extend.schema import OpSchema, schema_of
from rlxpy.ir.attrs import Attrs, field_types
from rlxpy.ir.op import Op

if TYPE_CHECKING:
    from rlxpy.extend.kernels import KernelLibrary, KernelRow

MOST_POINTS = 4096  # of a row's tunables taken together
Fits = Callable[[Any], bool]


def _text(v: Any) -> bool: return isinstance(v, str) and bool(v)
def _hook(v: Any) -> bool: return v is None or callable(v)


def _every(kind: type) -> Fits:
    return lambda v: isinstance(v, tuple) and all(isinstance(i, kind) for i in v)


LIBRARY: dict[str, tuple[Fits, str]] = {
    "name": (lambda v: _text(v) and "," not in v and "/" not in v, "a name without commas and strokes, which divide lists of libraries and rows"),
    "needs": (_every(Constraint), "a tuple of Constraints"), "ops": (_every(OpSchema), "a tuple of OpSchemas"),
}
ROW: dict[str, tuple[Fits, str]] = {
    "name": (_text, "a name"), "op": (lambda v: isinstance(v, Op), "an Op"), "launch": (lambda v: callable(v) or isinstance(v, str), "a function, or the path of a template"),
    "args": (_every(str), "a tuple of names"), "kind": (lambda v: isinstance(v, str), "a name"), "constraints": (_every(Constraint), "a tuple of Constraints"),
    "domain": (_text, "'host' or the name of a device"), "priority": (lambda v: isinstance(v, int), "a whole number"),
    **dict.fromkeys(("scratch_nbytes", "init", "fini", "replaces", "tune_valid", "describe"), (_hook, "a function")),
    "opd_shapes": (lambda v: _every(tuple)(v) and all(_every(tuple)(call) and all(_every(int)(shape) for shape in call) for call in v), "a tuple of calls, each a tuple of shapes"),
}


def check_fields(where: str, thing: Any, fields: dict[str, tuple[Fits, str]]) -> None:
    for name, (fits, wanted) in fields.items():
        if not fits(value := getattr(thing, name)):
            raise RegistryError(f"{where}: its {name} is {value!r:.80}", why=f"{wanted} is wanted", fix="docs/add_a_kernel.md shows rows")


def check_library(library: KernelLibrary, row_kind: type) -> None:
    """Of a library without its rows."""
    check_fields(f"kernel library {library.name!r}", library, {**LIBRARY, "rows": (_every(row_kind), "a tuple of KernelRows")})
    if other := [c.key for c in library.needs if not c.key.startswith("device.")]:
        raise RegistryError(f"kernel library {library.name!r} needs {other[0]!r}", why="a library is for a machine, and of that there are facts device.*", fix="ask it in a row's constraints")


def check_row(library: KernelLibrary, row: KernelRow) -> None:
    where = f"library {library.name!r}, row {row.name!r}"
    check_fields(where, row, ROW)
    for t in row.tunables:
        if t.default not in t.values:
            raise RegistryError(f"{where}: tunable {t.name} cannot be {t.default}", why=f"its values are {', '.join(map(str, t.values))}", fix="choose the default among them")
    if (points := prod(len(t.values) for t in row.tunables)) > MOST_POINTS:
        raise RegistryError(f"{where}: {points} points to tune", why=f"at most {MOST_POINTS} are tried", fix="give fewer values")
    if row.tune_valid is not None and not ask(row.name, "tune_valid", row.tune_valid, point := {t.name: t.default for t in row.tunables}):
        raise RegistryError(f"{where}: its default point cannot be launched", why=f"tune_valid({point}) is False", fix="choose other defaults")
    if row.replaces is not None and row.op is not Op.FUSED:
        raise RegistryError(f"{where}: replaces a chain but serves {row.label}", fix="make it a row of Op.FUSED with a kind of its own")
    if (row.init or row.fini) and row.domain != "host":
        raise RegistryError(f"{where}: init and fini are for the host domain", why=f"its domain is {row.domain!r}", fix="keep what it needs in scratch")
    schema = next((s for s in library.ops if (s.op, s.kind) == (row.op, row.kind)), None) or schema_of(row.op, row.kind)
    names = set(row.args or (schema.operands if schema else ()))
    for w in row.weights:
        if w.operand not in names and not _position(w.operand):
            raise RegistryError(f"{where}: lays out {w.operand!r}", why=f"its operands are {', '.join(sorted(names)) or 'not named'}", fix="name the operands in args")
    _check_constraints(where, row, names, [p.name for p in schema.params] if schema else [])


def _check_constraints(where: str, row: KernelRow, names: set[str], known: Sequence[str]) -> None:
    for c in row.constraints:
        head, dot, rest = c.key.partition(".")
        why = None
        if not dot:
            why = None if c.key in known else f"the schema of {row.label} has {', '.join(sorted(known)) or 'no parameters'}"
        elif head == "attrs" and row.op not in (Op.FUSED, Op.CUSTOM):
            fields = [*field_types(row.op.row.attrs or Attrs)]
            why = None if rest.partition("[")[0] in fields else f"{row.op.text} has {', '.join(fields) or 'none'}"
        elif row.op not in (Op.FUSED, Op.CUSTOM) and head not in ("attrs", "device", "out", *names) and not _position(head):
            why = f"its operands are {', '.join(sorted(names)) or 'not named'}"
        if why:
            raise RegistryError(f"{where}: a constraint asks for {c.key!r}", why=why, fix="`rlx why` shows what there is to ask; operands are named in args, or are in0, in1.. and out")


def _position(name: str) -> bool:
    return name.startswith("in") and name[2:].isdecimal()
