"""Products of Hopper's tensor cores, compiled for the CPU: from operands to the kernel's argument, lists of work, loads
behind a thread's back, products, and what becomes of them, while anybody may be held up for long. What it does not see:
grids in front, and barriers whose initialisation was not fenced."""

import struct
from types import SimpleNamespace

import pytest
import torch

from harness.tests.emulation import EMULATOR, emulate, needs_compiler, with_mistake
from optimized import gemm
from optimized.gemm_tiles import BACKWARD, FORWARD, LARGE, MEDIUM, SMALL, TALL
from optimized.jit import KERNELS
from optimized.matrices import of_backward, of_forward
from optimized.plan import SIZES, Chip, round_up

FOUR_SMS = Chip("sm_90a", 4, 232_448, ((2, 2),))
SCALE, FACTOR = 0.75, -2.0
BF16, F32 = torch.bfloat16, torch.float32

KERNEL, LOAD, MULTIPLY, STORE = "gemm.cu", "device/gemm_load.cuh", "device/gemm_multiply.cuh", "device/gemm_store.cuh"
ODD = next(tile for tile in FORWARD if tile.stages % 2 and tile.schedule == "PingPong" and not tile.across)
OVERLAPPED = next(tile for tile in FORWARD if tile.cols == 144 and not tile.across)

pytestmark = needs_compiler


class Memory:
    """What a kernel finds in it: NaN, but for matrices of small whole numbers, whose products are exact in float32."""

    def __init__(self):
        self.bytes, self.used = torch.full((1 << 22,), 0xff, dtype=torch.uint8), 0

    def matrix(self, rows, cols, dtype=BF16, padding=0, empty=False):
        pitch = cols + padding
        end = self.used + rows * pitch * dtype.itemsize
        found = self.bytes[self.used:end].view(dtype).view(rows, pitch)[:, :cols]
        self.used = round_up(end, 256) + 256
        return found if empty else found.copy_(torch.randint(-3, 4, (rows, cols)))

    def address(self, tensor):
        return 0 if tensor is None else tensor.data_ptr() - self.bytes.data_ptr()


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """Runs the products of `operands` on `tensors`, the A, B, C and D of each."""
    def encode(element, shape, pitch_bytes, box, row_bytes):
        return lambda address: struct.pack("4q4i80x", address, *shape, pitch_bytes, SIZES[element], *box, row_bytes)

    def run(memory, operands, tensors, tile, seed=1, kernels=KERNELS):
        lists = []
        listed = SimpleNamespace(data_ptr=lambda: len(memory.bytes))  # behind all others
        monkeypatch.setattr(gemm, "_items", lambda packed, _: lists.append(packed) or listed)
        with gemm.forced_tile(tile):
            made = gemm.launch(operands, torch.device("cpu"))
        factor = memory.matrix(1, 1, F32, empty=True).fill_(FACTOR)
        addresses = [memory.address(each) for four in tensors for each in (*four, factor, None)]
        maps = [encoded(addresses[source]) if encoded else bytes(128)
                for encoded, source in zip(made.maps.encoded, made.maps.sources)]
        job = tmp_path / "job"
        rest = struct.pack("qfi", addresses[4], SCALE, 0), *(scalar.tobytes() for scalar in made.scalars)
        argument = b"".join([*maps, *rest])
        argument = argument.ljust(round_up(len(argument), 64))
        job.write_bytes(argument + bytes(memory.bytes.numpy()) + lists[0])
        code, shown = emulate("gemm.cpp", {"KERNEL": made.plan.kernel, "THREADS": 2 * made.plan.block}, tmp_path,
                              kernels, EMULATOR / "hopper", [job, str(seed)])
        assert code == 0, shown
        before, after = memory.bytes.clone(), bytearray(job.read_bytes()[len(argument):-len(lists[0])])
        memory.bytes.copy_(torch.frombuffer(after, dtype=torch.uint8))
        return before

    monkeypatch.setattr("optimized.tma.encode", encode)
    monkeypatch.setattr("optimized.tma.Maps", lambda encoded, sources, rest: SimpleNamespace(**locals()))
    monkeypatch.setattr(gemm, "Launch", lambda plan, device, pointers, scalars, maps: SimpleNamespace(**locals()))
    monkeypatch.setattr(gemm, "make_current", lambda device: None)
    monkeypatch.setattr(gemm, "chip", lambda device: FOUR_SMS)
    return run


def exact(a, b, c=None):
    """What a kernel rounds: of whole numbers the order of sums makes no difference."""
    product = SCALE * FACTOR * (a.double() @ b.double())
    return product if c is None else product + c.double()


def expect(memory, before, results):
    """`results`: tensor -> what it must be. Nothing else has changed."""
    kept = memory.bytes == before
    for found, wanted in results.items():
        assert torch.equal(found, wanted.to(found.dtype))
        (rows, cols), size = found.shape, found.element_size()
        kept.as_strided((rows, cols * size), (found.stride(0) * size, 1), memory.address(found)).fill_(True)
    assert kept.all()


def sizes(tile, beyond, steps):
    """M, N and K of some tiles, with what is left `beyond` them."""
    rows, cols = (tile.cols, tile.rows) if tile.across else (tile.rows, tile.cols)
    return 2 * rows + beyond, 2 * cols + 8 * beyond, 64 * steps + 8 * beyond


def run_forward(launch, tile, residual=True, beyond=3, dtype=BF16, out_dtype=None, **other):
    memory, (m, n, k) = Memory(), sizes(tile, beyond, tile.stages)
    x, w = memory.matrix(m, k, dtype, padding=8), memory.matrix(n, k, dtype)
    d = memory.matrix(m, n, out_dtype or dtype, padding=16 * residual, empty=not residual)
    wanted = exact(x, w.T, d if residual else None)
    operands = of_forward(x, w, d if residual else None, residual, out_dtype)
    expect(memory, launch(memory, (operands,), [(x, w, d if residual else None, d)], tile, **other), {d: wanted})


def run_backward(launch, tile, dtype=F32, accumulates=True, **other):
    memory, (m, n, k) = Memory(), sizes(tile, 3, 1)
    dy, x, w = memory.matrix(m, n), memory.matrix(m, k), memory.matrix(n, k)
    dx, dw = memory.matrix(m, k, empty=True), memory.matrix(n, k, dtype, empty=not accumulates)
    wanted = {dx: exact(dy, w), dw: exact(dy.T, x, dw if accumulates else None)}
    operands = of_backward((dy, x, w, dw), (True, True, accumulates))
    tensors = [(dy, w, None, dx), (dy, x, dw if accumulates else None, dw)]
    expect(memory, launch(memory, operands, tensors, tile, **other), wanted)


@pytest.mark.parametrize("tile", FORWARD, ids=lambda tile: tile.name)
def test_forward(tile, launch):
    run_forward(launch, tile)


@pytest.mark.parametrize("tile", [MEDIUM, TALL, FORWARD[-1]], ids=lambda tile: tile.name)
def test_forward_of_whole_tiles_without_a_residual(tile, launch):
    run_forward(launch, tile, residual=False, beyond=0)


def test_forward_of_float16_and_to_float32(launch):
    run_forward(launch, SMALL, dtype=torch.float16)
    run_forward(launch, MEDIUM, residual=False, out_dtype=F32)


@pytest.mark.parametrize("tile", BACKWARD, ids=lambda tile: tile.name)
def test_backward_adds_to_float32(tile, launch):
    run_backward(launch, tile)


@pytest.mark.parametrize("accumulates", [False, True])
def test_backward_in_16_bits(accumulates, launch):
    run_backward(launch, LARGE, BF16, accumulates)


MISTAKES = {
    "loads every other step": (run_forward, ODD, LOAD, "place.stage = warp, ", "place.stage -= T::kStages, "),
    "does not wait for a free stage": (run_forward, MEDIUM, LOAD, "      wait(&s.empty[now], place.phase ^ 1);\n", ""),
    "gives back what is read": (run_forward, MEDIUM, MULTIPLY, "if (read >= 0) release(&s.empty[read]);\n"
                                "    read = place.stage;", "release(&s.empty[read = place.stage]);"),
    "does not wait for what is read": (run_forward, TALL, MULTIPLY, "wgmma_wait<1>();", ""),
    "does not wait for its turn": (run_forward, ODD, MULTIPLY, "bar_sync(kBarrier + consumer, kThreads)", "void()"),
    "takes a wrong box": (run_forward, MEDIUM, LOAD, "left >= Count / 2 ? &whole", "left >= 0 ? &whole"),
    "ends before all has arrived": (run_backward, MEDIUM, KERNEL, "  loader.drain();\n", ""),
    "ends before all has left": (run_backward, MEDIUM, KERNEL, "if (epilogue.leads) bulk_wait_read<0>();", ""),
    "does not wait for C": (run_forward, MEDIUM, STORE, "wait(&s.arrived[consumer][slot], phases >> slot & 1);", ""),
    "fetches C where D leaves": (run_forward, MEDIUM, STORE, "          bulk_wait_read<1>();\n", ""),
    "lays D where D leaves": (run_backward, MEDIUM, STORE, "if (leads) bulk_wait_read<T::kSlots - 1>();", ""),
    "does not wait for the other CTA": (run_forward, MEDIUM, KERNEL, "  cluster_arrive_relaxed();\n  cluster_wait();\n"
                                        "  const Walk", "  const Walk"),
    "multiplies registers unfenced": (run_forward, MEDIUM, MULTIPLY, "    wgmma_fence();\n", ""),
    "stores what is not fenced": (run_forward, MEDIUM, STORE, "      fence_async_proxy();\n", ""),
    "stores before all is there": (run_forward, MEDIUM, STORE, "      fence_async_proxy();\n      meet();\n", ""),
    "gives back C before it is read": (run_forward, TALL, MULTIPLY, "wait(&s.full[place.stage], place.phase);\n  turn",
                                       "wait(&s.full[place.stage], place.phase), release(&s.empty[place.stage]);\n"
                                       "  turn"),
    "reads C that is overwritten": (run_forward, OVERLAPPED, "device/gemm.cuh", "max(chunk % kAcross - kTwice, 0)",
                                    "chunk % kAcross"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake, launch, tmp_path):
    run, tile, *change = MISTAKES[mistake]
    kernels = with_mistake(change, tmp_path)
    with pytest.raises(AssertionError):
        for seed in range(1, 4):
            run(launch, tile, seed=seed, kernels=kernels)
