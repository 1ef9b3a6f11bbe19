"""Trains a GPT under SpmdFullyShardedDataParallel. The first process prints the bits of the losses.

Arguments: a config of gpt.py, the number of steps, and optionally "plain" for plain torch. A step has 8 rows for any number of devices.
"""

from __future__ import annotations

import logging
import sys

import gpt
import numpy as np
import torch
from torch.nn import functional as F

ROWS = 8
name, steps = sys.argv[1], int(sys.argv[2])
config = gpt.CONFIGS[name]
torch.set_num_threads(1)
model, tokens = gpt.build(config), gpt.stream(config)
batches = [gpt.batch(tokens, config, step, ROWS, 0, ROWS) for step in range(steps)]

if sys.argv[3:] != ["plain"]:
    logging.basicConfig(level=logging.INFO)  # the log on stderr states why a module runs operator by operator
    import shoal.spmd as xs
    import shoal.spmd.runtime as xr
    import shoal.spmd.xla_model as xm
    from shoal.spmd.fsdp import SpmdFullyShardedDataParallel as FSDPv2

    xr.use_spmd()
    n = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(n), (n, 1), ("fsdp", "model"))
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDPv2(block, mesh)
    model = FSDPv2(model, mesh)
    batches = [tuple(t.to(xm.xla_device()) for t in batch) for batch in batches]
    for t in (t for batch in batches for t in batch):
        xs.mark_sharding(t, mesh, ("fsdp", None))

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # with lr=1e-3 config S diverges, which would amplify rounding
losses = []
for x, y in batches:
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
if sys.argv[3:] == ["plain"] or xr.process_index() == 0:
    print(*(loss.hex() for loss in losses))
