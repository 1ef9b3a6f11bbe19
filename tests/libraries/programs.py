"""Training programs of two ranks, as users of libraries write them; none names Shoal. python -m torch.distributed.run ... programs.py CASE

Each trains a small model, saves it, trains on, loads the checkpoint into a new model, and trains that on. Rank 0 prints the losses.
"""

import json
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def folder() -> str:
    """Makes one folder for all ranks."""
    made = [tempfile.mkdtemp()]
    dist.broadcast_object_list(made)
    return made[0]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.inner(x).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks, self.last = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return (self.last(x) - 1).square().mean()


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))


# ---- Accelerate --------------------------------------------------------------------------------------------------------------------


def accelerated(version: int, kind: str, precision: str = "no") -> list[float]:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        state_dict_type=kind,
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(fsdp_plugin=plugin, gradient_accumulation_steps=2, mixed_precision=precision)
    losses = []

    def prepared():
        model = Net()
        data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader)

    def epoch(model, optimizer, loader):
        for (x,) in loader:
            with accelerator.accumulate(model):
                loss = model(x)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(accelerator.gather(loss.detach()).mean().item())

    model, optimizer, loader = prepared()
    epoch(model, optimizer, loader)
    where = folder()
    accelerator.save_state(where)
    epoch(model, optimizer, loader)
    accelerator.load_state(where)
    epoch(model, optimizer, loader)
    whole = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        losses.append(sum(v.float().abs().sum().item() for v in whole.values()))
        assert list(whole) == list(Net().state_dict())
    return losses


@program
def accelerate_fsdp2_sharded():
    return accelerated(2, "SHARDED_STATE_DICT")


@program
def accelerate_fsdp2_whole_in_bf16():
    return accelerated(2, "FULL_STATE_DICT", "bf16")


@program
def accelerate_fsdp1_whole_in_bf16():
    return accelerated(1, "FULL_STATE_DICT", "bf16")


# ---- transformers' Trainer ---------------------------------------------------------------------------------------------------------


def trained(version: int, kind: str) -> list[float]:
    from transformers import Trainer, TrainingArguments

    tokens = torch.randint(0, 64, (64, 12), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    config = {"version": version, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "state_dict_type": kind}
    config |= {"sync_module_states": False, "cpu_ram_efficient_loading": False}
    where, losses = tempfile.gettempdir(), []
    for steps, resume in ((3, False), (6, True)):
        arguments = TrainingArguments(
            where,
            max_steps=6,
            save_steps=3,
            logging_steps=1,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            report_to="none",
            disable_tqdm=True,
            fsdp="full_shard auto_wrap",
            fsdp_config=config,
        )
        if where == tempfile.gettempdir():  # folder() needs the process group, which exists once the arguments are made
            where = arguments.output_dir = folder()
        trainer = Trainer(llama(), arguments, train_dataset=data)
        trainer.train(resume_from_checkpoint=f"{where}/checkpoint-3" if resume else None)
        losses += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-6:]
        assert len(losses) in (6, 12), steps
    return losses


@program
def trainer_fsdp2_sharded():
    return trained(2, "SHARDED_STATE_DICT")


@program
def trainer_fsdp1_sharded():
    return trained(1, "SHARDED_STATE_DICT")


@program
def trainer_fsdp1_whole():
    return trained(1, "FULL_STATE_DICT")


# ---- PEFT --------------------------------------------------------------------------------------------------------------------------


@program
def peft_adapters():
    """Adapters in a frozen model, saved by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    from peft import LoraConfig, get_peft_model
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    dist.init_process_group("gloo")
    losses = []

    def made():
        model = get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
        for layer in model.base_model.model.model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def train(model, optimizer, first):
        for step in range(first, first + 3):
            ids = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())

    options = StateDictOptions(ignore_frozen_params=True)
    model, optimizer = made()
    train(model, optimizer, 0)
    where = folder()
    states = get_state_dict(model, optimizer, options=options)
    dcp.save({"model": states[0], "optim": states[1]}, checkpoint_id=where)
    assert states[0]
    assert all("lora_" in name for name in states[0])
    train(model, optimizer, 3)
    model, optimizer = made()
    states = get_state_dict(model, optimizer, options=options)
    loaded = {"model": states[0], "optim": states[1]}
    dcp.load(loaded, checkpoint_id=where)
    options = StateDictOptions(ignore_frozen_params=True, strict=False)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"], options=options)
    train(model, optimizer, 3)
    return losses


# ---- Lightning ---------------------------------------------------------------------------------------------------------------------


def lit(strategy, sharded_by=lambda module, mesh: None) -> list[float]:
    import lightning

    losses = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def configure_model(self):
            if not isinstance(self.net, FSDPModule):
                sharded_by(self.net, self.device_mesh)

        def training_step(self, batch, index):
            loss = self.net(batch[0])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))
    path = None
    for steps in (8, 12):  # an epoch has 8 steps: the second run resumes at its end
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy(), max_steps=steps, **quiet)
        trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4), ckpt_path=path)
        if path is None:
            path = folder() + "/saved.ckpt"
            trainer.save_checkpoint(path)
    assert len(losses) == 12
    return losses


def lit_fsdp2(distributed: bool) -> list[float]:
    from lightning.pytorch.strategies import ModelParallelStrategy

    def shard(net, mesh):
        for block in net.blocks:
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(net, mesh=mesh["data_parallel"])

    return lit(lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=distributed, process_group_backend="gloo"), shard)


@program
def lightning_fsdp2_sharded():
    return lit_fsdp2(True)


@program
def lightning_fsdp2_whole():
    return lit_fsdp2(False)


def lit_fsdp1(kind: str) -> list[float]:
    from lightning.pytorch.strategies import FSDPStrategy

    class OnCpus(FSDPStrategy):  # Lightning refuses its own class without an accelerator
        root_device = torch.device("cpu")

    return lit(lambda: OnCpus(state_dict_type=kind, auto_wrap_policy={Block}, process_group_backend="gloo"))


@program
def lightning_fsdp1_sharded():
    return lit_fsdp1("sharded")


@program
def lightning_fsdp1_whole():
    return lit_fsdp1("full")


# ---- torchtitan's pattern, and torch.distributed.checkpoint ------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(dim, 48, bias=False), nn.Linear(48, dim, bias=False), nn.Linear(dim, 48, bias=False)

    def forward(self, x):
        q, k, v = (w(self.attention_norm(x)).unflatten(-1, (4, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(heads.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))


class Decoder(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.tok_embeddings, self.norm = nn.Embedding(64, dim), nn.RMSNorm(dim)
        self.layers = nn.ModuleDict({str(i): Layer(dim) for i in range(3)})
        self.output = nn.Linear(dim, 64, bias=False)

    def hidden(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.norm(x)

    def init_weights(self):
        torch.manual_seed(0)
        for p in self.parameters():
            nn.init.trunc_normal_(p, std=0.1) if p.dim() > 1 else nn.init.ones_(p)

    def forward(self, tokens):
        return self.output(self.hidden(tokens))


@program
def llama_in_torchtitans_pattern():
    """Meta device, checkpointed activations, mixed precision, prefetch lists, clipping, accumulation; saved by DCP, flat."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    losses = []

    def made():
        with torch.device("meta"):
            model = Decoder()
        for name, layer in model.layers.items():
            model.layers[name] = checkpoint_wrapper(layer, preserve_rng_state=False)
        fully_shard(model.tok_embeddings, mesh=mesh, mp_policy=policy)
        layers = list(model.layers.values())
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard([model.norm, model.output], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        model.tok_embeddings.set_modules_to_forward_prefetch([layers[0]])
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            layer.set_modules_to_forward_prefetch([following] if following is not None else [model.norm, model.output])
        model.output.set_modules_to_backward_prefetch([layers[-1]])
        for layer, former in zip(layers, [model.tok_embeddings, *layers[:-1]], strict=True):
            layer.set_modules_to_backward_prefetch([former])
        model.to_empty(device="cpu")
        with torch.no_grad():
            model.init_weights()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

    def train(model, optimizer, first):
        for step in range(first, first + 3):
            for part in range(2):
                model.set_requires_gradient_sync(part == 1)
                generator = torch.Generator().manual_seed(100 * step + 10 * part + dist.get_rank())
                tokens = torch.randint(0, 64, (4, 12), generator=generator)
                logits = model(tokens).float().flatten(0, 1)
                loss = nn.functional.cross_entropy(logits, tokens.roll(-1, 1).flatten(), reduction="sum") / (16 * 12)
                loss.backward()
                losses.append(loss.item())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model, optimizer = made()
    train(model, optimizer, 0)
    where = folder()
    dcp.save({**get_model_state_dict(model), **get_optimizer_state_dict(model, optimizer, options=flat)}, checkpoint_id=where)
    train(model, optimizer, 3)
    model, optimizer = made()
    weights, moments = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer, options=flat)
    dcp.load(loaded := {**weights, **moments}, checkpoint_id=where)
    set_model_state_dict(model, {k: loaded[k] for k in weights})
    set_optimizer_state_dict(model, optimizer, {k: loaded[k] for k in moments}, options=flat)
    train(model, optimizer, 3)
    return losses


class Headless(Decoder):
    forward = Decoder.hidden


class _Backward(torch.autograd.Function):
    """An identity function whose backward returns a gradient that was computed before."""

    @staticmethod
    def forward(ctx, hidden, gradient, loss):
        ctx.save_for_backward(gradient)
        return loss.clone()

    @staticmethod
    def backward(ctx, loss_gradient):
        return ctx.saved_tensors[0] * loss_gradient, None, None


@program
def a_loss_in_chunks_as_torchtitans():
    """The head runs after the forward, chunk by chunk, each with a backward pass of its own; only the last one reduces."""
    dist.init_process_group("gloo")
    model, losses = Headless(), []
    model.init_weights()
    head = model.output
    for unit in (model.tok_embeddings, *model.layers.values(), model.norm, head, model):
        fully_shard(unit)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        tokens = torch.randint(0, 64, (4, 12), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        hidden = model(tokens)
        chunks = [chunk.detach().contiguous().requires_grad_() for chunk in hidden.chunk(3, 1)]
        head.set_reshard_after_forward(False)
        head.set_reshard_after_backward(False)
        head.set_requires_gradient_sync(False, recurse=False)
        head.unshard()
        total = torch.zeros(())
        for chunk, labels in zip(chunks, tokens.roll(-1, 1).chunk(3, 1), strict=True):
            head.set_requires_gradient_sync(chunk is chunks[-1], recurse=False)
            logits = head(chunk).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / tokens.numel()
            loss.backward()
            total += loss.detach()
        head.set_reshard_after_forward(True)
        head.set_reshard_after_backward(True)
        head.reshard()
        _Backward.apply(hidden, torch.cat([chunk.grad for chunk in chunks], 1), total).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses += [total.item(), norm.full_tensor().item()]
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    losses = PROGRAMS[sys.argv[1]]()
    if dist.get_rank() == 0:
        print(f"LOSSES {json.dumps(losses)} {fully_shard.__module__} {FullyShardedDataParallel.__module__}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
