"""The process group with which a rank's loop begins, and the device that it takes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from shoal.exceptions import Unavailable


def take_device(use_gpu: bool, elastic: bool, host: str) -> str:
    """Makes the rank's device the current one. Returns the backends of the process group. Raises Unavailable if torch finds no device."""
    on_cpu = "shoal" if elastic else "gloo"
    if not use_gpu:
        return on_cpu
    if not torch.cuda.is_available():
        raise Unavailable(
            f"use_gpu=True, and torch {torch.__version__} finds no CUDA device on {host}",
            hint="install a torch for CUDA and the driver of the GPU on each node, or train without use_gpu",
        )
    if elastic:  # else NCCL would end the survivors of a death; ``AbortOnDeath`` ends their kernels' waits
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    torch.cuda.set_device(int(os.environ.get("SHOAL_LOCAL_DEVICE", "0")))
    return f"cpu:{on_cpu},cuda:nccl"


def first_group(backends: str) -> Any:
    """Initialises the process group from torchrun's variables, for rendezvous and the user's collectives. Returns its store."""
    store, rank, size = next(dist.rendezvous("env://"))
    dist.init_process_group(backends, store=dist.PrefixStore("group/0", store), rank=rank, world_size=size)
    return store


def allow_another_group(first_store: Callable[[], Any], backends: str, elastic: bool) -> None:
    """Allows one further initialisation, by a loop written for torchrun. Each later group has a part of the first store for itself.

    A new store at the same port would be the former one for a rank that connects before the store's process has left its group. An elastic
    training keeps its own group, which changes with its workers and ends their waits when one of them dies.
    """
    original, groups = dist.init_process_group, itertools.count(1)

    @wraps(original)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *args, **kwargs):
        if elastic:  # a loop that runs again calls this function again
            on_cpu = (backend or "shoal").lower().removeprefix("cpu:").partition(",")[0]
            if dist.is_initialized() and on_cpu in ("gloo", "shoal"):
                return
        number = next(groups)
        if number == 1 and dist.is_initialized():
            if backend in (None, "gloo", "cpu:gloo", backends):
                return
            dist.destroy_process_group()
        if store is None and init_method in (None, "env://") and not elastic:
            try:
                own = first_store().clone()
            except dist.DistError:  # the store's process is gone: its error is the first cause
                raise
            except (AttributeError, RuntimeError):  # a store written in Python has no clone()
                own = first_store()
            init_method, store = None, dist.PrefixStore(f"group/{number}", own)
            if timeout is not None:
                store.set_timeout(timeout)
            rank = int(os.environ["RANK"]) if rank < 0 else rank
            world_size = int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
        original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)

    dist.init_process_group = init_process_group
