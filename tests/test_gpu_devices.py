"""GPU devices are known everywhere and say what they lack (A28): against drivers made for the purpose, each broken in one way."""
from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlxpy import Builder, RlxError, available_backends, backend_report, compile
from rlxpy.backends.cpu.compilers import Compiler, find_compiler
from rlxpy.backends.gpu.backend import Gpu
from rlxpy.backends.gpu.vendor import CUDA, ROCM, VENDORS, Vendor, look, missing
from rlxpy.compiler import devices
from rlxpy.errors import BackendMissing, RegistryError
from rlxpy.extend import devices as registry
from rlxpy.extend.backend import Device
from rlxpy.extend.devices import backend_registry, register_backend, registered_backends

vendors = pytest.mark.parametrize("vendor", VENDORS.values(), ids=lambda v: v.device)


def driver(folder: Path, v: Vendor, *, version: int | None = None, init: int = 0, count: int = 1, count_status: int = 0) -> Vendor:
    """The vendor with a library of our own in C, which answers as told."""
    source, library = folder / "driver.c", folder / "libdriver.so"
    source.write_text(f"int {v.init}(unsigned flags) {{ return {init}; }}\nint {v.count}(int *n) {{ *n = {count}; return {count_status}; }}\n"
                      f"int {v.version}(int *v) {{ *v = {v.least if version is None else version}; return 0; }}\n")
    compiler = find_compiler()
    assert isinstance(compiler, Compiler)
    subprocess.run([*compiler.argv, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return replace(v, libraries=("libno-such-driver.so", str(library)))


@vendors
def test_a_driver_with_devices_is_found_and_described(vendor: Vendor, tmp_path: Path) -> None:
    seen = look(driver(tmp_path, vendor, count=3))
    assert (seen.lack, seen.fix) == ("", "")
    assert seen.found.endswith(f"libdriver.so {vendor.text(vendor.least)}, 3 devices")


@vendors
@pytest.mark.parametrize(("answers", "says"), [
    ({"version": 1}, "driver too old: 0.0 is less than"), ({"init": 100}, "no device"), ({"init": 35}, "gave 35: the driver is older than the library"),
    ({"count": 0}, "no device"), ({"count_status": 999}, "gave 999"), ({"count_status": 100, "count": 0}, "gave 100: no device")])
def test_each_way_to_be_missing_has_its_reason(vendor: Vendor, answers: dict[str, int], says: str, tmp_path: Path) -> None:
    broken = driver(tmp_path, vendor, **answers)
    seen = look(broken)
    assert says in seen.lack
    assert seen.fix
    assert missing(broken) == f"{seen.lack}; {seen.fix}" == Gpu(broken).missing()


@vendors
def test_a_library_that_is_not_there_or_is_another_is_a_reason(vendor: Vendor, tmp_path: Path) -> None:
    assert "library not found: libnowhere.so" in look(replace(vendor, libraries=("libnowhere.so", "libnor-here.so"))).lack
    assert "hipNothing" in look(replace(driver(tmp_path, vendor), count="hipNothing")).lack
    (tmp_path / "text.so").write_text("no library")
    assert "text.so" in look(replace(vendor, libraries=(str(tmp_path / "text.so"),))).lack


@vendors
def test_with_a_driver_the_binding_is_missed_next(vendor: Vendor, tmp_path: Path) -> None:
    with_driver = driver(tmp_path, vendor)
    for binding in ("nowhere", "nowhere.core"):
        assert f"pip install 'rlxpy[{vendor.device}]'" in str(missing(replace(with_driver, binding=binding)))
    complete = replace(with_driver, binding="numpy.linalg")
    assert missing(complete) is None


@pytest.mark.parametrize(("vendor", "number", "text"), [(CUDA, 12_040, "12.4"), (CUDA, 13_000, "13.0"), (ROCM, 60_342_134, "6.3"), (ROCM, 71_526_333, "7.15")])
def test_versions_are_written_as_their_vendor_writes_them(vendor: Vendor, number: int, text: str) -> None:
    assert vendor.text(number) == text


# ---- by name -------------------------------------------------------------------------------------------------------
def double() -> Any:
    b = Builder()
    return b.finish(b.input("x", (3,)) * 2.0)


@vendors
def test_known_and_not_available(vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = driver(tmp_path, vendor, version=1)
    monkeypatch.setitem(devices.BUILT_IN, vendor.device, lambda: Gpu(old))
    devices._built_in.cache_clear()
    assert vendor.device not in available_backends()
    (row,) = [s for s in backend_report() if s.device == vendor.device]
    assert row.built_in
    assert "driver too old" in row.missing
    with pytest.raises(BackendMissing, match=rf"device {vendor.device} cannot run here\n.*\n.*driver too old") as caught:
        compile(double(), device=vendor.device)
    assert __file__ in caught.value.where
    assert "cpu" in caught.value.fix
    with pytest.raises(BackendMissing, match="driver too old"):
        Gpu(old).load(compile(double(), device="reference").plan, {})
    run = compile(double(), device=[vendor.device, "reference"])
    assert run.device == "reference"
    assert "driver too old" in run.passed_over[0]
    assert vendor.device not in devices.AUTO
    devices._built_in.cache_clear()


def test_every_built_in_name_is_reserved() -> None:
    assert set(devices.BUILT_IN) == set(registry.BUILT_IN)
    assert set(devices.AUTO) <= set(devices.BUILT_IN)


@pytest.mark.parametrize("name", registry.BUILT_IN)
def test_a_plug_in_with_a_built_in_name_is_told_so_and_changes_nothing(name: str) -> None:
    with backend_registry():
        with pytest.raises(RegistryError, match=f"device '{name}' is rlxpy's own"):
            register_backend(Device(name), Gpu)  # type: ignore[arg-type]
        assert not registered_backends()


def other() -> Any: ...


def test_two_plug_ins_with_one_name_are_both_named() -> None:
    with backend_registry():
        register_backend(Device("npu"), double)
        with pytest.raises(RegistryError, match=r"test_gpu_devices.double is there, .*test_gpu_devices.other comes now"):
            register_backend(Device("npu"), other)
        assert registered_backends()["npu"] is double


@pytest.mark.parametrize(("device", "factory"), [
    ("npu", double), (Device(""), double), (Device("auto"), double), (Device("a,b"), double), (Device(" npu"), double), (Device("a b"), double), (Device(3), double),  # type: ignore[arg-type]
    (Device("npu\n"), double), (Device("npu"), None), (Device("npu"), "mine:Backend")])
def test_what_could_not_be_asked_for_is_refused_at_registration(device: Any, factory: Any) -> None:
    with backend_registry():
        with pytest.raises(RlxError, match=r"is no (device|factory)"):
            register_backend(device, factory)
        assert not registered_backends()
