"""Templates of generated source: found beside an installed package or at the root of a checkout."""
from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
INCLUDE = re.compile(r'^#include "(.+)"$\n?', re.MULTILINE)


def folder() -> Path:
    """rlxpy/templates in a wheel, templates/ beside the package in an editable install."""
    shipped = HERE / "templates"
    return shipped if shipped.is_dir() else HERE.parent / "templates"


@cache
def _environment(trim: bool = False) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from rlxpy.backends.template_code import TemplateCode

    return Environment(loader=FileSystemLoader(folder()), undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, trim_blocks=trim, auto_reload=False,
                       bytecode_cache=TemplateCode(f"{trim=}"))


def prepare() -> None:
    """Import what renders."""
    _environment()


def render(path: str, **values: Any) -> str:
    return str(_environment().get_template(path).render(**values))


def trimmed(path: str, **values: Any) -> str:
    """The same without the lines that hold only a block's {% %}."""
    return str(_environment(trim=True).get_template(path).render(**values))


@cache
def read(path: str) -> str:
    """A file that needs no rendering."""
    return (folder() / path).read_text()


def flat(path: str) -> str:
    """A file with the files that it includes in their places."""
    return INCLUDE.sub(lambda m: flat(posixpath.normpath(posixpath.join(posixpath.dirname(path), m[1]))), read(path))
