"""The backend ``shoal`` of ``torch.distributed``.

``import shoal.torch``, then ``torch.distributed.init_process_group("shoal")``, or ``"cpu:shoal,cuda:nccl"`` where tensors are on GPUs, too.
"""

from shoal.torch._fsdp import AllGather, ReduceScatter
from shoal.torch._process_group import ProcessGroup, register
from shoal.torch._recorder import dump_flight_recorder
from shoal.torch._window import Window

__all__ = ["AllGather", "ProcessGroup", "ReduceScatter", "Window", "dump_flight_recorder"]

register()
