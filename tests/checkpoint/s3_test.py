"""Checkpoints in S3, through fsspec and s3fs, against moto's server."""

import pytest
import torch
from internals.checkpoint import diff, verify
from moto.server import ThreadedMotoServer
from torch import nn

from shoal import checkpoint
from shoal.checkpoint import Checkpoints
from shoal.exceptions import DataLoss, InvalidArgument, NotFound, ShoalError

BUCKET = "s3://shoal-checkpoints"


@pytest.fixture(scope="module")
def s3():
    """A file system of fsspec, configured as users do: by the environment."""
    patch = pytest.MonkeyPatch()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        patch.setenv(name, value)
    import s3fs

    fs = s3fs.S3FileSystem()
    fs.mkdir(BUCKET)
    yield fs
    server.stop()
    patch.undo()


def build(seed, width=64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, 3))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_checkpoint_in_s3_is_replaced_and_loaded(s3):
    path = f"{BUCKET}/replaced"
    with pytest.raises(NotFound):
        checkpoint.load(path, build(0))
    for seed in (1, 2):
        checkpoint.save(path, build(seed), state={"seed": seed})
        model = build(0)
        assert checkpoint.load(path, model, streaming=seed == 2) == {"seed": seed}
        assert same(model, build(seed))
    assert len(s3.ls(path, refresh=True)) == 2  # the manifest and one folder
    assert verify(path).problems == []


def test_parts_of_many_megabytes_are_uploaded_in_pieces(s3, tmp_path):
    path = f"{BUCKET}/large"
    large = build(3, width=3000)  # 36 MB, beyond one block of an upload
    checkpoint.save_async(path, large).wait()
    model = build(0, width=3000)
    checkpoint.load(path, model)
    assert same(model, large)
    checkpoint.save(tmp_path / "local", large)
    assert diff(path, tmp_path / "local") == []


def test_a_save_that_fails_keeps_the_previous_checkpoint(s3, monkeypatch):
    from internals.checkpoint import _store

    path = f"{BUCKET}/kept"
    checkpoint.save(path, build(1), state={"seed": 1})

    def fail(*_):
        raise OSError("the connection was reset")

    with monkeypatch.context() as m:
        m.setattr(_store._NewObject, "append", fail)
        with pytest.raises(ShoalError, match="connection was reset"):
            checkpoint.save(path, build(2), state={"seed": 2})
    with monkeypatch.context() as m:
        m.setattr(_store.RemoteStore, "commit", fail)  # all objects are there, but not the manifest
        with pytest.raises(ShoalError, match="connection was reset"):
            checkpoint.save(path, build(2), state={"seed": 2})
    model = build(0)
    assert checkpoint.load(path, model) == {"seed": 1}
    assert same(model, build(1))
    checkpoint.save(path, build(2), state={"seed": 2})  # removes what the failed saves left
    assert len(s3.ls(path, refresh=True)) == 2
    assert checkpoint.load(path, model) == {"seed": 2}


def test_damage_in_s3_is_an_error(s3):
    path = f"{BUCKET}/damaged"
    checkpoint.save(path, build(1))
    (shard,) = s3.glob(f"{path}/*/model-*.safetensors")
    data = s3.cat_file(shard)
    s3.pipe_file(shard, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DataLoss, match="not those that were saved"):
        checkpoint.load(path, build(0))
    s3.rm_file(shard)
    with pytest.raises(DataLoss, match="is missing"):
        checkpoint.load(path, build(0))
    s3.pipe_file(f"{BUCKET}/foreign/manifest.json", b"{}")
    with pytest.raises(InvalidArgument, match="no checkpoint of Shoal"):
        checkpoint.save(f"{BUCKET}/foreign", build(0))


def test_a_run_in_s3_keeps_the_newest_and_the_best(s3):
    of = Checkpoints(f"{BUCKET}/run", keep=1, best="loss")
    for step, loss in enumerate([3, 1, 2, 4]):
        of.save(step, build(step), metrics={"loss": loss}).wait()
    assert of.steps() == [1, 3]
    assert of.best() == 1
    model = build(9)
    assert of.load(model, step="best") == (1, {})
    assert same(model, build(1))
