"""What is right: pure PyTorch, written to be believed. Each function has a twin in `optimized`."""

from reference.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_bwd_add, rmsnorm_fwd
from reference.quantization import dequantize, quantize

__all__ = [
    "dequantize", "layernorm_bwd", "layernorm_fwd", "quantize", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"
]
