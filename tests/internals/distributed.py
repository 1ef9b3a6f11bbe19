"""Private names of shoal.torch and shoal._distributed, that tests use."""
# ruff: noqa: F401

from shoal._distributed import communicator
from shoal._distributed.buddies import buddies
from shoal._distributed.communicator import Exchange, make_communicator
from shoal._distributed.devices import Choice, DeviceGroup
from shoal._distributed.ranks import TIMEOUT, attach, gang_name
from shoal._distributed.single import all_gather_single, reduce_scatter_single
from shoal.torch import _generations, _hooks
from shoal.torch._futures import OrderedFuture
from shoal.torch._work import Work
