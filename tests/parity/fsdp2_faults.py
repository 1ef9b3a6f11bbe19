"""Faults for which torch's fully_shard has errors. The same functions run on both implementations, whose messages match the same pattern.

A fault is a function of an API: a namespace with ``fully_shard`` and its companions, and ``name``. A dim of the API's meshes has that name:
DTensor caches meshes, and would else return an equal mesh of the other API.
"""

import copy
import re
from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import DataParallelMeshDims
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

FAULTS = {}


def fault(words):
    """Adds a fault. ``words``: a regular expression that matches torch's message and Shoal's."""

    def keep(function):
        FAULTS[function.__name__] = (function, words)
        return function

    return keep


class Two(nn.Module):
    def __init__(self, device="cpu"):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, device=device), nn.Linear(4, 4, device=device)

    def forward(self, x):
        return self.b(self.a(x))

    def weights(self, x):
        return x @ self.a.weight


def world():
    return torch.distributed.get_world_size()


def nested(api, **options):
    model = Two(**options)
    api.fully_shard(model.a)
    return api.fully_shard(model)


def batch():
    return torch.ones(2, 4)


# ---- fully_shard's arguments ----


@fault(r"Each distinct composable distributed API can only be applied to a module once\. fully_shard has already been applied")
def a_module_twice(api):
    api.fully_shard(api.fully_shard(Two()))


@fault(r"can only be applied to a module once(.|\n)*following module:\nFSDPTwo\(")
def a_module_twice_in_a_list(api):
    api.fully_shard([api.fully_shard(Two()), Two()])


@fault(r"fully_shard does not support containers that do not implement forward: ModuleList\(\n  \(0\): Linear")
def a_container(api):
    api.fully_shard(nn.ModuleList([nn.Linear(2, 2)]))


@fault(r"fully_shard doesn't support scalar parameters\. Change s to a 1D tensor with numel equal to 1\.")
def a_scalar_parameter(api):
    module = nn.Linear(2, 2)
    module.s = nn.Parameter(torch.tensor(1.0))
    api.fully_shard(module)


@fault(r"FSDP does not support non-contiguous parameters yet: param\.shape=torch\.Size\(\[3, 2\]\) param\.stride\(\)=\(1, 3\)")
def a_parameter_that_is_not_contiguous(api):
    module = nn.Linear(2, 3)
    module.weight = nn.Parameter(torch.randn(2, 3).t())
    api.fully_shard(module)


@fault(r"fully_shard expects a 1D or 2D DeviceMesh but got DeviceMesh")
def a_mesh_of_three_dims(api):
    api.fully_shard(Two(), mesh=init_device_mesh("cpu", (world(), 1, 1), mesh_dim_names=("a", "b", "c")))


@fault(r"Please init the 2D mesh for HSDP with mesh_dim_names specified")
def a_mesh_without_names(api):
    api.fully_shard(Two(), mesh=init_device_mesh("cpu", (world(), 1)))


@fault(r"reshard_after_forward should be a bool or an int representing the group size to reshard to, not no$")
def a_reshard_that_is_text(api):
    api.fully_shard(Two(), reshard_after_forward="no")


@fault(r"If passing reshard_after_forward as an int, it should be a factor of \d, not 0")
def a_reshard_that_is_no_factor(api):
    api.fully_shard(Two(), reshard_after_forward=0)


@fault(r"Invalid shard_placement_fn result: R")
def a_placement_that_is_no_shard(api):
    api.fully_shard(Two(), shard_placement_fn=lambda p: Replicate())


@fault(r"Shard dim 5 is invalid for 2D tensor: torch\.Size\(\[4, 4\]\)")
def a_placement_on_a_dim_that_is_not_there(api):
    api.fully_shard(Two(), shard_placement_fn=lambda p: Shard(5))


# ---- meshes of parameters ----


def placed(api, on, placements, **options):
    module = nn.Linear(4, 4, bias=False)
    module.weight = nn.Parameter(distribute_tensor(module.weight.data, on, placements))
    return api.fully_shard(module, **options)


@fault(r"mesh must have mesh_dim_names when dp_mesh_dims is provided")
def named_dims_of_a_mesh_without_names(api):
    api.fully_shard(Two(), mesh=init_device_mesh("cpu", (world(),)), dp_mesh_dims=DataParallelMeshDims(shard="dp"))


@fault(r"Mesh dim name 'dp' not found in mesh\.mesh_dim_names \('x',\)")
def named_dims_that_are_not_there(api):
    mesh = init_device_mesh("cpu", (world(),), mesh_dim_names=("x",))
    api.fully_shard(Two(), mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))


@fault(r"When dp_mesh_dims is provided, all parameters must be DTensors on the full SPMD mesh.*Got plain tensor for parameter 'weight'")
def named_dims_and_plain_parameters(api):
    mesh = init_device_mesh("cpu", (world(),), mesh_dim_names=("dp",))
    api.fully_shard(nn.Linear(4, 4), mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard="dp"))


@fault(r"Expected Replicate\(\) on DP shard dim '\w+' \(index 0\) but got S\(0\)")
def named_dims_that_shard_already(api):
    mesh = init_device_mesh("cpu", (world(),), mesh_dim_names=(f"shard_{api.name}",))
    placed(api, mesh, [Shard(0)], mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard=mesh.mesh_dim_names[0]))


@fault(r"Expected Replicate\(\) on DP replicate dim '\w+' \(index 0\) but got S\(0\)")
def named_dims_of_replicas_that_shard(api):
    names = (f"replicate_{api.name}", f"shard_{api.name}")
    mesh = init_device_mesh("cpu", (1, world()), mesh_dim_names=names)
    dims = DataParallelMeshDims(replicate=names[0], shard=names[1])
    placed(api, mesh, [Shard(0), Replicate()], mesh=mesh, dp_mesh_dims=dims)


@fault(r"Expected param's DTensor mesh to be the same mesh passed to fully_shard, but got different mesh objects")
def named_dims_of_an_equal_mesh(api):
    one, other = (DeviceMesh("cpu", torch.arange(world()), mesh_dim_names=(f"equal_{api.name}",)) for _ in range(2))
    assert one == other
    placed(api, one, [Replicate()], mesh=other, dp_mesh_dims=DataParallelMeshDims(shard=one.mesh_dim_names[0]))


@fault(r"FSDP only supports 1D TP/EP or 2D EP\+TP, not \(Replicate\(\), Replicate\(\), Replicate\(\)\)")
def a_parameter_on_three_dims(api):
    mesh = init_device_mesh("cpu", (world(), 1, 1, 1), mesh_dim_names=("dp", "a", "b", "c"))
    placed(api, mesh["a", "b", "c"], [Replicate()] * 3, mesh=mesh["dp"])


SAME_GROUP = r"Params sharing the same process group must use the same FSDPMeshInfo object, but got different objects"


@fault(SAME_GROUP)
def a_placement_on_an_equal_mesh(api):
    one, other = (DeviceMesh("cpu", torch.arange(world())) for _ in range(2))
    result = ShardPlacementResult(Shard(0), FSDPMeshInfo(mesh=other, shard_mesh_dim=0))
    api.fully_shard(Two(), mesh=one, shard_placement_fn=lambda p: result if p.ndim == 2 else None)


@fault(SAME_GROUP)
def a_placement_with_a_new_info_for_each_parameter(api):
    mesh = DeviceMesh("cpu", torch.arange(world()))

    def place(parameter):
        return ShardPlacementResult(Shard(0), FSDPMeshInfo(mesh=mesh, shard_mesh_dim=0))

    api.fully_shard(Two(), mesh=mesh, shard_placement_fn=place)


def on_two_meshes(api):
    inner = init_device_mesh("cpu", (world(), 1), mesh_dim_names=("x", "y"))["y"]
    result = ShardPlacementResult(Shard(0), FSDPMeshInfo(mesh=inner, shard_mesh_dim=0))
    return api.fully_shard(Two(), shard_placement_fn=lambda p: result if p.ndim == 2 else None)


@fault(r"set_custom_all_gather is not supported with multiple param groups .*The custom comm would be ambiguous")
def communication_for_two_meshes(api):
    on_two_meshes(api).set_custom_all_gather(object())


@fault(r"set_all_reduce_hook is not supported with multiple param groups .*The hook would be ambiguous")
def a_hook_for_two_meshes(api):
    on_two_meshes(api).set_all_reduce_hook(print)


# ---- methods ----


@fault(r"FSDP does not support deepcopy\. Please use state dict for serialization\.")
def a_deep_copy(api):
    copy.deepcopy(api.fully_shard(Two()))


@fault(r"reshard_after_forward should be a bool, got <class 'int'>")
def a_later_reshard_that_is_a_number(api):
    api.fully_shard(Two()).set_reshard_after_forward(1)


@fault(r"max_input_buffers must be an int, got bool")
def input_buffers_that_are_a_bool(api):
    api.fully_shard(Two()).set_reduce_scatter_max_input_buffers(True)


@fault(r"max_input_buffers must be a positive int, got 0")
def no_input_buffers(api):
    api.fully_shard(Two()).set_reduce_scatter_max_input_buffers(0)


@fault(r"Expects FSDPModule but got <class 'torch\.nn\.modules\.linear\.Linear'>: Linear\(")
def a_prefetch_of_another_module(api):
    api.fully_shard(Two()).set_modules_to_forward_prefetch([nn.Linear(2, 2)])


@fault(r"<class '.*FSDPTwo'> does not have a method nothing")
def a_forward_method_that_is_not_there(api):
    api.register_fsdp_forward_method(api.fully_shard(Two()), "nothing")


@fault(r"Expects list of FSDPModules but got Linear\(")
def a_context_shared_with_another_module(api):
    api.share_comm_ctx([nn.Linear(2, 2)])


@fault(r"stream cannot be set when using native HSDP")
def a_stream_for_the_hook_of_replicas(api):
    mesh = init_device_mesh("cpu", (1, world()), mesh_dim_names=("replicate", "shard"))
    api.fully_shard(Two(), mesh=mesh).set_all_reduce_hook(print, stream=object())


class Communication:
    """A class for communication that the user wrote."""


@fault(r"cannot call set_symm_mem\(\) when all gather comm is custom: Communication")
def symmetric_memory_with_custom_communication(api):
    model = api.fully_shard(Two())
    model.set_custom_all_gather(Communication())
    model.set_symm_mem_for_comm()


@fault(r"cannot call set_allocate_memory_from_process_group\(\) when reduce scatter comm is custom: Communication")
def memory_of_the_group_with_custom_communication(api):
    model = api.fully_shard(Two())
    model.set_custom_reduce_scatter(Communication())
    model.set_allocate_memory_from_process_group_for_comm(True)


@fault(r"reset_iter_state must be called on the root FSDP module")
def an_inner_module_reset(api):
    model = nested(api)
    model(batch()).sum().backward()
    model.a.reset_iter_state()


# ---- forward and backward ----


@fault(r"FSDP parameters should be materialized from meta device.*still on meta device: \['b\.weight', 'b\.bias'\]\nFor example, call mod")
def parameters_on_the_meta_device(api):
    model = Two(device="meta")
    model.a = nn.Linear(4, 4)
    api.fully_shard(model)(batch())


@fault(r"still on meta device: \['b\.weight', 'b\.bias'\]\nFor example, call mod")  # the root's come first
def parameters_of_several_units_on_the_meta_device(api):
    nested(api, device="meta")(batch())


@fault(r"FSDP state has already been lazily initialized for a\nFSDP requires running forward through the root module first")
def an_inner_module_run_first(api):
    model = nested(api)
    model.a(batch()).sum().backward()
    model(batch())


@fault(r"FSDP requires a single root module but got \(FSDPLinear")
def a_list_of_modules_as_root(api):
    model = Two()
    api.fully_shard([model.a, model.b])
    model(batch())


@fault(r"Trying to backward through the graph a second time")
def a_second_backward(api):
    loss = nested(api)(batch()).sum()
    loss.backward()
    loss.backward()


@fault(r"got mixed torch\.Tensor and DTensor")
def a_method_beside_forward(api):
    api.fully_shard(Two()).weights(batch())


@fault(r"Both fsdp_pre_all_gather and fsdp_post_all_gather should be defined if using all-gather extensions")
def half_of_the_extensions(api):
    model = api.fully_shard(Two())
    model.a.weight._local_tensor.fsdp_pre_all_gather = lambda mesh: None
    model(batch())


@fault(r"Invalid fsdp_pre_all_gather: \(mesh, other\)\nExpects fsdp_pre_all_gather\(self, mesh: DeviceMesh, outer_size: torch\.Size")
def extensions_with_other_arguments(api):
    model = api.fully_shard(Two())
    local = model.a.weight._local_tensor
    local.fsdp_pre_all_gather = lambda mesh, other: None
    local.fsdp_post_all_gather = lambda *args, **kwargs: None
    model(batch())


def try_fault(name):
    """Raises AssertionError unless Shoal raises an error that a handler of torch's error also catches."""
    from torch.distributed import fsdp as theirs

    import shoal.fsdp

    names = ("fully_shard", "register_fsdp_forward_method", "share_comm_ctx")
    apis = [(who, {n: getattr(module, n) for n in names}) for who, module in (("theirs", theirs), ("ours", shoal.fsdp))]
    function, words = FAULTS[name]
    raise_alike(function, words, *(SimpleNamespace(name=who, **functions) for who, functions in apis))


def raise_alike(function, words, theirs, ours):
    """Checks that ``function`` raises an error on both APIs, with messages that match ``words``, and that a handler of torch's error
    also catches Shoal's."""
    errors = []
    for api in (theirs, ours):
        try:
            function(api)
        except Exception as error:
            errors.append(error)
        else:
            raise AssertionError(f"{api.name} raised nothing")
        assert re.search(words, str(errors[-1])), f"{api.name} raised {errors[-1]!r}"
    assert isinstance(errors[1], type(errors[0])), f"torch raises {type(errors[0])}, Shoal {type(errors[1]).__mro__}"
