"""A jinja2 environment for templates out of model files, which nobody has vetted: no way out, and bounded.

Bounded, for one rendering: loop turns and macro calls, by MAX_SECONDS looked at on each; the text that outputs, operators, filters
and methods build, by MAX_NCHARS charged before it is built; `range`, by jinja2's 100,000.  Not bounded beyond that: the time of
one filter or method on the text it is given, and memory held by many slices of a long text.
Nothing can be imported, included, called or read but the values handed in, and those cannot be changed."""
from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, reduce, wraps
from traceback import walk_tb
from types import CodeType
from typing import Any, NoReturn

from jinja2 import Template, TemplateRuntimeError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from rlxpy.errors import InputError

MAX_TEMPLATE_NCHARS = 1 << 18  # the longest in use has some 30,000
MAX_NCHARS = 1 << 27    # a prompt of a million tokens has some 5 million characters
MAX_SECONDS = 10.0
MAX_PARTS = 1 << 20     # of one value that is written out
MAX_INDENT = 64         # of tojson
TOO_MUCH = MAX_NCHARS + 1
TEMPLATE = "<chat template>"

# What pads or pretty-prints to any width, and no chat template needs.
_REFUSED_FILTERS = ("batch", "center", "filesizeformat", "forceescape", "pprint", "random", "slice", "striptags", "urlencode", "urlize",
                    "wordwrap", "xmlattr")
_OWN_KEYWORDS = ("_loop_vars", "_block_vars")  # jinja2 adds these to calls and takes them away again
_REFUSED_METHODS = ("center", "encode", "expandtabs", "format_map", "ljust", "rjust", "translate", "zfill")


def run(template: str, values: Mapping[str, Any]) -> str:
    """Renders it.  Raises InputError, with the template's line, for whatever goes wrong in it."""
    try:
        environment = Sandbox()
        return Template.from_code(environment, _code(template), environment.make_globals(None)).render(values)
    except Exception as e:  # a template may raise anything
        raise InputError("the chat template failed", where=_place(template, e), why=f"{type(e).__name__}: {e!s:.400}",
                         fix="look at the messages and the template, or give the model plain text instead: --raw") from e


@lru_cache(maxsize=16)
def _code(template: str) -> CodeType:
    if len(template) > MAX_TEMPLATE_NCHARS:
        raise TemplateRuntimeError(f"its {len(template)} characters exceed {MAX_TEMPLATE_NCHARS}")
    return Sandbox().compiled(template)


def _place(template: str, error: Exception) -> str:
    """The line of the template that an error comes from."""
    numbers = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code.co_filename == TEMPLATE]
    line = getattr(error, "lineno", None) or (numbers[-1] if numbers else 0)
    text = dict(enumerate(template.splitlines(), 1)).get(line)
    return "the template" if text is None else f"line {line} of the template: {text.strip()[:100]}"


class Sandbox(ImmutableSandboxedEnvironment):
    """One rendering, with what it has spent.  Options and extras are those that templates on the Hugging Face hub expect: trimmed
    blocks, break and continue, {% generation %}, raise_exception, strftime_now, and a tojson that leaves characters alone."""

    intercepted_binops = frozenset(("+", "*", "**", "//", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation], finalize=self.written)
        self.deadline = time.monotonic() + MAX_SECONDS
        self.nchars = 0
        del self.globals["lipsum"]
        self.globals.update(raise_exception=raise_exception, strftime_now=self.strftime_now)
        self.filters["tojson"] = self.tojson
        self.filters = {name: self._charged(name, call) for name, call in self.filters.items() if name not in _REFUSED_FILTERS}

    def spend(self, nchars: int = 0) -> bool:
        """Charges for characters about to be built.  Always true, so that it can stand in a condition."""
        self.nchars += nchars
        if self.nchars > MAX_NCHARS:
            raise TemplateRuntimeError(f"it builds more than {MAX_NCHARS} characters")
        if time.monotonic() > self.deadline:
            raise TemplateRuntimeError(f"it runs for more than {MAX_SECONDS:g} seconds")
        return True

    def written(self, value: Any) -> Any:
        self.spend(_written(value))
        return value

    def strftime_now(self, form: str) -> str:
        self.spend(_formatted(form))
        return datetime.now().strftime(form)

    def tojson(self, value: Any, ensure_ascii: bool = False, indent: int | str | None = None, separators: tuple[str, str] | None = None,
               sort_keys: bool = False) -> str:
        if isinstance(indent, int) and not 0 <= indent <= MAX_INDENT:
            raise TemplateRuntimeError(f"tojson(indent={indent}) is not from 0 to {MAX_INDENT}")
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return "".join(chunk for chunk in encoder.iterencode(value) if self.spend(len(chunk)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.spend(_OPERATORS[operator](left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # other names may be the template's
        method = getattr(__obj, "__wrapped__", __obj)  # str.format comes wrapped by jinja2
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, int | float | bytes) or (isinstance(owner, str) and name in _REFUSED_METHODS):
            raise SecurityError(f"{type(owner).__name__}.{name} is not for templates")
        args, named = _listed(args), {key: value for key, value in kwargs.items() if key not in _OWN_KEYWORDS}
        __self.spend(_GROWTH.get(name, _taken)(owner, *args, **named) if isinstance(owner, str) else 0)
        return super().call(__context, __obj, *args, **kwargs)

    def _charged(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        growth = _join if name == "join" else _GROWTH.get(name, _taken)
        first = 1 if hasattr(call, "jinja_pass_arg") else 0  # jinja2 puts its context before the value

        @wraps(call)
        def charged(*args: Any, **kwargs: Any) -> Any:
            args = _listed(args)
            self.spend(growth(*args[first:], **kwargs))
            return call(*args, **kwargs)

        return charged

    def compiled(self, source: str) -> CodeType:
        """The template's code, with a charge before each loop turn and in each macro."""
        tree: nodes.Template = _Added().visit(self.parse(source))
        blocks: list[Any] = [*tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]
        for block in blocks:
            static = sum(len(text.data) for text in block.find_all(nodes.TemplateData))
            charge = nodes.Call(nodes.EnvironmentAttribute("spend"), [nodes.Const(1 + static)], [], None, None)
            block.body.insert(0, nodes.ExprStmt(charge))
            if isinstance(block, nodes.For) and block.test is not None:
                block.test = nodes.And(charge, block.test)
            block.set_lineno(block.lineno)
        tree.set_environment(self)
        return self.compile(tree, filename=TEMPLATE)


class Generation(Extension):
    """{% generation %} marks the assistant's words for training; here it stands for its contents."""

    tags = Extension.tags | {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Added(NodeTransformer):
    """a ~ b as a|string + b|string, which is charged for."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        parts: list[nodes.Expr] = [nodes.Filter(self.visit(part), "string", [], [], None, None) for part in node.nodes]
        joined = reduce(nodes.Add, parts)
        joined.set_lineno(node.lineno)
        return joined


def raise_exception(message: str) -> NoReturn:
    raise TemplateRuntimeError(message)


def _listed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Lazy sequences as lists, whose size can be told."""
    return tuple(list(a) if isinstance(a, Iterator) else a for a in args)


def _length(value: Any) -> int:
    if isinstance(value, int):
        return 1 + value.bit_length() // 3  # about its digits
    return len(value) if isinstance(value, str | list | tuple | Mapping) else 1


def _taken(*args: Any, **kwargs: Any) -> int:
    """Most filters and methods build no more than they take."""
    return sum(map(_length, (*args, *kwargs.values())))


def _written(value: Any) -> int:
    """About how many characters a value is when written out; one of more than MAX_PARTS parts is too much."""
    total, waiting = 0, [value]
    for _ in range(MAX_PARTS):
        if not waiting:
            return total
        part = waiting.pop()
        total += _length(part)
        if isinstance(part, list | tuple):
            waiting.extend(part)
        elif isinstance(part, Mapping):
            waiting.extend((*part.keys(), *part.values()))
    return TOO_MUCH


def _join(items: Any, separator: Any = "", attribute: Any = None) -> int:
    return _written(items) + _length(items) * _length(separator)


def _replace(text: Any, old: str = "", new: str = "", count: int = -1) -> int:
    return len(str(text)) + str(text).count(old) * len(new)


def _indent(text: Any, width: int | str = 4, *options: bool, **named: bool) -> int:
    return len(str(text)) + (1 + str(text).count("\n")) * (width if isinstance(width, int) else len(width))


def _formatted(form: Any, *args: Any, **kwargs: Any) -> int:
    """Each field may write every argument, padded to the widths in the form; a width from an argument is refused."""
    text = str(form)
    if re.search(r"%[^a-zA-Z%]*\*|\{[^{}:]*:[^{}]*\{", text):
        return TOO_MUCH
    widths = sum(int(digits) if len(digits) < 9 else TOO_MUCH for digits in re.findall("[0-9]+", text))
    return len(text) + widths + (text.count("%") + text.count("{")) * _written([*args, *kwargs.values()])


def _split(text: str, separator: str | None = None, maxsplit: int = -1) -> int:
    """A piece takes some 60 bytes beside its characters."""
    count = 1 + (text.count(separator) if separator else len(text) // 2)
    return len(text) + 60 * (count if maxsplit < 0 else min(count, maxsplit + 1))


def _both(left: Any, right: Any) -> int:
    """Multiplying or dividing long numbers takes the product of their lengths in time."""
    return _length(left) * _length(right) if isinstance(left, int) and isinstance(right, int) else _length(left) + _length(right)


def _times(left: Any, right: Any) -> int:
    text, count = (right, left) if isinstance(left, int) else (left, right)
    return _length(text) * max(count, 0) if isinstance(text, str | list | tuple) and isinstance(count, int) else _both(left, right)


def _power(base: Any, exponent: Any) -> int:
    return int((_length(base) * max(exponent, 0)) ** 2) if isinstance(base, int) and isinstance(exponent, int) else 1


_GROWTH: dict[str, Callable[..., int]] = {  # of filters and of methods of text, by name
    "format": _formatted,
    "indent": _indent,
    "int": lambda value, default=0, base=10: len(value) ** 2 if isinstance(value, str) else 1,
    "join": lambda separator, items: _join(items, separator),
    "replace": _replace,
    "round": lambda value, precision=0, method="common": _power(10, precision),
    "rsplit": _split,
    "split": _split,
    "splitlines": lambda text, keepends=False: _split(text),
    "string": _written,
}

_OPERATORS: dict[str, Callable[[Any, Any], int]] = {
    "+": lambda left, right: _length(left) + _length(right),
    "*": _times,
    "**": _power,
    "//": _both,
    "%": lambda left, right: _formatted(left, right) if isinstance(left, str) else _both(left, right),
}
