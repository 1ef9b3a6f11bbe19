"""Mistakes that would be waited for: they end with a sentence that says what to do."""

import sys

import pytest

PROGRAM = """
import torch, torch.distributed as dist
from torch import nn
from shoal.fsdp1 import FullyShardedDataParallel as FSDP
from shoal.fsdp1 import FullStateDictConfig, StateDictType

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = FSDP(nn.Sequential(nn.Linear(6, 8), FSDP(nn.Linear(8, 5))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 6)).square().mean().backward()
optimizer.step()
if rank == 0:
    WHAT
dist.barrier()
"""


@pytest.mark.parametrize(
    "what",
    [
        "model.state_dict()",
        "\n".join(
            [
                "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):",
                "        model.state_dict()",
            ]
        ),
        "FSDP.summon_full_params(model).__enter__()",
    ],
    ids=["state_dict", "rank0_only", "summon_full_params"],
)
def test_what_is_gathered_on_one_rank_only_names_the_others_and_says_so(shoal_command, what):
    script = shoal_command.script(PROGRAM.replace("WHAT", what), "train.py")
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    job = shoal_command.program(words, SHOAL_TIMEOUT="2")
    assert job.code() == 1
    assert "DeadlineExceeded: rank 0 waited 2 s for the parameters of step 0" in job.err
    assert "rank 1 is between backward and its next forward" in job.err
    assert "every rank must call this, not one inside `if rank == 0:`" in job.err
