"""The GPU devices by name: known, so that one who asks for them is told what is missing."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlxpy.backends.gpu.vendor import Vendor, look, missing
from rlxpy.errors import BackendMissing
from rlxpy.extend.backend import BackendSpec, Device, ExecutableGraph
from rlxpy.extend.kernels import KernelSearchPath
from rlxpy.extend.plan import Plan
from rlxpy.ir.dtypes import Array


@dataclass(frozen=True)
class Gpu:
    """A vendor's devices, which this version of rlxpy does not run graphs on."""

    vendor: Vendor

    @property
    def spec(self) -> BackendSpec:
        return BackendSpec(Device(self.vendor.device), KernelSearchPath(()))

    def missing(self) -> str:
        return missing(self.vendor) or f"{look(self.vendor).found} could be used, but this version of rlxpy does not run graphs there yet"

    def load(self, plan: Plan, params: Mapping[str, Array], *, debug: bool = False) -> ExecutableGraph:
        raise BackendMissing(f"device {self.vendor.device} cannot run here", why=self.missing(), fix="device='cpu'")
