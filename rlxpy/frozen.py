"""`dataclass` as in the standard library, where plain frozen classes cost a fifth: they would take half the time of importing rlxpy's compiler.

For a frozen class the standard library compiles six functions of text, one by one.  Here three are compiled, together, and the others are shared."""
from __future__ import annotations

import dataclasses
import sys
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import partial
from inspect import get_annotations
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """The standard library's decorator, and what it makes, but that no docstring is written for a class without one.

        What says more than frozen=True, or has a `field(...)`, the standard library makes."""
        if cls is None:
            return partial(dataclass, **options)
        if options == {"frozen": True} and all(map(_is_plain, (fields := _fields(cls)).values())):
            return _complete(cls, fields)
        return dataclasses.dataclass(cls, **options)


_PARAMS = vars(dataclasses.make_dataclass("Frozen", (), frozen=True))["__dataclass_params__"]  # the standard library asks for it when another class derives from one made here
METHODS = """
def methods(_store, _defaults):
    def __init__(_self{parameters}):
        {body}
    def __eq__(_self, _other):
        return ({mine}) == ({theirs}) if _other.__class__ is _self.__class__ else NotImplemented
    def __hash__(_self):
        return hash(({mine}))
    return __init__, __eq__, __hash__
"""


def _fields(cls: type) -> dict[str, Field[Any]]:
    """Its own after its bases', as the standard library finds them in a class that has nothing else."""
    given, annotations = vars(cls), get_annotations(cls)
    bare: Any = type(cls.__name__, (), {"__module__": cls.__module__, "__doc__": "fields", "__annotations__": annotations, **{k: given[k] for k in annotations if k in given}})
    dataclasses.dataclass(init=False, repr=False, eq=False)(bare)
    inherited = {name: f for base in reversed(cls.__mro__[1:]) for name, f in vars(base).get("__dataclass_fields__", {}).items()}
    return {**inherited, **bare.__dataclass_fields__}


def _is_plain(f: Field[Any]) -> bool:
    return f.init and f.repr and f.compare and f.hash is None and not f.kw_only and f.default_factory is MISSING


def _complete(cls: Any, fields: dict[str, Field[Any]]) -> Any:
    given = dict(vars(cls))
    cls.__dataclass_fields__, cls.__dataclass_params__ = fields, _PARAMS
    real = dataclasses.fields(cls)  # less class variables
    names = tuple(f.name for f in real)
    init, eq, hashed = _compiled(cls, real)
    setting, deleting = _refusals(cls, names)
    ours = {"__init__": init, "__repr__": _repr, "__eq__": eq, "__hash__": hashed, "__setattr__": setting, "__delattr__": deleting, "__match_args__": names}
    for name, method in ours.items():
        if name not in given or (name == "__hash__" and given[name] is None and "__eq__" in given):  # None is what Python puts there beside an __eq__
            setattr(cls, name, method)
    return cls


def _compiled(cls: type, fields: tuple[Field[Any], ...]) -> Any:
    """__init__, __eq__ and __hash__, in the place of the class for tracebacks and for readers of annotations."""
    defaults = {f.name: f.default for f in fields if f.default is not MISSING}
    body = [f"_store(_self, {f.name!r}, {f.name})" for f in fields] + ["_self.__post_init__()"] * hasattr(cls, "__post_init__")
    text = METHODS.format(parameters="".join(f", {f.name}=_defaults[{f.name!r}]" if f.name in defaults else f", {f.name}" for f in fields), body="; ".join(body) or "pass",
                          mine="".join(f"_self.{f.name}, " for f in fields), theirs="".join(f"_other.{f.name}, " for f in fields))
    made: dict[str, Any] = {}
    exec(text, vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}, made)
    methods = made["methods"](object.__setattr__, defaults)
    for m in methods:
        m.__qualname__ = f"{cls.__qualname__}.{m.__name__}"
    methods[0].__annotations__ = {f.name: f.type for f in fields} | {"return": None}
    return methods


def _refusals(cls: Any, names: tuple[str, ...]) -> Any:
    """A class that derives from this one, and is none of dataclass's, may have attributes of its own."""
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


@recursive_repr()
def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in dataclasses.fields(self))})"
