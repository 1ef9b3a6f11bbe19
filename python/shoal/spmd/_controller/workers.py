"""The processes that one program drives: their begin and their end."""

from __future__ import annotations

import os

from shoal import _native
from shoal._actors.creation import create_gang
from shoal._core.process import started_by_node, state
from shoal._core.variables import variable
from shoal._driver.init import init, joined
from shoal._objects.values import get
from shoal.exceptions import InvalidArgument, ResourceExhausted
from shoal.spmd._controller.recording import Recorder
from shoal.spmd._controller.replaying import Rank
from shoal.spmd._layout import devices as _devices
from shoal.spmd._layout import processes
from shoal.spmd._layout.processes import OneProcess
from shoal.train._ranks import environments


def begin(workers: int) -> None:
    """Starts the ranks, which hold the tensors of the device from now on."""
    if int(variable("WORLD_SIZE", "1")) > 1:
        raise InvalidArgument(
            f"this process is rank {os.environ.get('RANK', '?')} of {os.environ['WORLD_SIZE']} already: each of them would drive workers",
            hint="start one process, or leave workers= and SHOAL_SPMD_WORKERS out: each process has its devices then",
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InvalidArgument(
            f"workers={workers!r} is not a number of processes", hint="give the number of processes that the program drives, from 1 on"
        )
    devices = processes.world().num_devices if os.environ.get("SHOAL_SPMD_DEVICES") else workers
    if processes._world is not None and processes._world.num_devices != devices:
        raise InvalidArgument(
            f"the program has used its devices already, of which there are {processes._world.num_devices}: with {workers} workers there "
            f"would be {devices}",
            hint="call use_spmd before anything else of shoal.spmd, or set SHOAL_SPMD_DEVICES",
        )
    if devices % workers:
        raise InvalidArgument(
            f"SHOAL_SPMD_DEVICES is {devices}, which {workers} workers cannot share equally",
            hint="leave it unset for one device per worker, or give a multiple of their number",
        )
    if state.session is None:
        # Each rank requests a CPU. CPUs are logical, so a private cluster offers at least as many as there are ranks.
        own = not started_by_node() and not joined(None, os.environ.get("SHOAL_HOME", ""))
        init(num_cpus=max(workers, _native.usable_cpus()) if own else None)
    # All ranks get their data from this process, so they need not compare it.
    env = {"SHOAL_SPMD_DEVICES": str(devices), "SHOAL_SPMD_WORKERS": "", "SHOAL_SPMD_VERIFY": "0"}
    env |= {"SHOAL_TIMEOUT": os.environ["SHOAL_TIMEOUT"]} if "SHOAL_TIMEOUT" in os.environ else {}
    try:
        ranks = create_gang(Rank, workers, resources={"CPU": 1.0}, torch=True, refuse_infeasible=True, env=env, name="spmd")
    except ResourceExhausted as error:
        if state.cluster is not None:  # a private cluster gets no further node, so waiting does not help
            error.hint = f"CPUs are logical: begin with shoal.init(num_cpus={workers})"
        raise
    given = environments(get([rank.place.remote() for rank in ranks]))
    get([rank.begin.remote(env) for rank, env in zip(ranks, given, strict=True)])
    processes._world, processes.controller = OneProcess(devices), Recorder(ranks)
    state.ending.append(end)


def end() -> None:
    controller, processes.controller = processes.controller, None
    _devices.see_one(False)
    if controller is not None:
        controller.end()
