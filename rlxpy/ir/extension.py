"""Where a node's row comes from: the enum for built-ins, this registry for extensions.  A row is a row either way."""
from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Any

from rlxpy.errors import AlreadyRegistered, BuildError, NotRegistered, nearest
from rlxpy.frozen import dataclass
from rlxpy.ir import custom_fn, hooks
from rlxpy.ir.attrs import Attrs, Custom, field_types, make
from rlxpy.ir.op import Op
from rlxpy.ir.place import Loc, caller, placed
from rlxpy.ir.row import OpRow
from rlxpy.registries import Registry


@dataclass(frozen=True, eq=False, repr=False)
class OpExtension:
    """A row with a name of the form "vendor.op" (the dot keeps built-in names free).  Call it: `SOFTCAP(x, cap=30.0)`.

    inputs   their names, for kernels and errors; those without one are x0, x1, ..
    kernels  by device, how that device runs it itself, before the lowering"""

    name: str
    row: OpRow
    inputs: tuple[str, ...] = ()
    kernels: Mapping[str, Any] = field(default_factory=dict)
    where: Loc = field(default_factory=caller)

    def __repr__(self) -> str:
        return f"OpExtension({self.name!r})"

    @placed
    def __call__(self, *xs: Any, **params: Any) -> Any:
        """Values first; what stands behind the last input is a parameter, in the order of their declaration."""
        _, most = hooks.bounds(self.row.arity)
        given, more = (xs, ()) if most is None else (xs[:most], xs[most:])
        names = [k for k in field_types(self.row.attrs) if k not in params]
        if 0 < len(more) <= len(names) and not any(hasattr(v, "apply") for v in more):
            xs, params = given, {**params, **dict(zip(names, more, strict=False))}
        owner = next((x for x in xs if hasattr(x, "apply")), None)
        if owner is None:
            raise BuildError(f"{self.name} needs a Value, whose graph it joins", why=f"it is given {', '.join(map(repr, xs))[:80] or 'nothing'}",
                             fix=f"builder.custom_op({self.name!r})")
        return owner.apply("custom", xs, {"name": self.name, "given": make(self.row.attrs, self.name, params)})


BUILT_IN = {custom_fn.NAME: OpExtension(custom_fn.NAME, custom_fn.ROW, where=Loc("rlxpy"))}  # always there, and nobody's to change


def registry(ops: Mapping[str, OpExtension] | None = None) -> AbstractContextManager[None]:
    """Ops registered inside the block, and `ops` by name, are forgotten at its end; per thread and per task."""
    return REGISTERED.block(ops)


@placed
def register_op(ext: OpExtension) -> OpExtension:
    """Register, replacing an extension of the same name.  Raises BuildError on a name without a vendor, HookMismatch on hooks that do not
    fit the row; then nothing has changed."""
    _check_extension(ext)
    check_name(ext.name)
    hooks.check(ext.name, ext.row, ext.inputs)
    REGISTERED.put(ext.name, ext)
    return ext


def _check_extension(ext: Any) -> None:
    if not isinstance(ext, OpExtension):
        raise BuildError(f"register_op takes an OpExtension, not {type(ext).__name__}", why=f"{ext!r:.80} is none", fix="OpExtension('vendor.op', OpRow(..)), or @op('vendor.op') on a function")


def check_name(name: str) -> None:
    vendor, _, op = name.partition(".") if isinstance(name, str) else ("", "", "")
    if not (vendor.isidentifier() and op.isidentifier()):
        raise BuildError(f"extension op {name!r} is not named vendor.op", fix=f"name it 'yourname.{op or vendor or 'op'}'")
    if vendor == "rlx":
        raise BuildError(f"extension op {name!r} is not yours to name", why="rlx is rlxpy's own vendor", fix=f"name it 'yourname.{op}'")


@placed
def register_op_strict(ext: OpExtension) -> OpExtension:
    """Register.  Raises AlreadyRegistered, with both places, when the name is taken."""
    _check_extension(ext)
    if is_op_registered(ext.name):
        raise AlreadyRegistered(f"op {ext.name!r} is already registered", why=f"by {extension(ext.name).where}, and now by {ext.where}",
                                fix="choose another name, or replace it with register_op")
    return register_op(ext)


def _adopt(name: str, ext: OpExtension) -> None:
    register_op_strict(ext)


REGISTERED: Registry[OpExtension] = Registry("rlxpy.ops", _adopt)


def attach(name: str, device: str, kernel: Any) -> OpExtension:
    """The registered op, registered anew with its own way to run on a device.  Raises NotRegistered."""
    known = extension(name)
    return register_op(replace(known, kernels={**known.kernels, device: kernel}))


def unregister_op(name: str) -> None:
    """Forget an op.  Raises NotRegistered."""
    if not REGISTERED.drop(name):
        raise _not_registered(name)


def is_op_registered(name: str) -> bool:
    return any(name in table for table in (*REGISTERED.tables(), BUILT_IN))


def registered_ops() -> dict[str, OpExtension]:
    """Every registered extension by name, inner scopes first."""
    return REGISTERED.found()


def extension(name: str) -> OpExtension:
    """Raises NotRegistered naming what is near."""
    for table in (*reversed(REGISTERED.tables()), BUILT_IN):
        if name in table:
            return table[name]
    raise _not_registered(name)


def _not_registered(name: str) -> NotRegistered:
    return NotRegistered(f"op {name!r} is not registered", why=f"near it: {nearest(name, list(registered_ops()))}", fix="import the package that registers it")


def lookup(op: Op, attrs: Attrs) -> OpRow:
    """Passes and backends never ask whether an op is built in."""
    return extension(attrs.name).row if isinstance(attrs, Custom) else op.row


def label(op: Op, attrs: Attrs) -> str:
    """What a person calls the op: its name, an extension's name, a fused node's kind."""
    return str(getattr(attrs, "name", op.text)) if op is Op.CUSTOM else f"fused {getattr(attrs, 'kind', '')}" if op is Op.FUSED else op.text
