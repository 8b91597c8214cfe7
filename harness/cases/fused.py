"""linear_scale_add_fwd and linear_scale_bwd: the cases of harness.cases.linear, with a scale and a residual."""

from harness.cases.linear import Backward, Forward

FAMILIES = {"linear_scale_add_fwd": Forward(fused=True), "linear_scale_bwd": Backward(fused=True)}
