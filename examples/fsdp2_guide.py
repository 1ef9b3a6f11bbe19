"""The script of the FSDP2 guide: ``torchrun --nproc-per-node 2 examples/fsdp2_guide.py``.

Only FSDP's import changed. ``--explicit-prefetching``, ``--mixed-precision`` and ``--dcp-api`` (checkpoints by
torch.distributed.checkpoint instead of DTensor by DTensor) are the guide's. A second run continues from the checkpoint of the first.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from shoal.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


class TransformerBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.ReLU(), nn.Linear(dim * 4, dim))
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocab_size=1000, dim=64, num_layers=4):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList([TransformerBlock(dim) for _ in range(num_layers)])
        self.output = nn.Linear(dim, vocab_size)

    def forward(self, x):
        x = self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def set_forward_prefetch(model, num_to_prefetch):
    for i in range(len(model.layers) - num_to_prefetch):
        model.layers[i].set_modules_to_forward_prefetch([model.layers[i + j] for j in range(1, num_to_prefetch + 1)])


def set_backward_prefetch(model, num_to_prefetch):
    for i in range(num_to_prefetch, len(model.layers)):
        model.layers[i].set_modules_to_backward_prefetch([model.layers[i - j] for j in range(1, num_to_prefetch + 1)])


def inspect(model):
    assert isinstance(model, Transformer)
    assert isinstance(model, FSDPModule)
    if torch.distributed.get_rank() == 0:
        print(model)
    for param in model.parameters():
        assert isinstance(param, DTensor)
        assert param.placements == (Shard(0),)
        assert param.dtype == torch.float32


def inspect_mixed_precision(model):
    model.unshard()
    for param in model.parameters(recurse=False):
        assert param.dtype == torch.bfloat16
    model.reshard()


def save(model, optimizer, folder, dcp_api):
    """Saves whole tensors of model and optimizer in rank 0's files. Every rank must call it."""
    first = torch.distributed.get_rank() == 0
    if dcp_api:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)
    else:
        states = {}, {}
        for name, param in model.state_dict().items():
            whole = param.full_tensor()
            states[0].update({name: whole.cpu()} if first else {})
        for i, values in optimizer.state_dict()["state"].items():
            whole = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in values.items()}
            states[1].update({i: whole} if first else {})
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        for state, name in zip(states, ("model.pt", "optimizer.pt"), strict=True):
            torch.save(state, folder / "new")
            (folder / "new").replace(folder / name)  # not overwritten, because load() may still map the old file


def load(model, optimizer, folder, dcp_api):
    model_sd, optimizer_sd = (
        torch.load(folder / name, mmap=True, weights_only=True, map_location="cpu") for name in ("model.pt", "optimizer.pt")
    )
    if dcp_api:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, model_sd, options=options)
        set_optimizer_state_dict(model, optimizer, optimizer_sd, options=options)
        return
    sharded_sd = {}
    for name, meta in model.state_dict().items():
        sharded_sd[name] = nn.Parameter(distribute_tensor(model_sd[name], meta.device_mesh, meta.placements))
    model.load_state_dict(sharded_sd, assign=True)
    state = {}
    for i, param in enumerate(model.parameters()):
        state[i] = {
            key: distribute_tensor(value, param.device_mesh, param.placements) if value.dim() else value
            for key, value in optimizer_sd[i].items()
        }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def main(args):
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = Transformer(args.vocab_size, args.dim, args.layers)
    fsdp_kwargs = {}
    if args.mixed_precision:
        fsdp_kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **fsdp_kwargs)
    fully_shard(model, **fsdp_kwargs)
    inspect(model)
    if args.explicit_prefetching:
        set_forward_prefetch(model, num_to_prefetch=2)
        set_backward_prefetch(model, num_to_prefetch=2)
    if args.mixed_precision:
        inspect_mixed_precision(model)
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)

    kind = "dcp_api" if args.dcp_api else "dtensor_api"
    folder = args.out / f"guide_{kind}"
    if (folder / "model.pt").exists():
        load(model, optim, folder, args.dcp_api)
        if rank == 0:
            print(f"Loaded {folder}")
    torch.manual_seed(1 + rank)
    for epoch in range(args.epochs):
        if args.explicit_prefetching:
            model.unshard()  # overlaps the first gather with the data's creation
        x = torch.randint(0, args.vocab_size, (args.batch_size, args.seq_len))
        loss = model(x).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
        if rank == 0:
            print(f"Epoch {epoch}, Loss: {loss.item():.4f}")
    save(model, optim, folder, args.dcp_api)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--explicit-prefetching", action="store_true", help="say which layers are gathered ahead")
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16, reduce in float32")
    parser.add_argument("--dcp-api", action="store_true", help="checkpoints by torch.distributed.checkpoint.state_dict")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER", help="where the checkpoint is kept (default: out)")
    for name, default, says in (
        ("epochs", 10, "steps"),
        ("batch-size", 8, "sequences of a batch of a rank"),
        ("seq-len", 64, "tokens of a sequence"),
        ("vocab-size", 1000, "different tokens"),
        ("dim", 64, "the model's width"),
        ("layers", 4, "of the model"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{says} (default: {default})")
    main(parser.parse_args())
