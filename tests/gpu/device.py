"""One rank on a CUDA device, or on the CPU with units outside of an arena as on a device."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def mesh_of_one_rank(device: str) -> DeviceMesh:
    """Makes the default process group and a mesh of one rank. Exits with code 2 and a sentence if there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        print(f"tests/gpu: there is no CUDA device that torch {torch.__version__} can use here; nothing was tested")
        sys.exit(2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    if device == "cpu":
        from shoal.fsdp._parameters.mesh import DataMesh

        DataMesh.in_arena = property(lambda self: False)
    return init_device_mesh(device, (1,))
