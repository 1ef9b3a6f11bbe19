"""The tensors that modules hold for one parameter, one at a time.

``sharded`` is a ``DTensor`` over this rank's slices. ``unsharded`` is a plain tensor over the whole parameter, or a ``DTensor`` on the
model parallel mesh if it was one before. Both lie in the unit's arena, as two tensors without a common storage. Slices of one tensor would
share a version counter and look tied, and ``torch.save`` of one slice would write the whole tensor.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import stateless

from shoal._objects.tensors import dtensor, dtensor_parameter, lasting, with_dtype
from shoal.exceptions import Unimplemented
from shoal.fsdp._parameters.rows import rows_of, whole_of
from shoal.fsdp._parameters.slices import Slices, local_of

_SAMPLE_BYTES = 256  # enough to show most writes to a parameter, and compared in no measurable time


class Views:
    """One parameter's views. All have the same ``requires_grad``, their hooks are those of ``sharded``, and ``sharded`` stays one object,
    because optimizers hold it.

    ``post_forward`` is what modules hold after a forward: with reshard_after_forward=n this rank's rows on the smaller mesh, after an
    evaluation a Whole, which redirects writes (rows.py).
    """

    def __init__(self, parameter: Slices, original: nn.Parameter):
        self._parameter = parameter
        self._owners = parameter.owners
        self.requires_grad = original.requires_grad
        self.whole_spec = original._spec if isinstance(original, DTensor) else None
        self.rows: torch.Tensor | None = None  # this rank's slices as Rows, the local tensor of ``sharded`` for the user
        self.sharded: nn.Parameter | None = None
        self.front: nn.Parameter | None = None  # stands for ``sharded`` in modules if another package has set it
        self.unsharded: nn.Parameter | None = None
        self.whole_version = 0  # torch's version of ``unsharded``, which must not change
        self.whole_address = 0  # its memory in the arena, which must stay
        self.whole_sample = 0, 0  # address and bytes of the first of this rank's rows there
        self.post_forward: nn.Parameter | None = None

    def of_rows(self) -> torch.Tensor:
        """Returns this rank's slices for the user: a Rows, which intercepts writes, if the parameter lies in the arena, else a plain
        tensor."""
        p = self._parameter
        self.rows = p.own if p.external else rows_of(p.own, p)
        return self.rows

    def show_rows(self, plain: bool) -> None:
        """Sets the local tensor of ``sharded``. ``plain``: the plain tensor, for an optimizer's step. The step has opened the window, so
        that its writes need no interception, which takes time."""
        own = self._parameter.own
        if self.sharded._local_tensor is (self.rows if plain else own):
            self.sharded._local_tensor = own if plain else self.rows

    def set_whole(self, whole: torch.Tensor) -> None:
        if self.whole_spec is not None:
            whole = dtensor(whole, with_dtype(self.whole_spec, whole.dtype))
        self.unsharded = nn.Parameter(whole, requires_grad=self.sharded.requires_grad)
        self._hooks_go_to_sharded(self.unsharded)
        self.whole_version = version_of(self.unsharded)
        if not self._parameter.external:
            rows = self._parameter.slice(local_of(whole))
            contiguous = rows.shape[self._parameter.dim] * rows.stride(self._parameter.dim) * rows.itemsize if rows.numel() else 0
            self._parameter.whole_offset = local_of(whole).storage_offset()
            self.whole_address, self.whole_sample = local_of(whole).data_ptr(), (rows.data_ptr(), min(contiguous, _SAMPLE_BYTES))
        self.post_forward = None
        self.mark()

    def mark(self) -> None:
        """Sets the attributes by which optimizers find the views' unit."""
        for view in (self.sharded, self.unsharded):
            if view is not None:
                view._shoal_state = self._parameter.state
        if self.unsharded is not None:
            self.unsharded._shoal_sharded = weakref.ref(self._parameter)

    def take_hooks(self, original: torch.Tensor) -> None:
        """Moves the original's gradient hooks to ``sharded``, and redirects later registrations on the original."""
        if original._backward_hooks:
            self.sharded._backward_hooks = original._backward_hooks  # the handles' remove() works on this dict
        if original._post_accumulate_grad_hooks:
            self.sharded._post_accumulate_grad_hooks = original._post_accumulate_grad_hooks
        self._hooks_go_to_sharded(original)

    def _hooks_go_to_sharded(self, view: torch.Tensor) -> None:
        """Registers later hooks of ``view`` on ``sharded`` instead: all hooks get the reduced gradient."""
        view.register_hook = self.sharded.register_hook
        view.register_post_accumulate_grad_hook = self.sharded.register_post_accumulate_grad_hook

    def follow_requires_grad(self) -> None:
        """Propagates ``requires_grad`` to all views after the user changed it on one of them."""
        known, whole, row = self.requires_grad, self.unsharded, self.post_forward
        if (
            self.sharded.requires_grad != known
            or (whole is not None and whole.requires_grad != known)
            or (row is not None and row.requires_grad != known)
        ):
            self.requires_grad = not known
            for view in (self.sharded, whole, row):
                if view is not None:
                    view.requires_grad_(not known)

    def register(self, view: nn.Parameter) -> None:
        """Sets one of the views in all modules that have the parameter."""
        if view is self.sharded and self.front is not None:
            view = self.front
        for module, attribute in self._owners:
            module._parameters[attribute] = view

    def show(self, view: nn.Parameter) -> bool:
        """As ``register``, but a tensor that the user put in the parameter's place stays there. Returns True if there is no such tensor."""
        ours = True
        if view is self.sharded and self.front is not None:
            view = self.front
        for module, attribute in self._owners:
            current = module._parameters.get(attribute)
            if current is view:
                continue
            if current is not None and any(current is f for f in (self.sharded, self.unsharded, self.post_forward, self.front)):
                module._parameters[attribute] = view
            else:
                ours = False
        return ours

    def refuse_substitutes(self) -> None:
        for module, attribute in self._owners:
            current = module._parameters.get(attribute)
            if current is not None and not any(current is f for f in (self.sharded, self.unsharded, self.post_forward, self.front)):
                refuse_substitute(self._parameter.name, current)

    def show_post_forward(self, mesh: Any, rows: torch.Tensor | None = None) -> None:
        """Makes modules hold this rank's rows on the smaller mesh: ``rows``, or a view of the whole parameter."""
        if self.post_forward is None:
            from torch.distributed.tensor import Replicate, Shard
            from torch.distributed.tensor._dtensor_spec import DTensorSpec

            whole = self.unsharded.detach()
            size, meta = self._parameter.shape[0], self._parameter.spec.tensor_meta
            piece = -(-size // mesh.size(1))
            begin = min(mesh.get_local_rank(1) * piece, size)
            local = whole_of(whole[begin : min(begin + piece, size)] if rows is None else rows, self._parameter)
            spec = with_dtype(DTensorSpec(mesh, (Replicate(), Shard(0)), tensor_meta=meta), local.dtype)
            self.post_forward = dtensor_parameter(local, spec, self.sharded.requires_grad)
            self.post_forward._shoal_state = self._parameter.state
            self._hooks_go_to_sharded(self.post_forward)
        self.show(self.post_forward)

    def show_guarded(self) -> None:
        """Makes modules hold the whole parameter as a Whole, which redirects writes by operators."""
        if self.post_forward is None:
            with lasting():
                view = whole_of(local_of(self.unsharded).data, self._parameter)  # .data has a version counter of its own
                if self.whole_spec is not None:
                    view = dtensor(view, self.unsharded._spec)
                view.requires_grad_(self.requires_grad)
                view._is_param = True
                view._shoal_state, view._shoal_sharded = self._parameter.state, weakref.ref(self._parameter)
                self._hooks_go_to_sharded(view)
            self.post_forward = view
        self.show(self.post_forward)


def refuse_substitute(name: str, current: torch.Tensor) -> None:
    """Raises Unimplemented for a tensor that torch.func.functional_call put in a parameter's place for one forward."""
    frame = sys._getframe(1) if isinstance(current, nn.Parameter) else None  # a module accepts no other type permanently
    while frame is not None and frame.f_code is not stateless._functional_call.__code__:
        frame = frame.f_back
    if frame is not None or not isinstance(current, nn.Parameter):
        raise Unimplemented(
            f"parameter {name} of a sharded module was replaced by a tensor for one forward (torch.func.functional_call)",
            hint="copy the values into the parameter (p.copy_ under no_grad), or call a module that is not sharded",
        )


def version_of(t: torch.Tensor) -> int:
    """The number of torch's in-place writes to ``t``; 0 for inference tensors."""
    return 0 if t.is_inference() else t._version
