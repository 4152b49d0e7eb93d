"""rlxpy: a graph compiler and runtime for tensor models.  Everything here is imported at first use."""
from __future__ import annotations

from typing import TYPE_CHECKING

from rlxpy.exports import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rlxpy.compiler.compiled import CompiledGraph as CompiledGraph
    from rlxpy.compiler.counting import dispatch_stats as dispatch_stats
    from rlxpy.compiler.devices import available_backends as available_backends, backend_report as backend_report
    from rlxpy.compiler.options import CompileOptions as CompileOptions, force_row as force_row
    from rlxpy.compiler.saved import load as load
    from rlxpy.compiler.session import Session as Session, compile as compile
    from rlxpy.errors import RlxError as RlxError
    from rlxpy.flow.core import ModelFlow as ModelFlow
    from rlxpy.generate.embedder import Embedder as Embedder
    from rlxpy.generate.generator import Generator as Generator
    from rlxpy.ir.builder import Builder as Builder, Value as Value
    from rlxpy.ir.dims import sym as sym
    from rlxpy.ir.dtypes import DType as DType
    from rlxpy.ir.graph import Graph as Graph
    from rlxpy.ir.op import Op as Op
    from rlxpy.ir.text import parse as parse, show as show
    from rlxpy.ir.trace import cond as cond, scan as scan, while_loop as while_loop

_HOME = {
    "Builder": "ir.builder", "CompileOptions": "compiler.options", "CompiledGraph": "compiler.compiled", "DType": "ir.dtypes",
    "Embedder": "generate.embedder", "Generator": "generate.generator", "Graph": "ir.graph", "ModelFlow": "flow.core", "Op": "ir.op",
    "RlxError": "errors", "Session": "compiler.session", "Value": "ir.builder", "available_backends": "compiler.devices",
    "backend_report": "compiler.devices", "compile": "compiler.session", "cond": "ir.trace", "dispatch_stats": "compiler.counting",
    "force_row": "compiler.options", "load": "compiler.saved", "parse": "ir.text", "scan": "ir.trace",
    "show": "ir.text", "sym": "ir.dims", "while_loop": "ir.trace",
}
__all__ = ["__version__", *_HOME]
__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
