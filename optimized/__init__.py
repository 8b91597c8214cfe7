"""What is fast: CUDA kernels compiled at run time. Each function has a twin in `reference`."""

from optimized.fused import linear_scale_add_fwd, linear_scale_bwd
from optimized.linear import linear_bwd, linear_fwd
from optimized.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_bwd_add, rmsnorm_fwd
from optimized.pointwise import add, constant_scale
from optimized.quantization import dequantize, quantize

__all__ = [
    "add", "constant_scale", "dequantize", "layernorm_bwd", "layernorm_fwd", "linear_bwd", "linear_fwd",
    "linear_scale_add_fwd", "linear_scale_bwd", "quantize", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"
]
