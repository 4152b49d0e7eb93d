"""A first version of a downstream package, with tests that pass: an op, a model, a kernel or a backend, from templates/scaffold."""
from __future__ import annotations

import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path

from rlxpy.backends.templates import render
from rlxpy.errors import InputError
from rlxpy.frozen import dataclass

TAKEN = frozenset({"rlxpy", "numpy", "pytest"}) | sys.stdlib_module_names  # a package of that name would stand before the other


@dataclass(frozen=True)
class Kind:
    """group, entry: the entry point by which rlxpy finds it, and what it names in the module; vendored: whether its name is vendor.name."""

    name: str
    what: str
    group: str = ""
    entry: str = ""
    vendored: bool = False


KINDS = {k.name: k for k in (
    Kind("op", "The op", "rlxpy.ops", "", True),
    Kind("model", "The block"),
    Kind("kernel", "The kernel", "rlxpy.kernels", ":LIBRARY", True),
    Kind("backend", "The backend", "rlxpy.backends", ":{n.camel}"),
)}


@dataclass(frozen=True)
class Name:
    """One name as the parts of a package spell it: acme.softcap, softcap, Softcap, acme_softcap."""

    vendor: str
    snake: str
    camel: str
    module: str

    @property
    def dotted(self) -> str:
        return f"{self.vendor}.{self.snake}" if self.vendor else self.snake


def name_for(kind: Kind, text: str) -> Name:
    """HTTPGate, gated_mlp, gated-mlp, acme.softcap.  Raises InputError for what cannot be a name in Python and of a package."""
    vendor, dot, own = text.rpartition(".")
    for part in (own, *((vendor,) if dot else ())):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", part):
            raise InputError(f"{text!r} is no name for a new {kind.name}", why=f"{part!r} is not letters, digits and _ after a letter", fix="as in gated_mlp, HTTPGate or acme.softcap")
    snake, vendor = _snake(own), _snake(vendor)
    camel = own if own[0].isupper() and "_" not in own and "-" not in own else "".join(w[:1].upper() + w[1:] for w in snake.split("_"))
    if words := [w for w in (vendor, snake, *(() if kind.vendored else (camel,))) if keyword.iskeyword(w)]:
        other = f"my_{vendor}.{snake}" if vendor in words else _other(vendor, snake)
        raise InputError(f"{text!r} is no name for a new {kind.name}", why=f"{words[0]} is a word of Python", fix=other)
    if vendor == "rlx":
        raise InputError(f"{text!r} is no name for a new {kind.name}", why="rlx is rlxpy's own vendor", fix=f"mine.{snake}")
    if kind.vendored and not vendor:
        vendor = "mine"
    module = "_".join(filter(None, (vendor, snake)))
    if module in TAKEN:
        raise InputError(f"{text!r} is no name for a new {kind.name}", why=f"its module would hide {module}, which Python or rlxpy imports", fix=_other(vendor, snake))
    return Name(vendor, snake, camel, module)


def _other(vendor: str, snake: str) -> str:
    """A name like one that cannot be had."""
    return ".".join(filter(None, (vendor, f"my_{snake}")))


def free(kind: Kind, name: Name) -> Name:
    """The name, where its module may use it.  Raises InputError where it means something there already."""
    from rlxpy import extend
    from rlxpy.compiler.devices import known
    from rlxpy.extend.libraries import BUILTIN

    used = {*extend.__all__, "np", "dataclass", "flow"} & {name.snake, name.camel if kind.name in ("model", "backend") else name.snake}
    if used:
        raise InputError(f"{name.dotted!r} is no name for a new {kind.name}", why=f"its module uses {used.pop()} otherwise", fix=_other(name.vendor, name.snake))
    if kind.name == "kernel" and name.vendor in (BUILTIN, *known()):
        raise InputError(f"{name.dotted!r} is no name for a new kernel", why=f"{name.vendor} is what bundled kernels are called", fix=f"mine.{name.snake}")
    if kind.name == "backend" and name.snake in known():
        raise InputError(f"{name.dotted!r} is no name for a new backend", why=f"there is a device {name.snake}", fix="choose another name: device names are open")
    return name


def _snake(text: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text.replace("-", "_")).lower().strip("_")


def vocabulary(kind: Kind) -> tuple[str, ...]:
    """What there is already of a kind."""
    from rlxpy.compiler.devices import known
    from rlxpy.flow.ctx import FlowCtx
    from rlxpy.flow.families import DECODERS, ENCODERS
    from rlxpy.ir import functions
    from rlxpy.tools.op_table import op_table

    if kind.name == "backend":
        return tuple(known())
    if kind.name == "model":
        return (*DECODERS, *ENCODERS, *(m for m in vars(FlowCtx) if not m.startswith("_")))
    composed = [n for n, f in vars(functions).items() if callable(f) and not n.startswith("_") and getattr(f, "__module__", "") == functions.__name__]
    return tuple(dict.fromkeys([*(f.name for f in op_table()), *composed]))


def near(name: Name, names: Iterable[str]) -> tuple[str, ...]:
    """Existing names that are alike, the closest first: there may be no need for a new one."""
    by_own = {n.rpartition(".")[2]: n for n in names}
    alike = get_close_matches(name.snake, by_own, 5, 0.6)
    return tuple(by_own[n] for n in dict.fromkeys([*alike, *(n for n in by_own if len(n) > 3 and len(name.snake) > 2 and (n in name.snake or name.snake in n))]))[:5]


def files(kind: Kind, name: Name, *, route: str = "lower", serves: str = "") -> dict[str, str]:
    """What a new package holds, by path below its folder.  route: of an op; serves: the op that a kernel runs."""
    values = {"n": name, "kind": kind, "route": route, "serves": serves}
    parts = {f"{name.module}.py": f"{kind.name}.py.j2", f"test_{name.module}.py": f"{kind.name}_test.py.j2", "pyproject.toml": "pyproject.toml.j2"}
    return {path: _tidy(render(f"scaffold/{template}", **values)) for path, template in parts.items()}


def _tidy(text: str) -> str:
    """Without the blank lines that conditions of a template leave."""
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n") + "\n"


def write(made: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """A new folder, there when it is complete.  Raises InputError where something is there already, or it cannot be made."""
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{str(folder)!r} is there already", why="a new package overwrites nothing", fix="choose another name or --into another folder, or print it with --stdout")
    unfinished = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        for path, text in made.items():
            (unfinished / path).write_text(text, "utf-8")
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except OSError as e:
        raise InputError(f"cannot write {str(folder)!r}", why=e.strerror or str(e), fix="name a folder that you may write to: --into FOLDER") from None
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
    return tuple(folder / path for path in made)
