"""Quantization to FP8, MXFP8 and NVFP4, and back.

A tensor of shape (..., cols) is quantized as the matrix y of rows × cols, rows the product of the leading dimensions,
in float32 with every quotient correctly rounded. Every max propagates NaN; the max over nothing is 0. Nothing waits for
the host. Results carry no autograd graph. A NaN in float32 (an amax, a scale) has no particular sign or payload.
"""

import torch

from reference import formats, philox, quantizers, tensors
from reference.quantizers import Float8CurrentScalingQuantizer, Float8Quantizer, MXFP8Quantizer, NVFP4Quantizer
from reference.tensors import Float8Tensor, MXFP8Tensor, NVFP4Tensor

_HADAMARD_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


@torch.no_grad()
def quantize(input, quantizer):
    """q = cast(y·scale), with the scale that the quantizer's recipe gives the tensor or the block.

    Delayed scaling: the scale of the quantizer, whose `amax` is raised to max|y|, in place.
    Current scaling: scale = largest/max|y|. MXFP8: 2^(127 − code), code = e8m0_ceil(amax_block·(1/largest)).
    NVFP4: 1/(s·(1/S_enc)), s = E4M3(amax_block·(S_enc·(1/6))), S_enc = 448·6/max|y|.

    Shapes: input (..., cols), float32, float16 or bfloat16 -> Float8Tensor, MXFP8Tensor or NVFP4Tensor, whose fields
    say theirs; rows or cols must be multiples of the blocks that lie along them.
    Errors: TypeError for types, dtypes and the quantizer; ValueError for shapes and devices.
    Source: the recipes of TransformerEngine; Rouhani et al., "Microscaling Data Formats for Deep Learning",
    arXiv:2310.10537; NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149.
    """
    quantizers.check("quantize", input, quantizer)
    return _QUANTIZE[type(quantizer)](input, formats.matrix(input).float().contiguous(), quantizer)


@torch.no_grad()
def dequantize(tensor, dtype):
    """output = element · scale_inv in float32, rounded once to `dtype`.

    From rowwise data where there is some, else from columnwise data. A random Hadamard transform is not undone.

    Shapes: a Float8Tensor, MXFP8Tensor or NVFP4Tensor -> `tensor.shape`, in dtype float32, float16 or bfloat16.
    Errors: TypeError for types and dtypes; ValueError for data and scales that contradict the tensor's shape.
    Source: the definitions of the formats, in reference.formats.
    """
    tensors.check("dequantize", tensor, dtype)
    return tensor.dequantize(dtype)


def _delayed(input, y, quantizer):
    quantizer.amax.copy_(torch.maximum(quantizer.amax, _amax(y)))
    return _float8(input, y, quantizer.scale.reshape(1), quantizer)


def _current(input, y, quantizer):
    amax = _amax(y).clamp(min=quantizer.amax_epsilon)
    scale = formats.divide(formats.LARGEST[quantizer.dtype], amax).clamp(max=formats.FLT_MAX)
    scale = torch.where((amax == 0) | ~amax.isfinite(), 1.0, scale).reshape(1)
    if quantizer.force_pow_2_scales:
        scale = (scale.view(torch.int32) & ~0x7FFFFF).view(torch.float32)
    return _float8(input, y, scale, quantizer)


def _float8(input, y, scale, quantizer):
    codes = formats.encode_fp8(y * scale, quantizer.dtype)
    return Float8Tensor(
        rowwise_data=codes.view(input.shape) if quantizer.rowwise else None,
        columnwise_data=codes.t().clone(memory_format=torch.contiguous_format) if quantizer.columnwise else None,
        scale_inv=formats.divide(1.0, scale), dtype=input.dtype, shape=input.shape,
    )


def _mxfp8(input, y, quantizer):
    codes, scales, columnwise_codes, columnwise_scales = None, None, None, None
    if quantizer.rowwise:
        codes, scales = _mxfp8_rows(y, quantizer.dtype)
        codes = codes.view(input.shape)
    if quantizer.columnwise:
        columnwise_codes, columnwise_scales = (part.t().contiguous() for part in _mxfp8_rows(y.t(), quantizer.dtype))
        columnwise_codes = columnwise_codes.view(input.shape)
    return MXFP8Tensor(codes, scales, columnwise_codes, columnwise_scales, dtype=input.dtype, shape=input.shape)


def _mxfp8_rows(y, dtype):
    """FP8 codes and padded E8M0 scales of a matrix whose blocks lie along its rows."""
    amax = _block_amax(y, formats.MXFP8_BLOCK)
    scales = formats.encode_e8m0(amax * (1 / formats.LARGEST[dtype]))
    inverse = torch.where(scales == formats.NAN_E8M0, formats.NAN_E8M0, 254 - scales)  # the code of 2^(127 − scale)
    factor = formats.decode_e8m0(inverse).repeat_interleave(formats.MXFP8_BLOCK, 1)
    return formats.encode_fp8(y * factor, dtype), _padded(scales)


def _nvfp4(input, y, quantizer):
    rowwise, columnwise = (None, None, None), (None, None, None)
    if quantizer.rowwise:
        codes, *rest = _nvfp4_rows(y, quantizer, columnwise=False)
        rowwise = (codes.view(*input.shape[:-1], codes.shape[-1]), *rest)
    if quantizer.columnwise:
        transposed = _hadamard(y.t()) if quantizer.with_rht else y.t()
        columnwise = _nvfp4_rows(transposed, quantizer, columnwise=True)
    return NVFP4Tensor(*rowwise, *columnwise, dtype=input.dtype, shape=input.shape)


def _nvfp4_rows(y, quantizer, columnwise):
    """Packed E2M1 codes, padded E4M3 scales and amax of a matrix whose blocks lie along its rows."""
    block, amax = formats.NVFP4_BLOCK, _amax(y).reshape(1)
    block_amax = _block_amax(y, block)
    if quantizer.with_2d_quantization:
        block_amax = _block_amax(block_amax.t(), block).t().repeat_interleave(block, 0)
    encode = formats.nvfp4_encode_scale(amax)
    scales = formats.encode_fp8((block_amax * (encode * (1 / 6))).clamp(max=formats.FLT_MAX), formats.E4M3)
    factor = formats.divide(1.0, scales.float() * formats.divide(1.0, encode)).clamp(max=formats.FLT_MAX)
    scaled = y * factor.repeat_interleave(block, 1)
    if quantizer.stochastic_rounding:
        bits = philox.rounding_bits(y.shape, seed=quantizer.seed, offset=quantizer.offset, columnwise=columnwise,
                                    device=y.device)
        codes = formats.encode_e2m1_stochastic(scaled, bits)
    else:
        codes = formats.encode_e2m1(scaled)
    return formats.pack_e2m1(codes).contiguous(), _padded(scales.view(torch.uint8)).view(formats.E4M3), amax


def _hadamard(y):
    """Each 16 elements v of a row become v·diag(signs)·H₁₆/4, in float32, rounded to bfloat16.

    Stages of stride 1, 2, 4, 8 replace (a, b) by (a + b, a − b); the quarter comes last.
    """
    v = y.reshape(-1, 16) * torch.stack([y.new_full((), sign) for sign in _HADAMARD_SIGNS])
    for stride in (1, 2, 4, 8):
        a, b = v.reshape(v.shape[0], 8 // stride, 2, stride).unbind(2)
        v = torch.stack((a + b, a - b), 2)
    return (v.reshape(y.shape) * 0.25).bfloat16().float()


def _amax(y):
    """max|y| as a scalar: NaN where y has one, 0 where y is empty."""
    return y.abs().amax() if y.numel() else y.new_zeros(())


def _block_amax(y, block):
    """(rows, cols) -> (rows, cols/block)"""
    return y.reshape(y.shape[0], y.shape[1] // block, block).abs().amax(-1)


def _padded(scales):
    """An array of scales, with zeros up to the shape that block-scaled tensor cores read."""
    padded = scales.new_zeros(formats.scale_shape(*scales.shape))
    padded[: scales.shape[0], : scales.shape[1]] = scales
    return padded


_QUANTIZE = {
    Float8Quantizer: _delayed, Float8CurrentScalingQuantizer: _current, MXFP8Quantizer: _mxfp8, NVFP4Quantizer: _nvfp4,
}
