"""One rank, in the process of its Ray actor."""

from __future__ import annotations

import asyncio
import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from shoal._core.serialize import RETURNED, Snapshot, snapshot
from shoal.exceptions import TaskError
from shoal.train._actor import leave_all
from shoal.train._chaos.identity import Process
from shoal.train._context import send_reports_to
from shoal.train._launch.causes import is_about_another_rank
from shoal.train._ranks import Place, free_port

# Variables by which a node of Shoal marks its workers. Where a program of such a worker has started Ray, Ray's processes inherit them.
_OF_A_NODE = ("SHOAL_NODE", "SHOAL_WORKER_ID", "SHOAL_JOB_ID", "SHOAL_SESSION", "SHOAL_NAMESPACE")


@dataclass(frozen=True)
class Outcome:
    """The end of a rank's loop. ``value``: its result. ``error``: ``None`` after success. ``consequence``: the error only
    reports that another rank failed. ``failed_at``: the host's time of the error. ``history``: the metrics that rank 0 has reported."""

    value: Snapshot | None = None
    error: TaskError | None = None
    consequence: bool = False
    failed_at: float = 0.0
    history: list[Snapshot] = field(default_factory=list)


class ShoalRank:
    """The actor. Ray gives it the resources of a worker, and it joins the other ranks as under torchrun, by torchrun's variables."""

    def place(self, use_gpu: bool) -> Place:
        context = ray.get_runtime_context()
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "") if use_gpu else ""
        return Place(context.get_node_id(), ray.util.get_node_ip_address(), free_port(), Process.with_pid(os.getpid()), device)

    def run(self, given: tuple[Callable, Any], environment: dict[str, str], use_gpu: bool, on_report: Any) -> Outcome:
        """Runs the loop, with a process group unless the loop initialises another. Raises nothing: the outcome has the error."""
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        history: list[Snapshot] = []

        def receive(metrics: dict[str, Any]) -> None:
            if rank == 0:
                history.append(snapshot(metrics, "the metrics that it reported"))  # the loop may use the same dict or tensor again
                if on_report is not None:
                    ray.get(on_report.add.remote(history[-1]))

        try:
            value = _train(given, environment, use_gpu, receive)
            return Outcome(snapshot(value, RETURNED), history=history)
        except BaseException as error:  # also that of sys.exit(), which Ray would take for the wish to end the actor
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            raised = TaskError(error, text, f"rank {rank} of {size}", os.getpid(), socket.gethostname())
            return Outcome(error=raised, consequence=is_about_another_rank(raised), failed_at=time.time())


def _train(given: tuple[Callable, Any], environment: dict[str, str], use_gpu: bool, receive: Callable[[dict[str, Any]], None]) -> Any:
    for name in [n for n in os.environ if n.startswith("TORCHELASTIC_") or n in _OF_A_NODE]:
        del os.environ[name]
    os.environ.update(environment | {n: os.environ[n] for n in ("SHOAL_DEVICE_TRANSPORT",) if os.environ.get(n)})
    import torch.distributed as dist

    from shoal._distributed import ranks  # late: it imports torch, which reads the variables of devices
    from shoal.train._launch import process_group as group  # late: it imports torch, too

    ranks.detaches_node = True
    backends = group.take_device(use_gpu, False, socket.gethostname())
    store = group.first_group(backends)
    group.allow_another_group(lambda: store, backends, False)
    send_reports_to(receive)
    loop, config = given
    value = loop() if config is None else loop(config)
    leave_all()
    if dist.is_initialized():  # not after an error: the group's end makes other ranks fail, and their errors could arrive before the cause
        dist.destroy_process_group()
    return value


class ShoalReports:
    """The actor that passes rank 0's reports on to the driver. It is async, because a call of ``next`` waits until a report comes."""

    def __init__(self):
        self._queue: asyncio.Queue = asyncio.Queue()

    async def add(self, metrics: Snapshot) -> None:
        await self._queue.put(metrics)

    async def next(self) -> Snapshot:
        return await self._queue.get()
