"""What is fast: CUDA kernels compiled at run time. Each function has a twin in `reference`."""

from optimized.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_bwd_add, rmsnorm_fwd
from optimized.quantization import dequantize, quantize

__all__ = [
    "dequantize", "layernorm_bwd", "layernorm_fwd", "quantize", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"
]
