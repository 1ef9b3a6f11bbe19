"""Two threads at one place of a group of the backend shoal, in the order that did harm. argv: a function, a folder."""

import sys
import threading

import torch
import torch.distributed as dist
from internals.distributed import OrderedFuture, Work

import shoal.torch  # noqa: F401 (registers the backend)

PAUSE_S = 0.3  # for a thread that a lock keeps out: it does not come


class Second:
    """A second thread, which makes a call while the first one is in the middle of its own."""

    def __init__(self, call):
        self._thread = threading.Thread(target=call)
        self._begun = False

    def begin(self):
        """Lets the call end, unless the first thread holds a lock. Does nothing from the second time on."""
        if not self._begun:
            self._begun = True
            self._thread.start()
            self._thread.join(PAUSE_S)

    def end(self):
        self._thread.join()


class Native:
    """A native operation whose end the test decides."""

    def __init__(self, is_done, asked=lambda: None):
        self.is_done, self._asked = is_done, asked

    def ended(self):
        is_done = self.is_done
        self._asked()
        return is_done

    def wait(self):
        assert self.is_done


def keeping(group):
    """A group keeps the Work of an operation under way, although two threads drop the Works before it."""
    second = Second(lambda: group.started([Native(True)], torch.ones(1), []))
    done = Native(False, lambda: done.is_done and second.begin())
    group.started([done], torch.ones(1), [])
    running = group.started([Native(False)], torch.ones(1), [])
    done.is_done = True
    group.started([Native(True)], torch.ones(1), [])
    second.end()
    assert any(work is running for work in group._pending)
    running._natives[0].is_done = True


def waiting(group):
    """A Work's guard is called, although another thread that waits removes it."""

    class Raced(Work):
        @property
        def _guard(self):
            guard, self._removed = self._removed, None
            return guard

        @_guard.setter
        def _guard(self, guard):
            self._removed = guard

    calls = []
    work = Raced([Native(True)], torch.ones(1), [], None, group._completer, guard=lambda: calls.append(1))
    assert work.wait()
    assert calls == [1]


def opening(group):
    """Channels, ways of signals and groups of other devices are opened once."""
    opened = []

    def open_with(second):
        def open_one(*_):
            second().begin()
            opened.append(object())
            return opened[-1]

        return open_one

    group._size = 2
    second = Second(lambda: group._channel(1, 5))
    group._open_channel = open_with(lambda: second)
    group._channel(1, 5)
    second.end()
    group._channels.clear()
    group._size = 1
    assert len(opened) == 1
    second = Second(lambda: group.elsewhere(torch.device("meta")))
    group._open_elsewhere = open_with(lambda: second)
    group.elsewhere(torch.device("meta"))
    second.end()
    group._elsewhere.clear()
    assert len(opened) == 2
    window = group.new_window()
    second = Second(lambda: window._way(0, 1))
    group.open_way = open_with(lambda: second)
    window._way(0, 1)
    second.end()
    assert len(opened) == 3


def futures(group):
    store = dist.distributed_c10d._get_default_store()
    if group.rank() == 0:
        messages = [dist.irecv(torch.zeros(2), 1, tag=tag) for tag in (0, 7)]
        with dist.distributed_c10d._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
            dist.irecv(torch.zeros(2), 1, tag=9)
        late = [work.get_future() for work in (*messages, *manager.works)]
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        store.set("asked", "")  # the other rank has not begun, so a thread completes the future
        assert future.wait()[0].item() == 2
        assert not any(future.done() for future in late)
        store.set("send", "")
        assert [future.wait()[0].tolist() for future in late] == [[3.0, 3.0]] * 3
    else:
        store.wait(["asked"])
        dist.all_reduce(torch.ones(1))
        store.wait(["send"])
        for tag in (0, 7, 9):
            dist.send(torch.full((2,), 3.0), 0, tag=tag)


def chains(group):
    """Callbacks start collectives, at one place of the order on both ranks. On rank 1 operations have ended before they get a callback."""
    rank, store = group.rank(), dist.distributed_c10d._get_default_store()

    def again(future):
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0]

    def doubled_later(future):
        later = [dist.all_reduce(future.value() + n, async_op=True).get_future().then(lambda f: f.value()[0] * 2) for n in range(2)]
        return torch.stack([f.wait() for f in torch.futures.collect_all(later).wait()])

    results = []
    for i in range(12):
        if i % 4 == 0 and rank == 1:
            store.wait([f"registered/{i}"])
        work = dist.all_reduce(torch.full((1 + 37 * i,), float(i + rank)), async_op=True)
        if rank == 1:
            work.wait()
        results.append(work.get_future().then(again).then(doubled_later))
        store.set(f"registered/{i}", "")
        if i % 3 == 2:  # the program's own collective, while callbacks run
            dist.all_reduce(x := torch.ones(3 + i))
            assert x.tolist() == [2] * (3 + i)
    for i, result in enumerate(results):
        sum_of_two = (2 * i + 1) * 2
        assert result.wait().tolist() == [[(sum_of_two + n) * 4] * (1 + 37 * i) for n in range(2)], i


def callbacks_of_torch(group):
    """torch keeps the callbacks of collect_all's future, and runs them where it completes. Each may wait for later operations."""

    def sums(*values):
        return [dist.all_reduce(torch.full((5,), v), async_op=True).get_future() for v in values]

    store = dist.distributed_c10d._get_default_store()
    if group.rank() == 1:
        store.wait(["registered"])
    first, second, third = sums(1.0, 2.0, 3.0)
    outer = torch.futures.collect_all([first]).then(lambda f: second.wait()[0] + torch.futures.collect_all([third]).wait()[0].value()[0])
    store.set("registered", "")
    assert outer.wait().tolist() == [10.0] * 5


def a_program_that_goes_on(group):
    """The program's collectives and those of callbacks overlap. Rank 0 starts the program's one first, rank 1 that of the callback."""
    goes_on, begun, rank = threading.Event(), threading.Event(), group.rank()

    def again(future):
        if rank == 0:
            goes_on.wait()
        work = dist.all_reduce(future.value()[0].repeat(3), async_op=True)
        begun.set()
        return work.get_future().wait()[0]

    def chain():
        """The program's thread does not run the callback, since one before it waits."""
        before = OrderedFuture(group._turns)
        before.then(lambda _: None)
        result = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
        before.set_result(None)
        return result

    goes_on.set()
    assert chain().wait().tolist() == [4] * 3
    goes_on.clear()
    begun.clear()
    result = chain()
    if rank == 1:
        begun.wait()
    dist.all_reduce(x := torch.ones(5))
    assert x.tolist() == [2] * 5
    goes_on.set()
    assert result.wait().tolist() == [4] * 3


def nesting(group):
    """A callback that is registered in a callback runs before the next line of it, also in the program's thread."""
    turns, log, main, behind = group._turns, [], threading.current_thread(), threading.Event()

    class Inner(OrderedFuture):
        def wait(self):
            if threading.current_thread() is not main:
                behind.wait()
            self.set_result(None)

    def outer(_):
        Inner(turns).then(lambda _: log.append("inner"))
        log.append("next line")
        behind.set()

    done = OrderedFuture(turns)
    done.set_result(None)
    done.then(outer).wait()
    done.then(lambda _: None).wait()
    assert log == ["inner", "next line"]


class Interrupt(BaseException):
    pass


def interrupts(group):
    """Callbacks behind one that an interrupt has ended get its error: in the turns, and inside of another callback."""
    turns, errors = group._turns, []

    def interrupt(_):
        raise Interrupt

    def catch(future):
        try:
            future.value()
        except Interrupt as error:
            errors.append(error)

    start = OrderedFuture(turns)
    interrupted = start.then(interrupt)
    behind, last = interrupted.then(catch), start.then(lambda _: None)
    start.set_result(None)
    last.wait()
    assert behind.done()
    start.then(lambda _: interrupted.then(catch).wait()).wait()
    assert len(errors) == 2, errors

    # An interrupt of the wait itself ends the wait, and the callback behind it does not run.
    with turns._changed:  # then the callback runs in this thread, which gets the interrupt
        turns._changed.wait_for(lambda: turns.runner is None)
    called, pending = [], OrderedFuture(turns)
    pending.wait = lambda: interrupt(None)
    try:
        start.then(lambda _: pending.then(called.append))
    except Interrupt as error:
        errors.append(error)
    assert (len(errors), called) == (3, []), (errors, called)


def turns_of_threads(group):
    """A callback of another thread waits for the one that runs in the program's thread."""
    log, done = [], OrderedFuture(group._turns)
    done.set_result(None)
    futures = []
    second = Second(lambda: futures.append(done.then(lambda _: log.append("second"))))

    def first(_):
        second.begin()
        log.append("first")

    done.then(first).wait()
    second.end()
    futures[0].wait()
    assert log == ["first", "second"]


def main():
    dist.init_process_group("shoal")
    globals()[sys.argv[1]](dist.group.WORLD)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
