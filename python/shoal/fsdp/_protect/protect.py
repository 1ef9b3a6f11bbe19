"""The choice of a protection."""

from __future__ import annotations

import torch
from torch import nn

from shoal.exceptions import Unimplemented
from shoal.fsdp._parameters.mesh import in_arenas
from shoal.fsdp._plan.plan import root_of
from shoal.fsdp._protect.devices import ProtectionByCopies, ProtectionOfDevices
from shoal.fsdp._protect.protection import Protection
from shoal.optim import SGD, Adam


def protect(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    step: int = 0,
    replicas: bool = False,
    wait: bool = True,
    copies: bool = False,
) -> Protection:
    """Protects the steps of ``optimizer`` on a sharded model: each happens exactly once, also when a rank is killed. Every rank calls it.

    The optimizer's states move to memory of the node that outlives this process, and gradients are reduced into it. From now on
    ``optimizer.step()`` returns once all ranks have recorded the step. ``step``: number of optimizer steps made before. ``replicas``: if
    the ranks are on several hosts, a rank of another host also holds each rank's rows and states, which survive the loss of its host.
    ``wait=False``: the caller waits for the records of all ranks by ``await_all``.
    Writes to parameters other than by this optimizer are not protected: a kill inside one may leave it half made.

    A model on devices has a copy of its rows and states in the host's memory (``HostCopy``). Each step copies the reduced gradients there,
    and the CPU's kernels, which have the bits of the device's, repeat the update under protection, beside the program's next step. There
    ``optimizer.step()`` returns at once, and ``Protection.wait`` when the step counts. For other optimizers than ``Adam``, ``AdamW`` and
    ``SGD`` of ``shoal.optim``, and with ``copies=True`` (for a GradScaler), each step copies rows and states instead of gradients.

    Raises Unimplemented for other optimizers of a model on CPUs. On devices it raises that for optimizers whose states are more than
    numbers and tensors of the parameter's shape, and for parameters outside of shared memory. Raises InvalidArgument for a model that is
    not sharded, or that is protected already.
    """
    root = root_of(model)
    on_devices = not in_arenas(u.data for u in root.units)
    repeats = isinstance(optimizer, (SGD, Adam)) and not (on_devices and (copies or optimizer.updated_by_torch))
    if not (on_devices or repeats):
        raise Unimplemented(
            f"protection does not know the states of {type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="use Adam, AdamW or SGD of shoal.optim",
        )
    if root.window_open:
        root.adopt()  # parameters that the program has replaced, which may rebuild units
    make = Protection if not on_devices else ProtectionOfDevices if repeats else ProtectionByCopies
    protection = make(root, optimizer, step, replicas)
    if wait:
        protection.await_all()
    return protection
