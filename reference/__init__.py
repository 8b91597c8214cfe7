"""What is right: pure PyTorch, written to be believed. Each function has a twin in `optimized`."""

from reference.normalization import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_bwd_add, rmsnorm_fwd

__all__ = ["layernorm_bwd", "layernorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"]
