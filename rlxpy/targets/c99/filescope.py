"""What a C text declares at file scope, so that two texts in one file can be kept apart."""
from __future__ import annotations

import re
from typing import NamedTuple

from rlxpy.backends.cpu.custom import COMMENT

DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
QUOTED = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""")
ATTRIBUTE = re.compile(r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)")
TOKEN = re.compile(r"[A-Za-z_]\w*|[{}()\[\];,=]")
ENDS = frozenset(";=[{,")  # what stands behind a declared name; a parenthesis too, where a body follows
NO_NAMES = frozenset({"struct", "union", "enum"})


class Declared(NamedTuple):
    """names: of functions with a body, variables, types, tags and enumerators.  macros: those it defines."""

    names: tuple[str, ...]
    macros: tuple[str, ...]


def declared(source: str) -> Declared:
    """What is `extern`, or a function without a body, is somebody else's."""
    text = COMMENT.sub(" ", source)
    tokens = TOKEN.findall(ATTRIBUTE.sub(" ", QUOTED.sub(" ", DIRECTIVE.sub(" ", text))))
    names, statement, depth, enumerators = list[str](), set[str](), 0, False
    for k, token in enumerate(tokens):
        if token in "([{":
            enumerators = depth == 0 and token == "{" and "enum" in statement
            depth += 1
        elif token in ")]}":
            depth -= 1
            enumerators = False
        if depth == 0 and token in ";}":
            statement = set()
        elif depth == 0 and token.isidentifier():
            statement.add(token)
        if token.isidentifier() and _declares(tokens, k, depth, enumerators) and not statement & {"extern"}:
            names.append(token)
    return Declared(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(MACRO.findall(text))))


def _declares(tokens: list[str], k: int, depth: int, enumerators: bool) -> bool:
    if depth == 1 and enumerators:
        return tokens[k - 1] in "{,"
    after = tokens[k + 1] if k + 1 < len(tokens) else ""
    return depth == 0 and tokens[k] not in NO_NAMES and (after in ENDS or (after == "(" and _closed(tokens, k + 1) == "{")) and after != ""


def _closed(tokens: list[str], k: int) -> str:
    """The token behind the parenthesis that closes the one at k."""
    depth = 0
    for n in range(k, len(tokens) - 1):
        depth += {"(": 1, ")": -1}.get(tokens[n], 0)
        if depth == 0:
            return tokens[n + 1]
    return ""
