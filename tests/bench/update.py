"""AdamW on one large parameter, shoal.optim's and torch's fused in turn, and on many small ones. One JSON line with every sample.

python update.py [--numel N]   with OMP_NUM_THREADS threads
"""

import argparse
import json
import time

import torch
from torch import nn

import shoal.optim

parser = argparse.ArgumentParser()
parser.add_argument("--numel", type=int, default=32 << 20, help="elements of the large parameter")
parser.add_argument("--steps", type=int, default=5, help="measured, after two that are not")
options = parser.parse_args()

KINDS = {"shoal": shoal.optim.AdamW, "torch": lambda ps: torch.optim.AdamW(ps, fused=True)}


def timed(optimizers):
    """The seconds of every step, by optimizer. The optimizers step in turn."""
    samples = {name: [] for name in optimizers}
    for step in range(options.steps + 2):
        for name, optimizer in optimizers.items():
            begin = time.perf_counter()
            optimizer.step()
            if step >= 2:
                samples[name].append(time.perf_counter() - begin)
    return samples


def made(count, numel, kinds, dtype=torch.float32):
    optimizers = {}
    for name, kind in kinds.items():
        ps = [nn.Parameter(torch.full((numel,), 0.5, dtype=dtype)) for _ in range(count)]
        for p in ps:
            p.grad = torch.full((numel,), 0.25, dtype=dtype)
        optimizers[name] = kind(ps)
    return optimizers


# An update moves 28 bytes per element: it reads parameter, gradient and two moments, and writes all but the gradient. With master weights,
# gradient and parameter have two bytes; the parameter is written only, and the master copy is read and written.
moved = 28 * options.numel / 1e6
figures = {f"{name}'s AdamW": [moved / s for s in samples] for name, samples in timed(made(1, options.numel, KINDS)).items()}
low = timed(made(1, options.numel, {"shoal": KINDS["shoal"]}, torch.bfloat16))
figures["shoal's AdamW of bfloat16"] = [moved / s for s in low["shoal"]]
figures |= {f"{name}'s AdamW, 300 small": samples for name, samples in timed(made(300, 1000, KINDS)).items()}
print(json.dumps({"threads": torch.get_num_threads(), "numel": options.numel, "figures": figures}))
