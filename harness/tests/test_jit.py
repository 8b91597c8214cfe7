"""Compiling and keeping kernels: what is found again, and what a damaged or unwritable cache costs."""

import errno
import hashlib
import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from optimized import jit

ARCH = "sm_80"
HEADER = "__device__ inline float factor() { return 2.f; }\n"
SOURCE = """
#include "device/toy.cuh"

template <class T, int N>
__global__ void scale(T* p) {
  __shared__ T row[N];
  row[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = T(factor() * row[N - 1 - threadIdx.x]);
}

template <int N>
__global__ void __launch_bounds__(1024, 2) crowded(float* p) {
  float v[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = p[i * 1024 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < N; ++j) v[i] = fmaf(v[i], v[j], v[N - 1 - i]);
#pragma unroll
  for (int i = 0; i < N; ++i) p[i * 1024 + threadIdx.x] = v[i];
}

template <int N>
__global__ void indexed(float* p, const int* at) {
  float v[N];
  for (int i = 0; i < N; ++i) v[at[i]] = p[i];
  for (int i = 0; i < N; ++i) p[i] = v[at[N - 1 - i]];
}
"""
SCALE = ("toy.cu", "scale<float, 64>")
OTHERS = [("toy.cu", "scale<float, 128>"), ("toy.cu", "scale<int, 64>"), ("toy.cu", "indexed<33>")]


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    """A folder of kernels and an empty cache of its own for each test; gives the folder of kernels."""
    folder = tmp_path / "kernels"
    (folder / "device").mkdir(parents=True)
    (folder / "toy.cu").write_text(SOURCE)
    (folder / "device" / "toy.cuh").write_text(HEADER)
    monkeypatch.setattr(jit, "KERNELS", folder)
    monkeypatch.setattr(jit, "CACHE", tmp_path / "cache")
    forget()
    yield folder
    forget()


def forget():
    """What this process remembers of folders, as if it had just started."""
    jit._cache.cache_clear()
    jit._options.cache_clear()


def built(request=SCALE, arch=ARCH):
    return jit.build([request], arch)[request]


def entries():
    return sorted(path for path in jit.CACHE.rglob("*") if path.is_file())


def same(one, other):
    """Whether two binaries differ at most in where they came from and how long that took."""
    return replace(one, compile_ms=0, cache_hit=False) == replace(other, compile_ms=0, cache_hit=False)


def test_second_build_is_a_hit():
    first = built()
    forget()
    second = built()
    assert not first.cache_hit and second.cache_hit
    assert second == replace(first, cache_hit=True), "the time to compile is kept, too"
    assert first.image.startswith(b"\x7fELF")


def test_nvrtc_keeps_nothing_itself():
    """What it keeps comes without the assembler's report, and only where there is a GPU."""
    assert jit._options(ARCH).no_cache


def test_nothing_to_build():
    assert jit.build([], ARCH) == {}


def test_asked_for_twice_is_built_once():
    assert list(jit.build([SCALE, SCALE, *OTHERS], ARCH)) == [SCALE, *OTHERS]


def flipped(at):
    def damage(data):
        at_byte = int(at * (len(data) - 1))
        return data[:at_byte] + bytes([data[at_byte] ^ 0x10]) + data[at_byte + 1:]

    return damage


DAMAGE = {
    "digest": flipped(0), "head": flipped(0.02), "middle": flipped(0.5), "end": flipped(1),
    "truncated": lambda data: data[:len(data) // 2], "short": lambda data: data[:20],
    "empty": lambda data: b"", "extended": lambda data: data + b"\0", "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"not a kernel\n" * 9,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_entry_is_compiled_again(damage):
    first = built()
    (entry,) = entries()
    entry.write_bytes(damage(entry.read_bytes()))
    forget()
    again = built()
    assert not again.cache_hit and same(again, first)
    forget()
    assert built().cache_hit, "the damage is repaired"


def test_entry_of_another_version_is_compiled_again():
    first = built()
    (entry,) = entries()
    head = json.dumps({"symbol": first.symbol, "registers": 1, "something": "else"}).encode()
    body = struct.pack("<I", len(head)) + head + first.image
    entry.write_bytes(hashlib.sha256(body).digest() + body)
    forget()
    again = built()
    assert not again.cache_hit and same(again, first)


def test_folder_in_the_place_of_an_entry():
    first = built()
    (entry,) = entries()
    entry.unlink()
    entry.mkdir()
    forget()
    assert same(built(), first)


@pytest.mark.parametrize("depth", (0, 1), ids=("folder", "parent"))
def test_file_in_the_place_of_the_cache(depth, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    jit.CACHE = jit.CACHE.joinpath(*["below"] * depth)  # the fixture puts it back
    assert not built().cache_hit
    assert not built().cache_hit
    assert (tmp_path / "cache").read_text() == "in the way"


def test_read_only_folder():
    jit.CACHE.mkdir()
    jit.CACHE.chmod(0o500)
    if os.access(jit.CACHE, os.W_OK):
        pytest.skip("this user may write to any folder")
    assert not built().cache_hit
    assert not built().cache_hit


def test_read_only_folder_still_serves():
    first = built()
    folders = [path for path in jit.CACHE.rglob("*") if path.is_dir()]
    for folder in (*folders, jit.CACHE):
        folder.chmod(0o500)
    forget()
    assert built().cache_hit
    assert same(built(), first) and not built(OTHERS[0]).image == first.image
    for folder in (jit.CACHE, *folders):
        folder.chmod(0o700)


@pytest.mark.parametrize("name", ("ENOSPC", "EROFS", "EACCES", "EDQUOT", "EIO"))
def test_failing_write(name, monkeypatch):
    def refuse(*_):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(jit.FileStreamProgramCache, "__setitem__", refuse)
    first, second = built(), built()
    assert same(first, second) and not second.cache_hit


@pytest.mark.parametrize("method", ("__init__", "__getitem__"))
def test_failing_read(method, monkeypatch):
    first = built()

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(jit.FileStreamProgramCache, method, refuse)
    forget()
    second = built()
    assert same(first, second) and not second.cache_hit


def test_cache_removed_underneath():
    first = built()
    for path in sorted(jit.CACHE.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert same(built(), first)
    assert built().cache_hit


@pytest.mark.parametrize("file", ("toy.cu", "device/toy.cuh"))
def test_changed_text_is_compiled_again(file, toy):
    text = (toy / file).read_text()
    first = built()
    (toy / file).write_text(text.replace("2.f", "3.f").replace("N - 1 - threadIdx.x", "threadIdx.x ^ 1"))
    changed = built()
    assert not changed.cache_hit and changed.code_digest != first.code_digest
    (toy / file).write_text(text)
    assert built() == replace(first, cache_hit=True)


def test_new_header_counts(toy):
    built()
    (toy / "device" / "more.cuh").write_text("// could be included\n")
    assert not built().cache_hit


def test_architectures_are_kept_apart():
    old, new = built(), built(arch="sm_90a")
    assert not new.cache_hit and old.code_digest != new.code_digest
    assert built().cache_hit and built().image == old.image


@pytest.mark.parametrize("file", ("toy.cu", "device/toy.cuh"))
def test_text_edited_while_it_is_compiled_is_not_kept(file, toy, monkeypatch):
    """Else the entry of the one text would hold the machine code of the other."""
    text, program = (toy / file).read_text(), jit.Program

    def edited(*args, **kwargs):
        (toy / file).write_text(text.replace("2.f", "3.f") + "\n")
        return program(*args, **kwargs)

    monkeypatch.setattr(jit, "Program", edited)
    built()
    monkeypatch.setattr(jit, "Program", program)
    assert not built().cache_hit
    (toy / file).write_text(text)
    assert not built().cache_hit


def test_each_kernel_of_a_program_is_described():
    together = jit.build([SCALE, *OTHERS], ARCH, threads=1)
    assert len({binary.image for binary in together.values()}) == 1
    assert len({binary.symbol for binary in together.values()}) == len(together)
    assert len({binary.code_digest for binary in together.values()}) == len(together)
    assert all(0 < binary.registers <= 255 and binary.compile_ms > 0 for binary in together.values())
    assert [binary.shared_bytes for binary in together.values()] == [256, 512, 256, 0]
    assert [binary.stack_bytes > 0 for binary in together.values()] == [False, False, False, True]
    for request, binary in together.items():
        forget()
        jit.CACHE = jit.CACHE.with_name(binary.symbol)
        alone = built(request)
        assert not alone.cache_hit and alone.image != binary.image
        assert same(replace(alone, image=b""), replace(binary, image=b""))


def test_spills_are_seen():
    crowded = built(("toy.cu", "crowded<48>"))
    assert crowded.registers == 32 and crowded.spill_bytes > 0 and crowded.stack_bytes > 0
    assert built().spill_bytes == 0


def test_several_at_once():
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: jit.build([SCALE, *OTHERS], ARCH), range(4)))
    assert all(same(one[request], results[0][request]) for one in results for request in (SCALE, *OTHERS))


def test_source_that_does_not_compile(toy):
    (toy / "toy.cu").write_text(SOURCE.replace("T(factor()", "T(missing_function()"))
    with pytest.raises(Exception, match="missing_function"):
        built()
    (toy / "toy.cu").write_text(SOURCE)
    assert built().registers


@pytest.mark.parametrize("expression", ("absent<float>", "scale<float>", "scale<nothing, 8>", "scale<"))
def test_unknown_name_expression(expression):
    with pytest.raises(Exception, match=expression.partition("<")[0]):
        built(("toy.cu", expression))


def test_unknown_source():
    with pytest.raises(FileNotFoundError, match="absent.cu"):
        built(("absent.cu", "scale<float, 64>"))
