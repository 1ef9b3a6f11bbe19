"""The objects that ``shoal launch jobset`` and ``.. kueue`` print fit the schemas of JobSet and of three Kubernetes versions.

Not part of ``bazel test //...``: it installs requirements-schemas.txt.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REQUIREMENTS = next(p for p in (Path("requirements-schemas.txt"), Path(__file__).parents[2] / "requirements-schemas.txt") if p.exists())
VERSIONS = ("1.29", "1.33", "1.37")  # older schemas of podFailurePolicy demand a field that their servers do not

# Objects on stdin; prints what JobSet's model makes of each, which is all of it if it knows all fields.
CHECK = """
import json, sys
import kubernetes_validate
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

for line in sys.stdin:
    given = json.loads(line)
    jobs = [given]
    if given["kind"] == "JobSet":
        model = JobsetV1alpha2JobSet.from_dict(given)
        assert model.to_dict() == given, (model.to_dict(), given)
        jobs = [{**job["template"], "apiVersion": "batch/v1", "kind": "Job"} for job in given["spec"]["replicatedJobs"]]
    for job in jobs:
        for version in sys.argv[1:]:
            kubernetes_validate.validate(job, version, strict=True)
            print("valid", version)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("schemas") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    words = [folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-r", REQUIREMENTS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{REQUIREMENTS.name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(folder / "bin" / "python")


def validated(python: str, objects: list[dict]) -> subprocess.CompletedProcess:
    lines = "".join(json.dumps(o) + "\n" for o in objects)
    return subprocess.run([python, "-c", CHECK, *VERSIONS], input=lines, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["jobset", "--hosts", "2"], 1),
        (["jobset", "--min", "2", "--max", "8", "--gpus-per-host", "8", "--cpus-per-host", "96", "--memory-per-host", "512Gi"], 3),
        (["jobset", "--min", "1", "--max", "2", "--time", "4h", "--volume", "data:/data", "--volume", "out:/out", "--namespace", "lab"], 2),
        (["kueue", "--queue", "research", "--min", "2", "--max", "8"], 3),
    ],
)
def test_the_objects_fit_their_schemas(shoal_command, python, words, jobs):
    done = shoal_command("launch", *words, "--image", "registry.example/team/train:1.4", "--dry-run", "--", "train.py", "a: 'b'\n", "")
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    checked = validated(python, objects)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("valid") == jobs * len(VERSIONS)


def test_a_misspelt_field_is_found(shoal_command, python):
    (given,) = yaml.safe_load_all(shoal_command("launch", "jobset", "--image", "i:1", "train.py").stdout)
    given["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurPolicy"] = {"rules": []}
    assert validated(python, [given]).returncode != 0
