"""From the number of a launch to its call in C: launches that differ in addresses alone share a case, so that depth adds lines to a table and no code."""
from __future__ import annotations

import re
from collections.abc import Sequence

from rlxpy.frozen import dataclass

_OWN = re.compile(r"(?<=fixed\[)\w+(?=\])|(?<=arena \+ )\d+|(?<=state \+ )\d+|(?<=, )\d+(?=, )")  # what may differ: places, and the node that an error names


@dataclass(frozen=True)
class Task:
    """One launch: what it is, in words; C for how many tasks it has, -1 for a loop or branch, and for the call of some of them."""

    said: str
    count: str
    call: str


def dispatch(tasks: Sequence[Task]) -> tuple[str, str]:
    """C of the table rlx_launches, a row for each launch, and of the cases that its rows name.  `at` is what is a row's own."""
    alike: dict[tuple[str, str], list[int]] = {}
    for k, t in enumerate(tasks):
        alike.setdefault((t.count, _OWN.sub("@", t.call)), []).append(k)
    rows, cases, width = [""] * len(tasks), list[str](), 1
    for case, launches in enumerate(alike.values()):
        columns = list(zip(*(_OWN.findall(tasks[k].call) for k in launches), strict=True))
        differ = [len(set(column)) > 1 for column in columns]
        own = [column for column, is_own in zip(columns, differ, strict=True) if is_own]
        width = max(width, len(own))
        for i, k in enumerate(launches):
            rows[k] = f"  {{{case}, {{{', '.join(column[i] for column in own) or '0'}}}}}, /* {k}: {tasks[k].said} */\n"
        first = tasks[launches[0]]
        cases.append(f"    case {case}:\n      RLX_TASKS({first.count}, {_with_places(first.call, differ)}) break;")
    text = "".join(rows or ["  {0, {0}}\n"])  # of no launches C can make no table
    return f"static const struct {{ i64 which, at[{width}]; }} rlx_launches[] = {{\n{text}}};\n", "\n".join(cases)


def _with_places(call: str, differ: Sequence[bool]) -> str:
    """The call of all rows: at[0], at[1] ... where they differ."""
    words = iter([f"at[{sum(differ[:k])}]" if is_own else None for k, is_own in enumerate(differ)])
    return _OWN.sub(lambda m: next(words) or m[0], call)
