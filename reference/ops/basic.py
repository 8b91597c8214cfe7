"""The operations of a pipeline that are neither linear layers nor norms. What has no twin is plain PyTorch."""

from typing import NamedTuple

import torch

from reference.arguments import is_flag, is_integer, refuse
from reference.ops.op import BasicOperation, Quantizers
from reference.ops.parallel import tensor_parallel
from reference.ops.quantizing import QuantizingOperation, no_keywords
from reference.ops.saved import dense
from reference.products import is_scale
from reference.quantized import QuantizedTensor


class Identity(BasicOperation):
    """output = input. Source: TransformerEngine, Identity."""

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """The input itself."""
        return input_

    def op_backward(self, ctx, grad_output):
        """The gradient itself."""
        return grad_output, ()


class BiasSaved(NamedTuple):
    """What the backward of a bias needs."""

    learns: bool
    dtype: torch.dtype  # of the bias


class Bias(BasicOperation):
    """output = input + bias, in the dtype of the input.

    With `tensor_parallel_mode` "column" each rank of the group has its share of the bias.
    Shapes: input (..., size); bias (size,) -> (..., size).
    Errors: ValueError and TypeError for arguments, shapes and dtypes. Source: TransformerEngine, Bias.
    """

    needs = ("bias",)

    def __init__(self, size, *, device=None, dtype=None, tensor_parallel_mode=None, tensor_parallel_group=None):
        super().__init__()
        is_integer("Bias", "size", size)
        split = tensor_parallel("Bias", tensor_parallel_mode, tensor_parallel_group, device=device)
        self.size, self.local_size = size, split.local("Bias", "size", size, "column")
        self.bias = torch.nn.Parameter(torch.empty(self.local_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        """Zeros."""
        torch.nn.init.zeros_(self.bias)

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """input + bias"""
        x, bias = dense(input_, ctx.kernels), self._parameters["bias"]
        if not x.dim() or x.shape[-1] != self.local_size:
            refuse(ValueError, "Bias", f"input has shape {tuple(x.shape)}, but must have rows of {self.local_size}")
        if not x.is_floating_point():
            refuse(TypeError, "Bias", f"input has dtype {x.dtype}, but must have floating point")
        if ctx.requires_grad:
            ctx.saved = BiasSaved(bias.requires_grad, bias.dtype)
        return (x + bias).to(x.dtype)

    def op_backward(self, ctx, grad_output):
        """The gradient itself, and its sum over rows, in float32."""
        dy = dense(grad_output, ctx.kernels)
        if not ctx.saved.learns:
            return dy, (None,)
        rows = dy.reshape(dy.shape[:-1].numel(), dy.shape[-1])
        return dy, (rows.sum(0, dtype=torch.float32).to(ctx.saved.dtype),)


class ConstantScaleSaved(NamedTuple):
    """What the backward of a constant factor needs."""

    scale: float


class ConstantScale(BasicOperation):
    """output = input · scale; the gradient is multiplied, too.

    Errors: TypeError for what is no number, ValueError for what float32 does not hold.
    Source: TransformerEngine, ConstantScale.
    """

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    @property
    def scale(self):
        """The factor."""
        return self.saved.scale

    @scale.setter
    def scale(self, scale):
        is_scale("ConstantScale", scale)
        self.saved = ConstantScaleSaved(scale)

    def extra_repr(self):
        """The factor, for `repr`."""
        return str(self.scale)

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """constant_scale"""
        if ctx.requires_grad:
            ctx.saved = self.saved
        return ctx.kernels.constant_scale(dense(input_, ctx.kernels), self.scale)

    def op_backward(self, ctx, grad_output):
        """constant_scale"""
        return ctx.kernels.constant_scale(dense(grad_output, ctx.kernels), ctx.saved.scale), ()


class Quantize(QuantizingOperation):
    """Quantize the input in forward, the gradient in backward, where a recipe is active.

    With the quantizers of the operations behind and before, where these have some. At the end of a pipeline, and where
    an operation does not take what is quantized, its values go on.
    Errors: TypeError for what is no bool. Source: TransformerEngine, Quantize.
    """

    roles = ("input", "grad_output")

    def __init__(self, forward=True, backward=False):
        super().__init__()
        is_flag("Quantize", "forward", forward)
        is_flag("Quantize", "backward", backward)
        self._in_forward, self._in_backward = forward, backward

    def extra_repr(self):
        """Directions, for `repr`."""
        return f"forward={self._in_forward}, backward={self._in_backward}"

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """quantize"""
        if self._in_backward and ctx.requires_grad:
            ctx.saved = (prev_op_grad_output_quantizer or ctx.quantizers.grad_output,)
        return self._quantize(ctx, input_, self._in_forward and (next_op_input_quantizer or ctx.quantizers.input))

    def op_backward(self, ctx, grad_output):
        """quantize"""
        return self._quantize(ctx, grad_output, self._in_backward and ctx.saved[0]), ()

    def _quantize(self, ctx, tensor, quantizer):
        if not quantizer or isinstance(tensor, QuantizedTensor):
            return tensor
        return ctx.kernels.quantize(tensor, quantizer)

    def _quantizers(self, state, input_requires_grad, weight_requires_grad):
        return Quantizers(state.quantizer("input"), None, state.quantizer("grad_output"))


class AddExtraInput(BasicOperation):
    """output = input + extra input; its gradient goes to both, unchanged.

    `in_place` writes the sum into the extra input, which must share no memory with the pipeline's other tensors. What
    an operation further on refuses, as rows of another length, is refused once the sum is written.
    Errors: those of `add`. Source: TransformerEngine, AddExtraInput.
    """

    num_extra_inputs = 1

    def __init__(self, *, in_place=False):
        super().__init__()
        is_flag("AddExtraInput", "in_place", in_place)
        self._in_place = in_place

    @property
    def in_place(self):
        """Whether the sum is written into the extra input."""
        return self._in_place

    writes_extra_input = in_place

    def extra_repr(self):
        """The option, for `repr`."""
        return f"in_place={self._in_place}"

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, prev_op_grad_output_quantizer,
                      next_op_input_quantizer, basic_op_kwargs):
        """add"""
        no_keywords(self, basic_op_kwargs[0])
        kernels, extra = basic_op_ctxs[0].kernels, basic_op_extra_inputs[0][0]
        output = kernels.add(dense(input_, kernels), extra, out=extra if self._in_place else None)
        return extra if self._in_place else output, [()]

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        """The gradient itself, twice."""
        dy = dense(grad_output, basic_op_ctxs[0].kernels)
        return dy, [()], [(dy,)]


class MakeExtraOutput(BasicOperation):
    """output = extra output = input; their gradients are added up.

    `in_place`, which TransformerEngine has, changes nothing: the sum would go into the gradient of the extra output,
    which is autograd's, who may hand the same memory to others. Errors: those of `add`.
    Source: TransformerEngine, MakeExtraOutput.
    """

    num_extra_outputs = 1

    def __init__(self, *, in_place=False):
        super().__init__()
        is_flag("MakeExtraOutput", "in_place", in_place)
        self._in_place = in_place

    def extra_repr(self):
        """The option, for `repr`."""
        return f"in_place={self._in_place}"

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, prev_op_grad_output_quantizer,
                      next_op_input_quantizer, basic_op_kwargs):
        """The input itself, and the same memory as another tensor."""
        no_keywords(self, basic_op_kwargs[0])
        x = dense(input_, basic_op_ctxs[0].kernels)
        return x, [(x.detach(),)]

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        """add"""
        kernels, extra = basic_op_ctxs[0].kernels, basic_op_grad_extra_outputs[0][0]
        if grad_output is None or extra is None:
            return extra if grad_output is None else grad_output, [()], [()]
        dy = dense(grad_output, kernels)
        return kernels.add(dy, extra), [()], [()]
