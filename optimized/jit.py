"""Compile specializations of kernels/*.cu with NVRTC and keep them on disk.

An entry of the cache is found by everything that its machine code depends on, and carries a digest of itself: a
damaged one is compiled again. A folder that cannot be written costs only the keeping.
"""

import functools
import hashlib
import io
import json
import os
import re
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Iterable

from cuda.core import Kernel, ObjectCode, Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key
from cuda.pathfinder import find_nvidia_header_directory

KERNELS = Path(__file__).parent / "kernels"
CACHE = Path(os.path.expanduser("~")) / ".cache" / "twinbench"
CACHE_BYTES = 1 << 30
KERNELS_A_PROGRAM = 8  # shares the cost of the headers, and still spreads over threads

Request = tuple[str, str]  # source file and C++ name expression


@dataclass(frozen=True)
class Binary:
    """Machine code of one specialization, and what the assembler said of it (registers a thread, bytes).

    `code_digest` covers the instructions of this kernel alone; `compile_ms` is its share of its program's time.
    """

    image: bytes
    symbol: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    code_digest: str
    compile_ms: float
    cache_hit: bool = False


_DESCRIBED = {field.name for field in fields(Binary)} - {"image", "cache_hit"}


def build(requests: Iterable[Request], arch: str, threads: int | None = None) -> dict[Request, Binary]:
    """Machine code of every (source, kernel) for `arch`, e.g. "sm_90a". Needs NVRTC, not a GPU.

    Errors: cuda.core's NVRTC error, with the compiler's log, when a source does not compile.
    """
    requests = list(dict.fromkeys(requests))
    digests = {source: source_digest(source) for source in dict(requests)}
    built = {request: found for request in requests if (found := _find(request, arch, digests[request[0]]))}
    missing = [request for request in requests if request not in built]
    threads = threads or cores()
    with ThreadPoolExecutor(threads) as pool:
        programs = _programs(missing, threads)
        for part in pool.map(lambda program: _compile(*program, arch, digests[program[0]]), programs):
            built |= part
    return {request: built[request] for request in requests}


def cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


@functools.cache
def kernel(source: str, expression: str, arch: str) -> Kernel:
    """The loaded kernel, e.g. kernel("norm_wide.cu", "norm_forward_wide<RmsNorm, bf16, 8>", "sm_90a")."""
    binary = build([(source, expression)], arch)[source, expression]
    with _loading:
        return _module(binary.image).get_kernel(binary.symbol)


_loading = threading.Lock()


@functools.cache
def _module(image: bytes) -> ObjectCode:
    """One module for all kernels of a program, never a second one: what the cache does not keep is unloaded, and with
    it the kernel of a launch."""
    return ObjectCode.from_cubin(image)


def _programs(requests: list[Request], threads: int) -> list[tuple[str, list[str]]]:
    """Requests as (source, expressions) of programs: few enough to share headers, enough to keep threads busy."""
    size = max(1, min(KERNELS_A_PROGRAM, -(-len(requests) // threads)))
    programs = []
    for source in dict.fromkeys(source for source, _ in requests):
        expressions = [expression for name, expression in requests if name == source]
        programs += [(source, expressions[i:i + size]) for i in range(0, len(expressions), size)]
    return programs


def _compile(source: str, expressions: list[str], arch: str, digest: bytes) -> dict[Request, Binary]:
    log, start = io.StringIO(), time.perf_counter()
    program = Program((KERNELS / source).read_text(), "c++", options=_options(arch))
    code = program.compile("cubin", name_expressions=tuple(expressions), logs=log)
    milliseconds = (time.perf_counter() - start) * 1e3 / len(expressions)
    image, built = bytes(code.code), {}
    unchanged = source_digest(source) == digest  # or it is not known what the compiler read
    for expression in expressions:
        symbol = bytes(code.symbol_mapping[expression]).decode()
        used = _resources(log.getvalue(), symbol)
        binary = Binary(image, symbol, *used, _code_digest(image, symbol), milliseconds)
        built[source, expression] = binary
        if unchanged:
            _keep((source, expression), arch, digest, binary)
    return built


def _resources(log: str, symbol: str) -> tuple[int, int, int, int]:
    """Registers, stack, spill and static shared bytes of `symbol` in the assembler's report."""
    report = log.split(f"'{symbol}'", 1)[1].split("Compiling entry function", 1)[0]

    def number(pattern):
        found = re.search(pattern, report)
        return int(found.group(1)) if found else 0

    spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return number(r"Used (\d+) registers"), number(r"(\d+) bytes stack frame"), spills, number(r"(\d+) bytes smem")


def _code_digest(image: bytes, symbol: str) -> str:
    """SHA-256 of the ELF section that holds the kernel's instructions."""
    table, entry_bytes, count, names_index = struct.unpack_from("<Q10xHHH", image, 40)
    entry = [struct.unpack_from("<IIQQQQ", image, table + i * entry_bytes) for i in range(count)]
    names = entry[names_index][4]
    for name, _, _, _, offset, size in entry:
        start = names + name
        if image[start:image.index(b"\0", start)] == f".text.{symbol}".encode():
            return hashlib.sha256(image[offset:offset + size]).hexdigest()
    raise ValueError(f"the compiled program has no section for {symbol}")


@functools.cache
def _options(arch: str) -> ProgramOptions:
    return ProgramOptions(
        std="c++20", arch=arch, include_path=[str(KERNELS), _toolkit_headers()], ptxas_options=["-v"],
        no_cache=True,  # what NVRTC keeps comes without the assembler's report
        device_as_default_execution_space=True,  # or NVRTC 13.0 takes generic lambdas for host functions
    )


@functools.cache
def _toolkit_headers() -> str:
    return find_nvidia_header_directory("cudart")


def source_digest(source: str) -> bytes:
    """Digest of `source` and of every header that it can include, as they are on disk now."""
    ours = [KERNELS / source, *sorted((KERNELS / "device").rglob("*.cuh"))]
    toolkit = sorted(Path(_toolkit_headers()).glob("cuda_[bf]*16.h*"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in ours + toolkit)).digest()


@functools.cache
def _cache() -> FileStreamProgramCache | None:
    try:
        return FileStreamProgramCache(CACHE, max_size_bytes=CACHE_BYTES)
    except OSError:
        return None


def _key(request: Request, arch: str, digest: bytes) -> bytes:
    source, expression = request
    return make_program_cache_key(
        code=source, code_type="c++", options=_options(arch), target_type="cubin", name_expressions=(expression,),
        extra_digest=digest,
    )


def _find(request: Request, arch: str, digest: bytes) -> Binary | None:
    """The entry of an earlier run; None where there is none, or one that is not what was written."""
    cache = _cache()
    try:
        entry = None if cache is None else cache.get(_key(request, arch, digest))
    except OSError:
        return None
    if entry is None or hashlib.sha256(entry[32:]).digest() != entry[:32]:
        return None
    length = struct.unpack_from("<I", entry, 32)[0]
    described = json.loads(entry[36:36 + length])
    if described.keys() != _DESCRIBED:
        return None  # by an earlier version of this file
    return Binary(entry[36 + length:], **described, cache_hit=True)


def _keep(request: Request, arch: str, digest: bytes, binary: Binary) -> None:
    described = {name: getattr(binary, name) for name in _DESCRIBED}
    head = json.dumps(described).encode()
    body = struct.pack("<I", len(head)) + head + binary.image
    cache = _cache()
    try:
        if cache is not None:
            cache[_key(request, arch, digest)] = hashlib.sha256(body).digest() + body
    except OSError:
        return  # a read-only or full disk: this process keeps the kernel, the next one compiles it again
