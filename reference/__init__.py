"""What is right: pure PyTorch, written to be believed. Each function has a twin in `optimized`."""

from reference.fused import linear_scale_add_fwd, linear_scale_bwd
from reference.linear import linear_bwd, linear_fwd
from reference.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_bwd_add, rmsnorm_fwd
from reference.pointwise import add, constant_scale
from reference.quantization import dequantize, quantize

__all__ = [
    "add", "constant_scale", "dequantize", "layernorm_bwd", "layernorm_fwd", "linear_bwd", "linear_fwd",
    "linear_scale_add_fwd", "linear_scale_bwd", "quantize", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"
]
