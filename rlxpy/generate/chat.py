"""A conversation as the text that a model was trained on, by the jinja2 template that comes with the model."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlxpy.errors import InputError


def render(template: str | None, messages: Sequence[Mapping[str, Any]], *, bos: str = "", eos: str = "",
           add_generation_prompt: bool = True, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The prompt for a conversation.  messages: {"role": ..., "content": ...} and whatever else the template reads, plain data;
    bos, eos: what the template calls bos_token and eos_token.  Encode the result with special=False: it brings its own marks.

    The template is untrusted: it runs sandboxed and bounded (rlxpy/generate/sandbox.py says how far).  Raises InputError without
    a template, for messages that are not plain data, and for whatever goes wrong in the template, with its line."""
    from rlxpy.generate import sandbox  # jinja2 takes as long to import as NumPy

    if not template:
        raise InputError("the model has no chat template", why=f"{len(messages)} messages meet no template",
                         fix="give the model plain text instead: --raw")
    values = {"messages": _messages(messages), "tools": _plain("tools", tools), "bos_token": bos, "eos_token": eos,
              "add_generation_prompt": add_generation_prompt}
    return sandbox.run(template, values)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    plain: list[Any] = _plain("messages", list(messages))
    for i, message in enumerate(plain):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError("a message without a role", where=f"message {i} of {len(plain)}",
                             why=f"wanted an object with a text `role`, found {message!r:.80}", fix='{"role": "user", "content": "..."}')
    return plain


def _plain(what: str, value: Any) -> Any:
    """A copy of JSON's kinds only, so that a template meets no object with methods of its own."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as e:
        raise InputError(f"{what} that are not plain data", why=f"wanted texts, numbers, lists and objects: {e}",
                         fix="turn other values into text first") from None
