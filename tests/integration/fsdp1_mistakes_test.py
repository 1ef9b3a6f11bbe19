"""Mistakes by which ranks would wait for each other forever: each ends with an error that names the remedy."""

import pytest
from launching.ranks import ForkedRanks

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


@pytest.fixture(scope="module")
def forked():
    with ForkedRanks(OMP_NUM_THREADS="1") as forked:
        yield forked


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
def test_a_gather_on_one_rank_only_is_an_error_naming_the_others(forked, shoal_command, what):
    script = shoal_command.script(PROGRAM.replace("WHAT", what), "train.py")
    done = forked.run([script], 2, env=shoal_command.env(SHOAL_TIMEOUT="2"))
    assert done.returncode == 1
    said = done.stderr
    assert "DeadlineExceeded: rank 0 waited 2 s for the parameters of step 1" in said
    assert "rank 1 is between backward and its next forward" in said
    assert "every rank must call this, not one inside `if rank == 0:`" in said
