"""Operator sugar shared by Values and patterns: arithmetic signs, and every op of the table as a method."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlxpy.errors import nearest


class Expr:
    __slots__ = ()

    def apply(self, op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Node (or pattern) `op` over `inputs`, which are Exprs or Python scalars."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """`x.softmax(axis=-1)` is op SOFTMAX on x: the op table is the method list."""
        from rlxpy.ir.op import Op

        if name.startswith("_") or name.upper() not in Op.__members__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its methods are the ops that `rlx ops` lists, near it: {nearest(name, list(map(str.lower, Op.__members__)))}")
        return lambda *inputs, **attrs: self.apply(name, (self, *inputs), attrs)

    def __add__(self, y: Any) -> Any: return self.apply("add", (self, y), {})
    def __radd__(self, y: Any) -> Any: return self.apply("add", (y, self), {})
    def __sub__(self, y: Any) -> Any: return self.apply("sub", (self, y), {})
    def __rsub__(self, y: Any) -> Any: return self.apply("sub", (y, self), {})
    def __mul__(self, y: Any) -> Any: return self.apply("mul", (self, y), {})
    def __rmul__(self, y: Any) -> Any: return self.apply("mul", (y, self), {})
    def __truediv__(self, y: Any) -> Any: return self.apply("div", (self, y), {})
    def __rtruediv__(self, y: Any) -> Any: return self.apply("div", (y, self), {})
    def __floordiv__(self, y: Any) -> Any: return self.apply("floor_div", (self, y), {})
    def __mod__(self, y: Any) -> Any: return self.apply("mod", (self, y), {})
    def __pow__(self, y: Any) -> Any: return self.apply("pow", (self, y), {})
    def __rpow__(self, y: Any) -> Any: return self.apply("pow", (y, self), {})
    def __rfloordiv__(self, y: Any) -> Any: return self.apply("floor_div", (y, self), {})
    def __rmod__(self, y: Any) -> Any: return self.apply("mod", (y, self), {})
    def __abs__(self) -> Any: return self.apply("abs", (self,), {})
    def __matmul__(self, y: Any) -> Any: return self.apply("matmul", (self, y), {})
    def __neg__(self) -> Any: return self.apply("neg", (self,), {})
    def __lt__(self, y: Any) -> Any: return self.apply("lt", (self, y), {})
    def __le__(self, y: Any) -> Any: return self.apply("le", (self, y), {})
    def __gt__(self, y: Any) -> Any: return self.apply("gt", (self, y), {})
    def __ge__(self, y: Any) -> Any: return self.apply("ge", (self, y), {})
    def __and__(self, y: Any) -> Any: return self.apply("bit_and", (self, y), {})
    def __or__(self, y: Any) -> Any: return self.apply("bit_or", (self, y), {})
    def __xor__(self, y: Any) -> Any: return self.apply("bit_xor", (self, y), {})
    def __invert__(self) -> Any: return self.apply("bit_not", (self,), {})
    def __lshift__(self, y: Any) -> Any: return self.apply("shift_left", (self, y), {})
    def __rshift__(self, y: Any) -> Any: return self.apply("shift_right", (self, y), {})
