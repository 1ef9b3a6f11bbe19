"""Keeps torch.compile from tracing hooks of the modules that it compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C._dynamo import eval_frame

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function as ``torch._dynamo.disable`` does: dynamo breaks its graph there, and compiles neither its frame nor callees.
    Importing torch._dynamo instead would take half a second and 24 MiB in ranks that compile nothing."""
    hook._torchdynamo_disable = True
    hook._torchdynamo_disable_msg = "hooks of shoal.fsdp are not traced"
    return only_inlined(hook)


def only_inlined(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that dynamo may inline into its caller, but does not compile as a separate frame."""
    eval_frame.set_code_exec_strategy(hook.__code__, _SKIP)
    return hook
