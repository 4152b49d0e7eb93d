"""What hipRTC is asked (A36): against bindings made for the purpose, which write everything down."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim_device import needs_clang

from rlxpy import Builder, CompileOptions, Graph, settings
from rlxpy.backends.gpu import hip as door
from rlxpy.backends.gpu.api import GpuTarget
from rlxpy.backends.gpu.backend import Gpu, compiled
from rlxpy.backends.gpu.hip import OPTIONS, HipApi
from rlxpy.backends.gpu.lint import findings
from rlxpy.backends.gpu.offline import FLAGS, compile_hip, hiprtc_library, hiprtc_refusal, mapped_library
from rlxpy.backends.gpu.vendor import VENDORS
from rlxpy.compiler.session import lower
from rlxpy.errors import BackendMissing, CompileError, DeviceError

SOURCE = 'extern "C" __global__ void k(float *x) {\n  x[0] = 1;\n  x[1] = lost;\n}\n'
REFUSED = 6  # HIPRTC_ERROR_COMPILATION


@dataclass
class Rtc:
    """hipRTC's binding.  status, log: what compiling gives; asked: (source, options) of each call."""

    status: int = 0
    log: bytes = b""
    asked: list[tuple[bytes, tuple[bytes, ...]]] = field(default_factory=list)
    made: dict[int, bytes] = field(default_factory=dict)
    destroyed: int = 0

    def hiprtcVersion(self) -> tuple[int, int, int]: return 0, 7, 1

    def hiprtcCreateProgram(self, source: bytes, name: bytes, count: int, headers: Any, names: Any) -> tuple[int, Any]:
        assert (count, headers, names) == (0, None, None)  # no header is handed over, and none is needed
        self.made[len(self.made)] = source
        return 0, SimpleNamespace(number=len(self.made) - 1, createRef=lambda: None)

    def hiprtcCompileProgram(self, program: Any, count: int, options: Sequence[bytes]) -> tuple[int]:
        assert count == len(options)
        self.asked.append((self.made[program.number], tuple(options)))
        return (self.status,)

    def hiprtcGetProgramLogSize(self, program: Any) -> tuple[int, int]: return 0, len(self.log) + 1

    def hiprtcGetProgramLog(self, program: Any, into: bytearray) -> tuple[int]:
        into[:len(self.log)] = self.log
        return (0,)

    def hiprtcGetCodeSize(self, program: Any) -> tuple[int, int]: return 0, 4

    def hiprtcGetCode(self, program: Any, into: bytearray) -> tuple[int]:
        into[:] = b"code"
        return (0,)

    def hiprtcDestroyProgram(self, program: Any) -> tuple[int]:
        self.destroyed += 1
        return (0,)


Make = Callable[..., HipApi]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    """An api over such a binding, with a cache of its own."""
    monkeypatch.setenv("RLX_CACHE", str(tmp_path))
    monkeypatch.setattr(door, "mapped_library", lambda part: None)

    def make(rtc: Rtc, chip: str = "gfx90a:sramecc+:xnack-") -> HipApi:
        props = SimpleNamespace(name="card", gcnArchName=chip, warpSize=64, sharedMemPerBlock=65536, maxThreadsPerBlock=1024)
        hip = SimpleNamespace(hipGetDevice=lambda: (0, 0), hipGetDeviceProperties=lambda device: (0, props), hipStreamCreateWithFlags=lambda flags: (0, 1), hipStreamNonBlocking=1,
                              hipError_t=type("hipError_t", (), {}))
        monkeypatch.setattr(door, "import_module", {"rocm.bindings.hip": hip, "rocm.bindings.hiprtc": rtc}.__getitem__)
        return HipApi()
    return make


@pytest.mark.parametrize("chip", ["gfx90a:sramecc+:xnack-", "gfx1100", "gfx942:sramecc+:xnack+"])
def test_the_chip_is_named_as_the_driver_names_it(chip: str, made: Make) -> None:
    api = made(rtc := Rtc(), chip)
    assert compiled(api, SOURCE) == b"code"
    ((source, options),) = rtc.asked
    assert source == SOURCE.encode()
    assert options == (*(o.encode() for o in OPTIONS), f"--offload-arch={chip}".encode())
    assert api.target.arch == chip.partition(":")[0]  # what rows ask for
    assert rtc.destroyed == 1


@pytest.mark.parametrize("place", [None, "/opt/rocm", "/opt/rocm 7 beta"])
def test_where_rocm_lies_changes_nothing(place: str | None, made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of headers is looked for, so none can be missing, and none has a blank in its name."""
    monkeypatch.delenv("ROCM_PATH", raising=False)
    if place is not None:
        monkeypatch.setenv("ROCM_PATH", place)
    compiled(made(rtc := Rtc()), SOURCE)
    assert not [o for o in rtc.asked[0][1] if b" " in o or o.startswith((b"-I", b"--rocm", b"-isystem"))]


def graph() -> Graph:
    b = Builder()
    x = b.input("x", (3, 5))
    return b.finish((x.exp() * 2).sum(axes=(1,)), x.softmax(axis=-1), x @ b.input("w", (5, 4)))


def test_generated_source_needs_no_header() -> None:
    gpu = Gpu(VENDORS["rocm"], GpuTarget("amd", "gfx90a", 64))
    source = gpu.program(lower(graph(), gpu.spec, CompileOptions())[0]).source
    assert "#include" not in source
    assert not [f for f in findings(source, "rocm") if f.rule == "include"]


@pytest.mark.parametrize("chatter", [0, 70_000, 1_000_000])
def test_a_refusal_has_the_whole_log_the_options_and_the_numbered_source_and_leaves_no_trace(chatter: int, made: Make, tmp_path: Path) -> None:
    log = b"/tmp/rlxpy.hip:3:10: error: use of undeclared identifier 'lost'\n" + b"note: \xc3\xa4nd so on\n" * (chatter // 17) + b"1 error generated.\n"
    api = made(rtc := Rtc(REFUSED, log))
    with pytest.raises(CompileError, match=r"hipRTC 7.1 does not compile the GPU source for gfx90a:sramecc\+:xnack-") as caught:
        compiled(api, SOURCE)
    error = caught.value
    assert error.log == log.decode()
    assert error.options == (*OPTIONS, "--offload-arch=gfx90a:sramecc+:xnack-")
    assert error.why == "use of undeclared identifier 'lost'"
    assert "3" in error.where
    assert "x[1] = lost;" in error.where
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "CACHEDIR.TAG"] == []
    rtc.status = 0
    assert compiled(api, SOURCE) == b"code"  # asked again: nothing was kept of the refusal
    assert (len(rtc.asked), rtc.destroyed) == (2, 2)


def test_a_log_that_is_no_text_and_a_compiler_that_says_nothing_are_errors_too(made: Make) -> None:
    for log, says in ((b"\xff\xfe broken", "broken"), (b"", "it says nothing")):
        with pytest.raises(CompileError, match=says):
            compiled(made(Rtc(REFUSED, log)), SOURCE)


def test_code_is_kept_by_chip_modes_source_and_options(made: Make) -> None:
    rtc = Rtc()
    plus, minus = made(rtc, "gfx90a:xnack+"), made(rtc, "gfx90a:xnack-")
    for api, source, options in ((plus, SOURCE, None), (minus, SOURCE, None), (plus, SOURCE + "\n", None), (plus, SOURCE, ("-O1",)), (plus, SOURCE, ("-O1 -g",)), (plus, SOURCE, ("-O1", "-g"))):
        compiled(api, source, options)
        before = len(rtc.asked)
        compiled(api, source, options)
        assert len(rtc.asked) == before
    assert len(rtc.asked) == 6


@needs_clang
def test_a_refusal_of_clang_says_the_same(tmp_path: Path) -> None:
    with settings.override(cache=tmp_path), pytest.raises(CompileError, match="undeclared identifier 'lost'") as caught:
        compile_hip(SOURCE, "gfx1100")
    assert {"--offload-arch=gfx1100", *FLAGS} <= set(caught.value.options)
    assert "x[1] = lost;" in caught.value.where
    assert not list(tmp_path.rglob("*.hsaco"))


# ---- a card that is newer than its compiler ------------------------------------------------------------------------
def test_a_compiler_older_than_the_card_is_told_before_it_can_end_the_process(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "mapped_library", lambda part: "libhiprtc.so")
    monkeypatch.setattr(door, "hiprtc_refusal", lambda library, chip: f"{library} died while it compiled for {chip}")
    with pytest.raises(DeviceError, match="does not know card") as caught:
        made(Rtc(), "gfx9999")
    assert "died while it compiled for gfx9999" in caught.value.why
    monkeypatch.setattr(door, "hiprtc_refusal", lambda library, chip: "")
    assert made(Rtc()).name == "card"


def test_the_binding_is_not_taken_for_the_library_that_it_is_named_after(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rocm.bindings.hiprtc", reason="not run, because hip-python is not installed")
    asked = list[str | None]()

    def looked_for(part: str) -> None:
        asked.append(mapped_library(part))

    monkeypatch.setattr(door, "mapped_library", looked_for)
    made(Rtc())
    assert len(asked) == 2
    assert not [a for a in asked if a and "cpython" in a]


def test_amds_compiler_says_by_another_process_which_chips_it_knows() -> None:
    library = hiprtc_library()
    if library is None:
        pytest.skip("not run, because libamdhip64.so.5 is not installed")
    assert hiprtc_refusal(library, "gfx90a") == ""
    assert "died" in hiprtc_refusal(library, "gfx1151")
    assert "amdhip64" in str(mapped_library("amdhip64"))
    assert mapped_library("libnowhere") is None


def test_devices_say_what_keeps_a_card_from_being_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Gpu) -> None:
        raise BackendMissing("device rocm cannot run here", why="hipRTC 5.2 does not know card")

    monkeypatch.setattr("rlxpy.backends.gpu.backend.missing", lambda vendor: None)
    monkeypatch.setattr(Gpu, "api", refuses)
    assert Gpu(VENDORS["rocm"]).missing() == "hipRTC 5.2 does not know card"
    assert Gpu(VENDORS["cuda"]).missing() is None
