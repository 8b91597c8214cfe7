"""Operations that a pipeline is made of, and what one of them knows of one call."""

from typing import Any, NamedTuple

import torch

import reference


class Quantizers(NamedTuple):
    """The quantizers of one operation for one call; None for what it does not quantize."""

    input: Any = None
    weight: Any = None
    grad_output: Any = None


UNQUANTIZED = Quantizers()


class OperationContext:
    """What one basic operation knows of one call, in forward and in the backward that belongs to it.

    `kernels` is the function table. `requires_grad` says whether backward reaches the operation, and
    `input_requires_grad` whether its input needs a gradient. What forward leaves in `saved`, a tuple of tensors,
    quantized tensors and plain values, or None, backward finds there again.
    """

    __slots__ = ("kernels", "requires_grad", "input_requires_grad", "quantizers", "saved")

    def __init__(self, kernels=reference, requires_grad=True, input_requires_grad=True, quantizers=UNQUANTIZED):
        self.kernels, self.requires_grad, self.input_requires_grad = kernels, requires_grad, input_requires_grad
        self.quantizers, self.saved = quantizers, None

    def save_for_backward(self, *tensors):
        """Leave `tensors`, None among them or not, for backward."""
        self.saved = tensors

    @property
    def saved_tensors(self):
        """What forward left."""
        return () if self.saved is None else self.saved


class FusibleOperation(torch.nn.Module):
    """A step of a pipeline: one basic operation, or several that are computed as one.

    `basic_ops` are the basic operations that it covers, in forward order, and all lists below are in that order. Called
    by itself it is a pipeline of its own, on the table `kernels`.
    """

    kernels = reference
    is_fused_op = False
    """Whether it covers several basic operations."""
    refuses_overlap = False
    """Whether forward, before it writes into an extra input, refuses one that shares memory with the input, with its
    own parameters or within itself."""

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, prev_op_grad_output_quantizer,
                      next_op_input_quantizer, basic_op_kwargs):
        """Compute the output, and what backward needs.

        basic_op_ctxs, basic_op_extra_inputs, basic_op_kwargs: for each basic operation its context, its extra inputs
        and its keywords. prev_op_grad_output_quantizer: what the operation before quantizes its gradient with;
        next_op_input_quantizer: what the one behind quantizes its input with; None where they do not.
        -> a pair: the output, perhaps quantized with the latter; for each basic operation its extra outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        """Gradients of the input; for each basic operation those of its parameters and of its extra inputs.

        basic_op_grad_extra_outputs: for each basic operation the gradients of its extra outputs, None where unused.
        """
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    def forward(self, input, *extra_inputs, **kwargs):
        """The operation as a pipeline of its own; `kwargs` go to its (first) basic operation."""
        if torch.compiler.is_dynamo_compiling():
            return torch.compiler.disable(self.forward)(input, *extra_inputs, **kwargs)
        fuser = self.__dict__.get("_fuser")
        if fuser is None or fuser.kernels is not self.kernels:
            from reference.ops.fuser import OperationFuser
            fuser = self.__dict__["_fuser"] = OperationFuser(self.basic_ops, self.kernels)
        return fuser(input, *extra_inputs, basic_op_kwargs=[kwargs] + [{}] * (len(self.basic_ops) - 1))

    def __getstate__(self):
        """What copies and pickles hold: the pipeline that the operation is by itself can be made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_fuser"}


class BasicOperation(FusibleOperation):
    """One operation, which owns its parameters. Most subclasses write `op_forward` and `op_backward`; one with extra
    inputs or outputs writes `fuser_forward` and `fuser_backward` instead."""

    num_extra_inputs = 0
    num_extra_outputs = 0
    needs = ()
    """Names of the parameters without which it cannot compute."""
    roles = ()
    """What a recipe quantizes of the operation: see reference.recipes."""
    takes_quantized_input = False
    """Whether the operation before may quantize the input, with the quantizer that it finds here."""
    takes_quantized_grad_output = False
    """Whether the operation behind may quantize the gradient of the output."""
    writes_extra_input = False
    """Whether forward writes into its (only) extra input, and gives it back as the output."""

    @property
    def basic_ops(self):
        """The operation itself."""
        return (self,)

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """The output, perhaps quantized with `next_op_input_quantizer`."""
        raise NotImplementedError(f"{type(self).__name__} has no op_forward")

    def op_backward(self, ctx, grad_output):
        """The gradient of the input, and the sequence of those of the parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no op_backward")

    def fuser_forward(self, basic_op_ctxs, input_, *, basic_op_extra_inputs, prev_op_grad_output_quantizer,
                      next_op_input_quantizer, basic_op_kwargs):
        """`op_forward`; there are no extra inputs and outputs."""
        self._has_nothing_extra("fuser_forward")
        output = self.op_forward(
            basic_op_ctxs[0], input_, prev_op_grad_output_quantizer=prev_op_grad_output_quantizer,
            next_op_input_quantizer=next_op_input_quantizer, **basic_op_kwargs[0])
        return output, [()]

    def fuser_backward(self, basic_op_ctxs, grad_output, *, basic_op_grad_extra_outputs):
        """`op_backward`; there are no extra inputs and outputs."""
        self._has_nothing_extra("fuser_backward")
        grad_input, grad_parameters = self.op_backward(basic_op_ctxs[0], grad_output)
        return grad_input, [grad_parameters], [()]

    def _has_nothing_extra(self, method):
        if self.num_extra_inputs or self.num_extra_outputs:
            raise NotImplementedError(f"{type(self).__name__} has extra inputs or outputs, but no {method} of its own")


class FusedOperation(FusibleOperation):
    """Several adjacent basic operations, computed as one, forward or backward. A subclass takes them as the keywords
    that its pattern names, and gives them here in forward order.

    Errors: TypeError for what is no basic operation; AttributeError for another operation in the place of one of them.
    """

    is_fused_op = True

    def __init__(self, basic_ops):
        super().__init__()
        for op in basic_ops:
            if not isinstance(op, BasicOperation):
                raise TypeError(f"{type(self).__name__}: {type(op).__name__} is no BasicOperation")
        self.basic_ops = tuple(basic_ops)
        for index, op in enumerate(basic_ops):
            self.add_module(str(index), op)

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_modules", ()) and value is not self._modules[name]:
            raise AttributeError(f"{type(self).__name__}: covers the operations that it was made with, {name} is one")
        super().__setattr__(name, value)
