"""One rank of a save or a load, without the others."""

from internals.checkpoint import Ranks


class OneOfRanks(Ranks):
    """A rank whose other ranks answer as it does. Tests set other values in a subclass. ``death``: the number of the gather that fails with
    ``error``, as after a death. ``events``: a list that gets the gathers."""

    rank, size, group, failed = 0, 2, None, False
    death, error, events = 0, None, None
    waited_s = 0.0

    def __init__(self, *_, **__):
        self._gathers = 0

    def gather(self, value):
        self._gathers += 1
        if self._gathers == self.death:
            self.failed = True
            raise self.error
        if self.events is not None:
            self.events.append("gather")
        return [value] * self.size
