"""The operation fuser: plans which operations are computed together, and is one node of the autograd graph."""

import operator
from functools import partial

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import reference
from reference import recipes
from reference.arguments import kind, refuse
from reference.ops import pattern
from reference.ops.aliasing import check_in_place
from reference.ops.op import UNQUANTIZED, OperationContext
from reference.ops.plan import make_plan
from reference.ops.quantizing import begin
from reference.ops.saved import dense, flatten, restore
from reference.quantized import QuantizedTensor


class Node(torch.autograd.Function):
    """A pipeline as one node of the autograd graph: it runs a plan, forward and backward, in the dtypes that it is
    given: torch.autocast does not reach inside."""

    @staticmethod
    def forward(func_ctx, plan, quantizers, keywords, *tensors):
        """The output; behind it, where there are some, the extra outputs, and the extra inputs that were written on the
        way. Without a `func_ctx` nothing is kept for backward.

        `tensors` are the extra inputs, the input and the parameters: autograd takes for a view that is written what
        comes first.
        """
        if torch._C._is_any_autocast_enabled():
            with torch.autocast(tensors[plan.input].device.type, enabled=False):
                return Node.forward(func_ctx, plan, quantizers, keywords, *tensors)
        kernels = plan.kernels
        contexts = [OperationContext(kernels, *each) for each in zip(*plan.settings, quantizers)]
        x, outputs = tensors[plan.input], ()
        for step in plan.forward:
            first, before, behind = step.first, step.before, step.behind
            before = None if before is None else quantizers[before].grad_output
            behind = None if behind is None else quantizers[behind].input
            if step.alone:
                x = step.op.op_forward(contexts[first], x, prev_op_grad_output_quantizer=before,
                                       next_op_input_quantizer=behind, **keywords[first])
                continue
            x, made = step.op.fuser_forward(
                contexts[first:step.end], x, basic_op_extra_inputs=[tensors[each] for each in step.extra_inputs],
                prev_op_grad_output_quantizer=before, next_op_input_quantizer=behind,
                basic_op_kwargs=keywords[first:step.end])
            if step.has_extra_outputs:
                outputs += tuple(each for several in made for each in several)
        if isinstance(x, QuantizedTensor):
            x = dense(x, kernels)
        if func_ctx is not None:
            outputs += _keep(func_ctx, plan, contexts, (x, *outputs), tensors)
            if outputs:
                func_ctx.set_materialize_grads(False)
        return (x, *outputs) if outputs else x

    @staticmethod
    def backward(func_ctx, grad_output, *grad_outputs):
        """Gradients of the input, the parameters and the extra inputs. Differentiable once."""
        if torch.is_grad_enabled():
            return _once(func_ctx, grad_output, *grad_outputs)
        if torch._C._is_any_autocast_enabled():
            with torch.autocast(func_ctx.kind, enabled=False):
                return Node.backward(func_ctx, grad_output, *grad_outputs)
        plan, contexts = func_ctx.plan, func_ctx.contexts
        restore(contexts, func_ctx.saved_tensors, func_ctx.forms)
        steps, hidden = plan.backward, func_ctx.hidden
        if grad_outputs:
            hidden = dict(zip(hidden, grad_outputs[plan.extra_outputs:]))
            if grad_output is None or any(each is None for each in grad_outputs[:plan.extra_outputs]) or any(
                    each is not None for each in hidden.values()):
                steps = plan.unfused
        grad, parameters, extra_inputs = grad_output, list(plan.no_gradients[0]), list(plan.no_gradients[1])
        for step in steps:
            first, end = step.first, step.end
            if hidden and hidden.get(first) is not None:
                grad = hidden[first] if grad is None else grad + hidden[first]
            if step.alone:
                if grad is not None:
                    grad, parameters[first] = step.op.op_backward(contexts[first], grad)
                continue
            made = [grad_outputs[each] for each in step.extra_outputs]
            if grad is not None or any(each is not None for several in made for each in several):
                grad, parameters[first:end], extra_inputs[first:end] = step.op.fuser_backward(
                    contexts[first:end], grad, basic_op_grad_extra_outputs=made)
        for ctx in contexts:
            ctx.saved = None
        found = [None, None, None]
        for each in (*extra_inputs, (dense(grad, plan.kernels),), *parameters):
            found += each
        return tuple(found)


_record = super(torch.autograd.Function, Node).apply  # Function.apply first looks, in Python, for what `ready` refuses


@once_differentiable
def _once(func_ctx, *grad_outputs):
    return Node.backward(func_ctx, *grad_outputs)


def _keep(func_ctx, plan, contexts, outputs, tensors):
    """Leave for backward what it needs, and tell autograd what was written; -> that, but for the output itself."""
    x = outputs[0]
    kept, func_ctx.forms = flatten(contexts)
    func_ctx.save_for_backward(*kept)
    func_ctx.plan, func_ctx.contexts, func_ctx.hidden, func_ctx.kind = plan, contexts, (), x.device.type
    if not plan.written:
        if plan.constants:
            func_ctx.mark_non_differentiable(*[outputs[1 + place] for place in plan.constants])
        return ()
    written = [tensors[place] for _, place in plan.written]
    func_ctx.mark_dirty(*written)
    if len(written) == 1 and written[0] is x:
        return ()
    hidden = [(index, each) for (index, _), each in zip(plan.written, written) if each is not x]
    func_ctx.hidden = [index for index, _ in hidden]
    constants = [outputs[1 + place] for place in plan.constants]
    func_ctx.mark_non_differentiable(*constants, *[each for index, each in hidden if not plan.settings[0][index]])
    return tuple(each for _, each in hidden)


class OperationFuser:
    """A pipeline of basic operations on the function table `kernels`.

    Forward and backward are fused independently, unless `fuse` is False. A plan is made again when the recipe, the
    tensors that need gradients or a parameter change, and when a fusion is registered.
    Errors: TypeError for what is no operation; ValueError for one that is there twice.
    """

    def __init__(self, ops, kernels=reference, fuse=True):
        self.basic_ops = tuple(basic for op in ops for basic in op.basic_ops)
        if len({id(op) for op in self.basic_ops}) != len(self.basic_ops):
            twice = next(op for op in self.basic_ops if sum(op is other for other in self.basic_ops) > 1)
            refuse(ValueError, "Sequential", f"{type(twice).__name__} is in the pipeline twice: what it keeps from "
                                             "forward to backward is for one use")
        self.kernels, self.fuse = kernels, fuse
        self.num_extra_inputs = sum(op.num_extra_inputs for op in self.basic_ops)
        self.num_extra_outputs = sum(op.num_extra_outputs for op in self.basic_ops)
        self.no_keywords = ({},) * len(self.basic_ops)
        self._slots = [(op._parameters, name) for op in self.basic_ops for name, each in op._parameters.items()
                       if each is not None]
        self._unquantized = (UNQUANTIZED,) * len(self.basic_ops)
        self._plans, self._plan, self._region = {}, None, None

    def __call__(self, input, *extra_inputs, basic_op_kwargs=None):
        """The output, behind it the extra outputs, in the order of their operations."""
        plan, quantizers, tensors = self.ready(input, extra_inputs)
        outputs = plan.run(plan, quantizers, basic_op_kwargs or self.no_keywords, *tensors)
        return self.visible(outputs) if type(outputs) is tuple else outputs

    def visible(self, outputs):
        """Without those that autograd alone is told of; one by itself where that is all."""
        return outputs[:1 + self.num_extra_outputs] if self.num_extra_outputs else outputs[0]

    def ready(self, input, extra_inputs):
        """(plan, quantizers, tensors) of a call, checked; the tensors as the node takes them.

        Errors: TypeError for what is no tensor; ValueError for another number of extra inputs and for memory that is
        written and shared; RuntimeError for a leaf that would be written, as PyTorch has it.
        """
        if len(extra_inputs) != self.num_extra_inputs:
            refuse(ValueError, "Sequential", f"{len(extra_inputs)} extra inputs, but its operations take "
                                             f"{self.num_extra_inputs}")
        parameters = [held[name] for held, name in self._slots]
        tensors = (*extra_inputs, input, *parameters)
        try:
            requires = tuple([t.requires_grad for t in tensors])
        except AttributeError:
            wrong = next((t for t in (input, *extra_inputs) if not isinstance(t, Tensor)), None)
            refuse(TypeError, "Sequential", f"an input is {kind(wrong)}, but must be a torch.Tensor")
        if not torch.is_grad_enabled():
            requires = ()
        if torch._C._are_functorch_transforms_active():
            refuse(NotImplementedError, "Sequential", "torch.func cannot transform a pipeline")
        region, recomputed = self._where()
        recipe = region and region.recipe
        plan = self._plan
        if plan is None or not self._fits(plan, recipe, requires, parameters):
            plan = self._plan = self._planned(recipe, requires, parameters)
        if plan.written:
            check_in_place(plan, tensors)
        quantizers = self._unquantized if region is None else self._quantizers(plan, region, input.device, recomputed)
        return plan, quantizers, tensors

    def fused(self):
        """(forward, backward): the operations that are computed, both in forward order, where all tensors need
        gradients."""
        parameters = [held[name] for held, name in self._slots]
        requires = (True,) * (self.num_extra_inputs + 1 + len(parameters))
        return make_plan(self, None, requires, parameters, None).fused

    def _where(self):
        """(region, recomputed) of a call: a forward inside a backward pass is one that a checkpoint computes again; the
        `autocast` around it may be gone by then, and is that of the last forward."""
        region = recipes.active_region()
        if region is None and self._region is None:
            return None, False
        recomputed = torch._C._current_graph_task_id() != -1
        if not recomputed:
            self._region = region
        return (region or self._region if recomputed else region), recomputed

    def _fits(self, plan, recipe, requires, parameters):
        return (plan.requires == requires and (plan.recipe is recipe or plan.recipe == recipe)
                and plan.versions[0] is pattern.FORWARD.version and plan.versions[1] is pattern.BACKWARD.version
                and all(map(operator.is_, plan.parameters, parameters)))

    def _planned(self, recipe, requires, parameters):
        plan = self._plans.get((recipe, requires))
        if plan is None or not self._fits(plan, recipe, requires, parameters):
            run = _record if any(requires) else partial(Node.forward, None)
            plan = self._plans[recipe, requires] = make_plan(self, recipe, requires, parameters, run)
        return plan

    def _quantizers(self, plan, region, device, recomputed):
        begin([op for _, op, _, _ in plan.quantizing], region, device, recomputed)
        found = list(self._unquantized)
        for place, op, input_requires_grad, weight_requires_grad in plan.quantizing:
            found[place] = op.quantizers(input_requires_grad, weight_requires_grad)
        return tuple(found)
