"""Saves beside an elastic training: a death that cuts one off and a change of the workers end neither the training nor later saves."""

import pytest

TRAIN = """
import os, signal, sys, threading
import shoal
from shoal.checkpoint import Checkpoints
from internals.checkpoint import verify
from shoal.train import ScalingConfig, Trainer, report, run

STEPS = NUM_STEPS

def step(batch, state):
    import torch.distributed as dist
    (x,) = batch
    state.model(x).sum().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    report({"step": state.step, "workers": dist.get_world_size()})
    SAVE

def loop(folder):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import shoal.checkpoint
    from internals.checkpoint import _save, _saving
    from shoal.fsdp import fully_shard
    from shoal.optim import SGD
    from shoal.train import State
    model = torch.nn.Linear(4, 6)
    fully_shard(model)
    state = State(model=model, optimizer=SGD(model.parameters(), lr=0.1))
    state.run, write_file = Checkpoints(folder, OPTIONS), _save.write_file

    run_save, under_way = _saving.PendingSave._run, [0]

    def noted(self):
        under_way[0] = int(self.path[-2:])
        run_save(self)

    def trouble(new_file, layout, blocks):
        import torch.distributed as dist
        TROUBLE
        return write_file(new_file, layout, blocks)

    _save.write_file, _saving.PendingSave._run = trouble, noted
    run(step, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4), state, max_steps=STEPS)
    shoal.checkpoint.wait()

if __name__ == "__main__":
    shoal.init(address="auto")
    folder = sys.argv[1] if len(sys.argv) > 1 else "saves"
    scales = []
    def on_report(m):
        ON_REPORT
    trainer = Trainer(loop, train_loop_config=os.path.abspath(folder), scaling_config=ScalingConfig((1, 3)), on_report=on_report)
    result = trainer.fit()
    print("steps", [m["step"] for m in result.metrics_history])
    print("died", [len(c.died) for c in result.changes if c.died])
    print("workers", [c.workers for c in result.changes])
    of = Checkpoints(folder)
    print("saved", of.steps())
    for s in of.steps():
        verify(of.path(s)).problems and print("damaged", s)
"""
SAVE = "state.run.save(state.step, state.model, state.optimizer, state=state.state_dict())"


def train(command, trouble="pass", on_report="pass", save=SAVE, steps=12, options="keep=0"):
    command.start(cpus=3)
    text = TRAIN.replace("SAVE", save).replace("TROUBLE", trouble).replace("ON_REPORT", on_report)
    text = text.replace("NUM_STEPS", str(steps)).replace("OPTIONS", options)
    driver = command.driver(text)
    assert driver.code() == 0, driver.err
    print(driver.out, driver.err)
    assert "damaged" not in driver.out
    assert f"steps {list(range(1, steps + 1))}" in driver.out
    saved = next(line for line in driver.out.splitlines() if line.startswith("saved"))
    assert command("stop").returncode == 0
    return driver, eval(saved.removeprefix("saved "))


def death(rank, save):
    dies = f"dist.get_world_size() == 3 and dist.get_rank() == {rank} and under_way[0] == {save}"
    return f"if {dies}: os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("rank", [0, 2])
def test_a_death_in_a_save_that_the_next_save_waits_for_ends_no_training(shoal_command, rank):
    driver, saved = train(shoal_command, trouble=death(rank, 4))
    assert "died [1]" in driver.out
    assert saved[:3] == [1, 2, 3]
    assert saved[-1] == 12
    assert len(saved) >= 9


@pytest.mark.parametrize("rank", [0, 1])
def test_a_death_in_a_save_beside_the_next_step_ends_no_training(shoal_command, rank):
    """The step sees the death, not the save: its error is printed, and the next save does not raise it."""
    waits = f"if (state.step, dist.get_world_size(), dist.get_rank()) == (6, 3, {rank}): threading.Event().wait()"
    driver, saved = train(shoal_command, trouble=death(rank, 6), save=f"state.step % 3 or {SAVE}\n    {waits}")
    assert "died [1]" in driver.out
    assert saved == [3, 9, 12]


def test_a_change_waits_for_the_save_under_way(shoal_command):
    on_report = "m['step'] == 3 and threading.Thread(target=trainer.scale, args=(1,)).start()"
    slow = "under_way[0] >= 3 and dist.get_rank() == 1 and threading.Event().wait(0.2)"
    _, saved = train(shoal_command, trouble=slow, on_report=on_report)
    assert saved == list(range(1, 13))


def test_a_worker_that_leaves_after_a_failed_save_ends_no_training(shoal_command):
    """The workers that stay catch the error. The one that leaves has no step any more in which it could."""
    on_report = "m['step'] == 3 and threading.Thread(target=trainer.scale, args=(1,)).start()"
    save = f"""
    if state.step == 3:
        {SAVE}
    elif state.step == STEPS:
        try:
            shoal.checkpoint.wait()
        except shoal.exceptions.ResourceExhausted:
            pass
    else:
        dist.get_world_size() > 1 and threading.Event().wait(0.02)"""
    driver, saved = train(shoal_command, trouble="raise OSError(28, 'No space left on device')", on_report=on_report, save=save, steps=200)
    assert "workers [1]" in driver.out
    assert saved == []


def test_workers_agree_on_a_preemption_after_every_change_and_a_death(shoal_command):
    """The third worker of the third generation dies while the others wait for its vote. At last one worker has a sign, and all save."""
    on_report = """
        asked = (m["workers"], len(scales))
        if m["step"] > 3 and asked in ((3, 0), (2, 1)):
            scales.append(threading.Thread(target=trainer.scale, args=({(3, 0): 2, (2, 1): 3}[asked],)))
            scales[-1].start()"""
    save = f"""
    from shoal.train._worker import current_worker
    generation = current_worker().generation
    generation < 4 and threading.Event().wait(0.03)
    if generation == 3 and dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if state.step == STEPS - 5 and dist.get_rank() == dist.get_world_size() - 1:
        state.run._preemption._event.set()
    if state.run.should_save(state.step):
        {SAVE}"""
    options = "keep=0, every=1000, on_preemption=True"
    driver, saved = train(shoal_command, on_report=on_report, save=save, steps=300, options=options)
    assert "workers [2, 3, 2" in driver.out
    assert "died [1]" in driver.out
    assert saved == list(range(295, 301))
