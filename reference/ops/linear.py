"""BasicLinear: the matrix product of a linear layer, on one rank or several."""

import contextlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from reference.arguments import is_flag, is_integer, refuse
from reference.ops.op import UNQUANTIZED, Quantizers
from reference.ops.parallel import tensor_parallel
from reference.ops.quantizing import QuantizingOperation
from reference.ops.saved import dense, has, oriented
from reference.quantized import QuantizedTensor
from reference.recipes import ROLES


class LinearSaved(NamedTuple):
    """What the backward of a linear layer needs; None for a gradient that is not needed.

    A quantized tensor has columns alone: those are what both products read.
    """

    input: Tensor | QuantizedTensor | None  # (..., K), for the gradient of the weight
    weight: Tensor | QuantizedTensor | None  # (N, K), for that of the input


class BasicLinear(QuantizingOperation):
    """output = input · weightᵀ

    `tensor_parallel_mode` "column" splits the weight's rows over the ranks of `tensor_parallel_group`, "row" its
    columns; with `sequence_parallel` what ranks would share is split along the first dimension. The forks of
    `rng_state_tracker_function()`, if given, initialise the weight. With `accumulate_into_main_grad` the gradient is
    added to `weight.main_grad` (overwrites it where `weight.overwrite_main_grad` is true), not to `weight.grad`.

    Shapes: input (..., in_features), weight (out_features, in_features) -> (..., out_features), of which a rank has
    its share. With a recipe, input, weight and the gradient of the output are quantized.
    Errors: ValueError and TypeError for arguments, shapes, and a weight without `main_grad`, where gradients are
    recorded: a reentrant checkpoint finds it out in backward.
    Source: TransformerEngine, BasicLinear.
    """

    needs, roles = ("weight",), ROLES

    def __init__(self, in_features, out_features, *, device=None, dtype=None, tensor_parallel_mode=None,
                 tensor_parallel_group=None, sequence_parallel=False, rng_state_tracker_function=None,
                 accumulate_into_main_grad=False):
        super().__init__()
        is_integer("BasicLinear", "in_features", in_features)
        is_integer("BasicLinear", "out_features", out_features)
        is_flag("BasicLinear", "accumulate_into_main_grad", accumulate_into_main_grad)
        self.in_features, self.out_features = in_features, out_features
        self.parallel = split = tensor_parallel("BasicLinear", tensor_parallel_mode, tensor_parallel_group,
                                                sequence_parallel, device)
        self.local_in_features = split.local("BasicLinear", "in_features", in_features, "row")
        self.local_out_features = split.local("BasicLinear", "out_features", out_features, "column")
        self._accumulates = accumulate_into_main_grad
        self._rng_state_tracker = rng_state_tracker_function
        shape = (self.local_out_features, self.local_in_features)
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def accumulate_into_main_grad(self):
        """Whether the gradient is added to weight.main_grad."""
        return self._accumulates

    @property
    def tensor_parallel_mode(self):
        """None, "column" or "row"; None where there is one rank."""
        return self.parallel.mode

    @property
    def takes_quantized_input(self):
        """Not where it is to be gathered."""
        return not self.parallel.gathers_input

    @property
    def takes_quantized_grad_output(self):
        """Not where it is to be gathered."""
        return not self.parallel.gathers_grad_output

    def reset_parameters(self):
        """Draw the weight from U(−1/√K, 1/√K), as torch.nn.Linear does, K that of all ranks together."""
        fork = self._rng_state_tracker().fork if self._rng_state_tracker else contextlib.nullcontext
        with fork():
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            torch.nn.init.uniform_(self.weight, -bound, bound)

    def extra_repr(self):
        """Sizes and mode, for `repr`."""
        mode = f", tensor_parallel_mode={self.parallel.mode!r}" if self.parallel.mode else ""
        return f"{self.in_features}, {self.out_features}{mode}"

    def op_forward(self, ctx, input_, *, prev_op_grad_output_quantizer, next_op_input_quantizer):
        """input · weightᵀ; with "row", summed over ranks."""
        x, weight, saved = self.operands(ctx, input_)
        output = ctx.kernels.linear_fwd(x, weight)
        if self.parallel.mode == "row":
            output, work = self.parallel.sum(output)
            work.wait()
        if ctx.requires_grad:
            ctx.saved = saved
        return output

    def op_backward(self, ctx, grad_output):
        """grad_output · weight, grad_outputᵀ · input"""
        grad_input, grad_weight = self.gradients(ctx, grad_output, ctx.kernels.linear_bwd)
        return grad_input, (grad_weight,)

    def operands(self, ctx, input_):
        """(input and weight of the product, what backward is to have of them)."""
        weight, quantizers = self._parameters["weight"], ctx.quantizers
        learns = weight.requires_grad
        if self._accumulates and ctx.requires_grad and learns:
            self._main_grad()
        x = kept = input_
        if self.parallel.gathers_input:
            x, work = self.parallel.gather(dense(input_, ctx.kernels))
            work.wait()
        if quantizers is not UNQUANTIZED:
            x = kept = self._quantized(ctx, x, quantizers.input)
            weight = ctx.kernels.quantize(weight, quantizers.weight)
        if not ctx.requires_grad:
            return x, weight, None
        saved = LinearSaved(kept if learns else None, weight if ctx.input_requires_grad else None)
        if quantizers is not UNQUANTIZED:
            saved = LinearSaved(*(each and oriented(each, "columnwise") for each in saved))
        return x, weight, saved

    def gradients(self, ctx, grad_output, product, *factors):
        """Gradients of input and weight by `product`, linear_bwd or its like, with `factors` behind its operands; None
        for what is not needed."""
        x, weight = ctx.saved
        accumulates, alone = self._accumulates and x is not None, self.parallel.mode is None
        if alone and not accumulates and x is not None and weight is not None and ctx.quantizers is UNQUANTIZED:
            return product(grad_output, x, weight, *factors)
        into = self._into_main_grad() if accumulates else {}
        if alone and ctx.quantizers is UNQUANTIZED:
            grad_input, grad_weight = product(grad_output, x, weight, *factors, input_requires_grad=weight is not None,
                                              weight_requires_grad=x is not None, **into)
        else:
            grad_input, grad_weight = self._apart(ctx, grad_output, product, factors, into)
        return grad_input, self._added() if accumulates else grad_weight

    def _apart(self, ctx, grad_output, product, factors, into):
        """One product after the other, each with its orientation of what is quantized, beside what ranks exchange."""
        (x, weight), parallel = ctx.saved, self.parallel
        if parallel.gathers_grad_output:
            grad_output, work = parallel.gather(dense(grad_output, ctx.kernels))
            work.wait()
        if ctx.quantizers is not UNQUANTIZED:
            grad_output = self._quantized(ctx, grad_output, ctx.quantizers.grad_output)
        gathering = summing = grad_input = grad_weight = None
        if x is not None and parallel.gathers_input and ctx.quantizers is UNQUANTIZED:
            x, gathering = parallel.gather(x)
        if weight is not None:
            grad_input, _ = product(_side(grad_output, "rowwise"), None, weight, *factors, weight_requires_grad=False)
            if parallel.mode == "column":
                grad_input, summing = parallel.sum(grad_input)
        if gathering:
            gathering.wait()
        if x is not None:
            _, grad_weight = product(_side(grad_output, "columnwise"), x, None, *factors, input_requires_grad=False,
                                     **into)
        if summing:
            summing.wait()
        return grad_input, grad_weight

    def _quantized(self, ctx, tensor, quantizer):
        """`tensor` as the quantizer makes it; one that has its orientations already is taken as it is."""
        if isinstance(tensor, QuantizedTensor):
            if has(tensor, quantizer):
                return tensor
            tensor = dense(tensor, ctx.kernels)
        return ctx.kernels.quantize(tensor, quantizer)

    def _quantizers(self, state, input_requires_grad, weight_requires_grad):
        backward = input_requires_grad or weight_requires_grad
        return Quantizers(
            state.quantizer("input", rowwise=True, columnwise=weight_requires_grad),
            state.quantizer("weight", rowwise=True, columnwise=input_requires_grad),
            state.quantizer("grad_output", rowwise=input_requires_grad, columnwise=weight_requires_grad)
            if backward else None)

    def _main_grad(self):
        main_grad = getattr(self.weight, "main_grad", None)
        if main_grad is None:
            refuse(ValueError, "BasicLinear", "weight.main_grad is missing, but accumulate_into_main_grad needs it")
        return main_grad

    def _into_main_grad(self):
        overwrites = getattr(self.weight, "overwrite_main_grad", False)
        return {"grad_weight": self._main_grad(), "accumulate_into_grad_weight": not overwrites}

    def _added(self):
        """What autograd gets for the weight in place of the gradient: nothing, or zeros for who waits for it."""
        weight = self.weight
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        return weight.new_zeros(()).expand(weight.shape)


def _side(tensor, orientation):
    return oriented(tensor, orientation) if isinstance(tensor, QuantizedTensor) else tensor
