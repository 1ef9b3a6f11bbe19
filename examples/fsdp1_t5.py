"""Fine-tunes a T5 for summaries with FSDP1: ``torchrun --nproc-per-node 2 examples/fsdp1_t5.py``.

The script of FSDP's advanced tutorial, with only FSDP's import changed. To avoid downloads the T5 is small and random, and its tokenizer
is trained here. The texts are the standard library's docstrings: the first line is the summary of the body.
"""

import argparse
import ast
import functools
import os
import resource
import sys
import sysconfig
import time
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from shoal.fsdp1 import BackwardPrefetch, FullStateDictConfig, MixedPrecision, ShardingStrategy, StateDictType
from shoal.fsdp1 import FullyShardedDataParallel as FSDP
from shoal.fsdp1.wrap import transformer_auto_wrap_policy

try:
    import tqdm
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import T5Config, T5ForConditionalGeneration
    from transformers.models.t5.modeling_t5 import T5Block
except ImportError as missing:
    sys.exit(f"fsdp1_t5 needs {missing.name}: pip install transformers tokenizers tqdm")

bfSixteen = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)


def setup():
    for name, alone in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "12356"}.items():
        os.environ.setdefault(name, alone)
    dist.init_process_group("gloo")


def docstrings(count):
    """(body, first line) of up to ``count`` docstrings of the standard library, in the order of its files."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                summary, _, body = (ast.get_docstring(node) or "").partition("\n\n")
                if len(body) >= 40 and "\n" not in summary:
                    found.append((body, summary))
        if len(found) >= count:
            break
    return found[:count]


def train_tokenizer(pairs):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special, alphabet = ["<pad>", "</s>", "<unk>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(map("\n".join, pairs), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


class Summaries(Dataset):
    def __init__(self, tokenizer, pairs, input_length, output_length):
        self.source = self._tensors(tokenizer, [body for body, _ in pairs], input_length)
        self.target = self._tensors(tokenizer, [summary for _, summary in pairs], output_length)

    @staticmethod
    def _tensors(tokenizer, texts, length):
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(length=length)
        encoded = tokenizer.encode_batch(texts)
        return torch.tensor([e.ids for e in encoded]), torch.tensor([e.attention_mask for e in encoded])

    def __len__(self):
        return len(self.source[0])

    def __getitem__(self, i):
        labels = torch.where(self.target[1][i] == 1, self.target[0][i], -100)  # -100: the loss leaves padding out
        return {"source_ids": self.source[0][i], "source_mask": self.source[1][i], "target_ids": labels}


def setup_model(vocab_size, args):
    torch.manual_seed(args.seed)
    config = T5Config(
        vocab_size=vocab_size, d_model=args.width, d_kv=16, d_ff=2 * args.width, num_layers=args.layers, num_heads=args.width // 16
    )
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 0, 0, 1
    return T5ForConditionalGeneration(config)


def get_date_of_run():
    date_of_run = datetime.now().strftime("%Y-%m-%d-%I:%M:%S_%p")
    print(f"--> current date and time of run = {date_of_run}")
    return date_of_run


def memory_gb():
    """(present, peak) memory of this process in GB, for a CPU's rank in place of a GPU allocator's figures."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now, most = pages * resource.getpagesize(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return round(now / 2**30, 4), round(most / 2**30, 4)


def batches(model, rank, loader, colour, says):
    """Yields the loss of each batch; the first rank shows a progress bar."""
    bar = tqdm.tqdm(range(len(loader)), colour=colour, desc=says) if rank == 0 else None
    for batch in loader:
        output = model(input_ids=batch["source_ids"], attention_mask=batch["source_mask"], labels=batch["target_ids"])
        yield output["loss"]
        if bar:
            bar.update(1)
    if bar:
        bar.close()


def train(model, rank, train_loader, optimizer, epoch, sampler):
    model.train()
    fsdp_loss = torch.zeros(2)
    sampler.set_epoch(epoch)
    optimizer.zero_grad()
    for loss in batches(model, rank, train_loader, "blue", "r0 Training Epoch"):
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fsdp_loss += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(fsdp_loss, op=dist.ReduceOp.SUM)
    train_loss = fsdp_loss[0] / fsdp_loss[1]
    if rank == 0:
        print(f"Train Epoch: \t{epoch}, Loss: \t{train_loss:.4f}")
    return train_loss


def validation(model, rank, val_loader):
    model.eval()
    fsdp_loss = torch.zeros(2)
    with torch.no_grad():
        for loss in batches(model, rank, val_loader, "green", "Validation Epoch"):
            fsdp_loss += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(fsdp_loss, op=dist.ReduceOp.SUM)
    val_loss = fsdp_loss[0] / fsdp_loss[1]
    if rank == 0:
        print(f"Validation Loss: {val_loss:.4f}")
    return val_loss


def save_model(model, rank, out, name):
    save_policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, save_policy):
        cpu_state = model.state_dict()  # on every rank, because all ranks have to take part in gathering
    if rank == 0:
        print(f"--> saving as model name {name}")
        out.mkdir(parents=True, exist_ok=True)
        torch.save(cpu_state, out / name)


def fsdp_main(args):
    setup()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pairs = docstrings(args.samples)
    said = [train_tokenizer(pairs).to_str() if rank == 0 else None]
    dist.broadcast_object_list(said)
    tokenizer, held_out = Tokenizer.from_str(said[0]), len(pairs) // 6
    train_dataset = Summaries(tokenizer, pairs[held_out:], args.input_length, args.output_length)
    val_dataset = Summaries(tokenizer, pairs[:held_out], args.input_length, args.output_length)
    sampler1 = DistributedSampler(train_dataset, rank=rank, num_replicas=world_size, shuffle=True)
    sampler2 = DistributedSampler(val_dataset, rank=rank, num_replicas=world_size)
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=sampler1)
    val_loader = DataLoader(val_dataset, batch_size=args.test_batch_size, sampler=sampler2)

    t5_auto_wrap_policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    bf16_ready = args.bf16 or (not args.no_cuda and torch.version.cuda and torch.cuda.is_available() and torch.cuda.is_bf16_supported())
    # The model starts on the CPU. The outer unit has the model's embedding, which encoder, decoder and head share.
    model = FSDP(
        setup_model(tokenizer.get_vocab_size(), args),
        auto_wrap_policy=t5_auto_wrap_policy,
        mixed_precision=bfSixteen if bf16_ready else None,
        sharding_strategy=ShardingStrategy.FULL_SHARD,  # SHARD_GRAD_OP keeps parameters whole until backward (ZeRO-2)
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.device("cpu"),
    )
    optimizer = optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    best_val_loss = curr_val_loss = float("inf")
    time_of_run = get_date_of_run() if rank == 0 else None
    for epoch in range(1, args.epochs + 1):
        t0 = time.time()
        train(model, rank, train_loader, optimizer, epoch, sampler1)
        if args.run_validation:
            curr_val_loss = validation(model, rank, val_loader).item()
        scheduler.step()
        if rank == 0:
            print(f"--> epoch {epoch} completed in {time.time() - t0:.1f} s")
            if args.track_memory:
                print("--> memory of rank 0: {} GB, at most {} GB so far".format(*memory_gb()))
        if curr_val_loss < best_val_loss:
            best_val_loss = curr_val_loss
            if args.save_model:
                save_model(model, rank, args.out, f"T5-model--{time_of_run}--{epoch}-{round(curr_val_loss, 4)}.pt")
            if rank == 0:
                print(f"-->>>> New Val Loss Record: {best_val_loss}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--batch-size", type=int, default=4, metavar="N", help="texts of a batch of a rank (default: 4)")
    parser.add_argument("--test-batch-size", type=int, default=4, metavar="N", help="the same when validating (default: 4)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="times over the data (default: 2)")
    parser.add_argument("--lr", type=float, default=0.002, metavar="LR", help="learning rate (default: 0.002)")
    parser.add_argument("--gamma", type=float, default=0.7, metavar="M", help="its factor after an epoch (default: 0.7)")
    parser.add_argument("--no-cuda", action="store_true", help="do not look for a GPU")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="random seed (default: 1)")
    parser.add_argument("--track_memory", action=switch, default=True, help="print what rank 0 holds after each epoch")
    parser.add_argument("--run_validation", action=switch, default=True, help="compute the loss of held-out texts after each epoch")
    parser.add_argument("--save-model", action=switch, default=True, help="keep the model whenever that loss is the best so far")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER", help="where it is kept (default: out)")
    parser.add_argument("--bf16", action="store_true", help="compute and reduce in bfloat16, also on a CPU")
    parser.add_argument("--samples", type=int, default=600, metavar="N", help="texts in all, a sixth of them held out (default: 600)")
    parser.add_argument("--width", type=int, default=64, metavar="N", help="the model's, a multiple of 16 (default: 64)")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="of encoder and decoder each (default: 2)")
    parser.add_argument("--input-length", type=int, default=128, metavar="N", help="tokens of a text (default: 128)")
    parser.add_argument("--output-length", type=int, default=32, metavar="N", help="tokens of a summary (default: 32)")
    fsdp_main(parser.parse_args())
