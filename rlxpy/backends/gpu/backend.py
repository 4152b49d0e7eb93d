"""The GPU devices by name: known, so that one who asks for them is told what is missing."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from rlxpy.backends.gpu.vendor import Vendor, look, missing
from rlxpy.backends.host import with_host
from rlxpy.errors import BackendMissing
from rlxpy.extend.backend import BackendSpec, Device, ExecutableGraph
from rlxpy.extend.kernels import Choice, Refusal
from rlxpy.extend.plan import Plan
from rlxpy.ir.dtypes import Array
from rlxpy.ir.graph import Graph, Node


@dataclass(frozen=True)
class Gpu:
    """A vendor's devices, which this version of rlxpy does not run graphs on."""

    vendor: Vendor

    @property
    def spec(self) -> BackendSpec:
        name = self.vendor.device
        return with_host(BackendSpec(Device(name), extensions=partial(_own_kernel, name), views=False, domain="device"))

    def missing(self) -> str:
        return missing(self.vendor) or f"{look(self.vendor).found} could be used, but this version of rlxpy does not run graphs there yet"

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        raise BackendMissing(f"device {self.vendor.device} cannot run here", why=self.missing(), fix="device='cpu'")


def _own_kernel(device: str, graph: Graph, node: Node) -> Choice | Refusal | None:
    from rlxpy.backends.gpu.raw import own_gpu_kernel  # at first use: it loads what writes source

    return own_gpu_kernel(device, {}, graph, node)
