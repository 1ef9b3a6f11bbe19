"""Steps and loops of the tests of recovery: a worker kills itself at a chosen moment of a step."""

import contextlib
import gc
import hashlib
import os
import select
import signal
import threading
import time

import training_loops as loops

EPOCHS = 4  # an epoch has 5 steps
MOMENTS = ("begin", "forward", "backward", "between", "recorded", "committed", "inside", "after", "end", "boundary")


class Log:
    """The reports of a training that sends none, as a part of its state."""

    def __init__(self):
        self.entries = []

    def state_dict(self):
        return {"entries": list(self.entries)}

    def load_state_dict(self, saved):
        self.entries = list(saved["entries"])


class Killer:
    """Kills this process in the moments of ``deaths``, a list of (rank, step, moment); each one once in a training. A name of a host, "b",
    stands for the lowest rank there. ``folder``: has a file for each death that has come. ``victims``: "worker" is this process, "gang" all
    workers, "host" all processes of the host; hosts with the same moment die together. "link" is no death: the test cuts the link of this
    process's host at that moment."""

    def __init__(self, deaths, folder, victims="worker"):
        self._deaths, self._folder = deaths, folder
        self._kill = {"worker": kill_process, "gang": self._kill_gang, "host": kill_host, "link": self._ask_for_a_cut}[victims]
        self.gang = []  # the pids of all workers

    def _kill_gang(self):
        for pid in self.gang:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        kill_process()

    def _ask_for_a_cut(self):
        """Returns once the link is cut. The files are fifos that the test has made."""
        with open(os.path.join(self._folder, "ask"), "w") as ask:
            ask.write(host_name())
        with open(os.path.join(self._folder, "cut")) as cut:
            cut.read()

    def due(self, state, moment):
        from shoal.train import get_context

        whom = [get_context().get_world_rank()] + [host_name()] * (get_context().get_local_rank() == 0)
        place = next((tuple(d) for d in self._deaths if d[0] in whom and tuple(d[1:]) == (state.step, moment)), None)
        if place is None:
            return False
        try:
            os.close(os.open(self._file(place), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _file(self, death):
        return os.path.join(self._folder, "-".join(map(str, death)))

    def at(self, state, moment):
        if self.due(state, moment):
            together = [d for d in self._deaths if tuple(d[1:]) == (state.step, moment)] if self._kill is kill_host else []
            while not all(os.path.exists(self._file(d)) for d in together):
                time.sleep(0.001)
            self._kill()

    def in_optimizer(self, state):
        """Prepares a death inside of the coming optimizer.step()."""
        from internals.fsdp import Moment, at_next

        for moment in Moment:
            if self.due(state, moment.value):
                at_next(moment, lambda _: self._kill())
                return
        if self.due(state, "inside"):
            at_next(Moment.COMMITTED, self._kill_in_update)
        if self.due(state, "unknown"):
            at_next(Moment.RECORDED, self._kill_as_the_last)
        elif any(tuple(d[1:]) == (state.step, "unknown") for d in self._deaths):
            at_next(Moment.RECORDED, self._watch_words)

    def _kill_as_the_last(self, _):
        """Dies once every worker has recorded the step, and knows this of all others but for this one. Only the holder of its replica
        can find out that the step counts."""
        while not all(os.path.exists(self._file(("words", pid))) for pid in self.gang if pid != os.getpid()):
            time.sleep(0.001)
        self._kill()

    def _watch_words(self, protection):
        def watch(model=protection.model, step=protection.step + 1):
            while sum(model.has_recorded(rank, step) for rank in range(len(self.gang))) < len(self.gang) - 1:
                time.sleep(0.001)
            open(self._file(("words", os.getpid())), "w").close()

        threading.Thread(target=watch, daemon=True).start()

    def _kill_in_update(self, protection):
        def watch(step=protection.step + 1):
            watching.set()
            while protection.words[1] < step:
                pass
            self._kill()

        watching = threading.Event()
        threading.Thread(target=watch, daemon=True).start()
        watching.wait()

    def late(self, state, moment="late"):
        """Waits for the death of another worker, which ends its next collective with an error."""
        import torch.distributed as dist

        if self.due(state, moment):
            deaths = select.poll()
            with contextlib.suppress(ProcessLookupError):  # it is dead already
                for pid in self.gang:
                    if pid != os.getpid():
                        deaths.register(os.pidfd_open(pid), select.POLLIN)
                deaths.poll()
            dist.barrier()

    def in_boundary(self, state):
        gang = state.gang
        agree = type(gang).agree
        if self.due(state, "boundary"):
            gang.agree = lambda own: (self._kill(), agree(gang, own))


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def host_name():
    """The name of this process's host among those of hosts.py, whose addresses end with 1, 2 and so on."""
    from internals.core import session

    last = session().host.rpartition(".")[2]
    return " abcdefgh"[int(last)] if last.isdigit() and int(last) < 9 else ""


def kill_host():
    """Kills all processes of this one's network namespace: the node, its helpers and all workers of a host."""
    mine = os.stat("/proc/self/ns/net").st_ino
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if int(name) != os.getpid() and os.stat(f"/proc/{name}/ns/net").st_ino == mine:
                os.kill(int(name), signal.SIGKILL)
    kill_process()


def train_step(state, batch, killer, report=None):
    """One step, which reports its loss behind ``optimizer.step()``. The numbers that need other workers are computed before that."""
    import torch
    import torch.distributed as dist

    import shoal.train

    report = report or shoal.train.report
    indices, x, y = batch
    draw = torch.rand(1).item()
    killer.at(state, "begin")
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (indices.tolist()[: state.samples], os.getpid()))
    killer.gang = [pid for _, pid in parts]
    hidden = state.model[:3](x.to(state.model[0].weight.dtype))
    killer.at(state, "forward")
    hidden.register_hook(lambda _: killer.at(state, "backward"))
    loss = (state.model[3:](hidden).float() - y).square().mean()
    mean = state.mean(loss)
    scaler = state.objects.get("scaler") or torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(loss).backward()
    killer.at(state, "between")
    killer.late(state)
    killer.in_optimizer(state)
    scaler.step(state.optimizer)
    scaler.update()
    killer.at(state, "after")
    state.scheduler.step()
    state.optimizer.zero_grad()
    report(
        {
            "step": state.step,
            "epoch": state.epoch,
            "loss": mean,
            "samples": [i for part, _ in parts for i in part],
            "pids": [pid for _, pid in parts],
            "draw": draw,
            "lr": state.scheduler.get_last_lr()[0],
        }
    )
    killer.at(state, "end")
    killer.in_boundary(state)


def result_of(state):
    counts = {float(s["step"]) for s in state.optimizer.state.values() if "step" in s}
    return {
        "step": state.step,
        "counts": sorted(counts),
        "parameters": [p.full_tensor().detach().tolist() for p in state.model.parameters()],
        "bits": bits_of(state),
    }


def bits_of(state):
    """Hashes of the parameters and of the optimizer's states."""
    import torch

    tensors = list(state.model.parameters())
    tensors += [s for p in tensors for _, s in sorted(state.optimizer.state[p].items()) if s.dim() > 0]
    bits = [t.full_tensor().detach().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]
    return [hashlib.sha256(b).hexdigest()[:16] for b in bits]


def steps_form(config):
    """The step is a function that ``run`` calls. The steps in ``config["changes"]`` wait until the next membership is published."""
    import shoal
    from shoal.train import run

    state, loader = loops.build(config)
    killer = Killer(config["deaths"], config["folder"], config.get("victims", "worker"))

    def step(batch, state):
        train_step(state, batch, killer)
        if state.step in config.get("changes", ()):
            shoal.wait([state.gang._next], timeout=120)

    if config.get("an epoch each"):
        while state.epoch < config["epochs"]:
            run(step, loader, state)
    else:
        run(step, loader, state, epochs=config["epochs"])
    return result_of(state)


def quiet_form_with_a_late_copy(config):
    """No report waits for the hosts' copies. In step ``config["step"]``, the host of worker 1 repeats the update only when the next step
    is in its forward. The worker dies "before" or "behind" that (``config["moment"]``)."""
    import torch.distributed as dist
    from internals.fsdp import HostCopy

    from shoal.train import State, run

    make_step, in_forward, late = HostCopy._make_step, threading.Event(), config["step"]

    def make_late_step(copy):
        if copy.optimizers[0]._protection.step + 1 == late and dist.get_rank() == 1 and not os.path.exists(died):
            in_forward.wait()
            if config["moment"] == "behind":
                make_step(copy)
            open(died, "x").close()
            kill_process()
        make_step(copy)

    died = os.path.join(config["folder"], "died")
    HostCopy._make_step = make_late_step
    state, loader = loops.build(config)
    state = State(**state.objects, log=Log())
    killer = Killer([], config["folder"])
    state.model[3].register_forward_pre_hook(lambda *_: in_forward.set() if state.step > late else None)

    def step(batch, state):
        train_step(state, batch, killer, state.log.entries.append)

    run(step, loader, state, epochs=config["epochs"])
    return result_of(state) | {"log": state.log.entries}


def steps_form_with_lost_replacements(config):
    """The workers of these numbers fail, or die, before their first step."""
    from shoal.train._worker import current_worker

    number = current_worker().role.number
    if number in (config["fails"], config.get("fails_too")):
        raise OSError("no disk")
    if number == config["dies"]:
        kill_process()
    return steps_form(config)


def two_runs_form(config):
    """Calls ``run`` for ten steps, then for the others."""
    from shoal.train import run

    state, loader = loops.build(config)
    killer = Killer(config["deaths"], config["folder"])

    def step(batch, state):
        train_step(state, batch, killer)
        killer.late(state, "in run")

    run(step, loader, state, max_steps=10)
    killer.late(state, "between runs")
    run(step, loader, state, epochs=config["epochs"])
    return result_of(state)


def steps_form_with_a_death_in_the_meeting(config):
    """The second of two survivors dies before it meets the other one, or while their process group is made (``config["connecting"]``)."""
    from datetime import timedelta

    from shoal.train import _elastic_gang, _meeting

    begin, set_key = _elastic_gang.begin_process_group, _meeting.GuardedStore.set

    def begin_or_die(own, environment, *rest):
        if (environment["RANK"], environment["WORLD_SIZE"]) == ("1", "2") and not os.path.exists(once):
            open(once, "x").close()
            if not config.get("connecting"):
                kill_process()
            _meeting.GuardedStore.set = set_and_die
        return begin(own, environment, *rest)

    def set_and_die(store, key, value):
        set_key(store, key, value)
        if not key.startswith("shoal/"):  # one of the process group's
            kill_process()

    once = os.path.join(config["folder"], "met")
    _elastic_gang.begin_process_group = begin_or_die
    _elastic_gang._MEET_NOW = timedelta(hours=1)
    return steps_form(config)


def steps_form_with_a_death_between_epochs(config):
    """The last worker dies at the end of the first epoch, when all have agreed to go on. Worker 0 fails there, as if that agreement had
    failed for it alone, once worker 1 is in the second epoch."""
    import torch.distributed as dist
    from internals.train import Gang

    from shoal.exceptions import Unavailable

    agree, times = Gang.agree, []

    def agree_and_fail(gang, own):
        comes = agree(gang, own)
        state, rank = gang._state, dist.get_rank()
        if (state.epoch, state.batch) == (0, 5) and not times:
            times.append(1)
            if rank == 2:
                kill_process()
            if rank == 0:
                while not os.path.exists(second):
                    time.sleep(0.001)
                raise Unavailable("a worker has died")
        return comes

    def agree_once_marked(gang, own):
        if (gang._state.epoch, gang._state.batch) == (1, 0) and dist.get_rank() == 1 and not os.path.exists(second):
            open(second, "x").close()  # its mark of this boundary is set
        return agree_and_fail(gang, own)

    second = os.path.join(config["folder"], "second")
    Gang.agree = agree_once_marked
    return steps_form(config)


def form_with_a_death_before_the_loops_have_run_again(config):
    """The worker of number ``config["victim"]`` dies when it has built its model again."""
    from shoal.train._elastic_gang import ElasticGang
    from shoal.train._worker import current_worker

    number = current_worker().role.number
    take_over = ElasticGang._take_over

    def die_or_take_over(gang, before):
        if number == config["victim"]:
            open(os.path.join(config["folder"], "died"), "x").close()
            kill_process()
        take_over(gang, before)

    ElasticGang._take_over = die_or_take_over
    return globals()[config["form"]](config)


def form_with_a_death_when_some_loops_have_run_again(config):
    """Worker 1 dies while it waits for the others' new records. Worker 2 stops, since worker 0 has none yet. Worker 0 then finds all of
    them, and dies too if ``config["dies"]``: worker 2 has to go on with the records of before."""
    from shoal.train._elastic_gang import ElasticGang
    from shoal.train._recovery import Record
    from shoal.train._worker import current_worker

    number = current_worker().role.number
    stopped = os.path.join(config["folder"], "stopped")
    take_over, enter = ElasticGang._take_over, Record.enter

    def enter_in_turn(record):
        if not again:
            return enter(record)
        if number == 0:
            while not os.path.exists(stopped + "-2"):
                time.sleep(0.001)
        elif number == 1:
            threading.Timer(0.3, kill_process).start()
        try:
            enter(record)
        except Exception:
            open(f"{stopped}-{number}", "w").close()
            raise

    def take_over_once(gang, before):
        again[:] = [True]
        take_over(gang, before)
        if number == 0:
            open(os.path.join(config["folder"], "passed"), "w").close()
            if config["dies"]:
                Record.mark = lambda record, *_: (gc.collect(), kill_process())
        again.clear()

    again = []
    ElasticGang._take_over, Record.enter = take_over_once, enter_in_turn
    return loop_form(config)


PHASES = ("meet", "met", "settled", "moved", "sent", "recorded", "entered", "end")


def form_with_a_death_in_a_change(config):
    """The worker of number ``config["victim"]`` dies in the change to generation ``config["generation"]``, at ``config["phase"]``. In the
    phase "sent" that is when worker 0 has sent a newcomer all but the model. Worker 1 makes its part of that when the death is known."""
    import torch.distributed as dist

    import shoal
    from shoal.exceptions import DeadlineExceeded
    from shoal.train._elastic_gang import ElasticGang
    from shoal.train._recovery import Record
    from shoal.train._worker import current_worker

    number = current_worker().role.number
    in_change = []

    def change(gang, transition, *rest):
        in_change[:] = [transition.change.generation == config["generation"]]
        try:
            original(gang, transition, *rest)
        except DeadlineExceeded:
            open(os.path.join(config["folder"], "waited in vain"), "w").close()
            raise
        in_change.clear()

    def die(phase):
        if in_change == [True] and (number, phase) == (config["victim"], config["phase"]):
            open(os.path.join(config["folder"], "died"), "x").close()
            kill_process()

    def before(kind, name, phase):
        method = getattr(kind, name)
        setattr(kind, name, lambda *args: (die(phase), method(*args))[1])

    def after(kind, name, phase):
        method = getattr(kind, name)
        setattr(kind, name, lambda *args: (method(*args), die(phase))[0])

    def send(*args, **options):
        sends = in_change == [True] and config["phase"] == "sent"
        if sends and number == 1 != config["victim"]:
            shoal.wait([current_worker().gang._store.guard._dead], timeout=120)
        broadcast(*args, **options)
        if sends and number == 0:
            open(sent, "x").close()
        while sends and number == config["victim"] and not os.path.exists(sent):
            time.sleep(0.001)
        die("sent")

    sent = os.path.join(config["folder"], "sent")
    broadcast, dist.broadcast_object_list = dist.broadcast_object_list, send
    original, ElasticGang._change = ElasticGang._change, change
    before(ElasticGang, "_meet", "meet")
    after(ElasticGang, "_meet", "met")
    before(ElasticGang, "_move_tensors", "settled")
    after(Record, "moved", "moved")
    after(Record, "prepare", "recorded")
    after(Record, "enter", "entered")
    before(ElasticGang, "_follow", "end")
    before(Record, "leave", "end")
    return globals()[config["form"]](config)


def loop_form(config):
    """An ordinary loop over ``steps``, with ``config["changes"]`` as in ``steps_form``."""
    import shoal
    from shoal.train import steps

    state, loader = loops.build(config)
    killer = Killer(config["deaths"], config["folder"])
    for batch in steps(loader, state, epochs=config["epochs"]):
        train_step(state, batch, killer)
        if state.step in config.get("changes", ()):
            shoal.wait([state.gang._next], timeout=120)
    return result_of(state)


def torchrun_form(config):
    """An ordinary loop with the calls of a program for torchrun around it."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        return loop_form(config)
    finally:
        dist.destroy_process_group()


def plain_run(order, kind="AdamW", options=None):
    """(losses, parameters) of one plain process over batches of these samples."""
    import torch

    model, data = loops.model_and_data()
    optimizer = getattr(torch.optim, kind.removeprefix("torch."))(model.parameters(), lr=1e-2, **options or {})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    losses = []
    for samples in order:
        _, x, y = data[samples]
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses, [p.detach().tolist() for p in model.parameters()]


def check(history, returns, epochs=EPOCHS, optimizer=("AdamW", {})):
    """The training is that of one plain process: each batch once, the same losses, and the same parameters."""
    import pytest

    assert [m["step"] for m in history] == list(range(1, 5 * epochs + 1))
    everything = list(range(loops.NUM_SAMPLES))
    assert {e: sorted(s) for e, s in loops.samples_by_epoch(history).items()} == dict.fromkeys(range(epochs), everything)
    losses, parameters = plain_run([m["samples"] for m in history], *optimizer)
    assert [m["loss"] for m in history] == pytest.approx(losses, rel=1e-5)
    for returned in returns:
        assert returned["step"] == 5 * epochs
        assert returned["counts"] == ([] if "SGD" in optimizer[0] else [5 * epochs])
        for one, other in zip(returned["parameters"], parameters, strict=True):
            assert flat(one) == pytest.approx(flat(other), rel=1e-5, abs=1e-7)


def flat(value):
    return [x for v in value for x in flat(v)] if isinstance(value, list) else [value]
