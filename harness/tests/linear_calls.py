"""Calls of the functions of linear layers, and what they give in float64."""

import torch

from reference.tensors import QuantizedTensor

FORWARD, BACKWARD = ("linear_fwd", "linear_scale_add_fwd"), ("linear_bwd", "linear_scale_bwd")
FUNCTIONS = FORWARD + BACKWARD
POINTWISE = ("constant_scale", "add")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SCALE = -0.7
LAYOUTS = ("contiguous", "pitched", "offset", "transposed")


def lay(values, layout="contiguous"):
    """The values in another layout, NaN around them: rows further apart than they are long, a data pointer between
    vectors, the last two dimensions swapped in memory."""
    if layout == "contiguous":
        return values.contiguous()
    if layout == "transposed" and values.dim() > 1:
        return values.mT.contiguous().mT
    room = values.new_full((*values.shape[:-1], values.shape[-1] + 3), float("nan"))
    if layout == "offset":
        room = values.new_full((values.numel() + 1,), float("nan"))
        return room[1:].view(values.shape).copy_(values)
    return room[..., 2:2 + values.shape[-1]].copy_(values)


def operands(function, m, n, k, dtype=torch.float32, *, leading=None, layout="contiguous", seed=0, device="cpu"):
    """Arguments by name, in the order of the signature."""
    source = torch.Generator(device).manual_seed(seed)
    rows = (m,) if leading is None else leading

    def drawn(*shape):
        return lay(torch.randn(shape, generator=source, device=device).to(dtype), layout)

    x, w = drawn(*rows, k), drawn(n, k)
    if function in FORWARD:
        return {"input": x, "weight": w} | (
            {"residual": drawn(*rows, n), "scale": SCALE} if function == "linear_scale_add_fwd" else {})
    scale = {"scale": SCALE} if function == "linear_scale_bwd" else {}
    return {"grad_output": drawn(*rows, n), "input": x, "weight": w} | scale


def exact(function, call, grad_weight=None):
    """The results in float64; `grad_weight` is what backward accumulates into."""
    values = {name: value.dequantize() if isinstance(value, QuantizedTensor) else value for name, value in call.items()}
    values = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
    scale = torch.tensor(values.get("scale", 1.0), dtype=torch.float32).item()
    x, w = values["input"], values["weight"]
    if function in FORWARD:
        return (scale * (x @ w.t()) + values.get("residual", 0),)
    dy = values["grad_output"]
    rows = dy.reshape(-1, dy.shape[-1]) if dy.numel() else dy.new_zeros(0, dy.shape[-1])
    x = x.reshape(rows.shape[0], w.shape[1]) if rows.shape[0] else x.new_zeros(0, w.shape[1])
    dw = scale * (rows.t() @ x)
    return scale * (dy @ w), dw if grad_weight is None else dw + grad_weight.double()


def results(package, function, call, **options):
    """What a function of `package` gives, as a tuple."""
    found = getattr(package, function)(**call, **options)
    return found if isinstance(found, tuple) else (found,)


def assert_fills(package, function, call, buffer, accumulates):
    """Backward's weight gradient goes into `buffer`, to what is there or in its place; and autograd is told."""
    expected, version = exact(function, call, buffer.clone() if accumulates else None), buffer._version
    dx, dw = results(package, function, call, grad_weight=buffer, accumulate_into_grad_weight=accumulates)
    assert dw is buffer and buffer._version > version
    assert_near(dx, expected[0])
    assert_near(dw, expected[1])


def assert_near(found, expected, dtype=None, roundings=1):
    """Within `roundings` of the dtype, relative to the largest of the row, and what float32 sums lose."""
    assert found.shape == expected.shape
    if not found.numel():
        return
    largest = expected.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    allowed = roundings * torch.finfo(dtype or found.dtype).eps / 2 + 1e-5
    error = ((found.double() - expected).abs() / largest).max().item()
    assert error <= allowed, f"error {error:.2e}, allowed {allowed:.2e}"
