"""Faults for which torch's FSDP1 has errors. The same functions run on both implementations, whose messages match the same pattern."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from fsdp2_faults import raise_alike
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

FAULTS = {}


def fault(words):
    """Adds a fault. ``words``: a regular expression that matches torch's message and Shoal's."""

    def keep(function):
        FAULTS[f"fault_{function.__name__}"] = (function, words)
        return function

    return keep


def try_fault(name):
    """Raises AssertionError unless Shoal raises an error that a handler of torch's error also catches."""
    from torch.distributed import fsdp as theirs

    from shoal import fsdp1 as ours

    def api(who, module):
        def wrap(net, **options):
            return module.FullyShardedDataParallel(net, device_id=torch.device("cpu"), **options)

        return SimpleNamespace(name=who, wrap=wrap, cls=module.FullyShardedDataParallel, types=module)

    raise_alike(*FAULTS[name], api("theirs", theirs), api("ours", ours))


def net():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def nested(api, **options):
    module = net()
    module[0] = api.wrap(module[0], **options)
    model = api.wrap(module, **options)
    model.check_is_root()
    return model, module[0]


# ---- the constructor ----


@fault(r"Cannot pass both process_group and device_mesh at the same time\. Please just pass only one of them\.")
def a_group_and_a_mesh(api):
    api.wrap(net(), process_group=dist.group.WORLD, device_mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


@fault(r"Manual wrapping with ShardingStrategy\.HYBRID_SHARD requires explicit specification of process group or device_mesh\.")
def a_hybrid_strategy_without_ranks(api):
    api.wrap(net(), sharding_strategy=api.types.ShardingStrategy.HYBRID_SHARD)


@fault(r"Expected device_mesh to have ndim=2 but got 1")
def a_hybrid_strategy_on_one_dim(api):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    api.wrap(net(), device_mesh=mesh, sharding_strategy=api.types.ShardingStrategy.HYBRID_SHARD)


@fault(r"Expected process_group to be passed in as either None or Tuple\[dist\.ProcessGroup, dist\.ProcessGroup\] but got <class")
def a_hybrid_strategy_with_one_group(api):
    api.wrap(net(), process_group=dist.group.WORLD, sharding_strategy=api.types.ShardingStrategy.HYBRID_SHARD)


@fault(r"Cannot pass both ignored_modules and ignored_states at the same time\. Please just pass ignored_states\.")
def modules_and_states_ignored(api):
    api.wrap(net(), ignored_modules=[], ignored_states=[])


@fault(r"ignored_states expects all nn\.Parameter or all nn\.Module list elements but got types \[<class 'int'>\]")
def a_number_ignored(api):
    api.wrap(net(), ignored_states=[1])


@fault(r"ignored_modules expects nn\.Module list elements but got types \[<class 'torch\.nn\.parameter\.Parameter'>\]")
def a_parameter_among_ignored_modules(api):
    api.wrap(net(), ignored_modules=[nn.Parameter(torch.ones(1))])


@fault(r"`ignored_modules` should not include FSDP modules")
def a_unit_ignored(api):
    module = net()
    module[0] = api.wrap(module[0])
    api.wrap(module, ignored_modules=[module[0]])


@fault(r"FSDP doesn't support scalar parameters\. Change 0\.s to a 1D tensor with numel equal to 1\.")
def a_scalar(api):
    module = net()
    module[0].s = nn.Parameter(torch.tensor(1.0))
    api.wrap(module)


@fault(r"Expected 1 to be callable but got <class 'int'>")
def an_initialiser_that_is_a_number(api):
    api.wrap(net().to("meta"), param_init_fn=1)


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, device="meta"))


@fault(r"'Bare' object has no attribute 'reset_parameters'")
def a_module_that_cannot_initialise(api):
    api.wrap(Bare())


@fault(r"FSDP auto wrapping requires modules to not already have FSDP applied but found 0 in\nSequential\(")
def a_policy_around_a_unit(api):
    module = net()
    module[0] = api.wrap(module[0])
    api.wrap(module, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))


# ---- methods ----


@fault(r"`no_sync\(\)` on inner FSDP instances is not supported\. Please call `no_sync\(\)` on root FSDP module\.")
def no_sync_of_an_inner_unit(api):
    _, inner = nested(api)
    with inner.no_sync():
        pass


@fault(r"`clip_grad_norm_\(\)` should only be called on the root FSDP instance")
def clipping_of_an_inner_unit(api):
    nested(api)[1].clip_grad_norm_(1.0)


@fault(r"register_comm_hook can only be called on a root instance\.")
def a_hook_of_an_inner_unit(api):
    nested(api)[1].register_comm_hook(None, print)


@fault(r"A communication hook is already registered")
def a_second_hook(api):
    model, _ = nested(api)
    model.register_comm_hook(None, print)
    model.register_comm_hook(None, print)


@fault(r"The communication hook must be callable but got 3")
def a_hook_that_is_a_number(api):
    nested(api)[0].register_comm_hook(None, 3)


@fault(r"Expected state_dict_config of type <class '.*FullStateDictConfig'> but got <class '.*ShardedStateDictConfig'>")
def a_configuration_of_another_type(api):
    api.cls.set_state_dict_type(nested(api)[0], api.types.StateDictType.FULL_STATE_DICT, api.types.ShardedStateDictConfig())


@fault(r"Expected optim_state_dict_config of type <class '.*FullOptimStateDictConfig'> but got <class '.*ShardedOptimStateDictConfig'>")
def an_optimizer_configuration_of_another_type(api):
    types = api.types
    api.cls.set_state_dict_type(nested(api)[0], types.StateDictType.FULL_STATE_DICT, None, types.ShardedOptimStateDictConfig())


def mixed(api):
    model, inner = nested(api)
    api.cls.set_state_dict_type(inner, api.types.StateDictType.SHARDED_STATE_DICT)
    return model


@fault(r"All FSDP modules must have the same state dict settings\.Got StateDictSettings\(")
def settings_that_differ(api):
    api.cls.get_state_dict_type(mixed(api))


@fault(r"All FSDP modules should have the same state_dict_type\.")
def a_type_set_over_types_that_differ(api):
    api.cls.set_state_dict_type(mixed(api), api.types.StateDictType.SHARDED_STATE_DICT)


@fault(r"writeback=True and rank0_only=True is not supported yet")
def written_back_from_one_rank(api):
    with api.cls.summon_full_params(nested(api)[0], rank0_only=True):
        pass


@fault(r"with_grads=True, use_orig_params=True, offload_to_cpu=True is not supported yet")
def gradients_summoned_to_the_host(api):
    with api.cls.summon_full_params(nested(api, use_orig_params=True)[0], with_grads=True, offload_to_cpu=True):
        pass


@fault(r"offload_to_cpu=True and NO_SHARD is not supported yet")
def replicas_summoned_to_the_host(api):
    model = api.wrap(net(), sharding_strategy=api.types.ShardingStrategy.NO_SHARD)
    with api.cls.summon_full_params(model, offload_to_cpu=True):
        pass


class Summons(nn.Linear):
    def forward(self, x):
        with self.outer[0]():
            return super().forward(x)


@fault(r"Cannot manually unshard parameters during forward/backward")
def summoned_inside_a_forward(api):
    module = Summons(2, 2)
    model = api.wrap(module)
    module.outer = [lambda: api.cls.summon_full_params(model)]
    model(torch.ones(2, 2))


@fault(r"Expected optim_state_key_type to be PARAM_NAME or PARAM_ID, got 3")
def states_by_keys_of_another_type(api):
    api.cls.rekey_optim_state_dict({"state": {}, "param_groups": []}, 3, nested(api)[0])


@fault(r"Invalid parameter keys: dict_keys\(\['a', 1\]\)")
def states_by_keys_of_two_types(api):
    states = {"state": {"a": {}, 1: {}}, "param_groups": []}
    api.cls.rekey_optim_state_dict(states, api.types.OptimStateKeyType.PARAM_ID, nested(api)[0])


@fault(r"`optim_state_dict` must have the keys \"state\"to be a valid optimizer state dict")
def states_that_are_none(api):
    model, _ = nested(api)
    api.cls.optim_state_dict_to_load(model, torch.optim.SGD(model.parameters(), lr=0.1), {"x": 1})
