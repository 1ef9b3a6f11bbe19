"""The facts of a training that its user decides. The driver and every worker read them in one ``ScalingConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from shoal._core.variables import variable
from shoal.exceptions import InvalidArgument

_MOST_LOGICAL_RANKS = 64  # as shoal.fsdp._parameters.logical.MAXIMUM, which needs torch
# Variables that `shoal run` sets for the script of an elastic run (scheduler/cli/run/first_host.cc).
_WORKERS = "SHOAL_RUN_WORKERS"
_CPUS = "SHOAL_RUN_CPUS"


def _workers_of_run() -> int | tuple[int, int]:
    text = variable(_WORKERS)
    if not text:
        return 1
    numbers = text.split(":")
    if len(numbers) != 2 or not all(n.isdecimal() for n in numbers):
        raise InvalidArgument(f"{_WORKERS} is {text!r}, not MIN:MAX", hint="`shoal run --min --max` sets it: leave it alone")
    return int(numbers[0]), int(numbers[1])


@dataclass(frozen=True)
class ScalingConfig:
    """The number of workers and the resources of each: by default one (logical) CPU.

    ``num_workers``: by default 1, or under ``shoal run --min MIN --max MAX`` the ranks of so many hosts, (minimum, maximum).

    ``num_workers=(minimum, maximum)``: an elastic training. It begins with as many workers as fit, and takes more, up to the maximum, when
    nodes or resources become free. It goes on with fewer when a node drains. The loop uses :func:`shoal.train.steps`, or is a step that
    :func:`shoal.train.run` calls. ``initial_workers``: the training has at most this number of workers, instead of the maximum, until
    ``scale`` changes it.
    ``protect``: an elastic training survives the deaths of workers without the loss of a step. The optimizer has to be ``shoal.optim``'s
    Adam, AdamW or SGD; on devices, one whose states are numbers and tensors of their parameter's shape. Its states and the gradients are
    then in memory of the nodes. With workers on several nodes, each worker's part of the model also has a replica on another node, so that
    the training survives the loss of a node. ``"host"``: without replicas.
    ``deterministic``: losses and parameters have the same bits with any number of workers, through changes and deaths. The bits depend on
    the number of ``logical_ranks``: a power of two up to 64, by default the smallest that is not below the maximum of workers. Each worker
    plays some of these ranks. See docs/training.md for the rest.
    ``use_gpu``: each worker also gets a GPU, or the share of one that ``resources_per_worker={"GPU": 0.5}`` states. It sees those of all
    workers of its node, in the order of local ranks, and its own is the current one. Workers that share a device have the transport
    ``cuda_ipc``, unless ``SHOAL_DEVICE_TRANSPORT`` names another. In an elastic training a worker sees its own device only, because the
    others change (*unverified on hardware*).
    """

    num_workers: int | tuple[int, int] | None = None
    resources_per_worker: dict[str, float] | None = None
    use_gpu: bool = False
    protect: bool | str = True
    deterministic: bool = False
    logical_ranks: int | None = None
    initial_workers: int | None = None

    def __post_init__(self):
        if self.protect not in (True, False, "host"):
            raise InvalidArgument(f'protect is True, False or "host", not {self.protect!r}')
        given = _workers_of_run() if self.num_workers is None else self.num_workers
        bounds = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
        if len(bounds) != 2 or not all(hasattr(n, "__index__") and n >= 1 for n in bounds) or bounds[0] > bounds[1]:
            raise InvalidArgument(f"num_workers is a number from 1 on, or (minimum, maximum) of such numbers, not {given!r}")
        minimum, maximum = (int(n) for n in bounds)
        object.__setattr__(self, "num_workers", (minimum, maximum) if isinstance(given, (tuple, list)) else minimum)
        self._choose_logical_ranks(maximum)
        self._check_initial_workers(minimum, maximum)
        gpus = (self.resources_per_worker or {}).get("GPU")
        if self.use_gpu and gpus is not None and not 0 < gpus <= 1:
            raise InvalidArgument(f"a worker trains on one device, not on {gpus:g}", hint="use more workers; below 1 they share devices")

    def _check_initial_workers(self, minimum: int, maximum: int) -> None:
        initial = self.initial_workers
        if initial is not None and not (self.elastic and hasattr(initial, "__index__") and minimum <= initial <= maximum):
            raise InvalidArgument(
                f"initial_workers={initial!r} is no number within num_workers={self.num_workers!r}",
                hint="pass num_workers=(minimum, maximum), and a number from the minimum to the maximum",
            )

    def _choose_logical_ranks(self, maximum: int) -> None:
        given = self.logical_ranks
        if not self.deterministic:
            if given is not None:
                raise InvalidArgument("logical_ranks without deterministic=True has no effect", hint="pass both, or neither")
            return
        chosen = 1 << (maximum - 1).bit_length() if given is None else given
        if not hasattr(chosen, "__index__") or not 1 <= chosen <= _MOST_LOGICAL_RANKS or chosen & (chosen - 1):
            raise InvalidArgument(f"logical_ranks is a power of two from 1 to {_MOST_LOGICAL_RANKS}, not {chosen!r}")
        if maximum > chosen:
            raise InvalidArgument(
                f"up to {maximum} workers cannot divide {chosen} logical ranks", hint="each worker plays one or more: raise logical_ranks"
            )
        object.__setattr__(self, "logical_ranks", int(chosen))

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a worker."""
        return {"CPU": 1.0, **({"GPU": 1.0} if self.use_gpu else {}), **(self.resources_per_worker or {})}

    @property
    def shares_devices(self) -> bool:
        """Workers get a share of a device each."""
        return self.use_gpu and self.resources["GPU"] < 1

    @property
    def threads(self) -> int:
        """torch's threads in each worker of a deterministic training."""
        return max(1, int(self.resources["CPU"]))

    @property
    def elastic(self) -> bool:
        return isinstance(self.num_workers, tuple)

    @property
    def protected(self) -> bool:
        """The training survives the deaths of workers."""
        return self.elastic and bool(self.protect)

    @property
    def replicated(self) -> bool:
        """The training also survives the loss of a host."""
        return self.protected and self.protect != "host"

    @property
    def minimum(self) -> int:
        return self.num_workers[0] if self.elastic else self.num_workers

    @property
    def maximum(self) -> int:
        return self.num_workers[1] if self.elastic else self.num_workers

    @property
    def first_target(self) -> int:
        """The number of workers that a training aims at before ``scale``."""
        return self.maximum if self.initial_workers is None else self.initial_workers

    def check_run(self) -> None:
        """Raises InvalidArgument if the run that ``shoal run --max --nproc`` has started can never hold the minimum of workers."""
        cpus, wanted = variable(_CPUS, "0"), self.minimum * self.resources["CPU"]
        if cpus.isdecimal() and 0 < int(cpus) < wanted:
            raise InvalidArgument(
                f"num_workers={self.num_workers!r} needs {wanted:g} CPUs, and all hosts of this run have {cpus} (--max times --nproc)",
                hint="raise --nproc or --max of `shoal run`, or lower num_workers, which may also be left out",
            )

    def check_size(self, num_workers: int) -> None:
        """Raises InvalidArgument unless the number is within the bounds."""
        if not hasattr(num_workers, "__index__") or not self.minimum <= num_workers <= self.maximum:
            raise InvalidArgument(f"{num_workers!r} is no number of workers from {self.minimum} to {self.maximum}")
