"""The calls of PyTorch/XLA's SPMD user guide, in order: meshes, partition specs, shards of each device, and a few training steps.
Every result is compared with plain torch.

    SHOAL_SPMD_DEVICES=8 python spmd_guide.py

With torch_xla the imports are torch_xla.distributed.spmd, torch_xla.runtime and torch_xla.core.xla_model.
"""

import numpy as np
import torch

import shoal.spmd as xs
import shoal.spmd.runtime as xr
import shoal.spmd.xla_model as xm

xr.use_spmd()
device = xm.xla_device()
num_devices = xr.global_runtime_device_count()


def held(t):
    """The ranges of indices that each device of this process holds."""
    return [s.indices if s.indices is ... else [(i.start, i.stop) for i in s.indices] for s in xs.XLAShardedTensor(t).local_shards]


# A mesh is an array of all devices with named axes.
mesh = xs.Mesh(np.arange(num_devices), (num_devices, 1), ("data", "model"))
xm.master_print("mesh:", dict(mesh.shape()))

# Entry i of a partition spec names the axis that splits dimension i. Marking is in place.
torch.manual_seed(0)
host = torch.randn(num_devices * 2, 4)
t = host.to(device)
xs.mark_sharding(t, mesh, ("data", "model"))
xm.master_print(f"t {tuple(t.shape)} over data and model: {held(t)}")
torch.testing.assert_close((t @ t.T).cpu(), host @ host.T)

# Tensors may have more or fewer dimensions than the mesh. An entry None leaves a dimension whole; an unused axis holds copies.
t1, t2 = torch.randn(num_devices, num_devices, 16).to(device), torch.arange(8.0).to(device)
xs.mark_sharding(t1, mesh, (None, "data", "model"))
xs.mark_sharding(t2, mesh, ("data",))
xs.mark_sharding(t2, mesh, (("data", "model"),))  # one dimension over both axes, the first most significant
xm.master_print(f"t1 is {xs.XLAShardedTensor(t1).sharding_spec}, t2 {xs.XLAShardedTensor(t2).sharding_spec}")

# Two axes of more than one device: rows over one axis, and every row on two devices.
pairs = xs.Mesh(np.arange(num_devices), (num_devices // 2, 2) if num_devices % 2 == 0 else (num_devices, 1), ("data", "model"))
u = host.to(device)
view = xs.mark_sharding(u, pairs, ("data", None))  # also returns the tensor, as an XLAShardedTensor
xm.master_print(f"rows over data alone: {view.sharding_spec}, {view.sharding_type.name}")
xs.clear_sharding(u)  # required before another mark
xs.mark_sharding(u, pairs, (None, "model"))
torch.testing.assert_close(u.softmax(0).sum(1).cpu(), host.softmax(0).sum(1))

# A linear model with split inputs: gradients are those of the whole batch.
truth, losses, expected = torch.tensor([[1.0], [-2.0], [3.0], [0.5]]), [], []
for place, mark, found in ((device, lambda x: xs.mark_sharding(x, mesh, ("data", None)), losses), ("cpu", lambda x: x, expected)):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x = host.to(place)
        mark(x)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), (host @ truth).to(place))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
for step, loss in enumerate(losses):
    xm.master_print(f"step {step} loss {loss:.6f}")
torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
xm.master_print("as plain torch")
