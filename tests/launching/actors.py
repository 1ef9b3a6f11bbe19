"""Actors that the tests share. Workers import this module, so it imports little."""

from __future__ import annotations

import os
import sys
import threading
import time

import shoal


@shoal.remote
class Log:
    """An actor that records the arguments of its calls, in order."""

    def __init__(self, *first):
        self.seen = list(first)

    def add(self, *values, **named):
        self.seen.extend([*values, *named.values()])
        return len(self.seen)

    def all(self):
        return self.seen

    def echo(self, value):
        return value

    def kind(self, value):
        return type(value).__name__

    def pid(self):
        return os.getpid()

    def sleep(self, seconds, then=None):
        time.sleep(seconds)
        return then

    def fail(self, error):
        raise error

    def get(self, refs, timeout=None):
        """Gets the references in a list; a reference that is itself an argument would be resolved."""
        return shoal.get(refs, timeout=timeout)

    def call(self, handle, method, *args):
        return shoal.get(getattr(handle, method).remote(*args))

    def ref_of(self, handle, method, *args):
        return [getattr(handle, method).remote(*args)]

    def make(self, *first):
        """Creates an actor that this actor owns."""
        self.child = Log.remote(*first)
        return self.child

    def say(self, text):
        print(text)
        print(text, file=sys.stderr)

    def exit(self, code):
        os._exit(code)

    def sys_exit(self, code):
        sys.exit(code)

    def spin(self):
        while True:
            pass

    def fork_sleepers(self, count, apart=False):
        """Forks children that wait forever, as a DataLoader's workers wait for their next batch; `apart`: in sessions of their own."""
        pids = []
        for _ in range(count):
            ready, done = os.pipe()
            pid = os.fork()
            if pid == 0:
                if apart:
                    os.setsid()
                os.write(done, b"x")
                time.sleep(1000)
                os._exit(0)
            os.read(ready, 1)
            os.close(ready)
            os.close(done)
            pids.append(pid)
        return pids

    def fork_sleepers_in_thread(self, count):
        pids = []
        thread = threading.Thread(target=lambda: pids.extend(self.fork_sleepers(count)))
        thread.start()
        thread.join()
        return pids

    def fork_and_put(self):
        """Returns the error of a forked child of this worker that uses Shoal."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                shoal.put(1)
            except BaseException as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            said = file.read()
        os.wait()
        return said


@shoal.remote
class Broken:
    def __init__(self, text):
        raise ValueError(text)

    def method(self):
        return 1


@shoal.remote
class Meeting:
    """Counts arrivals, so that tests detect concurrent calls without a clock."""

    def __init__(self):
        self.present = 0

    def come(self):
        self.present += 1

    def count(self):
        return self.present


@shoal.remote
def square(x):
    return x * x
