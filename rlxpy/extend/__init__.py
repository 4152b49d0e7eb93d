"""The surface for downstream packages: `from rlxpy.extend import *` is everything one needs to add to rlxpy.

Names are imported at first use, so that this layer does not import those above it."""
from __future__ import annotations

from typing import TYPE_CHECKING

from rlxpy.exports import lazy

if TYPE_CHECKING:
    from rlxpy.backends.custom import register_cpu_kernel as register_cpu_kernel
    from rlxpy.backends.gpu.assembly import RocmAsmKernel as RocmAsmKernel
    from rlxpy.backends.gpu.raw import (
        CudaGpuKernel as CudaGpuKernel,
        RocmGpuKernel as RocmGpuKernel,
        register_gpu_kernel as register_gpu_kernel,
    )
    from rlxpy.backends.host import with_host as with_host
    from rlxpy.backends.reference import HostGraph as HostGraph
    from rlxpy.errors import BuildError as BuildError, CustomOpError as CustomOpError, InputError as InputError, RlxError as RlxError
    from rlxpy.extend.backend import (
        Backend as Backend,
        BackendSpec as BackendSpec,
        Device as Device,
        ExecutableGraph as ExecutableGraph,
        supported_ops as supported_ops,
    )
    from rlxpy.extend.devices import backend_registry as backend_registry, register_backend as register_backend
    from rlxpy.extend.kernels import (
        ABI_VERSION as ABI_VERSION,
        Choice as Choice,
        Constraint as Constraint,
        KernelLibrary as KernelLibrary,
        KernelRow as KernelRow,
        KernelSearchPath as KernelSearchPath,
        LayoutAnswer as LayoutAnswer,
        Tunable as Tunable,
        WeightLayout as WeightLayout,
    )
    from rlxpy.extend.libraries import (
        kernel_registry as kernel_registry,
        register_kernel_library as register_kernel_library,
        unregister_kernel_library as unregister_kernel_library,
    )
    from rlxpy.extend.passes import (
        Note as Note,
        NotingPass as NotingPass,
        Pass as Pass,
        pass_registry as pass_registry,
        register_ir_pass as register_ir_pass,
        unregister_ir_pass as unregister_ir_pass,
    )
    from rlxpy.extend.plan import Plan as Plan
    from rlxpy.extend.quantisers import (
        Quantiser as Quantiser,
        Rtn as Rtn,
        quantiser_registry as quantiser_registry,
        register_quantiser as register_quantiser,
        unregister_quantiser as unregister_quantiser,
    )
    from rlxpy.extend.schema import OpSchema as OpSchema, Param as Param
    from rlxpy.extend.target import (
        Example as Example,
        Target as Target,
        register_target as register_target,
        target_registry as target_registry,
    )
    from rlxpy.flow.core import BuiltModel as BuiltModel, LayerStage as LayerStage, ModelFlow as ModelFlow, StageArtifacts as StageArtifacts
    from rlxpy.flow.ctx import FlowCtx as FlowCtx
    from rlxpy.flow.weights import Rounded as Rounded, open_weights as open_weights
    from rlxpy.fusion.canonicalise import Canonicalise as Canonicalise
    from rlxpy.fusion.rebuild import rebuild as rebuild
    from rlxpy.ir.attrs import Attrs as Attrs
    from rlxpy.ir.builder import Builder as Builder, Value as Value
    from rlxpy.ir.custom_fn import custom_fn as custom_fn
    from rlxpy.ir.define import declare_op as declare_op, op as op
    from rlxpy.ir.dims import Dim as Dim, Shape as Shape, sym as sym
    from rlxpy.ir.dtypes import DType as DType
    from rlxpy.ir.encoding import (
        Encoding as Encoding,
        Field as Field,
        Level as Level,
        Plane as Plane,
        encoding_registry as encoding_registry,
        number as number,
        planar as planar,
        register_encoding as register_encoding,
        stream as stream,
        unregister_encoding as unregister_encoding,
    )
    from rlxpy.ir.extension import (
        OpExtension as OpExtension,
        is_op_registered as is_op_registered,
        register_op as register_op,
        register_op_strict as register_op_strict,
        registry as registry,
        unregister_op as unregister_op,
    )
    from rlxpy.ir.graph import Graph as Graph, Node as Node
    from rlxpy.ir.op import Op as Op
    from rlxpy.ir.pattern import RuleSet as RuleSet, rules as rules, var as var
    from rlxpy.ir.quantize import quantize as quantize
    from rlxpy.ir.row import OpRow as OpRow, Why as Why
    from rlxpy.ir.types import TensorType as TensorType
    from rlxpy.plugins import Declined as Declined
    from rlxpy.tools.check import check_op as check_op
    from rlxpy.tools.conform import conform as conform
    from rlxpy.tools.samples import Case as Case

_HOME = {name: module for module, names in {
    "backends.custom": "register_cpu_kernel",
    "backends.host": "with_host",
    "backends.gpu.assembly": "RocmAsmKernel",
    "backends.gpu.raw": "CudaGpuKernel RocmGpuKernel register_gpu_kernel",
    "backends.reference": "HostGraph",
    "errors": "BuildError CustomOpError InputError RlxError",
    "extend.backend": "Backend BackendSpec Device ExecutableGraph supported_ops",
    "extend.devices": "backend_registry register_backend",
    "extend.kernels": "ABI_VERSION Choice Constraint KernelLibrary KernelRow KernelSearchPath LayoutAnswer Tunable WeightLayout",
    "extend.libraries": "kernel_registry register_kernel_library unregister_kernel_library",
    "extend.passes": "Note NotingPass Pass pass_registry register_ir_pass unregister_ir_pass",
    "extend.plan": "Plan",
    "extend.quantisers": "Quantiser Rtn quantiser_registry register_quantiser unregister_quantiser",
    "extend.schema": "OpSchema Param",
    "extend.target": "Example Target register_target target_registry",
    "flow.core": "BuiltModel LayerStage ModelFlow StageArtifacts",
    "flow.ctx": "FlowCtx",
    "flow.weights": "Rounded open_weights",
    "fusion.canonicalise": "Canonicalise",
    "fusion.rebuild": "rebuild",
    "ir.attrs": "Attrs",
    "ir.builder": "Builder Value",
    "ir.custom_fn": "custom_fn",
    "ir.define": "declare_op op",
    "ir.dims": "Dim Shape sym",
    "ir.dtypes": "DType",
    "ir.encoding": "Encoding Field Level Plane encoding_registry number planar register_encoding stream unregister_encoding",
    "ir.extension": "OpExtension is_op_registered register_op register_op_strict registry unregister_op",
    "ir.graph": "Graph Node",
    "ir.op": "Op",
    "ir.pattern": "RuleSet rules var",
    "ir.quantize": "quantize",
    "ir.row": "OpRow Why",
    "ir.types": "TensorType",
    "tools.check": "check_op",
    "tools.conform": "conform",
    "tools.samples": "Case",
    "plugins": "Declined",
}.items() for name in names.split()}
__all__ = [*_HOME]
__getattr__ = lazy(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
