"""The operation fuser: plans which operations are computed together, and is one node of the autograd graph."""

from functools import partial
from itertools import chain
from operator import is_

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _DisableAutocast, _is_any_autocast_enabled

import reference
from reference.arguments import kind, refuse
from reference.ops.aliasing import check_in_place, refuse_shared
from reference.ops.direct import Direct, applies
from reference.ops.node import guarded, recorder
from reference.ops.op import UNQUANTIZED
from reference.ops.plan import Prepared, make_plan
from reference.ops.quantizing import begin
from reference.ops.recompute import Found, active_checkpoints, kept
from reference.ops.saved import dense, flatten, restore
from reference.quantized import QuantizedTensor
from reference.recipes import active_region


class Node(torch.autograd.Function):
    """A pipeline as one node of the autograd graph: it runs a plan, forward and backward, in the dtypes that it is
    given: torch.autocast does not reach inside."""

    @staticmethod
    def forward(func_ctx, call, *tensors):
        """The output; behind it, where there are some, the extra outputs, and the extra inputs that were written on the
        way. Without a `func_ctx` nothing is kept for backward.

        `tensors` are the extra inputs, the input and the parameters: autograd takes for a view that is written what
        comes first.
        """
        if _is_any_autocast_enabled():
            with _DisableAutocast():
                return Node.forward(func_ctx, call, *tensors)
        contexts, x, outputs = call.take(), tensors[call.input], ()
        try:
            for step, before, behind, keywords in call.forward:
                if step.alone:
                    x = step.run(contexts[step.first], x, prev_op_grad_output_quantizer=before,
                                 next_op_input_quantizer=behind, **keywords)
                    continue
                found = step.run(
                    contexts[step.covered], x, basic_op_extra_inputs=step.extra_inputs(tensors),
                    prev_op_grad_output_quantizer=before, next_op_input_quantizer=behind, basic_op_kwargs=keywords)
                x, made = _refuse_alone(step) if isinstance(found, Tensor) else found
                if step.has_extra_outputs:
                    outputs += tuple(each for several in made for each in several)
        except ValueError:
            refuse_shared(call.plan, tensors)
            raise
        if isinstance(x, QuantizedTensor):
            x = dense(x, call.plan.kernels)
        if func_ctx is None:
            call.give_back(contexts)
            return (x, *outputs) if outputs else x
        kept, forms = flatten(contexts)
        call.spare.append(contexts)
        func_ctx.save_for_backward(*kept)
        func_ctx.kept = call, forms, ()
        if x is tensors[0] and call.plan.may_be_view:
            func_ctx.mark_dirty(x)
            return x
        outputs += _tell(func_ctx, call.plan, (x, *outputs), tensors)
        return (x, *outputs) if outputs else x

    @staticmethod
    def backward(func_ctx, grad_output, *grad_outputs):
        """Gradients of the input, the parameters and the extra inputs. Differentiable once."""
        if is_grad_enabled() or _is_any_autocast_enabled():
            return guarded(Node.backward, func_ctx, grad_output, *grad_outputs)
        call, forms, hidden = func_ctx.kept
        plan, contexts = call.plan, call.take()
        restore(contexts, func_ctx.saved_tensors, forms)
        grad, parameters, extra_inputs = grad_output, list(plan.no_gradients[0]), list(plan.no_gradients[1])
        steps = plan.backward
        if grad_outputs:
            hidden = dict(zip(hidden, grad_outputs[plan.extra_outputs:]))
            if not _suits_fusions(grad_output, grad_outputs[:plan.extra_outputs], hidden):
                steps = plan.unfused
        for step in steps:
            if hidden and hidden.get(step.first) is not None:
                grad = hidden[step.first] if grad is None else grad + hidden[step.first]
            if step.alone:
                if grad is not None:
                    grad, parameters[step.first] = step.run(contexts[step.first], grad)
                continue
            made = step.no_extra_outputs
            if step.has_extra_outputs:
                made = [grad_outputs[each] for each in step.extra_outputs]
            if grad is not None or any(each is not None for several in made for each in several):
                grad, parameters[step.covered], extra_inputs[step.covered] = step.run(
                    contexts[step.covered], grad, basic_op_grad_extra_outputs=made)
        call.give_back(contexts)
        if isinstance(grad, QuantizedTensor):
            grad = dense(grad, plan.kernels)
        return None, *chain.from_iterable(extra_inputs), grad, *chain.from_iterable(parameters)


_record = recorder(Node)


def _refuse_alone(step):
    refuse(TypeError, type(step.op).__name__, "fuser_forward gave a tensor, but must give the output and, of each "
                                              "basic operation, its extra outputs")


def _suits_fusions(grad_output, extra, hidden):
    """Whether backward has the gradients that a fusion counts on, and no others."""
    return (grad_output is not None and all(each is not None for each in extra)
            and all(each is None for each in hidden.values()))


def _tell(func_ctx, plan, outputs, tensors):
    """Tell autograd what was written and what is constant; -> the former, but for the output itself."""
    written = [(index, tensors[place]) for index, place in plan.written]
    hidden = [(index, each) for index, each in written if each is not outputs[0]]
    constants = [outputs[1 + place] for place in plan.constants]
    constants += [each for index, each in hidden if not plan.settings[0][index]]
    if written:
        func_ctx.mark_dirty(*[each for _, each in written])
    if constants:
        func_ctx.mark_non_differentiable(*constants)
    if hidden:
        func_ctx.kept = *func_ctx.kept[:2], [index for index, _ in hidden]
    if hidden or len(outputs) > 1:
        func_ctx.set_materialize_grads(False)
    return tuple([each for _, each in hidden])


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
        self._no_keywords = ({},) * len(self.basic_ops)
        self._unquantized = (UNQUANTIZED,) * len(self.basic_ops)
        self._prepared, self._last, self._region = {}, None, None

    def __call__(self, input, *extra_inputs, basic_op_kwargs=None):
        """The output, behind it the extra outputs, in the order of their operations."""
        call, tensors = self.ready(input, extra_inputs)
        if basic_op_kwargs and any(basic_op_kwargs):
            call = Prepared(call.plan, call.quantizers, basic_op_kwargs)
        outputs = call.run(call, *tensors)
        return self.visible(outputs) if type(outputs) is tuple else outputs

    def visible(self, outputs):
        """Without those that autograd alone is told of; one by itself where that is all."""
        return outputs[:1 + self.num_extra_outputs] if self.num_extra_outputs else outputs[0]

    def ready(self, input, extra_inputs):
        """(what is prepared for a call, tensors) of a call, checked; the tensors as the node takes them.

        Errors: TypeError for what is no tensor; ValueError for another number of extra inputs and for memory that is
        written and shared; RuntimeError for a leaf that would be written, as PyTorch has it.
        """
        if len(extra_inputs) != self.num_extra_inputs:
            refuse(ValueError, "Sequential", f"{len(extra_inputs)} extra inputs, but its operations take "
                                             f"{self.num_extra_inputs}")
        call, region, recipe, given = self._last, active_region(), None, (*extra_inputs, input)
        checkpoints = active_checkpoints()
        if region is not None or self._region is not None or checkpoints is not None:
            found = checkpoints and checkpoints.found(self.basic_ops)
            region, recomputed = (found.region, True) if found else self._where(region)
            recipe = region and region.recipe
        if _are_functorch_transforms_active():
            refuse(NotImplementedError, "Sequential", "torch.func cannot transform a pipeline")
        try:
            if call is None or not call.plan.suits(recipe, is_grad_enabled(), given):
                call = self._last = self._planned(recipe, is_grad_enabled(), given)
        except AttributeError:
            for each in given:
                if not isinstance(each, Tensor):
                    refuse(TypeError, "Sequential", f"an input is {kind(each)}, but must be a torch.Tensor")
            raise
        plan = call.plan
        tensors = (*given, *plan.parameters)
        if plan.written:
            check_in_place(plan, tensors)
        if region is not None:
            quantizers = found.quantizers if found else self._quantizers(plan, region, input.device, recomputed)
            if not all(map(is_, quantizers, call.quantizers)):
                call = self._last = Prepared(plan, quantizers, self._no_keywords)
        if checkpoints is not None:
            checkpoints.note(found or Found(self.basic_ops, region, tuple(map(kept, call.quantizers))))
        return call, tensors

    def fused(self):
        """(forward, backward): the operations that are computed, both in forward order, where all tensors need
        gradients."""
        flags = (True,) * (self.num_extra_inputs + 1 + len(self.slots))
        return make_plan(self, None, True, flags, None).fused

    def _where(self, region):
        """(region, recomputed) of a call in `region`: a forward inside a backward pass is one that a checkpoint
        computes again; the `autocast` around it may be gone by then, and is that of the last forward."""
        recomputed = torch._C._current_graph_task_id() != -1
        if not recomputed:
            self._region = region
        return (region or self._region if recomputed else region), recomputed

    @property
    def slots(self):
        """Where each parameter is by now: (what holds it, its name). TypeError where one that is needed is none."""
        for op in self.basic_ops:
            for name in op.needs:
                if not isinstance(op._parameters.get(name), Tensor):
                    refuse(TypeError, type(op).__name__, f"{name} is no parameter (but None, a plain tensor, or what a "
                                                         "parametrization computes), but must be one")
        return [(op._parameters, name) for op in self.basic_ops for name, each in op._parameters.items()
                if each is not None]

    def _planned(self, recipe, recording, given):
        flags = tuple([each.requires_grad for each in (*given, *[held[name] for held, name in self.slots])])
        call = self._prepared.get((recipe, recording, flags))
        if call is None or not call.plan.suits(recipe, recording, given):
            self._prepared = {key: each for key, each in self._prepared.items() if each.plan.holds_parameters()}
            run = _record if recording and any(flags) else partial(Node.forward, None)
            plan = make_plan(self, recipe, recording, flags, run)
            prepared = Direct if applies(plan) else Prepared
            call = self._prepared[recipe, recording, flags] = prepared(plan, self._unquantized, self._no_keywords)
        return call

    def _quantizers(self, plan, region, device, recomputed):
        """Those of this step, for each operation."""
        begin([op for _, op, _, _ in plan.quantizing], region, device, recomputed)
        found = list(self._unquantized)
        for place, op, input_requires_grad, weight_requires_grad in plan.quantizing:
            found[place] = op.quantizers(input_requires_grad, weight_requires_grad)
        return tuple(found)
