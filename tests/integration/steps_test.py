"""``shoal.train.steps``: one loader for all workers, uneven parts, and positions that travel in checkpoints."""

import pytest
import torch
import training_loops as loops
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from shoal.exceptions import InvalidArgument, Unimplemented
from shoal.train import ScalingConfig, State, Trainer, report, steps

pytestmark = pytest.mark.usefixtures("module_cluster")

EPOCHS = 3


def fit(workers, loop=loops.loop, **config):
    return Trainer(loop, train_loop_config={"epochs": EPOCHS, **config}, scaling_config=ScalingConfig(workers)).fit()


def check_as_plain(history, batch=loops.BATCH):
    everything = list(range(loops.NUM_SAMPLES))
    assert {e: sorted(s) for e, s in loops.samples_by_epoch(history).items()} == dict.fromkeys(range(EPOCHS), everything)
    plain = loops.plain_run([m["samples"] for m in history])
    assert [m["loss"] for m in history] == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(("workers", "config"), [(1, {}), (2, {}), (3, {"readers": 2}), (4, {"batch": 3})])
def test_any_number_of_workers_trains_as_one_plain_process(workers, config):
    check_as_plain(fit(workers, **config).metrics_history)


def test_the_order_of_samples_differs_between_epochs_but_not_between_numbers_of_workers():
    orders = [loops.samples_by_epoch(fit(n).metrics_history) for n in (1, 3)]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def loop_by_epochs(config):
    """An outer loop over epochs, which an ``accumulate`` of two batches per update may span."""
    state, loader = loops.build(config)
    evaluations = []
    while state.epoch < config["epochs"]:
        for batch in steps(loader, state):
            report(loops.train_step(state, batch))
        evaluations.append(state.epoch)
    return evaluations


def test_steps_without_epochs_ends_with_each_epoch():
    result = fit(2, loop_by_epochs)
    assert result.returns == [[1, 2, 3]] * 2
    check_as_plain(result.metrics_history)


def loop_to_a_step(config):
    state, loader = loops.build(config)
    for batch in steps(loader, state, max_steps=config["max_steps"], epochs=config["epochs"]):
        report(loops.train_step(state, batch))
    return state.step, state.epoch, state.batch


def test_max_steps_ends_within_an_epoch_and_takes_as_many_epochs_as_needed():
    whole = fit(2).metrics_history
    found = fit(2, loop_to_a_step, max_steps=12, epochs=None)
    assert found.metrics_history == whole[:12]
    assert found.returns == [(12, 2, 2)] * 2  # an epoch has 5 steps
    assert fit(1, loop_to_a_step, max_steps=12, epochs=1).returns[0] == (5, 1, 0)


def test_max_steps_of_a_loader_without_a_batch_is_refused():
    loader = DataLoader(TensorDataset(torch.ones(3, 1)), batch_size=4, drop_last=True)
    with pytest.raises(InvalidArgument, match="an epoch of this loader has no batch, so it never makes max_steps=2 steps"):
        list(steps(loader, State(), max_steps=2))


def loop_that_accumulates(config):
    import torch.distributed as dist

    from shoal.fsdp import fully_shard

    model, data = loops.model_and_data()
    plain, _ = loops.model_and_data()
    fully_shard(model)
    state = State(model=model)
    loader = DataLoader(data, batch_size=5, shuffle=True)
    for _, x, y in steps(loader, state, epochs=1):  # batches of 5, and a last one of 2, for 3 workers
        model.set_requires_gradient_sync(state.step % 2 == 0)
        (model(x) - y).square().mean().backward()
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (x[: state.samples], y[: state.samples]))
        whole_x, whole_y = (torch.cat(p) for p in zip(*parts, strict=True))
        (plain(whole_x) - whole_y).square().mean().backward()
        if state.step % 2 == 0:
            for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(p.grad.full_tensor(), q.grad)
                p.grad = q.grad = None
    return state.step


def test_accumulated_gradients_weigh_each_batch_by_its_own_parts():
    assert Trainer(loop_that_accumulates, train_loop_config={}, scaling_config=ScalingConfig(3)).fit().returns == [8] * 3


def loop_that_resumes(config):
    import shoal.checkpoint

    state, loader = loops.build(config)
    if config["from"]:
        saved = shoal.checkpoint.load(config["from"], state.model, state.optimizer)
        state.load_state_dict(saved)
    for batch in steps(loader, state, epochs=config["epochs"]):
        report(loops.train_step(state, batch))
        if state.step == config["until"]:
            saved = state.state_dict()
            shoal.checkpoint.save(config["to"], state.model, state.optimizer, state=saved)
            break


def test_two_resumes_within_one_epoch_use_each_sample_once(tmp_path):
    history, last = [], ""
    for workers, until in ((2, 6), (3, 8), (1, 0)):  # an epoch has 5 steps
        folder = str(tmp_path / f"at{until}")
        history += fit(workers, loop_that_resumes, **{"from": last, "until": until, "to": folder}).metrics_history
        last = folder
    assert [m["step"] for m in history] == list(range(1, 16))
    check_as_plain(history)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3)


def test_loaders_that_cannot_be_divided_are_refused():
    data = TensorDataset(torch.arange(4))
    state = State()
    for loader, kind, text in (
        ([1, 2], InvalidArgument, "DataLoader, not a list"),
        (DataLoader(Stream(), batch_size=2), Unimplemented, "IterableDataset"),
        (DataLoader(data, batch_size=None), InvalidArgument, "batch_size=None"),
        (DataLoader(data, sampler=DistributedSampler(data, 2, 0)), InvalidArgument, "DistributedSampler"),
    ):
        with pytest.raises(kind, match=text):
            steps(loader, state)
    assert [b[0].tolist() for b in steps(DataLoader(data, batch_size=3), state)] == [[0, 1, 2], [3]]
    with pytest.raises(InvalidArgument, match="position of another loader"):
        steps(DataLoader(data), state)


def test_a_state_names_what_it_cannot_carry():
    with pytest.raises(InvalidArgument, match="best of a State is a float without state_dict"):
        State(best=0.5)
    with pytest.raises(InvalidArgument, match="epoch is an attribute of every State"):
        State(epoch=torch.nn.Linear(1, 1))
    with pytest.raises(AttributeError, match="this State has no model"):
        _ = State().model
    with pytest.raises(InvalidArgument, match="has no epoch, batch"):
        State().load_state_dict({"step": 1})
