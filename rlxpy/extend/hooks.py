"""What the hooks of kernel rows give: one that fails, or gives another kind of thing, is named with its row."""
from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any

from rlxpy.errors import RegistryError, RlxError

if TYPE_CHECKING:
    from rlxpy.extend.kernels import KernelRow
    from rlxpy.ir.graph import Graph, Node

MEND = "docs/add_a_kernel.md says what each hook is given, and gives"


def ask(row: str, hook: str, f: Callable[..., Any], *args: Any) -> Any:
    """Raises RegistryError where the hook raises what is no error of ours."""
    try:
        return f(*args)
    except RlxError:
        raise
    except Exception as e:  # whatever a stranger's code raises
        raise RegistryError(f"row {row}: its {hook} failed", why=f"{type(e).__name__}: {e}", fix=MEND) from e


def scratch_nbytes(row: KernelRow, graph: Graph, node: Node) -> int:
    """Of one launch.  Raises RegistryError for what is no count of bytes."""
    if row.scratch_nbytes is None:
        return 0
    made = ask(row.name, "scratch_nbytes", row.scratch_nbytes, graph, node)
    try:
        nbytes = index(made)
    except TypeError:
        nbytes = -1
    if nbytes < 0:
        raise RegistryError(f"row {row.name}: its scratch_nbytes is {made!r}", where=node.where, why="it counts bytes, at the largest size", fix="a whole number, 0 for none")
    return nbytes
