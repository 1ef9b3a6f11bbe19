"""The dtypes of one parameter: its mixed precision, and the names that the engine has for them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

# Dtypes that the engine treats as uint8, because it only moves their bytes.
AS_BYTES = {getattr(torch, name): torch.uint8 for name in dir(torch) if name.startswith("float8_")}
# True since torch 2.15: without a reduce_dtype, gradients are reduced in their parameter's own dtype. Earlier versions use param_dtype.
_REDUCES_AS_STORED = hasattr(MixedPrecisionPolicy, "param_dtype_override_fn")


def policy_of(policy: MixedPrecisionPolicy, name: str, parameter: torch.Tensor) -> MixedPrecisionPolicy:
    """Returns the policy with the result of its ``param_dtype_override_fn`` for this parameter, which every rank must answer alike.

    Raises ValueError for a dtype that is neither the parameter's own nor ``param_dtype``. Source: FSDP2 of torch 2.15.
    """
    override = getattr(policy, "param_dtype_override_fn", None)
    if override is None:
        return policy
    dtype = override(parameter)
    if dtype is None:
        dtype = policy.param_dtype
    elif not isinstance(dtype, torch.dtype):
        raise ValueError(f"param_dtype_override_fn must return a torch.dtype or None but got {type(dtype)}: parameter {name}")
    elif dtype not in (policy.param_dtype, parameter.dtype):
        raise ValueError(
            "param_dtype_override_fn must return None, param_dtype, or the parameter's original dtype but got "
            f"{dtype} for a parameter with dtype {parameter.dtype} and param_dtype {policy.param_dtype}: parameter {name}"
        )
    return replace(policy, param_dtype=dtype, param_dtype_override_fn=None)


def dtypes_of(policy: MixedPrecisionPolicy, stored: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """Returns the dtypes of computation and reduction of a floating-point parameter."""
    compute = policy.param_dtype or stored
    return compute, policy.reduce_dtype or (stored if _REDUCES_AS_STORED else compute)


def engine_dtype(dtype: torch.dtype) -> str:
    return str(AS_BYTES.get(dtype, dtype)).removeprefix("torch.")
