"""What is likely to be wrong in the text of a GPU kernel, found without a GPU: wave sizes, masks, headers, names, host services."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rlxpy.frozen import dataclass

AMD, NVIDIA = "rocm", "cuda"  # by the names of their devices
OF_WAVES = ("wave-size", "wave-loop", "mask")  # rules that do not concern a kernel for chips of one wave
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
ALLOWED = re.compile(r"//.*\blint:\s*([\w, -]+)")
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)$")
COMPILER = {"__CUDACC__": NVIDIA, "__CUDA_ARCH__": NVIDIA, "__HIP__": AMD, "__HIPCC__": AMD, "__HIP_PLATFORM_AMD__": AMD, "__AMDGCN__": AMD}
C_BLOCK = re.compile(r'extern\s+"C"\s*\{')
HALVING = re.compile(r"\bfor\s*\(\s*(?:\w+\s+)?\w+\s*=\s*(?:16|32)\s*;[^;]*;[^;)]*(?:>>=\s*1|/=\s*2)\s*\)\s*\{?")
WIDTH_AT = {"__shfl": 3, "__shfl_xor": 3, "__shfl_up": 3, "__shfl_down": 3}  # how many arguments a call with a width has; the others have none
LANES = re.compile(r"\b(__shfl\w*|__ballot\w*|__any\w*|__all\w*|__reduce\w*_sync|__builtin_amdgcn_(?:ds_bpermute|readlane|ballot\w*|mov_dpp|update_dpp|ds_swizzle)|RLX_SHUFFLE\w*|rlx_xor_lane)\s*\(")


@dataclass(frozen=True)
class Rule:
    """find: places in a text that has no comments, with offsets as in the source.  devices: whose compilers and hardware it concerns."""

    name: str
    devices: tuple[str, ...]
    find: Callable[[str], Iterator[int]]
    why: str
    fix: str


@dataclass(frozen=True)
class Finding:
    """line: from 1; text: of the line."""

    rule: str
    line: int
    text: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"line {self.line} `{self.text.strip()}`: {self.why}; {self.fix}"


def findings(source: str, device: str) -> tuple[Finding, ...]:
    """Of a text for one device ("rocm", "cuda"), in the order of lines.  A comment `lint: NAME` on a line says that it is meant."""
    text, lines = bare(source, device), source.splitlines()
    found = set()
    for rule in RULES:
        for at in rule.find(text) if device in rule.devices else ():
            line = text.count("\n", 0, at) + 1
            allowed = ALLOWED.search(lines[line - 1])
            if not allowed or rule.name not in re.split(r"[\s,]+", allowed[1]):
                found.add(Finding(rule.name, line, lines[line - 1], rule.why, rule.fix))
    return tuple(sorted(found, key=lambda f: (f.line, f.rule)))


def bare(source: str, device: str) -> str:
    """The source without comments, text in quotes, and what stands behind #if for the other device; everything else keeps its place."""
    text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    text = STRING.sub(lambda m: m[0] if m[0] == '"C"' else '"' + " " * (len(m[0]) - 2) + '"', text)
    kept, stack = [], list[bool | None]()  # of each #if around a line: is it for the device?  None: nobody can tell
    for line in text.split("\n"):
        if found := CONDITION.match(line):
            _step(stack, found[1], found[2], device)
        kept.append(" " * len(line) if False in stack else line)
    return "\n".join(kept)


def _step(stack: list[bool | None], word: str, condition: str, device: str) -> None:
    if word in ("if", "ifdef", "ifndef"):
        stack.append(_holds(condition, device, word == "ifndef"))
    elif not stack:
        return  # the compiler will say so
    elif word == "endif":
        stack.pop()
    elif word == "else":
        stack[-1] = None if stack[-1] is None else not stack[-1]
    else:
        stack[-1] = False if stack[-1] else _holds(condition, device, False)


def _holds(condition: str, device: str, negated: bool) -> bool | None:
    """Of a condition that is about one compiler alone."""
    found = re.fullmatch(r"\s*(!?)\s*(?:defined\s*\(?\s*)?(\w+)\s*\)?\s*", condition)
    if not found or found[2] not in COMPILER:
        return None
    return (COMPILER[found[2]] == device) != (negated != bool(found[1]))


# ---- rules ---------------------------------------------------------------------------------------------------------
def _pattern(pattern: str) -> Callable[[str], Iterator[int]]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text: (m.start() for m in compiled.finditer(text))


def _with_lanes(pattern: str) -> Callable[[str], Iterator[int]]:
    """Only in a text whose lanes speak to each other."""
    plain = _pattern(pattern)
    return lambda text: plain(text) if LANES.search(text) else iter(())


def _not_c(text: str) -> Iterator[int]:
    """__global__ functions with C++ names: neither extern "C" nor inside a block of it."""
    blocks = [(m.start(), _end(text, m.end())) for m in C_BLOCK.finditer(text)]
    for m in re.finditer(r"\b__global__\b", text):
        if text[text.rfind("\n", 0, m.start()) + 1:m.start()].lstrip().startswith("#"):
            continue  # a macro's own name
        before = text[max(text.rfind(c, 0, m.start()) for c in ";}") + 1:m.start()]
        if 'extern"C"' not in "".join(before.split()) and not any(a <= m.start() < b for a, b in blocks):
            yield m.start()


def _halving(text: str) -> Iterator[int]:
    """Loops over distances of lanes that begin at a number: for (int o = 16; o > 0; o >>= 1) v += __shfl_xor(v, o), without a width."""
    for m in HALVING.finditer(text):
        end = _end(text, m.end()) if m[0].endswith("{") else text.find(";", m.end())
        if any(len(_split(text, call.end())) < WIDTH_AT.get(call[1], 99) for call in LANES.finditer(text, m.end(), end)):
            yield m.start()


def _end(text: str, at: int) -> int:
    """Past the brace that closes the one before `at`."""
    depth = 1
    for m in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if m[0] == "{" else -1
        if not depth:
            return m.end()
    return len(text)


def _split(text: str, at: int) -> list[str]:
    """Arguments of the call whose parenthesis ends before `at`."""
    given, depth = [""], 0
    for c in text[at:]:
        depth += (c in "([{") - (c in ")]}")
        if depth < 0:
            break
        if c == "," and not depth:
            given.append("")
        else:
            given[-1] += c
    return given


RULES = (
    Rule("include", (AMD, NVIDIA), _pattern(r"^[ \t]*#[ \t]*include\b"), "hipRTC and NVRTC know no folders of headers", "write what you need of it, or compile the text that your preprocessor gives"),
    Rule("extern-c", (AMD, NVIDIA), _not_c, "a C++ name cannot be looked up", 'extern "C" __global__ void'),
    Rule("template", (AMD, NVIDIA), _pattern(r"\btemplate\s*<[^;{}]*>\s*(?:extern\s+\"C\"\s*)?__global__"), "a template is no function before it is called",
         "make its parameters constants of the text"),
    Rule("host-service", (AMD, NVIDIA), _pattern(r"(?<![\w.>])(?:printf|assert|malloc|free)\s*\("), "it needs the host while it runs", "write what you want to see to an output"),
    Rule("mask", (AMD,), _pattern(r"\b__(?:shfl|ballot|any|all|reduce|match|syncwarp)\w*\s*\(\s*(?:0[xX][fF]{8}[uU]?[lL]*|-1|~0[uU]?)\s*[,)]"
                                  r"|\b(?:unsigned|uint32_t|u32|int)\s+\w+\s*=\s*__ballot\s*\("),
         "a wave of 64 lanes has masks of 64 bits", "use __ballot and __shfl without a mask, and unsigned long long for what __ballot gives"),
    Rule("sync-lanes", (AMD,), _pattern(r"\b__(?:shfl|ballot|any|all|reduce|match)\w*_sync\s*\(|\b__syncwarp\s*\(|\b__activemask\s*\("), "only newer ROCm has it, and only with masks of 64 bits",
         "the functions without _sync are there always"),
    Rule("wave-size", (AMD,), _with_lanes(r"\bthreadIdx\.x\s*(?:%|/)\s*(?:32|64)\b|\bthreadIdx\.x\s*&\s*(?:31|63)\b|\bthreadIdx\.x\s*>>\s*[56]\b|\bthreadIdx\.x\s*&\s*(?:0x1f|0x3f)\b"),
         "waves have 32 lanes on some chips and 64 on others", "warpSize says how many; groups of 32 are given to __shfl as its width"),
    Rule("wave-loop", (AMD,), _halving, "waves have 32 lanes on some chips and 64 on others", "begin at warpSize / 2, or give __shfl_xor the width of the group"),
    Rule("index", (AMD, NVIDIA), _pattern(r"\bint\s+\w+\s*=\s*(?:blockIdx\.\w\s*\*\s*blockDim\.\w|blockDim\.\w\s*\*\s*blockIdx\.\w)"), "2^31 threads are more than an int can count",
         "(long long)blockIdx.x * blockDim.x + threadIdx.x"),
)
