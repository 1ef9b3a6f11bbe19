"""Kubernetes for the objects that ``shoal launch`` prints: a small stand-in for its API server, whose pods are processes.

A pod has namespaces of its own for network, names, mounts and processes, and its own /tmp, /run and /dev. Its machine is one of the hosts
of ``hosts``, and a pod without a machine waits. The stand-in follows the documents of Kubernetes, JobSet and Kueue for the fields that
``shoal launch`` prints, and refuses all others. It retries without delay, and keeps no history.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from internals.core import binary, package_path

from launching.commands import LIMIT_S
from launching.hosts import Host, Hosts
from launching.leftovers import stat_of, wait_until

_NAMESPACES = ("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")

# $1: the pod's folder, whose tmp, run and dev take the place of those of this machine; $2: its name; $3: folders in /tmp that stay;
# $4: mounts, each as TYPE SOURCE PATH. The rest is the pod's command.
_ENTER = r"""
set -e
hostname "$2"
mount --bind "$1/hosts" /etc/hosts
for name in $3; do mkdir -p "$1/tmp/$name"; mount --rbind "/tmp/$name" "$1/tmp/$name"; done
for name in null zero full random urandom tty; do touch "$1/dev/$name"; mount --bind "/dev/$name" "$1/dev/$name"; done
mkdir "$1/dev/shm"
ln -s /proc/self/fd "$1/dev/fd"
for name in dev run tmp; do mount --rbind "$1/$name" "/$name"; done
echo "$4" | while read -r type source path; do
  [ -n "$type" ] || continue
  mkdir -p "$path"
  if [ "$type" = memory ]; then mount -t tmpfs tmpfs "$path"; else mount --bind -o ro "$source" "$path"; fi
done
shift 4
exec "$@"
"""


def why_no_pods() -> str:
    """The reason why this machine cannot create pods, or ""."""
    if why := Hosts.why_not():
        return why
    done = subprocess.run([*_NAMESPACES, "mount", "--bind", "/etc/hosts", "/etc/hosts"], capture_output=True, text=True, timeout=LIMIT_S)
    return f"no namespaces of mounts and processes here: {done.stderr.strip()}" if done.returncode else ""


def _take(spec: dict, *known: str) -> tuple:
    """The values of the known fields, None for those that are missing."""
    unknown = set(spec) - set(known)
    assert not unknown, f"the stand-in does not know the fields {sorted(unknown)}"
    return tuple(spec.get(name) for name in known)


@dataclass(eq=False)
class Pod:
    job: Job
    index: int
    machine: Host
    folder: Path
    grace_s: float
    process: subprocess.Popen
    disrupted: bool = False  # its condition DisruptionTarget
    deleted: bool = False  # by a controller, which does not count its end
    killed: bool = False
    code: int | None = None

    @property
    def name(self) -> str:
        return f"{self.job.name}-{self.index}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def termination_message(self) -> str:
        return (self.folder / "dev" / "termination-log").read_text()

    def signal(self, number: int) -> None:
        """Signals the container's first process. SIGKILL ends all others with it."""
        self.killed = self.killed or number == signal.SIGKILL  # an unshare of util-linux 2.38 fails then, instead of reporting the signal
        with contextlib.suppress(ProcessLookupError):
            first = [int(p) for p in os.listdir("/proc") if p.isdigit() and (stat_of(int(p)) or "  ")[1] == self.process.pid]
            os.kill(first[0] if first else self.process.pid, number)


@dataclass(eq=False)
class Job:
    name: str
    spec: dict
    service: str  # the JobSet's; "": there is none
    owner: JobSet | None
    parallelism: int
    completions: int
    suspended: bool = False
    succeeded: set[int] = field(default_factory=set)
    num_failures: int = 0
    failed: str = ""  # the reason

    @property
    def complete(self) -> bool:
        return len(self.succeeded) >= self.completions


@dataclass(eq=False)
class JobSet:
    name: str
    spec: dict
    num_restarts: int = 0
    state: str = ""  # Completed or Failed
    reason: str = ""


class Pods:
    """``folder`` is that of the pods' image, which all of them see. ``machines``: those on which pods can start so far. ``secrets``: texts
    by the name and entry of a Secret."""

    def __init__(self, hosts: Hosts, folder: Path, machines: int, secrets: dict[str, dict[str, str]]):
        self._hosts, self.folder = hosts, folder
        self._machines, self._later = hosts.all[:machines], hosts.all[machines:]
        self._secrets = folder / "secrets"
        for name, entries in secrets.items():
            (self._secrets / name).mkdir(parents=True)
            for entry, text in entries.items():
                (self._secrets / name / entry).write_text(text)
        self.job_sets: dict[str, JobSet] = {}
        self._jobs: dict[str, Job] = {}
        self.all: list[Pod] = []  # also those that have ended
        self._lock = threading.RLock()
        self._waiting: list[threading.Thread] = []
        self._ends = False

    # Events: what users, schedulers and failures do.

    def create(self, text: str) -> None:
        """`kubectl create -f`."""
        with self._lock:
            for given in yaml.safe_load_all(text):
                version, kind, metadata, spec = _take(given, "apiVersion", "kind", "metadata", "spec")
                name, _ = _take(metadata, "name", "labels") if "annotations" not in metadata else (metadata["name"], None)
                if (version, kind) == ("jobset.x-k8s.io/v1alpha2", "JobSet"):
                    self.job_sets[name] = JobSet(name, spec)
                    self._create_jobs(self.job_sets[name])
                else:
                    assert (version, kind) == ("batch/v1", "Job")
                    self._add_job(name, dict(spec), "", None)
            self._reconcile()

    def pod(self, name: str) -> Pod:
        """The newest pod of this name, once there is one."""
        return wait_until(lambda: next((p for p in reversed(self.all) if p.name == name), None), LIMIT_S, f"a pod {name}")

    def logs(self) -> str:
        return "\n".join(f"--- {pod.name}: {pod.code}\n{pod.log}" for pod in self.all)

    def code(self, pod: Pod) -> int:
        return wait_until(lambda: None if pod.code is None else (pod.code,), LIMIT_S, f"the end of {pod.name}")[0]

    def add_machine(self) -> None:
        """A pod that waits starts there."""
        with self._lock:
            self._machines.append(self._later.pop(0))
            self._reconcile()

    def lose_machine(self, pod: Pod) -> None:
        """The machine loses its network and all of its processes at once; the Job learns of its loss."""
        with self._lock:
            self._hosts.cut(pod.machine)
            self._machines.remove(pod.machine)
            pod.disrupted = True
            pod.signal(signal.SIGKILL)

    def evict(self, pod: Pod) -> None:
        """A preemption: SIGTERM, and SIGKILL after the pod's grace. No other pod starts on the machine."""
        with self._lock:
            self._machines.remove(pod.machine)
            pod.disrupted = True
            self._terminate(pod)

    def admit(self, name: str, count: int) -> None:
        """Kueue's admission of a Job, with fewer pods than it asks for if its annotations say so."""
        with self._lock:
            job = self._jobs[name]
            job.suspended, job.parallelism, job.completions = False, count, count
            self._reconcile()

    def suspend(self, name: str) -> None:
        """Kueue takes the Job's room back."""
        with self._lock:
            self._jobs[name].suspended = True
            self._delete(self._active(self._jobs[name]))

    def scale(self, name: str, parallelism: int) -> None:
        with self._lock:
            job = self._jobs[name]
            job.parallelism = parallelism
            self._delete(sorted(self._active(job), key=lambda pod: pod.index)[parallelism:])
            self._reconcile()

    def end(self) -> None:
        with self._lock:
            self._ends = True
            for pod in self.all:
                if pod.code is None:
                    pod.signal(signal.SIGKILL)
        for thread in list(self._waiting):
            thread.join(LIMIT_S)

    # The controllers.

    def _create_jobs(self, owner: JobSet) -> None:
        network, success, failure, jobs = _take(owner.spec, "network", "successPolicy", "failurePolicy", "replicatedJobs")
        assert network == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
        assert success is None or success["operator"] == "All"
        _take(failure, "maxRestarts", "rules")
        for given in jobs:
            name, replicas, template = _take(given, "name", "replicas", "template")
            assert replicas == 1
            self._add_job(f"{owner.name}-{name}-0", dict(template["spec"]), owner.name, owner)

    def _add_job(self, name: str, spec: dict, service: str, owner: JobSet | None) -> None:
        suspend = spec.pop("suspend", False)
        known = ("completionMode", "completions", "parallelism", "backoffLimit", "activeDeadlineSeconds", "podFailurePolicy", "template")
        mode, completions, parallelism, *_ = _take(spec, *known)
        assert mode == "Indexed"
        self._jobs[name] = Job(name, spec, service, owner, parallelism, completions, suspend)

    def _active(self, job: Job) -> list[Pod]:
        return [pod for pod in self.all if pod.job is job and pod.code is None]

    def _reconcile(self) -> None:
        for job in list(self._jobs.values()):
            while not (self._ends or job.suspended or job.failed or job.complete):
                active = self._active(job)
                taken = {pod.machine for pod in self.all if pod.code is None}
                machine = next((m for m in self._machines if m not in taken), None)
                index = next((i for i in range(job.completions) if i not in job.succeeded and i not in {p.index for p in active}), None)
                if machine is None or index is None or len(active) >= job.parallelism:
                    break
                self._start(job, index, machine)

    def _ended(self, pod: Pod, code: int) -> None:
        with self._lock:
            pod.code = 128 + signal.SIGKILL if pod.killed else code
            job = pod.job
            if pod.code == 0:
                job.succeeded.add(pod.index)
            elif not pod.deleted:
                self._count_failure(pod)
            if job.owner is not None and self._jobs.get(job.name) is job and not job.owner.state:
                self._follow_policies(job)
            self._reconcile()

    def _count_failure(self, pod: Pod) -> None:
        job = pod.job
        for rule in job.spec["podFailurePolicy"]["rules"]:
            action, codes, conditions = _take(rule, "action", "onExitCodes", "onPodConditions")
            if codes is not None:
                assert (action, codes["operator"], codes["containerName"]) == ("FailJob", "In", "shoal")
                if pod.code in codes["values"]:
                    job.failed = "PodFailurePolicy"
                    return
            else:
                assert (action, conditions) == ("Ignore", [{"type": "DisruptionTarget", "status": "True"}])
                if pod.disrupted:
                    return
        job.num_failures += 1
        if job.num_failures > job.spec["backoffLimit"]:
            job.failed = "BackoffLimitExceeded"

    def _follow_policies(self, job: Job) -> None:
        """Decides about the JobSet after the end of one of the Job's pods."""
        owner = job.owner
        jobs = [j for j in self._jobs.values() if j.owner is owner]
        counted = [f"{owner.name}-{name}-0" for name in owner.spec.get("successPolicy", {}).get("targetReplicatedJobs", [])]
        if job.failed:
            self._delete([p for j in jobs for p in self._active(j)])
            most, rules = _take(owner.spec["failurePolicy"], "maxRestarts", "rules")
            assert all(rule["action"] == "FailJobSet" for rule in rules)
            if owner.num_restarts >= most or any(job.failed in rule["onJobFailureReasons"] for rule in rules):
                owner.state, owner.reason = "Failed", job.failed
                for j in jobs:
                    j.failed = j.failed or "its JobSet has failed"
            else:
                owner.num_restarts += 1
                self._create_jobs(owner)
        elif all(j.complete for j in jobs if not counted or j.name in counted):
            owner.state = "Completed"
            for j in jobs:
                j.suspended = True
                self._delete(self._active(j))

    def _delete(self, pods: list[Pod]) -> None:
        for pod in pods:
            pod.deleted = True
            self._terminate(pod)

    def _terminate(self, pod: Pod) -> None:
        pod.signal(signal.SIGTERM)
        kill = threading.Timer(pod.grace_s, pod.signal, [signal.SIGKILL])
        kill.daemon = True
        kill.start()

    # One pod.

    def _start(self, job: Job, index: int, machine: Host) -> None:
        (spec,) = _take(job.spec["template"], "spec")
        known = ("restartPolicy", "terminationGracePeriodSeconds", "automountServiceAccountToken", "containers", "volumes")
        restart, grace, _, (container,), volumes = _take(spec, *known)
        assert restart == "Never"
        _, _, command, args, env, mounts = _take(container, "name", "image", "command", "args", "env", "volumeMounts")
        folder = self.folder / f"pod{len(self.all)}"
        for name in ("dev", "run", "tmp"):
            (folder / name).mkdir(parents=True)
        (folder / "tmp").chmod(0o1777)
        for name in ("hosts", "dev/termination-log"):
            (folder / name).touch()
        name = f"{job.name}-{index}"
        variables = {"HOSTNAME": name, "JOB_COMPLETION_INDEX": str(index), **{v["name"]: v["value"] for v in env}}
        base = {k: v for k, v in os.environ.items() if k not in ("SHOAL_HOME", "TMPDIR")}
        path = f"{Path(binary()).parent}:{base.get('PATH', '')}"  # the image's, with the command
        words = [_replaced(word, variables) for word in command + args]
        self._sources = {volume["name"]: volume for volume in volumes}
        line = [*machine.before, *_NAMESPACES, "sh", "-c", _ENTER, "sh", str(folder), name, " ".join(self._kept()), self._mounts(mounts)]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [*line, *words], env={**base, "PATH": path, "PYTHONUNBUFFERED": "1", **variables}, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        pod = Pod(job, index, machine, folder, grace, process)
        self.all.append(pod)
        self._write_names()
        thread = threading.Thread(target=lambda: self._ended(pod, process.wait()), daemon=True)
        self._waiting.append(thread)
        thread.start()

    def _mounts(self, mounts: list[dict]) -> str:
        lines = []
        for mount in mounts:
            name, path, _ = _take(mount, "name", "mountPath", "readOnly")
            _, secret, memory = _take(self._sources[name], "name", "secret", "emptyDir")
            assert memory in (None, {"medium": "Memory"})
            lines.append(f"memory none {path}" if memory else f"secret {self._secrets / secret['secretName']} {path}")
        return "\n".join(lines)

    def _kept(self) -> set[str]:
        """The folders in /tmp that the pod's image needs: its programs, and what the test has made."""
        paths = [self.folder, Path.cwd(), Path(sys.prefix), Path(sys.executable), Path(binary()), Path(__file__)]
        paths += map(Path, [*package_path().split(os.pathsep), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
        both = [*paths, *(path.resolve() for path in paths)]
        return {path.parts[2] for path in both if path.parts[:2] == ("/", "tmp") and len(path.parts) > 2}

    def _write_names(self) -> None:
        """Each pod finds itself by its name, and those of its JobSet by the headless service."""
        active = [pod for pod in self.all if pod.code is None]
        for pod in active:
            lines = ["127.0.0.1 localhost"]
            for other in active:
                full = f"{other.name}.{other.job.service}" if other.job.service else ""
                names = [f"{full}.default.svc.cluster.local"] * bool(full) + ([other.name] if other is pod else []) + [full] * bool(full)
                lines.append(" ".join([other.machine.address, *names]) if names else "")
            (pod.folder / "hosts").write_text("\n".join(lines) + "\n")


def _replaced(word: str, variables: dict[str, str]) -> str:
    """The word with the values of the container's own variables, as Kubernetes passes it on."""
    return re.sub(r"\$(?:\$|\((\w+)\))", lambda m: "$" if m[1] is None else variables.get(m[1], m[0]), word)


@contextlib.contextmanager
def pods(hosts: Hosts, folder: Path, machines: int, secrets: dict[str, dict[str, str]]):
    if why := why_no_pods():
        pytest.skip(why)
    made = Pods(hosts, folder, machines, secrets)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
