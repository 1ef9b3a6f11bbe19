"""Signs that this process will end soon: SIGTERM, and a drain of its node."""

from __future__ import annotations

import math
import signal
import threading
import weakref

import torch
import torch.distributed as dist

from shoal._core.process import started_by_node, state
from shoal._core.variables import variable
from shoal._printable import say
from shoal.checkpoint._ranks import forget_group, own_group
from shoal.exceptions import ShoalError

_END_S = 6.0  # seconds of the grace that `shoal run` needs for itself
_CHECK_S = 5.0  # seconds between two looks at the node's row: one process of a node asks the head, and a drain takes a minute


class Preemption:
    """Notices SIGTERM, with which schedulers announce the end of a process, and a drain of the node, which ends it at a deadline. Ranks
    notice it at different steps, so that ``agreed`` is collective over the ranks of that moment, whose number may change. Made by every
    rank, in the main thread."""

    def __init__(self):
        self._event = threading.Event()
        self._compared = False
        before = signal.getsignal(signal.SIGTERM)

        def notice(number, frame) -> None:
            self._event.set()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, notice)
        if (state.session is not None or started_by_node()) and variable("LOCAL_RANK", "0") == "0":
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="shoal-checkpoint-drain", daemon=True).start()

    def agreed(self) -> bool:
        """Returns True once any rank has noticed. Collective."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self._event.is_set()
        vote = torch.tensor([int(self._event.is_set())])
        votes = own_group(list(range(dist.get_world_size())), "votes")
        try:
            dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=votes)
        except Exception:
            forget_group(votes)
            raise
        return bool(vote.item())

    def compare(self, save_s: float) -> None:
        """Warns once if a save that took ``save_s`` seconds does not fit between a signal to ``shoal run`` and the end of the ranks."""
        try:
            grace_s = float(variable("SHOAL_GRACE", "inf"))
        except ValueError:
            return
        if self._compared or save_s + _CHECK_S <= grace_s:
            return
        self._compared = True
        say(
            f"shoal: a save takes {save_s:.0f} s, and up to {_CHECK_S:.0f} s pass before it. After a signal ranks have {grace_s:g} s, so "
            f"a preemption would lose the steps since the checkpoint before: pass --grace {math.ceil(save_s + _CHECK_S + _END_S)} or more "
            "to shoal run, and give the scheduler's own grace as much"
        )

    def check(self) -> bool:
        """Looks at the row of this process's node. Returns True once there is nothing more to look for."""
        session = state.session
        if session is None:  # a rank opens its session in its first forward
            return not started_by_node()
        if self._event.is_set():
            return True
        try:
            if any(row["id"] == session.node and row["draining"] for row in session.list("nodes")):
                self._event.set()
        except ShoalError:  # the head may be away for a moment
            return False
        return self._event.is_set()


def _watch(preemption: weakref.ref[Preemption]) -> None:
    pause = threading.Event()
    while True:
        present = preemption()
        if present is None or present.check():
            return
        del present
        pause.wait(_CHECK_S)
