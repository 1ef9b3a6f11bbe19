"""One of two ranks on two hosts, started by ``shoal submit``: gathers a parameter, trains, and prints what it has as JSON.

    hosts_exchange.py            # the digest of all losses and parameters, the transport, and the variables for interfaces
    hosts_exchange.py gather     # the same after a gather of 16 MiB only

The parameter repeats MARK, so that its rows are found in clear text on a wire.
"""

import hashlib
import json
import os
import sys

import torch
import torch.distributed as dist

from shoal.collective import all_gather, group
from shoal.fsdp import fully_shard
from shoal.optim import AdamW

MARK = bytes(range(0x41, 0x51))  # 16 bytes: four floats
VARIABLES = ("SHOAL_INTERFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def gathered() -> list[torch.Tensor]:
    part = torch.full((1 << 21,), float(dist.get_rank()))
    return [all_gather(part)]


def trained() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256, bias=False), torch.nn.GELU(), torch.nn.Linear(256, 8))
    with torch.no_grad():
        model[0].weight.copy_(torch.frombuffer(bytearray(MARK * 4096), dtype=torch.float32).view(256, 64))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = (model(1e-3 * torch.randn(4, 64, generator=generator)) * 1e-3).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(p.detach().full_tensor() for p in model.parameters())]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    digest = hashlib.sha256()
    for tensor in gathered() if "gather" in sys.argv else trained():
        digest.update(tensor.contiguous().numpy().tobytes())
    said = {"digest": digest.hexdigest(), "transport": group().transport, "variables": {v: os.environ.get(v) for v in VARIABLES}}
    print("found", dist.get_rank(), json.dumps(said), flush=True)
    dist.barrier()
    dist.destroy_process_group()
