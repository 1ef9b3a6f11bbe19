"""Trainings with real trackers, and what these have recorded: python programs.py CASE FOLDER. The last line has the result."""

import json
import math
import os
import struct
import sys
from pathlib import Path

import shoal
from shoal.trackers import MLflow, TensorBoard, Trackio, WandB
from shoal.train import ScalingConfig, State, Trainer, report, steps

NUM_STEPS = 12


def loop(config):
    import torch
    from torch.utils.data import DataLoader

    from shoal.fsdp import fully_shard
    from shoal.optim import SGD

    model = torch.nn.Linear(4, 1)
    fully_shard(model)
    optimizer = SGD(model.parameters(), lr=config["lr"])
    state = State(model=model, optimizer=optimizer)
    for batch in steps(DataLoader(torch.ones(NUM_STEPS * 4, 4), batch_size=4), state, epochs=1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if config.get("fails_at") == state.step:
            raise ValueError("the loss is NaN")
        values = {"loss": torch.tensor(1.0 / state.step), "nan": math.nan, "inf": math.inf, "eval": {"loss": state.step}}
        report({"step": state.step, **values})
        if state.step == config.get("change"):
            shoal.wait([state.gang._next], timeout=120)


def trackers(folder: Path) -> list:
    config = {"name of model": "linear"}
    return [
        TensorBoard(folder / "tensorboard", config=config),
        WandB("shoal", dir=folder, config=config),
        MLflow("shoal", tracking_uri=f"sqlite:///{folder}/mlflow.db", config=config),
        Trackio("shoal", name="first", config=config),
    ]


def trains(folder: Path) -> dict:
    """A training whose workers change, with all trackers at once."""
    found = trackers(folder)

    def scale(metrics):
        if metrics["step"] == 5:
            trainer.scale(2)

    shoal.init(num_cpus=3)
    config = {"lr": 0.5, "change": 5}
    trainer = Trainer(loop, train_loop_config=config, scaling_config=ScalingConfig((1, 3), initial_workers=1), on_report=[*found, scale])
    trainer.fit()
    return {type(t).__name__: [t.close(timeout=60), t.lost, t.cause] for t in found}


def fails(folder: Path) -> dict:
    found = trackers(folder)
    shoal.init(num_cpus=1)
    trainer = Trainer(loop, train_loop_config={"lr": 0.5, "fails_at": 4}, scaling_config=ScalingConfig((1, 2)), on_report=found)
    try:
        trainer.fit()
    except ValueError as error:
        return {type(t).__name__: [t.close(timeout=60), t.lost, t.cause] for t in found} | {"error": str(error)}
    return {}


def has_no_server(folder: Path) -> dict:
    """MLflow repeats a refused connection for minutes; W&B's server is away, too."""
    found = [MLflow("shoal", tracking_uri="http://127.0.0.1:9"), WandB("shoal", mode="online", dir=folder)]
    shoal.init(num_cpus=1)
    result = Trainer(loop, train_loop_config={"lr": 0.5}, scaling_config=ScalingConfig((1, 2)), on_report=found).fit()
    complete = [t.close(timeout=0.5) for t in found]
    losses = {"lost": [t.lost for t in found], "causes": [t.cause for t in found]}
    return {"reports": len(result.metrics_history), "complete": complete, **losses}


def tensorboard_has(folder: Path) -> dict:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    tensors = {tag: [(e.step, e.tensor_proto) for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
    texts = {tag: [(step, p.string_val[0].decode()) for step, p in rows] for tag, rows in tensors.items() if rows[0][1].string_val}
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    plugins = events.summary_metadata
    numbers = {tag: [(step, p.float_val[0]) for step, p in rows] for tag, rows in tensors.items() if rows[0][1].float_val}
    return {"numbers": scalars | numbers, "texts": texts, "hparams": "_hparams_/session_start_info" in plugins}


def wandb_records(data: bytes):
    """The records of an offline run's file: LevelDB's log format behind 7 bytes, in blocks of 32 KiB, whose ends may be empty."""
    at, part = 7, b""
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield part
            part = b""


def wandb_has(folder: Path) -> dict:
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows, config, exit_code = [], {}, None
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item})
        elif kind == "run":
            config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return {"rows": [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows], "config": config, "exit": exit_code}


def mlflow_has(folder: Path) -> dict:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("shoal").experiment_id])
    numbers = {k: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics}
    events = [v for k, v in sorted(run.data.tags.items()) if k.startswith("shoal.events.")]
    return {"numbers": numbers, "events": events, "params": run.data.params, "status": run.info.status}


def trackio_has(folder: Path) -> dict:
    from trackio.sqlite_storage import SQLiteStorage

    config = SQLiteStorage.get_run_config("shoal", "first")
    rows = SQLiteStorage.get_logs("shoal", "first")
    return {"rows": rows, "config": config, "alerts": SQLiteStorage.get_alerts("shoal", "first")}


if __name__ == "__main__":
    case, folder = sys.argv[1], Path(sys.argv[2])
    os.chdir(folder)
    print("RESULT", json.dumps(globals()[case](folder), default=str), flush=True)
