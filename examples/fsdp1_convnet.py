"""A ConvNet for handwritten digits, trained with FSDP1 on several processes: ``python examples/fsdp1_convnet.py``.

The script of FSDP's getting-started tutorial, with only FSDP's import changed (and the data: scikit-learn's digits, which need no
download). It starts its ranks itself, as under ``srun -N 1``. ``--min-num-params 20000`` makes a unit of fc1, 100 one of every layer.
"""

import argparse
import functools
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shoal.fsdp1 import FullyShardedDataParallel as FSDP
from shoal.fsdp1 import StateDictType
from shoal.fsdp1.fully_sharded_data_parallel import CPUOffload, FullStateDictConfig
from shoal.fsdp1.wrap import size_based_auto_wrap_policy


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ.setdefault("MASTER_PORT", "12355")
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def digits(limit):
    """Images of 28 x 28 in [0, 1] with their labels: (train, test)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("fsdp1_convnet needs scikit-learn: pip install scikit-learn")
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images[:limit], dtype=torch.float32).view(-1, 1, 8, 8) / 16
    images = F.interpolate(images, size=28, mode="bilinear")
    labels, split = torch.tensor(labels[:limit]), len(images) * 5 // 6
    return TensorDataset(images[:split], labels[:split]), TensorDataset(images[split:], labels[split:])


def train(model, rank, device, train_loader, optimizer, epoch, sampler):
    model.train()
    ddp_loss = torch.zeros(2).to(device)
    sampler.set_epoch(epoch)
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target, reduction="sum")
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"Train Epoch: {epoch} \tLoss: {ddp_loss[0] / ddp_loss[1]:.6f}", flush=True)


def test(model, rank, device, test_loader):
    model.eval()
    ddp_loss = torch.zeros(3).to(device)
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            ddp_loss[0] += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)  # the class with the largest probability
            ddp_loss[1] += pred.eq(target.view_as(pred)).sum().item()
            ddp_loss[2] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        loss, right, of = ddp_loss[0] / ddp_loss[2], int(ddp_loss[1]), int(ddp_loss[2])
        print(f"Test set: Average loss: {loss:.4f}, Accuracy: {right}/{of} ({100.0 * right / of:.2f}%)\n", flush=True)


def fsdp_main(rank, world_size, args):
    setup(rank, world_size)
    torch.manual_seed(args.seed)
    device = torch.device("cpu")
    dataset1, dataset2 = digits(args.limit)
    sampler1 = DistributedSampler(dataset1, rank=rank, num_replicas=world_size, shuffle=True)
    sampler2 = DistributedSampler(dataset2, rank=rank, num_replicas=world_size)
    train_loader = DataLoader(dataset1, batch_size=args.batch_size, sampler=sampler1)
    test_loader = DataLoader(dataset2, batch_size=args.test_batch_size, sampler=sampler2)

    options = {"device_id": device}
    if args.min_num_params:
        options["auto_wrap_policy"] = functools.partial(size_based_auto_wrap_policy, min_num_params=args.min_num_params)
    if args.cpu_offload:
        options["cpu_offload"] = CPUOffload(offload_params=True)
    model = FSDP(Net().to(device), **options)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    began = time.perf_counter()
    for epoch in range(1, args.epochs + 1):
        train(model, rank, device, train_loader, optimizer, epoch, sampler1)
        test(model, rank, device, test_loader)
        scheduler.step()
    if rank == 0:
        print(f"Elapsed time: {time.perf_counter() - began:.2f}sec")
        print(model)
    if args.save_model:
        # Every rank takes part in gathering; only the first one keeps the result.
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
            states = model.state_dict()
        if rank == 0:
            torch.save(states, args.save_model)
    dist.barrier()
    cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images of a batch of a rank (default: 64)")
    parser.add_argument("--test-batch-size", type=int, default=1000, metavar="N", help="the same when testing (default: 1000)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="times over the data (default: 3)")
    parser.add_argument("--lr", type=float, default=1.0, metavar="LR", help="learning rate (default: 1.0)")
    parser.add_argument("--gamma", type=float, default=0.7, metavar="M", help="its factor after an epoch (default: 0.7)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed (default: 1)")
    parser.add_argument("--min-num-params", type=int, default=0, metavar="N", help="a unit for so many parameters (default: one unit)")
    parser.add_argument("--cpu-offload", action="store_true", help="parameters and gradients live on the host")
    parser.add_argument("--save-model", metavar="FILE", help="where the model goes at the end")
    parser.add_argument("--limit", type=int, default=1797, metavar="N", help="images in all (default: all 1797)")
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="ranks (default: 2)")
    args = parser.parse_args()
    mp.spawn(fsdp_main, args=(args.world_size, args), nprocs=args.world_size, join=True)
