"""Private names of shoal.optim, that tests use."""

from contextlib import ExitStack, contextmanager
from unittest import mock

from shoal.optim import _clip, _kernels
from shoal.optim._fused import Scaling


@contextmanager
def updates_by_torch(waits=False):
    """Tensors of the CPU are updated as those of a device without kernels: by torch's fused operators. Unless it ``waits``, the host may
    not read a GradScaler's tensors."""

    def read(_):
        raise AssertionError("the host has waited for a GradScaler's tensor")

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(_kernels, "updated_by_torch", return_value=True))
        if not waits:
            stack.enter_context(mock.patch.object(Scaling, "skips", property(read)))
            stack.enter_context(mock.patch.object(Scaling, "divisor", property(read)))
        yield


lacks_kernels = _kernels._lacks_kernels


@contextmanager
def kernels_fail_with(error):
    def fail(_):
        raise error

    lacks_kernels.cache_clear()
    with mock.patch.object(_kernels, "kernels_on", fail):
        yield
    lacks_kernels.cache_clear()


def norms_by_operators():
    """``clip_grad_norm_`` adds by torch's operators, as on devices."""
    return mock.patch.object(_clip, "_by_operators", return_value=True)
