"""``init_method="xla://"`` of torch.distributed (``torch_xla.distributed.xla_backend``): a rendezvous of the program's processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from shoal.spmd import runtime


def _rendezvous(url: str, timeout: timedelta = timedelta(minutes=30), **kwargs: Any) -> Iterator[tuple[dist.Store, int, int]]:
    if runtime.process_count() > 1:
        yield from dist.rendezvous("env://", timeout=timeout)
    else:
        yield dist.HashStore(), 0, 1


dist.register_rendezvous_handler("xla", _rendezvous)
