"""A device on the CPU that orders work as badly as CUDA's rules allow. It finds transfers that only luck has ordered.

    late = LateDevice(seed)
    transfers.opens = lambda device: LateStreams(late)
    with late:
        train()  # each operator waits in the queue of its stream
    # Faults are raised here if events do not order two uses of memory.

``queues``: streams whose operations run when a seed says. ``memory``: the last uses of each tensor's bytes. ``mode``: puts operators into
the queues. ``faults``: takes a line out of a function, to see that its absence is found.
"""

from late_device.device import LateDevice, LateStreams
from late_device.faults import without
from late_device.memory import Faults

__all__ = ["Faults", "LateDevice", "LateStreams", "without"]
