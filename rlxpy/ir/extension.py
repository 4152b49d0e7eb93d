"""Where a node's row comes from: the enum for built-ins, this registry for extensions.  A row is a row either way."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rlxpy.errors import AlreadyRegistered, BuildError, NotRegistered, nearest
from rlxpy.ir.attrs import Attrs, Custom, make
from rlxpy.ir.op import Op
from rlxpy.ir.row import OpRow


@dataclass(frozen=True, eq=False)
class OpExtension:
    """A row with a name of the form "vendor.op" (the dot keeps built-in names free).  Call it: `SOFTCAP(x, cap=30.0)`."""

    name: str
    row: OpRow

    def __call__(self, *xs: Any, **params: Any) -> Any:
        if not xs:
            raise BuildError(f"{self.name} needs a Value, whose graph it joins", fix=f"builder.custom_op({self.name!r})")
        return xs[0].apply("custom", xs, {"name": self.name, "given": make(self.row.attrs, self.name, params)})


_GLOBAL: dict[str, OpExtension] = {}
_scopes: ContextVar[tuple[dict[str, OpExtension], ...]] = ContextVar("rlxpy_ops", default=())


@contextmanager
def registry() -> Iterator[None]:
    """Ops registered inside the block are forgotten at its end; per thread and per task."""
    token = _scopes.set((*_scopes.get(), {}))
    try:
        yield
    finally:
        _scopes.reset(token)


def register_op(ext: OpExtension) -> OpExtension:
    """Register, replacing an extension of the same name.  Raises BuildError on a name without a vendor."""
    vendor, _, op = ext.name.partition(".")
    if not (vendor.isidentifier() and op.isidentifier()):
        raise BuildError(f"extension op {ext.name!r} is not named vendor.op", fix=f"name it 'yourname.{op or vendor or 'op'}'")
    (_scopes.get() or (_GLOBAL,))[-1][ext.name] = ext
    return ext


def register_op_strict(ext: OpExtension) -> OpExtension:
    """Register.  Raises AlreadyRegistered when the name is taken."""
    if is_op_registered(ext.name):
        raise AlreadyRegistered(f"op {ext.name!r} is already registered", fix="choose another name, or replace it with register_op")
    return register_op(ext)


def unregister_op(name: str) -> None:
    """Forget an op.  Raises NotRegistered."""
    for table in (*reversed(_scopes.get()), _GLOBAL):
        if table.pop(name, None) is not None:
            return
    raise _not_registered(name)


def is_op_registered(name: str) -> bool:
    return any(name in table for table in (*_scopes.get(), _GLOBAL))


def registered_ops() -> dict[str, OpExtension]:
    """Every registered extension by name, inner scopes first."""
    found = dict(_GLOBAL)
    for table in _scopes.get():
        found |= table
    return found


def extension(name: str) -> OpExtension:
    """Raises NotRegistered naming what is near."""
    for table in (*reversed(_scopes.get()), _GLOBAL):
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
