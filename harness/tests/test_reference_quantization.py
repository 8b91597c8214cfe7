"""The quantizations of `reference`, byte for byte, against numpy and ml_dtypes, and what they must keep."""

import dataclasses

import numpy as np
import pytest
import torch

from harness.tests import quantized
from harness.tests.quantized import DTYPES, hard_inputs, near_powers
from reference import dequantize, quantize
from reference.formats import E4M3, FP8
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer

pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

SHAPES = ((32, 64), (3, 32, 96), (160, 32), (2, 1, 16, 32))
NAMES = tuple(hard_inputs((2, 2), torch.float32))
both = {"rowwise": True, "columnwise": True}


def delayed(scale=1.0, amax=0.0, **options):
    return Float8Quantizer(torch.tensor([scale]), torch.tensor([amax]), **options)


QUANTIZERS = {
    "delayed": lambda **o: delayed(0.37, **o),
    "current": Float8CurrentScalingQuantizer,
    "mxfp8": MXFP8Quantizer,
    "nvfp4": NVFP4Quantizer,
    "nvfp4-2d": lambda **o: NVFP4Quantizer(with_2d_quantization=True, **o),
    "nvfp4-sr": lambda **o: NVFP4Quantizer(stochastic_rounding=True, seed=2**33 + 5, offset=2**40 + 3, **o),
    "nvfp4-rht": lambda **o: NVFP4Quantizer(with_rht=True, **o),
    "nvfp4-rht-sr": lambda **o: NVFP4Quantizer(with_rht=True, stochastic_rounding=True, **o),
}


def raw(tensor):
    """Bytes as numpy, of any dtype of a field."""
    return tensor.contiguous().view(torch.uint8).numpy() if tensor.element_size() == 1 else tensor.numpy()


def matrix(x):
    return x.float().reshape(x.shape[:-1].numel(), x.shape[-1]).numpy()


def assert_fp8(result, x, scale, dtype):
    y = matrix(x)
    with np.errstate(all="ignore"):
        codes = quantized.fp8(y * scale, dtype)
        inverse = np.float32(1) / scale
    np.testing.assert_array_equal(raw(result.rowwise_data), codes.reshape(x.shape))
    np.testing.assert_array_equal(raw(result.columnwise_data), codes.T)
    np.testing.assert_array_equal(raw(result.scale_inv), [inverse])


def current_scale(biggest, largest, epsilon=0.0, pow2=False):
    with np.errstate(all="ignore"):
        biggest = np.maximum(biggest, np.float32(epsilon))
        scale = np.minimum(np.float32(largest) / biggest, quantized.FLT_MAX)
    if biggest == 0 or not np.isfinite(biggest):
        scale = np.float32(1)
    return np.float32(2.0 ** np.floor(np.log2(np.float64(scale)))) if pow2 else scale


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_delayed(name, dtype):
    for given in DTYPES:
        x = hard_inputs((5, 37), given)[name]
        for scale, start in ((0.37, 0.0), (1e4, 2.0), (3e38, 1e9), (2.0**-149, torch.nan), (torch.nan, 0.0)):
            quantizer = delayed(scale, start, dtype=dtype, **both)
            assert_fp8(quantize(x, quantizer), x, np.float32(scale), dtype)
            expected = np.maximum(np.float32(start), quantized.amax(matrix(x)))
            np.testing.assert_array_equal(quantizer.amax.numpy(), [expected])
            np.testing.assert_array_equal(quantizer.scale.numpy(), np.float32([scale]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_current(name, dtype):
    for given in DTYPES:
        x = hard_inputs((2, 3, 37), given)[name]
        for pow2, epsilon in ((False, 0.0), (True, 0.0), (False, 10.0), (True, 1e-30)):
            quantizer = Float8CurrentScalingQuantizer(dtype, pow2, epsilon, **both)
            scale = current_scale(quantized.amax(matrix(x)), 448 if dtype == E4M3 else 57344, epsilon, pow2)
            assert_fp8(quantize(x, quantizer), x, scale, dtype)


@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_current_at_every_power_of_two(given):
    for biggest in near_powers(given):
        x = torch.stack([biggest, -biggest / 3, biggest / 2, torch.zeros_like(biggest)])[None]
        for pow2 in (False, True):
            scale = current_scale(np.float32(biggest.float()), 448, pow2=pow2)
            assert_fp8(quantize(x, Float8CurrentScalingQuantizer(force_pow_2_scales=pow2, **both)), x, scale, E4M3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_mxfp8(name, dtype):
    for shape, given in zip(SHAPES, (*DTYPES, torch.bfloat16)):
        assert_mxfp8(hard_inputs(shape, given)[name], dtype)


def assert_mxfp8(x, dtype):
    columnwise = x.shape[:-1].numel() % 32 == 0
    result = quantize(x, MXFP8Quantizer(dtype, columnwise=columnwise))
    codes, scales = quantized.mxfp8_rows(matrix(x), dtype)
    np.testing.assert_array_equal(raw(result.rowwise_data), codes.reshape(x.shape))
    np.testing.assert_array_equal(raw(result.rowwise_scale_inv), scales)
    if columnwise:
        codes, scales = quantized.mxfp8_rows(matrix(x).T, dtype)
        np.testing.assert_array_equal(raw(result.columnwise_data), codes.T.reshape(x.shape))
        np.testing.assert_array_equal(raw(result.columnwise_scale_inv), scales.T)


@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_mxfp8_at_every_power_of_two(given):
    """A block for each: the scales cover every code that the dtype can reach."""
    biggest = near_powers(given)
    x = torch.randn(len(biggest), 32, generator=torch.Generator().manual_seed(0)).clamp(-1, 1).to(given)
    x *= biggest[:, None]
    x[:, 7] = -biggest
    for dtype in FP8:
        assert_mxfp8(x, dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", ("", "2d", "sr"))
def test_nvfp4(name, options):
    for shape, given in zip(((32, 64), (3, 16, 48), (160, 16)), DTYPES):
        assert_nvfp4(hard_inputs(shape, given)[name], options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", ("rht", "rht-sr"))
def test_nvfp4_with_a_hadamard_transform(name, options):
    assert_nvfp4(hard_inputs((3, 32, 48), torch.bfloat16)[name], options)


def assert_nvfp4(x, options):
    quantizer = QUANTIZERS[f"nvfp4-{options}" if options else "nvfp4"](**both)
    if x.shape[:-1].numel() % 16:
        quantizer = dataclasses.replace(quantizer, columnwise=False)
    result, y = quantize(x, quantizer), matrix(x)
    parts = {"rowwise": y} | ({"columnwise": y.T} if quantizer.columnwise else {})
    for orientation, part in parts.items():
        if orientation == "columnwise" and quantizer.with_rht:
            part = quantized.hadamard_rows(part)
        bits = None
        if "sr" in options:
            stream = quantizer.seed, quantizer.offset, orientation == "columnwise"
            bits = np.array([quantized.random_byte(i, *stream) for i in range(y.size)], np.uint8).reshape(part.shape)
        codes, scales, biggest = quantized.nvfp4_rows(part, bits, square=options == "2d")
        shape = (*x.shape[:-1], -1) if orientation == "rowwise" else codes.shape
        np.testing.assert_array_equal(raw(getattr(result, f"{orientation}_data")), codes.reshape(shape))
        np.testing.assert_array_equal(raw(getattr(result, f"{orientation}_scale_inv")), scales)
        np.testing.assert_array_equal(raw(getattr(result, f"{orientation}_amax")), [biggest])


@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_nvfp4_at_every_power_of_two(given):
    """The largest of a tensor with ever smaller elements, down to a block whose scale is 0."""
    shrink = torch.logspace(0, -12, 32, base=4, dtype=torch.float32)
    for biggest in near_powers(given):
        assert_nvfp4((biggest.float() * shrink).to(given).view(1, 2, 16), "")


def test_hadamard_is_the_sylvester_matrix():
    """Of integers, where float32 is exact: xᵀ·diag(signs)·H₁₆/4."""
    h = np.ones((1, 1))
    for _ in range(4):
        h = np.kron([[1, 1], [1, -1]], h)
    x = np.random.default_rng(0).integers(-8, 9, (3, 32)).astype(np.float32)
    expected = x.reshape(3, 2, 16) * quantized.SIGNS @ h / 4
    np.testing.assert_array_equal(quantized.hadamard_rows(x), expected.reshape(3, 32))


def test_amax_is_kept_where_it_is():
    quantizer = delayed(amax=7.0)
    place = quantizer.amax.data_ptr()
    nan = torch.nan
    for values, expected in (([1.0, -3.0], 7.0), ([-9.0, 1.0], 9.0), ([nan, 100.0], nan), ([1.0], nan)):
        quantize(torch.tensor(values), quantizer)
        assert quantizer.amax.data_ptr() == place
        np.testing.assert_array_equal(quantizer.amax.numpy(), np.float32([expected]))


@pytest.mark.parametrize("shape", ((), (1,), (1, 1)), ids=str)
def test_state_of_one_element_has_any_shape(shape):
    quantizer = Float8Quantizer(torch.full(shape, 2.0), torch.zeros(shape), **both)
    result = quantize(torch.tensor([[1.0, -3.0]]), quantizer)
    assert quantizer.amax.shape == shape and float(quantizer.amax) == 3
    assert result.scale_inv.tolist() == [0.5] and result.rowwise_data.float().tolist() == [[2, -6]]


@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_orientations_are_independent(make):
    """Both at once give what each gives alone, and None stands for the one that was not asked for."""
    x = hard_inputs((2, 32, 64), torch.bfloat16)["wide"]
    together = quantize(x, make(**both))
    for mine, other in (("rowwise", "columnwise"), ("columnwise", "rowwise")):
        alone = quantize(x, make(**{mine: True, other: False}))
        names = {name for name in vars(together) if name.startswith(mine)}
        assert names and all(np.array_equal(raw(getattr(alone, n)), raw(getattr(together, n))) for n in names)
        assert [vars(alone)[name] for name in vars(alone) if name.startswith(other)] == [None] * len(names)


@pytest.mark.parametrize("layout", ("transposed", "skipping", "expanded", "offset"))
@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_layout(make, layout):
    wide = torch.randn(96, 130, generator=torch.Generator().manual_seed(1)).bfloat16()
    x = {"transposed": wide[:, :64].t(), "skipping": wide[::3, ::2][:, :64], "expanded": wide[:1, :64].expand(32, 64),
         "offset": wide[:32, 1:65]}[layout]
    before = x.clone()
    strided, packed = (quantize(values, make(**both)).tensors() for values in (x, x.contiguous()))
    assert all(np.array_equal(raw(strided[name]), raw(packed[name])) for name in packed)
    assert torch.equal(x, before) and all(value.is_contiguous() for value in strided.values())


@pytest.mark.parametrize("shape", ((0, 64), (64, 0), (0,), (2, 0, 32), (0, 0)), ids=str)
@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_nothing(make, shape):
    if shape == (0,) and make is QUANTIZERS["nvfp4-2d"]:
        pytest.skip("a vector has no squares")
    result = quantize(torch.empty(shape, dtype=torch.bfloat16), make(columnwise=len(shape) > 1))
    assert result.shape == shape
    restored = dequantize(result, torch.float32)
    assert restored.shape == shape and restored.dtype == torch.float32
    for name, value in result.tensors().items():
        if name.endswith("amax"):
            assert value.tolist() == [0]
        elif name == "scale_inv":
            assert value.isfinite().all()
        elif name.endswith("scale_inv"):
            assert not value.view(torch.uint8).any()


def test_delayed_of_nothing_leaves_amax():
    quantizer = delayed(amax=3.0)
    quantize(torch.empty(0, 8), quantizer)
    assert quantizer.amax.tolist() == [3]


@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_no_graph(make):
    x = torch.randn(32, 32).bfloat16().requires_grad_()
    result = quantize(x, make(**both))
    assert not any(value.requires_grad for value in result.tensors().values())
    assert not dequantize(result, torch.bfloat16).requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_nothing_waits_for_a_gpu(make):
    x, quantizer = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16), make(**both)
    if isinstance(quantizer, Float8Quantizer):
        quantizer = dataclasses.replace(quantizer, scale=quantizer.scale.cuda(), amax=quantizer.amax.cuda())
    torch.cuda.set_sync_debug_mode("error")
    try:
        dequantize(quantize(x, quantizer), torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", QUANTIZERS.values(), ids=QUANTIZERS)
def test_the_same_on_a_gpu(make, name):
    for dtype in DTYPES if not getattr(make(), "with_rht", False) else DTYPES[:1]:
        x = hard_inputs((3, 32, 96), dtype)[name]
        here, there = make(**both), make(**both)
        if isinstance(there, Float8Quantizer):
            there = dataclasses.replace(there, scale=there.scale.cuda(), amax=there.amax.cuda())
        ours, theirs = quantize(x, here), quantize(x.cuda(), there)
        for field, value in ours.tensors().items():
            np.testing.assert_array_equal(raw(theirs.to("cpu").tensors()[field]), raw(value), field)
        for output in DTYPES:
            np.testing.assert_array_equal(dequantize(theirs, output).cpu().float().numpy(),
                                          dequantize(ours, output).float().numpy())
