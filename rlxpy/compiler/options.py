"""What a caller may ask of the compiler.  New knobs go here and nowhere else."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from rlxpy import settings
from rlxpy.errors import InputError
from rlxpy.frozen import dataclass
from rlxpy.ir.place import placed

WEIGHTS = ("auto", "packed", "dense")
NUMERICS = ("highest", "high", "medium", "low")


@dataclass(frozen=True)
class CompileOptions:
    """Part of every cache key.

    optimise             False runs the ops as they were written
    weights              "packed" keeps quantised weights packed in memory; "dense" unpacks them once, at load; "auto" is dense
                         where the backend runs those faster and a quarter of the machine's memory holds them
    numerics             how exact f32 products are: "highest" has no more error than a plain f32 product; "high" multiplies sums of two
                         bfloat16, "medium" bfloat16, "low" also rounds the left operand to int8 where the weights are integers.
                         It permits; a backend without such units stays exact (docs/numerics.md)
                         None given, RLX_NUMERICS
    kernels              kernel libraries to use, in this order; empty is the backend's own order; None given, RLX_KERNELS
    force_row            kernel rows by name, "cpu/matmul", that alone may run their op; it is not fused then.  LegaliseError tells why one
                         cannot; None given, RLX_FORCE_ROW
    tune                 points of tunables: "cpu/matmul:row_block=48" pins one, "off" keeps the defaults; else those that `rlx tune` kept here.
                         None given, RLX_TUNE
    debug                check the plan, poison the arena before each run; None follows RLX_DEBUG
    assert_fusion_clean  raise FusionError on a near miss"""

    optimise: bool = True
    weights: str = "auto"
    numerics: str = field(default_factory=lambda: str(settings.setting("numerics")))
    kernels: tuple[str, ...] = field(default_factory=lambda: tuple(settings.setting("kernels")))
    force_row: tuple[str, ...] = field(default_factory=lambda: tuple(settings.setting("force_row")))
    tune: tuple[str, ...] = field(default_factory=lambda: tuple(settings.setting("tune")))
    debug: bool | None = None
    assert_fusion_clean: bool = False

    @placed
    def __post_init__(self) -> None:
        if not isinstance(self.weights, str) or self.weights not in WEIGHTS:
            raise InputError(f"weights={self.weights!r}", why=f"it is one of {', '.join(WEIGHTS)}", fix="CompileOptions(weights='auto')")
        if not isinstance(self.numerics, str) or self.numerics not in NUMERICS:
            raise InputError(f"numerics={self.numerics!r}", why=f"it is one of {', '.join(NUMERICS)}", fix="CompileOptions(numerics='highest')")
        for name in ("optimise", "debug", "assert_fusion_clean"):
            flag = getattr(self, name)
            if not isinstance(flag, bool) and not (flag is None and name == "debug"):
                raise InputError(f"{name}={flag!r}", why=f"{type(flag).__name__} is not True or False", fix=f"CompileOptions({name}=True)")
        for name, what, example in (("kernels", "library names", ("mine", "builtin")), ("force_row", "names of rows", ("cpu/matmul",)),
                                    ("tune", "pins", ("cpu/matmul:row_block=48",))):
            given: Any = getattr(self, name)
            if not isinstance(given, (tuple, list)) or not all(isinstance(k, str) for k in given):
                raise InputError(f"{name}={given!r}", why=f"{type(given).__name__} is not a tuple of {what}", fix=f"CompileOptions({name}={example})")
            object.__setattr__(self, name, tuple(given))

    @property
    def checks(self) -> bool:
        return bool(settings.setting("debug")) if self.debug is None else self.debug


@contextmanager
def force_row(*rows: str) -> Iterator[None]:
    """Compiled inside the block, every node of a row's op runs by that row, or a LegaliseError tells why it cannot: force_row("cpu/matmul")."""
    with settings.override(force_row=rows):
        yield
