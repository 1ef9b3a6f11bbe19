"""``shoal migrate`` and ``shoal check`` as commands. The migrated programs are run, and train to the losses of the originals.

``migrations/*.diff`` are the expected changes of the examples, whose imports are torch's before.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from internals.core import binary
from launching.ranks import ForkedRanks, free_port

EXAMPLES = Path("examples").absolute()
EXPECTED = Path(__file__).parent / "migrations"
IMPORTED = ["sklearn.datasets", "tokenizers", "torch.distributed.checkpoint.state_dict", "tqdm", "transformers.models.t5.modeling_t5"]
SMALL = {
    "fsdp1_convnet.py": (0, ["--limit", 60, "--epochs", 1, "--batch-size", 16, "--min-num-params", 20000, "--cpu-offload"], "net.pt"),
    "fsdp1_t5.py": (2, ["--samples", 48, "--width", 32, "--layers", 1, "--input-length", 24, "--output-length", 12, "--epochs", 1], "t5"),
}


@pytest.fixture(scope="module")
def forked():
    with ForkedRanks(*IMPORTED, OMP_NUM_THREADS="1", TQDM_DISABLE="1") as forked:
        yield forked


@pytest.fixture
def command(tmp_path):
    def call(*words):
        return subprocess.run([binary(), *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return call


@pytest.fixture
def theirs(tmp_path):
    """Writes an example with torch's imports into the test's folder, and returns its text."""

    def write(name):
        text = (EXAMPLES / name).read_text()
        text = text.replace("shoal.fsdp1", "torch.distributed.fsdp").replace("shoal.fsdp", "torch.distributed.fsdp")
        (tmp_path / name).write_text(text)
        return text

    return write


def losses(out):
    return re.findall(r"[Ll]oss: *\t?(-?[\d.]+)", out)


@pytest.mark.parametrize("name", SMALL)
def test_a_migrated_program_trains_to_the_same_losses(name, command, theirs, forked, shoal_command, tmp_path):
    theirs(name)
    done = command("migrate", "--write", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (EXPECTED / name).with_suffix(".diff").read_text()
    ranks, options, saved = SMALL[name]
    options += ["--save-model", tmp_path / saved] if saved.endswith(".pt") else ["--out", tmp_path / saved]
    out = [
        forked.output([script, *options], ranks, env=shoal_command.env(MASTER_PORT=str(free_port())))
        for script in (EXAMPLES / name, tmp_path / name)
    ]
    assert len(losses(out[0])) == 2
    assert losses(out[1]) == losses(out[0])
    assert "FSDPNet(" in out[1] or name != "fsdp1_convnet.py"
    assert (tmp_path / saved).exists()


def test_the_fsdp2_guide_needs_another_import_only(command, theirs, tmp_path):
    theirs("fsdp2_guide.py")
    done = command("migrate", "fsdp2_guide.py", "--write", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["result"], answer["written"], answer["notes"]) == ("shoal.migrate/1", "shoal.fsdp", True, [])
    assert (tmp_path / "fsdp2_guide.py").read_text() == (EXAMPLES / "fsdp2_guide.py").read_text()


def test_a_diff_is_what_patch_applies_and_the_file_stays(command, theirs, tmp_path):
    before = theirs("fsdp1_t5.py")
    done = command("migrate", "fsdp1_t5.py", "--to", "fsdp2")
    assert (tmp_path / "fsdp1_t5.py").read_text() == before
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=done.stdout, text=True, check=True)
    after = (tmp_path / "fsdp1_t5.py").read_text()
    assert "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n" in after
    assert "fsdp1_t5.py:37: mixed-precision (check): FSDP2 has no buffer_dtype\n" in done.stderr


def test_what_has_to_be_done_by_hand_is_the_exit_code(command, tmp_path):
    script = tmp_path / "script.py"
    imports = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    script.write_text(imports + "\nmodel = FSDP(model, sharding_strategy='NO_SHARD')\n")
    script.chmod(0o750)
    done = command("migrate", "script.py", "--write")
    assert done.returncode == 1
    assert "script.py:3: sharding-strategy (by hand): " in done.stderr
    assert "    model = FSDP(model, sharding_strategy='NO_SHARD')\n    do: replace it by torch.nn.parallel" in done.stderr
    assert script.read_text().startswith("from shoal.fsdp1 import ")
    assert script.stat().st_mode & 0o777 == 0o750
    assert [p.name for p in tmp_path.iterdir()] == ["script.py"]


def test_check_does_not_run_the_script(command, tmp_path):
    text = "import shoal\nfrom torch.distributed.fsdp import fully_shard\nfully_shard(build())\nopen('ran', 'w')\nimport missing\n"
    (tmp_path / "script.py").write_text(text)
    done = command("check", "script.py")
    assert done.returncode == 1
    assert done.stdout.startswith("script.py:3: memory: nothing shows how much memory sharding saves\n    fully_shard(build())\n    do: ")
    assert "3 findings" in done.stderr
    answer = json.loads(command("check", "script.py", "--json").stdout)
    assert {f["rule"] for f in answer["findings"]} == {"memory", "mixed-precision", "submodules-first"}
    ignored = [word for rule in ("memory", "mixed-precision", "submodules-first") for word in ("--ignore", rule)]
    assert command("check", *ignored, "script.py").returncode == 0
    assert [p.name for p in tmp_path.iterdir()] == ["script.py"]


def test_errors_name_the_file(command, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\nif x\n")
    for verb in ("migrate", "check"):
        done = command(verb, "none.py")
        assert (done.returncode, done.stdout) == (2, "")
        assert "none.py: No such file or directory" in done.stderr
        done = command(verb, "broken.py", "--json")
        assert done.returncode == 2
        assert "broken.py, line 2 is no Python program" in json.loads(done.stdout)["message"]
    assert command("check", "--ignore", "taste", "broken.py").returncode == 2


@pytest.mark.parametrize("words", [("check", "train.py"), ("migrate", "train.py"), ("checkpoint", "ls", "run")], ids=" ".join)
def test_commands_in_python_run_no_file_of_the_working_directory(words, command, tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    for name in ("argparse.py", "json.py", "types.py", "shoal.py"):
        (tmp_path / name).write_text("open('run', 'w')\n")
    outcome = command(*words)
    assert not (tmp_path / "run").exists()
    assert "Traceback" not in outcome.stderr, outcome.stderr
