"""The way back: element · scale_inv in float32, rounded once, for every code beside every scale."""

import dataclasses

import numpy as np
import pytest
import torch

from harness.tests.quantized import DTYPES, hard_inputs
from reference import dequantize, quantize
from reference.formats import E4M3, FP8
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

ORACLE = {E4M3: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}
BYTES = np.arange(256, dtype=np.uint8)
FLT_MAX = np.finfo(np.float32).max


def fp8(data):
    return data.view(torch.uint8).numpy().view(ORACLE[data.dtype]).astype(np.float32)


def e8m0(codes):
    return codes.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def unpacked(data):
    """(rows, cols) of E2M1 values."""
    packed = data.reshape(-1, data.shape[-1]).numpy()
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(len(packed), -1)
    return codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def nvfp4_scale(scale, amax):
    """s · (1/S_enc), in float32."""
    one, amax = np.float32(1), np.float32(amax)
    encode = np.float32(2688) / amax
    encode = one if amax == 0 or np.isnan(encode) or encode == 0 else min(encode, FLT_MAX)
    return scale * (one / encode)


def rounded(values, dtype):
    """float32 numpy values rounded once."""
    narrow = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}[dtype]
    return values.astype(narrow).astype(np.float32)


def assert_values(tensor, expected):
    for dtype in DTYPES:
        values = dequantize(tensor, dtype)
        assert values.dtype == dtype and values.shape == tensor.shape
        with np.errstate(all="ignore"):
            wanted = rounded(expected, dtype).reshape(values.shape)
        np.testing.assert_array_equal(values.float().numpy(), wanted)
        finite = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(values.float().numpy())[finite], np.signbit(wanted)[finite])


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("scale", (1.0, 0.3, 3e38, 2.0**-149, 1e-40, 0.0, -2.0, np.inf, np.nan))
def test_every_fp8_code(dtype, scale):
    data, scale_inv = torch.from_numpy(BYTES.reshape(16, 16)).view(dtype), torch.tensor([scale])
    with np.errstate(all="ignore"):
        expected = fp8(data) * np.float32(scale)
    assert_values(Float8Tensor(data, None, scale_inv, torch.bfloat16), expected)
    down = Float8Tensor(None, data.t().contiguous(), scale_inv, torch.bfloat16)
    assert_values(down, expected)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_fp8_code_beside_every_e8m0_scale(dtype):
    """256 rows, one for each scale, of 256 codes: 0 is 2⁻¹²⁷, 255 NaN, and nothing is flushed."""
    data = torch.from_numpy(np.tile(BYTES, (256, 1))).view(dtype)
    codes = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 8).contiguous()
    with np.errstate(all="ignore"):
        expected = fp8(data) * np.repeat(e8m0(codes), 32, 1)
    assert_values(MXFP8Tensor(data, codes, None, None, torch.float32), expected)
    turned = data.view(torch.uint8).t().contiguous().view(dtype)
    assert_values(MXFP8Tensor(None, None, turned, codes.t().contiguous(), torch.float32), expected.T)


@pytest.mark.parametrize("amax", (1.0, 0.7, 2688.0, 3e38, float(FLT_MAX), 2.0**-149, 1e-36, 0.0, np.inf, np.nan))
def test_every_e2m1_code_beside_every_e4m3_scale(amax):
    """256 rows, one for each scale, of 16 codes."""
    packed = torch.from_numpy(np.tile((BYTES[1:16:2] << 4) + BYTES[0:16:2], (256, 1)))
    scales = torch.zeros(256, 4, dtype=torch.uint8)
    scales[:, 0] = torch.arange(256)
    scales = scales.view(E4M3)
    with np.errstate(all="ignore"):
        expected = unpacked(packed) * nvfp4_scale(fp8(scales[:, :1].contiguous()), amax)
    assert_values(NVFP4Tensor(packed, scales, torch.tensor([amax]), None, None, None, torch.float16), expected)
    down = NVFP4Tensor(None, None, None, packed, scales, torch.tensor([amax]), torch.float16)
    assert down.shape == (16, 256)
    assert_values(down, expected.T)


@pytest.mark.parametrize("name", hard_inputs((2, 2), torch.float32))
@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_what_quantize_gives(name, given):
    x = hard_inputs((3, 32, 96), given)[name]
    for made, expected in zip((quantize(x, quantizer) for quantizer in quantizers()), (both_of_fp8,) * 2 + (
            both_of_mxfp8, both_of_nvfp4)):
        with np.errstate(all="ignore"):
            rowwise, columnwise = expected(made)
        assert_values(dataclasses.replace(made, columnwise_data=None), rowwise)
        assert_values(dataclasses.replace(made, rowwise_data=None), columnwise)


def quantizers():
    yield Float8Quantizer(torch.tensor([0.37]), torch.zeros(1), columnwise=True)
    yield Float8CurrentScalingQuantizer(columnwise=True)
    yield MXFP8Quantizer(columnwise=True)
    yield NVFP4Quantizer(columnwise=True)


def both_of_fp8(made):
    return fp8(made.rowwise_data) * made.scale_inv.numpy(), fp8(made.columnwise_data).T * made.scale_inv.numpy()


def both_of_mxfp8(made):
    along = np.repeat(e8m0(made.rowwise_scale_inv)[:96, :3], 32, 1)
    down = np.repeat(e8m0(made.columnwise_scale_inv)[:3, :96], 32, 0)
    return [fp8(data).reshape(96, 96) * scale for data, scale in (
        (made.rowwise_data, along), (made.columnwise_data, down))]


def both_of_nvfp4(made):
    parts = [(getattr(made, f"{name}_data"), getattr(made, f"{name}_scale_inv"), getattr(made, f"{name}_amax"))
             for name in ("rowwise", "columnwise")]
    along, down = (unpacked(data) * np.repeat(nvfp4_scale(fp8(scale)[:96, :6], amax.item()), 16, 1)
                   for data, scale, amax in parts)
    return along, down.T
