"""What a caller may ask of the compiler.  New knobs go here and nowhere else."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlxpy import settings
from rlxpy.errors import InputError
from rlxpy.ir.place import placed

WEIGHTS = ("auto", "packed", "dense")


@dataclass(frozen=True)
class CompileOptions:
    """Part of every cache key.

    optimise             False runs the ops as they were written
    weights              "packed" keeps quantised weights packed in memory; "dense" unpacks them once, at load; "auto" is dense
                         where the backend runs those faster and a quarter of the machine's memory holds them
    kernels              kernel libraries to use, in this order; empty is the backend's own order
    debug                check the plan, poison the arena before each run; None follows RLX_DEBUG
    assert_fusion_clean  raise FusionError on a near miss"""

    optimise: bool = True
    weights: str = "auto"
    kernels: tuple[str, ...] = ()
    debug: bool | None = None
    assert_fusion_clean: bool = False

    @placed
    def __post_init__(self) -> None:
        if not isinstance(self.weights, str) or self.weights not in WEIGHTS:
            raise InputError(f"weights={self.weights!r}", why=f"it is one of {', '.join(WEIGHTS)}", fix="CompileOptions(weights='auto')")
        kernels: Any = self.kernels
        if not isinstance(kernels, (tuple, list)) or not all(isinstance(k, str) for k in kernels):
            raise InputError(f"kernels={kernels!r}", why=f"{type(kernels).__name__} is not a tuple of library names",
                             fix="CompileOptions(kernels=('mine', 'builtin'))")
        object.__setattr__(self, "kernels", tuple(kernels))

    @property
    def checks(self) -> bool:
        return bool(settings.setting("debug")) if self.debug is None else self.debug
