from collections.abc import Callable, Mapping, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray
import torch


FUNCTION_WORKER: str = 'remote functions'

def code_name(code: int) -> str:
    """Name of an error code."""

def printable(text: str, lines: bool) -> str:
    """
    The text with control characters escaped; with `lines`, its newlines and tabs stay.
    """

def die_with(parent: int) -> None:
    """
    Be killed when `parent`, whose child this process is or soon will be, ends.
    """

def open_standard_streams() -> None:
    """Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed."""

def set_error_factory(make: object) -> None:
    """
    Names the function (code, reason, message, hint, context, cause_reason) -> exception that errors become.
    """

def settled(refs: Sequence[Ref]) -> tuple[bool, int]:
    """(True if all are ready, index of the first that has failed or -1)."""

class Ref:
    """A value that exists or will exist."""

    @property
    def ready(self) -> bool: ...

    @property
    def failed(self) -> bool:
        """For a ready one: True if the method raised or could not be called."""

    def known_as(self, fresh: str) -> str:
        """
        The second half of its id: `fresh`, or the name that its value has already.
        """

    @property
    def raised(self) -> bool:
        """
        For a ready one: True if the method raised; its value is the exception.
        """

    def value(self) -> tuple:
        """(head, buffers) of a ready one. Raises when the result is an Error."""

    @property
    def task(self) -> str:
        """
        Number of the call of this process that made it, as 16 digits; "" if none did.
        """

    def follows(self, other: Ref) -> None:
        """It is of the same call."""

    def split(self, session: Session, count: int) -> list[Ref]:
        """The references to a call's `count` results."""

class Readiness:
    """Reports through a descriptor which references have become ready."""

    def __init__(self) -> None: ...

    @property
    def fd(self) -> int:
        """Readable (for poll; not to be read) once there are some."""

    def add(self, session: Session, ref: Ref, number: int) -> None: ...

    def take(self) -> list[int]:
        """Numbers of the references that have become ready since the last call."""

class Attempts:
    """The result of a call that may be repeated."""

    def __init__(self) -> None: ...

    @property
    def ref(self) -> Ref: ...

    def start(self, session: Session, actor: str, method: str, args: Ref, deps: Sequence[Ref], judge_raised: bool, readiness: Readiness, number: int, parent: Incoming | None = None) -> Ref:
        """
        One call, with arguments that were put. Its result is final unless the process died, or (judge_raised) the method raised: then `number` becomes ready, and the caller calls start or settle.
        """

    def settle(self, session: Session, attempt: Ref) -> None:
        """Makes this attempt's result the final one."""

class Judgement:
    """A task that raised: the caller decides if it runs again."""

    @property
    def id(self) -> int: ...

    @property
    def function(self) -> int:
        """The function's number."""

    @property
    def raised(self) -> Ref: ...

class Wants:
    """A pool's requests to its owner."""

    @property
    def workers(self) -> int:
        """How many more workers it wants."""

    @property
    def starting(self) -> bool:
        """True if some workers are not made yet."""

    @property
    def alone(self) -> bool:
        """True if no worker holds its CPUs."""

    @property
    def empty(self) -> bool:
        """True if there are no workers."""

    @property
    def ended(self) -> list[str]:
        """Ids of workers to be retired."""

    @property
    def condemned(self) -> list[str]:
        """Ids of workers to be killed at once."""

    @property
    def raised(self) -> list[Judgement]:
        """Each needs a call of judged."""

class TaskPool:
    """
    Remote functions of one kind of worker: waiting tasks, workers, repeated tasks.
    """

    def __init__(self, session: Session, readiness: Readiness, number: int, spread: bool, lends: bool) -> None:
        """
        `number` becomes ready when take_wants has a result. `spread`: nodes take turns. `lends`: its workers hold CPUs, which others may use while they are idle.
        """

    def submit(self, name: str, function: int, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], deps: Sequence[Ref], retries: int, judge_raised: bool, max_calls: int, parent: Incoming | None = None, refs: Sequence[Ref] = []) -> Ref:
        """
        The result of a call of the `function` of that number; its code is deps[0].
        """

    def add(self, actor: str, created: Ref, node: str = '') -> None:
        """`node`: its intended node, in a pool that spreads."""

    def next_nodes(self, roomy: Sequence[str]) -> list[str]:
        """
        For a pool that spreads: the nodes among these that should get a worker now.
        """

    def first_waiting(self) -> str:
        """Name of the function that waits for a worker first; "" if none waits."""

    def give_back(self, lease_s: float) -> None:
        """
        Others wait for the resources of its workers: idle ones end, or the oldest one after its task.
        """

    def take_wants(self, idle_s: float) -> Wants: ...

    def judged(self, id: int, again: bool) -> None: ...

    def fail_waiting(self, message: str, reason: str, hint: str) -> None:
        """Fails all waiting tasks: no worker can be made."""

def find_session(address: str, home: str) -> tuple[str, str]:
    """
    (folder, head's endpoint) of the running cluster at this address ("auto": the latest that belongs to no program). `home`: the folder of session folders, "" for this user's. Raises for a home that another user could have written.
    """

def shared_clusters(home: str) -> list[str]:
    """
    Addresses of the running clusters that belong to no program, the latest first.
    """

def machine_memory() -> int:
    """
    Bytes that this process may use: the machine's memory, or the limit of its control groups.
    """

def usable_cpus() -> int:
    """
    CPUs that this process may use, 1 or more: those of its affinity, or the quota of its control groups, or Slurm's allocation.
    """

class Session:
    """This process's membership in a cluster."""

    @staticmethod
    def open(*, folder: str, head: str = '', node: str = '', name: str = '', role: str = 'driver', worker: str = '', job: str = '', print_logs: bool = True, fold_logs: bool = False, ends_job: bool = True, retry_delay_s: float, head_timeout_s: float = 60.0) -> Session: ...

    def close(self, failure: str = '') -> None: ...

    def abandon_after_fork(self) -> None: ...

    @property
    def job(self) -> str: ...

    @property
    def worker(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def place(self) -> str:
        """
        The place of objects that this process publishes: its own id and its node's.
        """

    @property
    def folder(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def head_endpoint(self) -> str: ...

    @property
    def node_endpoint(self) -> str: ...

    def create_gang(self, class_name: str, count: int, resources: Mapping[str, float], launch: dict, refuse_infeasible: bool = False, where: dict = {}) -> list[str]:
        """
        Ids of `count` actors that are placed together or not at all, each in its own process.
        """

    def new_actor_id(self) -> str:
        """For create_actor."""

    def create_actor(self, id: str, class_name: str, resources: Mapping[str, float], launch: dict, *, name: str = '', name_space: str = '', handle: bytes = ..., get_if_exists: bool = False, detached: bool = False, where: dict = {}, max_restarts: int = 0, max_task_retries: int = 0, creation_spec: bytes = ...) -> bytes | None:
        """
        Makes an actor of this id. With get_if_exists it may return the handle of the living actor of this name instead: then no actor has the id.
        """

    def find_actor(self, name: str, name_space: str) -> bytes:
        """The handle of the living actor of this name."""

    def creation_spec(self) -> tuple[str, bytes]:
        """
        (id, creation spec) of the actor that this process makes without its creator.
        """

    def create_group(self, bundles: Sequence[Mapping[str, float]], strategy: str, name: str, name_space: str, detached: bool, labels: list, together: str) -> str:
        """Id of a placement group that is, or will be, reserved."""

    def group_ready(self, group: str, value: bytes) -> Ref:
        """
        A reference to `value` (a pickle without buffers) that is ready when the group is.
        """

    def remove_group(self, group: str) -> None: ...

    def group(self, group: str) -> dict:
        """The head's row of a placement group."""

    def find_group(self, name: str, name_space: str) -> dict: ...

    def list(self, what: str) -> list:
        """The head's rows of actors, nodes, workers, jobs or groups."""

    def resources(self) -> ClusterResources: ...

    def traffic(self) -> tuple[int, int]:
        """(sent, received): frames of all connections of this process so far."""

    def has_package(self, name: str) -> bool:
        """True if the head has all of a package."""

    def put_package(self, name: str, total: int, offset: int, data: bytes) -> bool:
        """
        Leaves a part of a package with the head, in order. Returns True once the head has all of it.
        """

    def get_package(self, name: str, offset: int) -> tuple[int, bytes]:
        """(bytes of the whole package, the part that begins there)."""

    def sync_logs(self) -> None:
        """Prints the output of workers that was written by now."""

    def shutdown_cluster(self) -> None: ...

    def know(self, actor: str, class_name: str) -> None:
        """Prepares calls on an actor that another process made."""

    def call(self, actor: str, method: str, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], deps: Sequence[Ref], refs: Sequence[Ref] = [], parent: Incoming | None = None, retries: int | None = None) -> Ref:
        """
        `parent`: the call of this process that makes it. `refs`: references that were pickled with its arguments. `retries`: after deaths of a process that is started again; None: as the actor's options state.
        """

    def in_any_order(self, actor: str, any: bool) -> None:
        """
        In any order, calls on the actor that wait for a reference do not hold up later ones.
        """

    def keep_until_answered(self, actor: str, ref: Ref) -> None:
        """
        Keeps the reference's object until every call on the actor that was made by now has its answer.
        """

    def cancel(self, ref: Ref, recursive: bool, force: bool) -> None: ...

    def cancel_elsewhere(self, id: str, owner: str, recursive: bool, force: bool) -> None:
        """
        As cancel, for an object that the process `owner` (a place), perhaps this one, has published.
        """

    def withdraw(self, actor: str) -> bool:
        """
        Kills an actor that was never placed and that no call of this process waits for. Returns True if it did.
        """

    def retire(self, worker: str) -> None:
        """
        Kills a worker of functions that is not needed any more. The actors and objects that it made stay, as this process's.
        """

    def kill(self, actor: str, restart: bool = False) -> None: ...

    def dead(self, actor: str) -> bool:
        """True if this process has the report of the actor's death."""

    def put(self, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], refs: Sequence[Ref] = []) -> Ref:
        """`refs`: references that were pickled with the value."""

    def publish(self, ref: Ref, id: str) -> None:
        """
        Gives a value to the node, so that other processes, also of other jobs, can fetch it by this id: the job's and 16 digits. The node keeps it as long as a reference to it exists.
        """

    def give(self, ref: Ref, id: str) -> None:
        """As publish, but the node keeps the value until a process drops it."""

    def borrow(self, id: str, owner: str) -> Ref:
        """
        A reference to a published object, which stays as long as the reference. `owner`: the place of its owner.
        """

    def hold(self, id: str, owner: str) -> Ref:
        """As borrow, but without a request for the value: it is never ready."""

    def pin(self, ref: Ref) -> None:
        """
        Keeps the reference's object as long as this process, because its name was passed on without counting.
        """

    def fetch(self, id: str, owner: str) -> Ref: ...

    def drop(self, id: str) -> None:
        """Frees the value of this id now, or when it comes."""

    def open_stream(self) -> int:
        """
        A number for the items of a call that yields and that will be made next.
        """

    def follow_stream(self, stream: int, answer: Ref) -> None:
        """Ends the stream's items when `answer` is ready."""

    def next_item(self, stream: int) -> Ref:
        """
        The next item. It is ready when the item is here, or the call is done without one.
        """

    def take_item(self, stream: int) -> None: ...

    def close_stream(self, stream: int) -> None:
        """Drops the stream's items, here and to come."""

    def hand_over(self) -> None:
        """
        For a thread that sleeps until a Readiness has something: the background thread serves the connections at once.
        """

    def wait_all(self, refs: Sequence[Ref], timeout: float | None = None) -> bool:
        """True once all are ready or one has failed; False at the timeout."""

    def wait_some(self, refs: Sequence[Ref], count: int, timeout: float | None = None) -> list[bool]:
        """Per reference, if it is ready; once `count` are, or at the timeout."""

    def wait_calls(self, timeout: float, actor: str = '') -> bool:
        """
        Waits until all calls that this process has made (on this actor, if given) are answered; False at the timeout.
        """

    def host_queue(self, class_name: str) -> str:
        """Id of an actor in this process whose calls wait for next_report."""

    def next_report(self, queue: str, tally: Tally, seen: int) -> Incoming:
        """
        The next call, or None once more than `seen` references of the tally are ready, or one has failed.
        """

    def close_queue(self, queue: str) -> None: ...

    def tally(self, refs: Sequence[Ref]) -> Tally:
        """Counts these references as they become ready."""

    def count(self, tally: Tally, refs: Sequence[Ref]) -> None:
        """Counts these references, too."""

    def serve(self) -> None:
        """Takes calls from now on, for next_call."""

    def report_constructed(self) -> None:
        """The actor of this worker is made and may begin with its calls."""

    def leave(self) -> None:
        """
        For a worker whose actor ends with it, even if the actor has restarts left.
        """

    def set_blocked(self, blocked: bool) -> None:
        """While a worker waits for others, they may have its CPUs."""

    def stop_serving(self) -> None:
        """Ends the wait of the thread in next_call."""

    def drain(self, timeout: float) -> None:
        """Returns when the sockets have taken every reply, or at the timeout."""

    def send_last_metrics(self, timeout: float) -> None:
        """
        Returns when the node has this process's measurements, or at the timeout.
        """

    def hand_on(self) -> None:
        """
        For a worker whose calls wait for their turn after next_call: `began` reports the turn of each.
        """

    def began(self, incoming: Incoming) -> None:
        """The call runs from now on."""

    def next_call(self, timeout: float | None = None) -> Incoming:
        """
        The next call in order. None at the timeout, after stop_serving, or (after report_cancelled) when take_cancelled has some.
        """

    def reply(self, incoming: Incoming, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], refs: Sequence[Ref] = [], raised: bool = False) -> None: ...

    def reply_with_next(self, incoming: Incoming, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], refs: Sequence[Ref]) -> None:
        """
        For the thread that takes calls: its next_call sends the reply. Only the arguments of `incoming` may be used afterwards.
        """

    def reply_many(self, incoming: Incoming, parts: Sequence[Part]) -> None:
        """Replies with several values, for a caller that splits them."""

    def item(self, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], refs: Sequence[Ref]) -> Item:
        """A value that a call yields, for give_item."""

    def give_item(self, incoming: Incoming, stream: int, index: int, item: Item, waits: bool) -> bool | None:
        """
        Sends an item to the caller, before the reply. Returns True if it was sent; False if the socket has no room and `waits` is False; None if the caller takes no items, now or later.
        """

    def has_caller(self, incoming: Incoming) -> bool:
        """False if the caller's connection is gone: no process gets the answer."""

    def refuse(self, incoming: Incoming, reason: str, message: str) -> None:
        """Answers with this Unavailable."""

    def interrupt_calls(self) -> None:
        """
        For a worker that runs one call at a time in this thread: a cancellation sends it SIGINT, and with force ends the process.
        """

    def take_interrupt(self) -> bool:
        """True if a cancellation sent SIGINT since the last call."""

    def report_cancelled(self) -> None:
        """Makes next_call return as soon as a call was cancelled."""

    def take_cancelled(self) -> list[tuple[int, int]]:
        """Keys of the calls that were cancelled since the last call."""

    def cancelled(self, incoming: Incoming) -> bool:
        """True if the call was cancelled."""

    def refuse_cancelled(self, incoming: Incoming, what: str) -> None:
        """Answers that the call was cancelled."""

class ClusterResources:
    """Amounts by resource, and whether this job is to give some back."""

    @property
    def total(self) -> dict: ...

    @property
    def available(self) -> dict: ...

    @property
    def left_out(self) -> int:
        """Number of names that both lack: nodes' own in a large cluster."""

    @property
    def wanted_back(self) -> bool:
        """
        True if other jobs wait for what this job's workers of remote functions hold.
        """

class Tally:
    """Counts ready references among some."""

    @property
    def total(self) -> int: ...

    @property
    def ready(self) -> int: ...

class Item:
    """A value that a call yields."""

class Part:
    """One of several values that answer a call, for reply_many."""

    def __init__(self, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], refs: object) -> None: ...

class Incoming:
    """A call on an actor of this process."""

    @property
    def actor(self) -> str: ...

    @property
    def key(self) -> tuple[int, int]:
        """For take_cancelled."""

    @property
    def task_id(self) -> str: ...

    @property
    def function(self) -> str:
        """Its name; "" for a method."""

    @property
    def method(self) -> str: ...

    @property
    def args(self) -> tuple: ...

    @property
    def deps(self) -> list: ...

    def let_go_of_arguments(self) -> None:
        """
        Drops the arguments after they were loaded. Their objects then stay for their other holders only.
        """

    @property
    def plain(self) -> object:
        """
        The head of the arguments if they have no buffers and the call has no references; else None.
        """

class MetricSeries:
    def add(self, value: float) -> None: ...

    def set(self, value: float) -> None: ...

    def observe(self, value: float) -> None: ...

class Metric:
    def __init__(self, kind: str, name: str, help: str, bounds: Sequence[float]) -> None: ...

    def series(self, tags: Sequence[tuple[str, str]]) -> MetricSeries | None:
        """None when this process has too many."""

MAX_METRIC_SERIES: int = 2000

def is_metric_label(name: str) -> bool: ...

class Activity(enum.Enum):
    """The occupation of a rank's training thread."""

    ELSEWHERE = 0

    LOADER = 1

    FORWARD = 2

    BACKWARD = 3

    OPTIMIZER = 4

    SAVE = 5

    GATHER = 6

    REDUCE = 7

    WINDOW = 8

    SYNC = 9

    ENDED = 10

class Telemetry:
    """
    What this process appends to its run's folder (docs/runs.md). Call its methods from one thread where a step is meant.
    """

    def __init__(self, run: str, role: str, rank: int, world: int, local_rank: int, host: str, device: str, argv: Sequence[str]) -> None: ...

    def begin(self, activity: Activity, key: int = -1) -> None: ...

    def end(self, activity: Activity, key: int = -1) -> None: ...

    def end_optimizer(self, key: int) -> None:
        """Ends an optimizer's step, and so the training step."""

    def add_units(self, names: Sequence[str]) -> int:
        """Returns the number of the first one."""

    def begin_batch(self) -> None: ...

    def wait_begin(self, wait: Activity, unit: int = -1) -> None: ...

    def wait_end(self) -> None: ...

    def set_member(self, rank: int, world: int, generation: int) -> None: ...

    @property
    def step(self) -> int:
        """The number of steps that have ended."""

    @step.setter
    def step(self, arg: int, /) -> None: ...

    def set_paused(self, paused: bool) -> None:
        """Records no step meanwhile, to measure the cost of recording."""

    def metrics(self, values: Sequence[tuple[str, float]]) -> None: ...

    def event(self, kind: str, fields: str = '{}') -> None:
        """`fields`: a JSON object."""

    def close(self, code: int | None, cause: str) -> None: ...

    @property
    def folder(self) -> str: ...

class Channels:
    """The memory of a compiled graph's channels, by their numbers."""

    def __init__(self, session: Session, name: str, count: int, capacity: int) -> None:
        """
        Opens the memory of this name of the job; zeroed by whoever asks first. `capacity`: of each, a power of two.
        """

    def close(self) -> None:
        """Waits of all who use them end."""

    @property
    def closed(self) -> bool: ...

class Sender:
    """The writing end of a channel. One thread at a time."""

    def __init__(self, channels: Channels, index: int, limit: int) -> None: ...

    def takes(self, value: object | None) -> bool:
        """Whether write takes it."""

    def write(self, value: object | None) -> bool:
        """False, and nothing is written, if it is not plain or too long."""

    def write_pickle(self, head: bytes, buffers: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], raised: bool) -> None: ...

    def write_elsewhere(self, where: bytes, raised: bool) -> None:
        """Words that say where a value lies."""

class Receiver:
    """The reading end of a channel. One thread at a time."""

    def __init__(self, channels: Channels, index: int, unpack: object) -> None:
        """
        unpack(head, buffers, raised, elsewhere): what read returns for what is not plain.
        """

    def read(self) -> object:
        """The next value."""

    def read_into(self, values: list, timeout: float | None = None) -> None:
        """Appends the next value to a list."""

class Network:
    """How ranks on several hosts reach each other."""

    def __init__(self, *, kind: str = '', interface: str = '', host: str = '', sealed: bool = False, ucx_library: str = '', unanswered: float = 0.0) -> None:
        """
        kind: tcp, tls, ucx, a backend's name, or empty for the best of the hosts. interface: of this host, by name or address. host: this host's address, by default that in its cluster. sealed: all ranks are of one cluster. ucx_library: the path of a UCX for hosts without one. unanswered: seconds after which a host that answers nothing is lost; 0: the transport's own limit.
        """

def load_ucx(packaged: str) -> tuple[str, str, list[tuple[str, str]], bool]:
    """
    Loads UCX: the system's, else the library `packaged`. Returns its path, its version, the transports with their devices on this host, and whether RDMA is among them. Raises Unavailable without a UCX.
    """

class Work:
    """An operation under way."""

    def ended(self) -> bool:
        """Whether wait() would return at once."""

    def wait(self) -> None:
        """Until it is done; raises how it failed."""

def reduce(inputs: Sequence[tuple[int, int]], output: tuple[int, int], dtype: str, op: str) -> None:
    """
    Reduces memories of this process in their order, with the bits of a collective. A memory is (address, bytes).
    """

class Window:
    """Memory of every rank that all may read."""

    @property
    def own(self) -> object:
        """This rank's part, as a torch tensor of uint8."""

    def mapped(self, rank: int) -> object:
        """
        A rank's part as a torch tensor of uint8, where this process has mapped it, else None.
        """

    def bytes(self, rank: int) -> int:
        """Of a rank's part."""

class Communicator:
    """
    Messages among the ranks of a group. Sizes and counts are bytes; a call is (label, step, timeout, background).
    """

    @staticmethod
    def make(session: Session, *, name: str, rank: int, world_size: int, shares_memory: bool, exchange: object, network: Network, backend: str, open_backend: Callable, timeout: float, warn_after: float, spins: bool, device: Device) -> Communicator:
        """
        Over shared memory if all ranks share the node's; else over a network of messages, or the backend if the network's kind is its name. `device`: buffers are memory of that device.
        """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def transport(self) -> str: ...

    def all_gather(self, input: tuple[int, int], output: tuple[int, int], counts: Sequence[int], dtype: str, call: tuple[str, int, float, bool]) -> Work: ...

    def all_gather_each(self, gathers: Sequence[Gather], dtype: str, call: tuple[str, int, float, bool]) -> Work:
        """Several all_gathers as one operation."""

    def reduce_scatter(self, input: tuple[int, int], output: tuple[int, int], counts: Sequence[int], dtype: str, op: str, call: tuple[str, int, float, bool]) -> Work: ...

    def all_reduce(self, input: tuple[int, int], output: tuple[int, int], dtype: str, op: str, call: tuple[str, int, float, bool]) -> Work: ...

    def broadcast(self, data: tuple[int, int], root: int, dtype: str, call: tuple[str, int, float, bool]) -> Work: ...

    def all_to_all(self, input: tuple[int, int], output: tuple[int, int], sends: Sequence[int], receives: Sequence[int], dtype: str, call: tuple[str, int, float, bool]) -> Work: ...

    def barrier(self, call: tuple[str, int, float, bool]) -> Work: ...

    def send(self, data: tuple[int, int], to: int, dtype: str, tag: int, call: tuple[str, int, float, bool]) -> Work: ...

    def receive(self, data: tuple[int, int], source: int, dtype: str, tag: int, call: tuple[str, int, float, bool]) -> Work: ...

    def window(self, bytes: int, call: tuple[str, int, float, bool]) -> Window:
        """Every rank calls it, each with its own size."""

    def read(self, window: Window, source: int, offset: int, out: tuple[int, int]) -> None: ...

    @staticmethod
    def ready_on(stream: int) -> None:
        """
        Later operations of this thread use their buffers once the stream's work of that time is done.
        """

    def order_after(self, work: Work, stream: int) -> None:
        """
        Later work of the stream waits for the operation; without devices the caller does.
        """

    def abort(self, cause: str) -> None: ...

    def failed(self) -> object:
        """What ended it, as an exception, or None."""

    def lost(self) -> list[int]: ...

    def reform(self) -> Communicator: ...

    def leave(self) -> None: ...

class Gather:
    """One all_gather of several."""

    def __init__(self, *, input: tuple[int, int], output: tuple[int, int], counts: Sequence[int]) -> None:
        """`counts`: the bytes of each rank's input."""

    @property
    def input(self) -> tuple[int, int]: ...

    @property
    def output(self) -> tuple[int, int]: ...

    @property
    def counts(self) -> list[int]: ...

class Device:
    """
    A CUDA device of this process, and the transport between the ranks' devices.
    """

    def __init__(self, *, transport: str, number: int, kernels: bytes = ...) -> None:
        """
        `transport`: "nccl" or "cuda_ipc". `kernels`: code for the latter's reductions in the place of this build's.
        """

class DeviceOffer:
    """
    A CUDA device as other ranks compare it; reasons are "" where there are none.
    """

    @property
    def identity(self) -> str:
        """The same in all processes."""

    @property
    def no_cuda(self) -> str:
        """Why Shoal cannot use the device."""

    @property
    def no_nccl(self) -> str:
        """Why it cannot use NCCL."""

    @property
    def no_kernels(self) -> str:
        """Why this build cannot compute on it."""

    @property
    def visible(self) -> list[str]:
        """The identities of all devices that this process sees."""

def device_offer(number: int) -> DeviceOffer: ...

class GraphNode:
    """A node of a step graph."""

    @property
    def label(self) -> str: ...

    @property
    def lane(self) -> str: ...

    @property
    def after(self) -> list[int]:
        """Ids of its predecessors."""

    @property
    def op(self) -> str: ...

    @property
    def units(self) -> list[str]:
        """Names of its units; empty for all units."""

    @property
    def micro(self) -> int:
        """Its micro-batch."""

class PrefetchList:
    """The units to be unsharded when a unit begins to compute."""

    def __init__(self, *, unit: int, backward: bool, ahead: Sequence[int]) -> None: ...

class Fitted:
    """The plan that fits a memory budget."""

    @property
    def prefetch(self) -> int:
        """Depth of the prefetch."""

    @property
    def reshard_after_forward(self) -> list[bool]:
        """By unit."""

    @property
    def bytes(self) -> int:
        """fixed_bytes plus the leases."""

class StepGraph:
    """A step as nodes and edges."""

    def __init__(self, units: Sequence[str]) -> None: ...

    def add(self, op: str, units: Sequence[int], after: Sequence[tuple[int, str]], backward: bool, micro: int, value: float) -> int:
        """Id of a new node; after: [(node, 'data' | 'order' | 'memory'), ...]"""

    def passes(self, options: dict) -> StepGraph:
        """
        Another graph; options: the fields of PassOptions (fsdp/graph/passes/passes.h).
        """

    def fit(self, bytes: int, fixed_bytes: int, unsharded_bytes: Sequence[int]) -> Fitted:
        """Raises ResourceExhausted with the smallest sufficient budget."""

    @staticmethod
    def expected(units: Sequence[str], forward: Sequence[tuple[bool, int]], reshard: Sequence[bool], prefetch: int) -> StepGraph:
        """
        The plan of a step that has not run; forward: [(a unit's forward begins or ends, unit), ...]
        """

    @property
    def units(self) -> list[str]: ...

    @property
    def micro_batches(self) -> int: ...

    def op(self, node: int) -> str: ...

    def label(self, node: int) -> str: ...

    def check(self) -> None:
        """Raises InvalidArgument when it cannot be run."""

    def encode(self) -> bytes: ...

    def graph_table(self) -> str: ...

    def graph_perfetto(self) -> str: ...

    def graph_nodes(self) -> list[GraphNode]: ...

    def graph_planned(self) -> list: ...

    def graph_measured(self) -> list: ...

class StepRunner:
    """Runs a hand-written step graph on one rank."""

    @staticmethod
    def make(model: ShardedModel, graph: bytes, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, offload_folder: str, telemetry: Telemetry | None) -> StepRunner:
        """graph: as StepGraph.encode() wrote it."""

    def run(self, program: object) -> None:
        """One step."""

    @property
    def steps(self) -> int: ...

    @property
    def norm(self) -> float: ...

    @property
    def rows_bytes(self) -> int: ...

    @property
    def memory(self) -> dict: ...

    @property
    def micro_batches(self) -> int: ...

    def graph_table(self) -> str: ...

    def graph_perfetto(self) -> str: ...

    def graph_nodes(self) -> list[GraphNode]: ...

    def graph_planned(self) -> list: ...

    def graph_measured(self) -> list: ...

class ShardedUnit:
    """Parameters that are unsharded together, in one arena."""

    @property
    def name(self) -> str: ...

    @property
    def leased(self) -> bool: ...

    @property
    def bytes(self) -> int: ...

    @property
    def arena_key(self) -> str:
        """The node's name for the unit's arena."""

    @property
    def fits_any_mesh(self) -> bool:
        """
        True if a unit of one replica on any number of this host's ranks can take over the arena.
        """

    @property
    def gradient_bytes(self) -> int:
        """The gradients of every rank's own rows."""

class Gradient:
    """
    This rank's gradient of one parameter, and the destination of its reduction, by address.
    """

    def __init__(self, whole: int = 0, dtype: int = 0, own: int = 0, accumulate: bool = False, partial: int = 0, has_partial: bool = False) -> None:
        """
        `whole`: the unsharded gradient, of this dtype (a dtype_number). `own`: this rank's rows, the destination. `accumulate`: adds to them. `partial`: the sum within this replica; `has_partial`: it has values. 0: no such memory.
        """

class ShardedModel:
    """One sharded model on one rank."""

    def backward_end(self, unit: int, gradients: Sequence[Gradient], scale: float, everywhere: bool, reshard: bool, weight: float = -1.0) -> None: ...

    def take_reduced(self) -> list[tuple[int, list[bool]]]:
        """[(unit, [a gradient is present, ...]), ...] since the last call."""

    def join(self) -> None: ...

    def next_service(self) -> tuple[str, int]:
        """
        For a rank that has joined: ("publish", unit), ("window", _), or ("", _) when all have joined.
        """

    def commit(self, step: int) -> None:
        """
        Under protection: this rank has recorded this optimizer step; waits until every rank has.
        """

    def has_recorded(self, rank: int, step: int) -> bool:
        """
        True if this rank knows by a control word that another one has recorded this step.
        """

    def optimizer_begin(self) -> None: ...

    def optimizer_end(self, unit: int = -1) -> None: ...

    def end_step(self) -> None: ...

    @property
    def version(self) -> int: ...

    def plan(self, prefetch: int, lists: Sequence[PrefetchList], alike: bool) -> None:
        """
        How far ahead units are unsharded; `lists` override `prefetch`. `alike`: all ranks make the same plan, whatever their times.
        """

    @property
    def memory(self) -> dict:
        """Bytes on this host, by kind; gradients: of every rank's own rows."""

    @property
    def has_plan(self) -> bool: ...

    def graph_table(self) -> str: ...

    def graph_perfetto(self) -> str: ...

    def graph_nodes(self) -> list[GraphNode]: ...

    def graph_planned(self) -> list: ...

    def graph_measured(self) -> list: ...

    def measured_between(self) -> tuple:
        """
        The begin and the end of the measured step, in seconds of time.monotonic().
        """

class View(enum.Enum):
    """The tensors that a unit's modules hold."""

    SHARDED = 0

    UNSHARDED = 1

    SMALLER_MESH = 2

    GUARDED = 3

class AfterForward(enum.Enum):
    """The fate of a unit's lease between forward and backward."""

    DEFAULT = 0

    KEEP = 1

    RESHARD = 2

    SMALLER_MESH = 3

class UnitRules:
    """
    The program's requests for a unit; it may change them between two events.
    """

    def __init__(self) -> None: ...

    @property
    def after_forward(self) -> AfterForward: ...

    @after_forward.setter
    def after_forward(self, arg: AfterForward, /) -> None: ...

    @property
    def reshard_after_backward(self) -> bool: ...

    @reshard_after_backward.setter
    def reshard_after_backward(self, arg: bool, /) -> None: ...

    @property
    def unshard_in_backward(self) -> bool: ...

    @unshard_in_backward.setter
    def unshard_in_backward(self, arg: bool, /) -> None: ...

    @property
    def reduces(self) -> bool:
        """False: a backward keeps its gradients."""

    @reduces.setter
    def reduces(self, arg: bool, /) -> None: ...

    @property
    def everywhere(self) -> bool:
        """False: gradients are reduced within a replica only."""

    @everywhere.setter
    def everywhere(self, arg: bool, /) -> None: ...

    @property
    def forward_prefetch(self) -> list[int]: ...

    @forward_prefetch.setter
    def forward_prefetch(self, arg: Sequence[int], /) -> None: ...

    @property
    def backward_prefetch(self) -> list[int]: ...

    @backward_prefetch.setter
    def backward_prefetch(self, arg: Sequence[int], /) -> None: ...

class StepUnit:
    """A unit as the step machine knows it."""

    def __init__(self, name: str, root: bool, rules: UnitRules) -> None: ...

class Group:
    """The parameters of a unit on one mesh."""

    def __init__(self, model: int, index: int, empty: bool, collectives: bool, gathers: bool, replicated: bool) -> None: ...

class Step:
    """
    The step machine of one model (fsdp/step/step_machine.h), and the models among whose ranks it acts.
    """

    def __init__(self, program: object, units: Sequence[StepUnit], telemetry: Telemetry | None) -> None:
        """
        `program` owns this object, and has a method for each action on tensors.
        """

    def forward_begin(self, unit: int, training: bool, recomputed: bool, alive: bool) -> None: ...

    def watched(self, unit: int) -> None: ...

    def forward_end(self, unit: int, training: bool, recomputed: bool, failed: bool) -> None: ...

    def unshard(self, unit: int, shows: bool = True) -> None: ...

    def show_unsharded(self, unit: int) -> None: ...

    def reshard(self, unit: int) -> None: ...

    def show_sharded(self, unit: int) -> None: ...

    def enter(self, training: bool, alive: bool) -> None: ...

    def begin_pass(self) -> None: ...

    def backward_begin(self, unit: int, versions: Sequence[int]) -> None:
        """Begins the pass, too, if none runs."""

    def backward_end(self, unit: int) -> None:
        """Begins the pass, too, if none runs."""

    def pass_ends(self, alive: bool) -> None: ...

    def finalize(self, alive: bool) -> None: ...

    def reduce_kept(self, alive: bool) -> None: ...

    def raised(self) -> None: ...

    def reset(self) -> None: ...

    def start_over(self) -> None: ...

    def open_window(self, caller: str) -> None: ...

    def optimizer_begin(self, key: int) -> None:
        """`key`: distinguishes optimizers."""

    def optimizer_end(self, key: int) -> None: ...

    def serve_publication(self, model: int, unit: int, group: int) -> None: ...

    def serve_window(self) -> None: ...

    def drop_models(self) -> None:
        """Refuses events that use the models' memory until set_models."""

    def set_models(self, models: Sequence[ShardedModel], groups: Sequence[Sequence[Group]], slots: int, inputs: int) -> None:
        """
        `groups`: by unit. `slots`, `inputs`: the most reductions under way in an arena, or by collectives.
        """

    def set_group(self, unit: int, group: int, value: Group) -> None: ...

    def set_last_backward(self, last: bool) -> None: ...

    def set_finalized_by_hand(self, by_hand: bool) -> None: ...

    def set_optimizer_in_backward(self, on: bool) -> None: ...

    def set_joining(self, joining: bool) -> None: ...

    @property
    def finalized_by_hand(self) -> bool: ...

    @property
    def waits_for_finalize(self) -> bool: ...

    @property
    def joining(self) -> bool: ...

    @property
    def unstepped(self) -> bool: ...

    @property
    def window_open(self) -> bool: ...

    @property
    def in_pass(self) -> bool: ...

    @property
    def running(self) -> int: ...

    def in_backward(self, unit: int) -> bool: ...

    def after_forward(self, unit: int) -> AfterForward: ...

    def everywhere(self, unit: int) -> bool: ...

    def gives_up(self, unit: int) -> bool: ...

class SharedArrays:
    """
    The states and gradients of a model's optimizer, whole, in memory that its ranks share.
    """

    @property
    def key(self) -> str:
        """The memory's name at the node."""

    @property
    def bytes(self) -> int: ...

    def fits(self, units: Sequence[ShardedUnit], states: Sequence[tuple[int, int, str, str]]) -> bool:
        """True if it has these arrays, of parameters with these units' sizes."""

    @property
    def states(self) -> list[tuple[int, int, str, str]]:
        """[(unit, parameter, name, dtype), ...]"""

    def part(self, index: int, offset: int, bytes: int) -> object:
        """
        Bytes of one array, as a torch tensor of uint8. A rank writes to its own shard only.
        """

    def has(self, address: int) -> bool:
        """True if this address is in the memory."""

class ProtectedShard:
    """This rank's step record."""

    @property
    def key(self) -> str:
        """The record's name at the node."""

    def key_of(self, rank: int) -> str:
        """The name of the record of another rank of this host."""

    def replica_key_of(self, rank: int) -> str:
        """
        The name of the replica of a rank of another host, which a rank of this host holds.
        """

    @property
    def bytes(self) -> int: ...

    @property
    def words(self) -> tuple[int, int, int]:
        """(recorded, begun, finished): step numbers."""

    def state(self, index: int) -> object:
        """The memory of one of `states`, as a torch tensor of uint8."""

    def set_usable(self, usable: bool) -> None:
        """
        False while states are written into the record: they are torn meanwhile, so a death loses them.
        """

    def begin(self, step: int) -> bool:
        """
        Begins to record a step. False: it is recorded already, and is only to be run.
        """

    def add_copies(self, copies: Sequence[tuple[int, int, int, str]]) -> None:
        """
        Adds copies to the recorded update: (address to write, address to read, number of elements, dtype) of arrays of the record.
        """

    def record(self) -> None:
        """The gradients and the update of this step are final."""

    def run(self, num_threads: int) -> None:
        """Makes the recorded update, or what is left of it."""

class ReplicaLink:
    """
    Sends this rank's steps to its replica on another host, and holds replicas for others.
    """

    def send_contents(self, step: int) -> None:
        """
        Sends rows and states of a complete step; returns once the buddy has them.
        """

    def send_step(self, step: int, with_contents: bool) -> None:
        """Sends the recorded update; returns once the buddy has recorded it."""

    def committed(self, step: int) -> None:
        """The step counts. The replicas that this rank holds make it."""

    def stop(self) -> None:
        """Ends the link; the replicas stay."""

    @property
    def costs(self) -> dict:
        """
        Sizes in bytes, counts of messages, and seconds in which optimizer steps have waited.
        """

class AdoptedShard:
    """
    What a dead rank has left: its rows, its optimizer's states, and their step.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def replicas(self) -> int: ...

    @property
    def words(self) -> tuple[int, int, int]:
        """(recorded, begun, finished): step numbers."""

    def settle(self, committed: int, num_threads: int = 1) -> None:
        """
        Brings the shard to the committed step. Raises Unavailable while the rank's process lives, DataLoss if that step is lost.
        """

    @property
    def arrays(self) -> list:
        """
        [(name, unit, parameter, dtype, (begin, length, stride, runs), bytes as a tensor), ...]
        """

def committed_step(words: Sequence[tuple[int, int, int]], all: bool) -> int:
    """
    The last step that counts, from the words of all ranks' records. `all`: no record is lost.
    """

class ParameterSpec:
    """A parameter of a unit, as add_unit takes it. Dtypes are names."""

    def __init__(self, *, name: str, shape: Sequence[int], dtype: str, requires_grad: bool, dim: int, compute_dtype: str, reduce_dtype: str, external: bool) -> None:
        """
        `dim`: the sharded one. `compute_dtype`: of the whole parameter. `reduce_dtype`: of gradients on their way. `external`: it lies outside the arena.
        """

    @property
    def name(self) -> str: ...

class UnitOptions:
    """The arguments of fully_shard that the engine takes, for one unit."""

    def __init__(self, *, lease_guard: bool = False) -> None: ...

    @property
    def lease_guard(self) -> bool: ...

class ShardActor:
    """The actor that owns this rank's rows."""

    @staticmethod
    def place(session: Session, gang: str, rank: int, world_size: int, replicas: int, timeout: float, warn_after: float, hosts: Sequence[int] = [], exchange: object | None = None, network: Network = ..., in_rank_order: bool = False, place_as: tuple[int, int] = (-1, 0), places: Sequence[int] = []) -> ShardActor:
        """
        hosts: the host of each rank, numbered without gaps; empty if all share memory. exchange(name, bytes): returns what every rank has passed. place_as: (rank, ranks) at this head, (-1, 0) for all. places: by rank, in the tree of additions.
        """

    def add_unit(self, name: str, parameters: Sequence[ParameterSpec], options: UnitOptions, arena: str = '', before: ShardedUnit | None = None) -> ShardedUnit:
        """
        arena: that of another mesh's unit with these parameters, which the new unit takes over; empty: a new one. before: that unit, if this process has it.
        """

    def make_model(self, units: Sequence[ShardedUnit], names: Sequence[str], slots: int) -> ShardedModel:
        """Waits until every rank's ShardActor is placed."""

    def share_arrays(self, units: Sequence[ShardedUnit], states: Sequence[tuple[int, int, str, str]], key: str = '', before: SharedArrays | None = None) -> SharedArrays:
        """
        Opens memory for arrays that all ranks share. states: as in protect. key: that of another mesh's arrays, which these ranks take over; empty: a new one. before: this process's arrays there, if any. None if the ranks cannot share arrays.
        """

    def protect(self, model: ShardedModel, states: Sequence[tuple[int, int, str, str]], step: int, shared: SharedArrays | None = None) -> ProtectedShard:
        """
        Makes this rank's step record. states: (unit, parameter, name, dtype) of each array besides the rows; step: complete steps; shared: the memory of states that do not lie in the record.
        """

    def replicate(self, model: ShardedModel, shard: ProtectedShard, buddies: Sequence[int]) -> ReplicaLink:
        """
        Keeps a replica of this rank's record at its buddy. Every rank calls it. buddies: by rank, a rank of another host, or -1.
        """

    def adopt(self, key: str) -> AdoptedShard:
        """
        Opens a dead rank's record. Raises NotFound if this host's node has none.
        """

    def release(self, shard: AdoptedShard) -> None:
        """Frees an adopted record at the node, unless another process holds it."""

    def free_unheld(self, keys: Sequence[str]) -> None:
        """
        Frees those of these memories of the node that no living process holds.
        """

    def leave(self) -> None:
        """
        Before the session closes: gives the arenas back and makes no further requests.
        """

    @property
    def id(self) -> str: ...

    @property
    def rank(self) -> int: ...

    @property
    def hosts(self) -> list[int]:
        """The host of each rank; empty if all share memory."""

    @property
    def generation(self) -> int: ...

    @property
    def members(self) -> list[str]:
        """Ids of every rank's ShardActor."""

def own(unit: ShardedUnit, parameter: int) -> object:
    """This rank's shard of a parameter, as a torch tensor."""

def whole(unit: ShardedUnit, parameter: int) -> object:
    """
    A whole parameter, as a torch tensor; in place, over the same bytes as the shards.
    """

def dtype_number(name: str) -> int:
    """
    A dtype as Gradient takes it. Raises InvalidArgument for a dtype that cannot be sharded.
    """

class UpdateRow:
    """The arrays of one parameter's update, by address; 0: no such array."""

    def __init__(self, *, numel: int, parameter: int, states: Sequence[int], copy: int) -> None:
        """
        `parameter`: the values to update, or their master copy. `copy`: receives the updated values in its own dtype.
        """

    @property
    def gradient(self) -> int: ...

    @gradient.setter
    def gradient(self, arg: int, /) -> None: ...

    @property
    def step(self) -> int:
        """The count of updates, in fp32."""

    @step.setter
    def step(self, arg: int, /) -> None: ...

def adam(dtypes: Sequence[str], rows: Sequence[UpdateRow], *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool, grad_scale: float, num_threads: int, into: ProtectedShard | None = None) -> None:
    """
    Adam on rows of these dtypes (parameter, gradient, m, v, max v, copy); counts their steps up. `into`: a ProtectedShard that records the update instead.
    """

class DeviceOptim:
    """The optimizers' kernels on a CUDA device."""

    def __init__(self, device: int, image: bytes | None = None) -> None:
        """`image`: code of these kernels in the place of this build's."""

    def adam(self, dtypes: Sequence[str], rows: Sequence[UpdateRow], *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool, grad_scale: float, stream: int) -> None:
        """
        Adam on rows in the device's memory, as `adam`, in the order of the stream; returns at once.
        """

    def sgd(self, dtypes: Sequence[str], rows: Sequence[UpdateRow], *, lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool, grad_scale: float, stream: int) -> None:
        """
        SGD on rows in the device's memory, as `sgd`, in the order of the stream; returns at once.
        """

def sgd(dtypes: Sequence[str], rows: Sequence[UpdateRow], *, lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, first: bool, grad_scale: float, num_threads: int, into: ProtectedShard | None = None) -> None:
    """
    SGD on rows of these dtypes (parameter, gradient, momentum buffer, two absent ones, copy).
    """

def power_sum(dtype: str, address: int, numel: int, order: float, num_threads: int) -> float:
    """The sum of these elements' powers, for a norm of this order."""

def row_power_sums(dtype: str, address: int, rows: int, row_numel: int, order: float, out: int, num_threads: int) -> None:
    """
    As power_sum, of each row: writes that many doubles to `out`, whose bits do not depend on other rows.
    """

def private_memory(bytes: int, touched: bool) -> Annotated[torch.Tensor, dict(dtype='uint8')]:
    """
    Zeroed memory in pages of its own, huge ones where it is large, as a torch tensor of uint8.
    """

def kernel_target() -> str:
    """The instruction set that the kernels use here."""

class Transfer:
    """Rows of one parameter that one process sends to another, or keeps."""

    @property
    def source(self) -> int: ...

    @property
    def destination(self) -> int: ...

    @property
    def parameter(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def relayed(self) -> bool:
        """The source receives the rows itself, in an earlier transfer."""

class ReshardPlan:
    """The transfers that move a model from one mesh to another."""

    @property
    def transfers(self) -> list[Transfer]:
        """In the order in which every process sends and receives."""

    @property
    def kept(self) -> list[Transfer]:
        """Rows that stay on their process."""

    @property
    def moved_bytes(self) -> int: ...

    @property
    def kept_bytes(self) -> int: ...

    def table(self) -> str:
        """The plan as text: a line per pair of processes, then one per transfer."""

def plan_reshard(parameters: Sequence[tuple[str, int, int]], old_processes: Sequence[int], old_replicas: int, new_processes: Sequence[int], new_replicas: int, hosts: Sequence[int] = []) -> ReshardPlan:
    """
    parameters: (name, rows, bytes per row). Processes: by rank of each mesh, replica after replica. hosts: the host of each process.
    """

class Checksum:
    """
    A checksum of a checkpoint's bytes against damage: GMAC with a key and a nonce of zeros.
    """

    def __init__(self) -> None: ...

    def update(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Adds bytes, without the GIL."""

    def hexdigest(self) -> str:
        """
        Returns 32 hexadecimal digits. Call it once, and add nothing afterwards.
        """

class ChunkChecksums:
    """The checksums of successive chunks of a stream of bytes."""

    def __init__(self) -> None: ...

    def add(self, bytes: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Sequence[int]) -> list[str]:
        """
        Adds bytes, in which chunks end before the positions `ends`, without the GIL. Returns the checksums of these chunks.
        """
