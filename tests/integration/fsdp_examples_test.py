"""Examples that are scripts of PyTorch's guides with a changed FSDP import. They run, and print the same numbers as with torch's FSDP."""

import re
from pathlib import Path

import pytest
import torch
from launching.ranks import ForkedRanks, free_port

EXAMPLES = Path("examples").absolute()
IMPORTED = ["sklearn.datasets", "tokenizers", "torch.distributed.checkpoint.state_dict", "tqdm", "transformers.models.t5.modeling_t5"]


@pytest.fixture(scope="module")
def forked():
    """A process that has imported what the examples import, except Shoal."""
    with ForkedRanks(*IMPORTED, OMP_NUM_THREADS="1", TQDM_DISABLE="1") as forked:
        yield forked


@pytest.fixture
def run(forked, shoal_command):
    """Runs an example and returns its output. ``theirs``: with torch's FSDP. ``ranks`` 0: the example starts its ranks itself."""

    def start(name, *options, ranks=2, theirs=False):
        script = EXAMPLES / name
        if theirs:
            text = script.read_text()
            changed = text.replace("shoal.fsdp1", "torch.distributed.fsdp").replace("shoal.fsdp", "torch.distributed.fsdp")
            assert changed.count("shoal") == 0
            script = shoal_command.script(changed, f"theirs_{name}")
        env = shoal_command.env(MASTER_PORT=str(free_port()), PYTHONFAULTHANDLER="1")  # the port: where the example starts its ranks itself
        return forked.output([script, *options], ranks, env=env)

    return start


def losses(said):
    return [float(x) for x in re.findall(r"[Ll]oss: *\t?(-?[\d.]+)", said)]


def expect_same_losses(ours, theirs, count, rel=1e-4):
    assert len(losses(ours)) == count, ours
    assert losses(ours) == pytest.approx(losses(theirs), rel=rel)


@pytest.mark.parametrize(("at_least", "units"), [(100, 5), (20000, 2)])
def test_the_convnet_trains_as_with_torchs_fsdp(run, at_least, units):
    small = ["--limit", 90, "--epochs", 2, "--batch-size", 16, "--min-num-params", at_least]
    ours = run("fsdp1_convnet.py", *small, ranks=0)
    if at_least == 20000:
        expect_same_losses(ours, run("fsdp1_convnet.py", *small, ranks=0, theirs=True), 4)
    printed = ours[ours.index("FullyShardedDataParallel(") :]
    assert printed.count("FullyShardedDataParallel(") == units
    assert printed.startswith("FullyShardedDataParallel(\n  (_fsdp_wrapped_module): Net(\n")


def test_the_convnet_is_saved_whole(run, tmp_path):
    said = run("fsdp1_convnet.py", "--limit", 60, "--epochs", 1, "--cpu-offload", "--save-model", tmp_path / "net.pt", ranks=0)
    assert said.count("FullyShardedDataParallel(") == 1
    states = torch.load(tmp_path / "net.pt", weights_only=True)
    assert states["fc1.weight"].shape == (128, 9216)
    assert len(states) == 8


T5 = ["--samples", 48, "--width", 32, "--layers", 2, "--input-length", 24, "--output-length", 12]


def test_t5_trains_as_with_torchs_fsdp_and_keeps_the_best(run, tmp_path):
    ours = run("fsdp1_t5.py", *T5, "--out", tmp_path)
    expect_same_losses(ours, run("fsdp1_t5.py", *T5, "--no-save-model", theirs=True), 4)
    assert "--> memory of rank 0: " in ours
    files = sorted(tmp_path.glob("T5-model--*.pt"))
    assert files
    assert len(files) == ours.count("New Val Loss Record")
    states = torch.load(files[-1], weights_only=True)
    assert not [name for name in states if "_fsdp_wrapped_module" in name]
    assert states["shared.weight"].shape == states["lm_head.weight"].shape


def test_t5_trains_in_bf16_without_validation(run, tmp_path):
    ours = run("fsdp1_t5.py", *T5, "--bf16", "--epochs", 1, "--no-run_validation", "--no-track_memory", "--out", tmp_path)
    assert 5 < losses(ours)[0] < 10  # near ln(700) = 6.6, the loss of a random choice among about 700 tokens
    assert "memory" not in ours
    assert not list(tmp_path.iterdir())


GUIDE = ["--epochs", 3, "--dim", 16, "--vocab-size", 60, "--seq-len", 8, "--batch-size", 2, "--layers", 3]


def test_the_guide_resumes_from_either_checkpoint(run, tmp_path):
    first = run("fsdp2_guide.py", *GUIDE, "--out", tmp_path)
    assert first.startswith("FSDPTransformer(\n")
    assert first == run("fsdp2_guide.py", *GUIDE, "--out", tmp_path, "--dcp-api")
    again = [run("fsdp2_guide.py", *GUIDE, "--out", tmp_path, *how) for how in ([], ["--dcp-api"])]
    assert all("Loaded " in said for said in again)
    assert losses(again[0]) == losses(again[1])
    assert losses(again[0])[0] < losses(first)[-1]


def test_the_guide_trains_with_prefetching_and_mixed_precision(run, tmp_path):
    options = [*GUIDE, "--explicit-prefetching", "--mixed-precision"]
    ours = run("fsdp2_guide.py", *options, "--out", tmp_path)
    expect_same_losses(ours, run("fsdp2_guide.py", *options, "--out", tmp_path / "theirs", theirs=True), 3, rel=1e-2)
