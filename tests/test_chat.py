"""Chat templates give the text a model was trained on, cannot leave their box, and end in bounded time with an error of ours."""
from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rlxpy.errors import InputError
from rlxpy.flow.weights import open_weights
from rlxpy.generate import sandbox
from rlxpy.generate.chat import render
from rlxpy.generate.tokenizer import Tokenizer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>Grüße</b> & \"co\""},
            {"role": "assistant", "content": "Hallo."}, {"role": "user", "content": "Bye"}]
ONE = MESSAGES[1:2]


def text(template: str, messages: Any = ONE, **more: Any) -> str:
    return render(template, messages, bos="<s>", eos="</s>", **more)


# What models expect.

def test_smollm2_prompt(smollm2_gguf: Path) -> None:
    """Written by hand from the model card's format."""
    tokenizer = Tokenizer.from_gguf(open_weights(smollm2_gguf).metadata)
    france = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = render(tokenizer.chat_template, france, bos=tokenizer.bos, eos=tokenizer.eos)
    assert prompt == ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                      "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert render(tokenizer.chat_template, MESSAGES, bos="", eos="", add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>Grüße</b> & \"co\"<|im_end|>\n"
        "<|im_start|>assistant\nHallo.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n")
    user_turn = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    assert tokenizer.encode(prompt, special=False)[-len(user_turn):] == user_turn


@pytest.mark.parametrize(("template", "expected"), [
    ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s><b>Grüße</b> & \"co\"</s>"),        # nothing is escaped for HTML
    ("{{ messages | tojson }}", '[{"role": "user", "content": "<b>Grüße</b> & \\"co\\""}]'),
    ("{{ {'b': 1, 'a': [2]} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'),
    ("{{ {'b': 'ü', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}", '{"a":1,"b":"\\u00fc"}'),
    ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),                                            # trimmed blocks, one last newline
    ("{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}", "user"),
    ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "023"),
    ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
    ("{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call m(1) %}c{% endcall %}", "[1c]"),
    ("{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}", "123"),
    ("{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}", "none"),
    ("{{ 'a' ~ 1 ~ none ~ [2] }}|{{ 'x' * 3 }}|{{ [1] + [2] }}|{{ 2 ** 10 }}|{{ 7 % 4 }}|{{ '%03d' % 7 }}",
     "a1None[2]|xxx|[1, 2]|1024|3|007"),
    ("{{ '%s-%s' | format('a', 'b') }}|{{ '{}-{:>3}'.format(1, 2) }}|{{ 'aXbX'.replace('X', '--') }}|{{ 'aXbX' | replace('X', '-', 1) }}",
     "a-b|1-  2|a--b--|a-bX"),
    ("{{ messages | map(attribute='role') | join(', ') }}|{{ '+'.join(['a', 'b']) }}|{{ ['a', 1] | join }}", "user|a+b|a1"),
    ("{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', maxsplit=1)[-1] }}{{ 'a\nb'.splitlines() }}{{ 'a b'.split() }}",
     "['a', 'b,c']c['a', 'b']['a', 'b']"),
    ("{{ '12' | int + 3 // 2 }}|{{ 2.345 | round(1) }}|{{ 2.345 | round(1, 'ceil') }}|{{ -7 // 2 }}|{{ 2 ** -1 }}|{{ 2.5 * 2 }}",
     "13|2.3|2.4|-4|0.5|5.0"),
    ("{{ 'a\nb' | indent(2) }}{{ 'c\nd' | indent(width='>') }}", "a\n  bc\n>d"),
    ("{{ 'A b '.strip().lower() }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|{{ x | default('d') }}",
     "a b|1|d"),
    ("{% for m in messages %}{{ m.content.replace('b', 'q').split('>') | join('+') }}{{ '{x}'.format(x=m.role) }}{% endfor %}",
     "<q+Grüße</q+ & \"co\"user"),
    ("{% macro f(x) %}{{ x.upper() }}{{ '-'.join([x, x]) }}{% endmacro %}{% for i in range(2) %}{{ f('a') }}{% endfor %}", "Aa-aAa-a"),
    ("{{ undefined_name }}{{ messages[0].tool_calls }}{{ tools is none }}{{ add_generation_prompt }}", "TrueTrue"),
])
def test_what_templates_use(template: str, expected: str) -> None:
    assert text(template) == expected
    assert text(template) == expected  # again, from the kept code


def test_tools_and_the_date() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert text("{{ tools[0].function.name }}{{ add_generation_prompt }}", tools=tools, add_generation_prompt=False) == "addFalse"
    assert text("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_messages_are_left_as_they_were() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    with pytest.raises(InputError):
        text("{{ messages[0].content.append(1) }}", messages)
    with pytest.raises(InputError):
        text("{{ messages[0].update(role='x') }}", messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "x"}]}]


# What goes wrong, and where.

@pytest.mark.parametrize(("template", "line", "told"), [
    ("a\n{{ raise_exception('only users speak') }}", 2, "only users speak"),
    ("a\nb\n{{ messages.foo.bar }}", 3, "no attribute 'foo'"),
    ("a\n\n{% if %}", 3, "Expected an expression"),
    ("a\n{{ 1 | nosuch }}", 2, "nosuch"),
    ("\n{% for m in messages %}\n{{ m.content + 1 }}\n{% endfor %}", 3, "str"),
    ("{% macro f() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ f() }}", 2, "division by zero"),
    ("{{ 1 }}\n{% include 'other' %}", 2, "no loader"),
    ("{{ messages[0].content | tojson(indent=65) }}", 1, "from 0 to 64"),
])
def test_an_error_names_the_line(template: str, line: int, told: str) -> None:
    with pytest.raises(InputError) as caught:
        text(template)
    assert caught.value.where.startswith(f"line {line} of the template: {template.splitlines()[line - 1].strip()}")
    assert told in caught.value.why
    assert caught.value.fix


@pytest.mark.parametrize("template", [
    "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "{% if true %}" * 200 + "{% endif %}" * 200,
    "{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "{{ '" + "a" * 300_000 + "' }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% block a %}{{ self.a() }}{% endblock %}",
    "{{ [1] | sort(attribute='a.' * 9) | tojson }}{{ {1: 2}.x.y }}", "{{ (1, 2) | sum('a') }}", "{{ range(10 ** 6) }}",
    "{{ namespace() | tojson }}", "{% extends 'x' %}", "{% from 'x' import y %}"])
def test_any_failure_inside_is_ours(template: str) -> None:
    with pytest.raises(InputError, match="the chat template failed"):
        text(template)


@pytest.mark.parametrize("template", [None, ""])
def test_without_a_template_the_error_tells_of_plain_text(template: str | None) -> None:
    with pytest.raises(InputError, match="--raw"):
        render(template, ONE, bos="", eos="")


@pytest.mark.parametrize(("messages", "told"), [
    ([{"content": "x"}], "message 0 of 1"), ([{"role": "user"}, "x"], "message 1 of 2"), ([{"role": 3}], "text `role`"),
    ([{"role": "user", "content": object()}], "not plain data"), ([{"role": "user", "content": b"x"}], "not plain data")])
def test_messages_that_are_none(messages: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        text("x", messages)


def test_a_message_that_holds_itself_is_refused() -> None:
    message: dict[str, Any] = {"role": "user"}
    message["content"] = message
    with pytest.raises(InputError, match="not plain data"):
        text("x", [message])


# The box.

@pytest.mark.parametrize("template", [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__class__.__base__ }}", "{{ messages|attr('__class__') }}{{ 1/0 }}",
    "{{ raise_exception.__globals__['__builtins__'] }}", "{{ strftime_now.__self__.filters }}",
    "{{ strftime_now.__func__.__globals__.json }}",
    "{{ '{0.__class__.__base__}'.format(1) }}", "{{ '{0.__class__}'.format_map({'0': 1}) }}", "{{ self.__init__.__globals__.os }}",
    "{{ cycler.__init__.__globals__.os }}", "{{ lipsum.__globals__.os }}", "{{ namespace.__init__.__globals__.os }}",
    "{{ joiner('a').__init__.__globals__.os }}", "{{ messages | map(attribute='__class__') | list | first | string }}{{ 1/0 }}",
    "{{ environment.filters.x }}", "{{ spend(-10**12) }}", "{{ messages[0].__setitem__('role', 'x') }}", "{{ dict.__subclasses__() }}",
    "{{ range.__init__.__class__() }}", "{{ (1).to_bytes(9, 'big') }}", "{{ 'a'.encode() }}", "{{ [].append(1) }}", "{{ {}.clear() }}",
    "{% set messages[0].role = 'x' %}", "{{ caller.__globals__.x }}", "{{ [messages] | map('attr', 'append') | first | string }}{{ 1/0 }}"])
def test_there_is_no_way_out(template: str) -> None:
    """Each asks for something outside: an error, and nothing from outside in it."""
    with pytest.raises(InputError) as caught:
        text(template)
    assert not any(word in caught.value.why for word in ("<class 'object'>", "<module", "<function"))


def test_reaching_for_python_gives_nothing() -> None:
    for template in ("{{ messages|attr('__class__') }}", "{{ messages | map(attribute='__class__') | list | first | string }}"):
        assert text(template) == ""


NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
GROWN = "{% set n = namespace(x='aaaaaaaa', l=['a']) %}{% for i in range(60) %}BODY{% endfor %}{{ n.x | length }}"


@pytest.mark.parametrize("template", [
    NESTED.replace("BODY", ""), NESTED.replace("99999) %}BODY", "99999) if false %}BODY"), NESTED.replace("BODY", "{% set x = 1 %}"),
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in range(9999) recursive %}{{ loop(range(9999)) if loop.depth < 9 }}{% endfor %}",
    GROWN.replace("BODY", "{% set n.l = [n.l, n.l] %}") + "{{ n.l | tojson }}",
])
def test_endless_templates_end(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"more than 0\.3 seconds|more than 134217728 characters"):
        text(template)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("template", [
    "{{ 'a' * 10 ** 10 }}", "{{ ('a' * 10 ** 10) | length }}", "{{ 10 ** 10 * [1] }}", "{{ 2 ** (10 ** 9) }}", "{{ 'a' * 9999999999 }}",
    "{{ '%1000000000d' % 1 }}", "{{ '%1000000000d' | format(1) }}", "{{ '%*d' | format(10 ** 9, 1) }}", "{{ '%.*f' % (10 ** 9, 1) }}",
    "{{ '{:>1000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 10 ** 9) }}", "{{ strftime_now('%1000000000d') }}",
    "{{ '{0}{0}{0}{0}{0}{0}{0}{0}{0}{0}'.format('a' * 10 ** 6) }}",
    "{{ 'a' | indent(10 ** 9, true) }}", "{{ 'a' | indent(width=10 ** 9, first=true) }}",
    "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) | length }}", "{{ ('a' * 10 ** 6) | replace('a', 'b' * 10 ** 6) | length }}",
    "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) | length }}", "{{ (['a' * 10 ** 6] * 1000) | join | length }}",
    "{{ ''.join(['a' * 10 ** 6] * 1000) | length }}", "{{ ('a' * 10 ** 6).join(['b'] * 1000) | length }}",
    "{{ (['a' * 10 ** 6] * 1000) | string | length }}", "{{ (['a' * 10 ** 6] * 1000) ~ '' }}", "{{ ['a' * 10 ** 6] * 1000 }}",
    "{{ (['a' * 10 ** 6] * 1000) | map('upper') | join | length }}",
    "{{ 10 ** (10 ** 6) }}", "{{ 1.5 | round(10 ** 9, 'floor') }}", "{{ ('0x' + 'f' * 10 ** 5) | int(base=16) }}",
    "{{ ('a,' * 10 ** 6).split(',') | length }}", "{{ ('a ' * 10 ** 6).split() | length }}",
    GROWN.replace("BODY", "{% set n.x = n.x ~ n.x %}"), GROWN.replace("BODY", "{% set n.x = n.x + n.x %}"),
    GROWN.replace("BODY", "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}"), GROWN.replace("BODY", "{% set n.x = [n.x, n.x] | join %}"),
    GROWN.replace("BODY", "{% set n.x = '%s%s' % (n.x, n.x) %}"), GROWN.replace("BODY", "{% set n.x = n.x.replace('a', 'aa') %}"),
    GROWN.replace("BODY", "{% set n.l = [n.l, n.l] %}") + "{{ n.l }}",
    GROWN.replace("BODY", "{% set n.l = {'a': n.l, 'b': n.l} %}") + "{{ n.l ~ '' }}",
    "{% for i in range(99999) %}" + "a" * 9999 + "{% endfor %}",
    "{% macro m() %}" + "a" * 9999 + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
])
def test_growing_templates_end(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_NCHARS", 1 << 22)
    start = time.monotonic()
    with pytest.raises(InputError, match="more than 4194304 characters"):
        text(template)
    assert time.monotonic() - start < 5


def test_one_rendering_does_not_charge_the_next() -> None:
    template = "{{ ('a' * 50000000) | length }}"
    assert [text(template) for _ in range(5)] == ["50000000"] * 5


def test_a_long_conversation_is_within_bounds() -> None:
    messages = [{"role": "user", "content": "word " * 1000}] * 500  # 2.5 million characters
    template = ("{% for m in messages %}{{ '<' ~ m.role ~ '>' + m['content'] | trim + eos_token }}{% endfor %}"
                "{{ messages | tojson | length }}")
    found = text(template, messages)
    assert found.startswith("<user>word word")
    assert found.count("</s>") == 500
