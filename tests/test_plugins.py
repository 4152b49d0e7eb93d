"""Plug-ins by entry point: found, loaded at first need, and reported when they are broken, decline, clash or are shadowed."""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rlxpy import Builder, compile, plugins
from rlxpy.cli.app import app
from rlxpy.cli.plugins import load_all
from rlxpy.compiler.devices import backend_report
from rlxpy.extend import devices, libraries, passes, quantisers, target
from rlxpy.extend.libraries import registered_libraries
from rlxpy.extend.passes import registered_passes
from rlxpy.flow.weights import Rounded, open_weights
from rlxpy.ir import extension
from rlxpy.ir.encoding import encoding, registry as encodings
from rlxpy.ir.extension import is_op_registered
from rlxpy.targets import projects

KERNELS = """
from rlxpy.extend import *

def seven(ins, outs, attrs):
    outs[0][...] = 7

LIBRARY = KernelLibrary("{name}", (KernelRow("seven", Op.EXP, seven),))

def several():
    return LIBRARY, KernelLibrary("{name}.more", ())

def half():
    register_kernel_library(KernelLibrary("{name}.first", ()))
    raise KeyError("second")

def declines():
    raise Declined("carries gfx942, this card runs gfx1201")
"""
Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Installs a package of one module; registries are empty at first and what they were at the end."""
    for module in (libraries, devices, extension, encodings, target, passes, quantisers):
        monkeypatch.setattr(module.REGISTERED, "lasting", {})

    def install(name: str, entries: dict[str, list[str]], source: str, folder: str = "site") -> None:
        site = tmp_path / folder
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("\n".join(line for group, lines in entries.items() for line in (f"[rlxpy.{group}]", *lines)))
        (site / f"{name}.py").write_text(source.replace("{name}", name))
        monkeypatch.delitem(sys.modules, name, raising=False)
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        plugins.forget()

    yield install
    monkeypatch.undo()
    plugins.forget()


def states() -> dict[str, tuple[str, str]]:
    return {p.name: (p.state, p.reason) for p in plugins.plugins()}


def test_a_library_is_found_and_loaded_at_the_first_compile(package: Package) -> None:
    package("plug_a", {"kernels": ["fast = plug_a:LIBRARY"]}, KERNELS)
    assert states() == {"fast": ("not loaded", "")}
    assert "plug_a" not in sys.modules
    b = Builder()
    f = compile(b.finish(b.input("x", (2,)).exp()), device="reference")
    np.testing.assert_array_equal(f(np.zeros(2, np.float32)), [7, 7])
    assert states() == {"fast": ("loaded", "")}


def test_a_function_may_give_several_or_register_by_itself(package: Package) -> None:
    package("plug_b", {"kernels": ["both = plug_b:several"], "passes": ["mine = plug_b:register"]}, KERNELS + """
from dataclasses import dataclass

@dataclass(frozen=True)
class Idle:
    name: str = "plug_b.idle"

    def __call__(self, graph):
        return graph

def register():
    register_ir_pass(Idle(), before=("fuse",))
""")
    assert [k.name for k in registered_libraries()] == ["plug_b", "plug_b.more"]
    assert [p.name for p in registered_passes()] == ["plug_b.idle"]


def test_a_broken_one_is_reported_and_leaves_nothing_behind(package: Package, capsys: pytest.CaptureFixture[str]) -> None:
    package("plug_c", {"kernels": ["absent = plug_c_nowhere:X", "declines = plug_c:declines", "good = plug_c:LIBRARY", "half = plug_c:half", "wrong = plug_c:seven_not_there"]}, KERNELS)
    assert [k.name for k in registered_libraries()] == ["plug_c"]
    found = states()
    assert {k: v[0] for k, v in found.items()} == {"absent": "broken", "declines": "declined", "good": "loaded", "half": "broken", "wrong": "broken"}
    assert found["absent"][1] == "ModuleNotFoundError: No module named 'plug_c_nowhere'"
    assert found["declines"][1] == "carries gfx942, this card runs gfx1201"
    assert found["half"][1] == "KeyError: 'second'"
    said = capsys.readouterr().err
    assert "plug-in 'half' of plug_c 1.2 (rlxpy.kernels: plug_c:half) is left out: KeyError: 'second'" in said
    assert "declines" not in said, "to decline is no fault"


def test_clashes_name_both_sides_and_shadows_are_reported(package: Package) -> None:
    package("plug_d", {"kernels": ["one = plug_d:LIBRARY", "two = plug_d:LIBRARY"]}, KERNELS)
    package("plug_e", {"kernels": ["one = plug_e:LIBRARY"]}, KERNELS, folder="later")
    registered_libraries()
    by_package = {(p.package, p.name): (p.state, p.reason) for p in plugins.plugins()}
    assert by_package["plug_e", "one"] == ("loaded", "")
    assert by_package["plug_d", "one"] == ("shadowed", "plug_e 1.2 gives rlxpy.kernels 'one' too, and is found first")
    assert by_package["plug_d", "two"][0] == "loaded"
    package("plug_f", {"kernels": ["three = plug_f:LIBRARY", "four = plug_f:LIBRARY"]}, KERNELS, folder="last")
    registered_libraries()
    state, reason = states()["four"]
    assert state == "refused"
    assert "the name 'plug_f' of a kernel library is taken" in reason


def test_ops_and_backends_come_by_entry_point_too(package: Package) -> None:
    package("plug_g", {"ops": ["ops = plug_g:OP"], "backends": ["gdev = plug_g:Gdev", "bad = plug_g:OP"]}, """
from dataclasses import replace
from rlxpy.extend import *
from rlxpy.backends.reference import Reference

OP = OpExtension("plug_g.twice", OpRow(1, lambda x: x.shape, lambda x: x.dtype, lower=lambda x: x + x))

class Gdev(Reference):
    def __init__(self):
        super().__init__(replace(Reference().spec, device=Device("gdev")))
""")
    assert is_op_registered("plug_g.twice")
    b = Builder()
    f = compile(b.finish(b.custom_op("plug_g.twice", b.input("x", (2,)))), device="gdev")
    np.testing.assert_array_equal(f([1, 2]), [2, 4])
    assert ("gdev", "") in [(s.device, s.missing) for s in backend_report()]
    assert "OpExtension is not a backend" in states()["bad"][1]


@pytest.mark.parametrize("first", [False, True], ids=["found by name", "imported first"])
def test_a_module_registers_by_being_imported(package: Package, first: bool) -> None:
    package("plug_m", {"ops": ["m = plug_m"], "encodings": ["m = plug_m:TWOS"]}, """
from rlxpy.extend import *

@op("plug_m.twice")
def twice(x): return x + x

register_cpu_kernel(twice, lambda x: 2 * x)
TWOS = planar("plug_m.twos", Level(2), scales=(Level(DType.F32, 0),))
""")
    if first:
        import_module("plug_m")
    assert is_op_registered("plug_m.twice")
    assert encoding("plug_m.twos").block == 1
    assert {p.state for p in plugins.plugins()} == {"loaded"}


def test_a_plug_in_loaded_inside_a_scope_outlives_it(package: Package) -> None:
    package("plug_h", {"kernels": ["h = plug_h:LIBRARY"]}, KERNELS)
    with libraries.kernel_registry():
        assert [k.name for k in registered_libraries()] == ["plug_h"]
    assert [k.name for k in registered_libraries()] == ["plug_h"]


ONE_MODULE = """
from rlxpy.extend import *
import rlxpy

@op("{name}.twice")
def twice(x): return x * 2.0

b = rlxpy.Builder("g")
assert rlxpy.compile(b.finish(twice(b.input("x", (3,)))), device="reference")([1, 2, 3])[0] == 2   # looks for every kind of plug-in

OP = OpExtension("{name}.thrice", OpRow(1, lambda x: x, None, lower=lambda x: x * 3.0))
LIBRARY = KernelLibrary("{name}", ())

class Mark:
    name = "{name}.mark"
    def __call__(self, graph): return graph

PASS = Mark()
"""


@pytest.mark.parametrize("first", [True, False])
def test_a_module_that_is_half_imported_waits_until_it_is_whole(package: Package, first: bool) -> None:
    """Several entry points of one module, whose import itself looks for plug-ins."""
    package("plug_one", {"ops": ["thrice = plug_one:OP"], "kernels": ["k = plug_one:LIBRARY"], "passes": ["p = plug_one:PASS"]}, ONE_MODULE)
    if first:
        import_module("plug_one")
    assert is_op_registered("plug_one.thrice")
    assert is_op_registered("plug_one.twice")
    assert [lib.name for lib in registered_libraries()] == ["plug_one"]
    assert [p.name for p in registered_passes()] == ["plug_one.mark"]
    assert {state for state, _ in states().values()} == {"loaded"}


def test_a_plug_in_that_ends_the_process_is_left_out_like_any_broken_one(package: Package) -> None:
    package("plug_exit", {"ops": ["e = plug_exit"]}, "raise SystemExit('needs a licence')")
    assert not is_op_registered("plug_exit.a")
    assert states()["e"] == ("broken", "SystemExit: needs a licence")


def test_what_is_no_op_is_refused_by_its_kind(package: Package) -> None:
    package("plug_three", {"ops": ["three = plug_three:X"]}, "X = 3")
    assert not is_op_registered("plug_three.a")
    state, reason = states()["three"]
    assert state == "refused"
    assert "takes an OpExtension, not int" in reason


def test_the_command_lists_them_and_fails_on_a_broken_one(package: Package) -> None:
    package("plug_i", {"kernels": ["good = plug_i:LIBRARY"]}, KERNELS)
    done = CliRunner().invoke(app, ["plugins", "--json"])
    (row,) = json.loads(done.stdout)
    assert (done.exit_code, row["state"], row["package"], row["group"]) == (0, "loaded", "plug_i", "rlxpy.kernels")
    package("plug_j", {"passes": ["bad = plug_j_nowhere:X"]}, KERNELS, folder="other")
    done = CliRunner().invoke(app, ["plugins"])
    assert done.exit_code == 1
    assert "bad of plug_j: ModuleNotFoundError" in done.output


def test_without_plug_ins_nothing_is_loaded(package: Package) -> None:
    plugins.forget()
    load_all()
    assert [p for p in plugins.plugins() if p.state == "loaded"] == []
    assert registered_libraries() == ()


def test_a_target_is_found_by_the_name_of_its_entry_point(package: Package, tmp_path: Path) -> None:
    package("plug_t", {"targets": ["census = plug_t:Census", "wrong = plug_t:SEVEN", "c99 = plug_t:Census"]}, """
class Census:
    name, doc = "census", "counts nodes"

    def files(self, graph, params, examples):
        return {"census.txt": f"{len(graph)} nodes"}

SEVEN = 7
""")
    b = Builder()
    graph = b.finish(b.input("x", (2,)).exp())
    path, = projects.write(graph, {}, "census", tmp_path)
    assert path.read_text() == "2 nodes"
    assert "int is not a target" in states()["wrong"][1]
    assert projects.target("c99").name == "c99"  # rlxpy's own stay what they are
    assert "target 'c99' is rlxpy's own" in states()["c99"][1]


QUANTISERS = """
from dataclasses import dataclass
from rlxpy.extend import *

@dataclass(frozen=True)
class Scaled(Rtn):
    factor: float = 2.0
    name: str = "plug_q.scaled"

    def __call__(self, values, to, weight):
        return quantize(values * values.dtype.type(self.factor), to)

OTHER = Scaled(factor=3.0)

def breaks():
    register_quantiser(Scaled(name="plug_q.half"))
    raise KeyError("no calibration")
"""


def test_quantisers_are_found_clash_and_break_like_any_other_plug_in(package: Package) -> None:
    package("plug_q", {"quantisers": ["a = plug_q:Scaled", "b = plug_q:OTHER", "c = plug_q:breaks", "d = plug_q:nowhere"]}, QUANTISERS)
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    scaled = Rounded(open_weights({"w": w}), "q8_0", "plug_q.scaled:factor=4")["w"]
    np.testing.assert_allclose(encoding("q8_0").decode((scaled.array(),), 32), 4 * w, atol=0.03)
    assert [*quantisers.registered_quantisers()] == ["plug_q.scaled"], "nothing is left of the others"
    found = states()
    assert {name: state for name, (state, _) in found.items()} == {"a": "loaded", "b": "refused", "c": "broken", "d": "broken"}
    assert "'plug_q.scaled' is already registered" in found["b"][1]
    assert found["c"][1] == "KeyError: 'no calibration'"
