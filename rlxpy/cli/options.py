"""Arguments and options that several commands share, and how they join a profile."""
from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlxpy import settings

if TYPE_CHECKING:
    from rlxpy.flow.profile import Profile


class Cache(Enum):
    f32 = "f32"
    bf16 = "bf16"
    f16 = "f16"
    q8_0 = "q8_0"


class HowExact(Enum):
    highest = "highest"
    high = "high"
    medium = "medium"
    low = "low"


def _into(name: str) -> Callable[[typer.Context, str | None], str | None]:
    """What an option gives is the setting of that name while its command runs, which is where all that compiles finds it."""
    def callback(ctx: typer.Context, value: str | None) -> str | None:
        if value is not None and not ctx.resilient_parsing:
            ctx.with_resource(settings.override(**{name: settings.SETTINGS[name].parse(value)}))
        return value
    return callback


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a Hugging Face folder, or a model name: `rlx models` lists some.")]
Devices = Annotated[str | None, typer.Option("--device", metavar="NAMES", help="Devices to try, in order, with commas between.  Default: RLX_DEVICE.")]
Packing = Annotated[str | None, typer.Option("--weights", metavar="auto|packed|dense|int8|ENCODING",
                                             help="Weights in memory: packed, dense, or what runs faster here; int8 rounds matrices and activations, an encoding matrices.")]
Rounding = Annotated[str | None, typer.Option("--quantiser", metavar="NAME[:OPTION=VALUE,..]", callback=_into("quantiser"),
                                              help="Who chooses the numbers of weights that are packed at load.  Default: RLX_QUANTISER, else rtn.")]
KeysAndValues = Annotated[Cache | None, typer.Option("--cache", help="Keys and values in memory: floats, or int8 with a scale for 32; default f32.")]
Numerics = Annotated[HowExact | None, typer.Option("--numerics", help="How exact f32 products are; default: RLX_NUMERICS, else highest.")]
Kernels = Annotated[str | None, typer.Option("--kernels", metavar="A,B", callback=_into("kernels"),
                                             help="Kernel libraries in order of preference; builtin is the device's own.  Default: RLX_KERNELS.")]
ForceRow = Annotated[str | None, typer.Option("--force-row", metavar="LIBRARY/ROW", callback=_into("force_row"),
                                              help="Kernel rows, with commas between, that alone may run their op; `rlx why` names them.  Default: RLX_FORCE_ROW.")]
ProfileFile = Annotated[Path | None, typer.Option("--profile", metavar="FILE", help="A *.rlx.toml file of options; those given here win.")]


def device_names(text: str | None) -> tuple[str, ...] | None:
    """As RLX_DEVICE is read; None when not given.  Raises InputError, BackendMissing before anything slow is begun."""
    from rlxpy.compiler.devices import choose
    from rlxpy.settings import SETTINGS

    if text is None:
        return None
    names: tuple[str, ...] = SETTINGS["device"].parse(text)
    choose(names)
    return names


def profile(path: Path | None, **given: Any) -> Profile:
    """The profile in a file, or the default one, under what the command line gives; None is not given.  Raises LoadError."""
    from dataclasses import fields, replace

    from rlxpy.flow.profile import Profile

    base = Profile() if path is None else Profile.load(path)
    changed = {}
    for table in fields(base):
        value = getattr(base, table.name)
        own = {f.name for f in fields(value)}
        changed[table.name] = replace(value, **{k: v for k, v in given.items() if k in own and v is not None})
    return replace(base, **changed)
