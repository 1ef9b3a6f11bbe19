"""The scheduler ``shoal_slurm`` of TorchX: ``torchx run -s shoal_slurm dist.torchrun -j 2x8 --script train.py``.

It writes the batch script of ``shoal launch slurm`` and passes it to ``sbatch``, so that Slurm starts ``shoal run`` on each host. An
application has one role, whose replicas are hosts. TorchX finds this module by its place in ``torchx_plugins.schedulers``.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchx.plugins import register
from torchx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    StructuredOpts,
    filter_regex,
    split_lines_iterator,
)
from torchx.schedulers.local_scheduler import LogIterator
from torchx.schedulers.slurm_scheduler import appstate_from_slurm_state
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, macros, runopts

from shoal._core.local_cluster import binary

_COMMENT = "shoal_slurm"  # marks this scheduler's jobs
_LIMIT_S = 60  # for each command of Slurm
_WAITS_S = (1, 2, 4, 8, 16)  # between the attempts to reach slurmctld: it may just be starting again
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# torchrun's options with a value, and its flags without one. Those that are not read below say how torchrun's agents meet and what they
# print. They are ignored, because `shoal run` takes torchrun's place.
_OPTIONS = {
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval", "start-method",
    "event-log-handler", "role", "log-dir", "redirects", "tee", "local-ranks-filter", "duplicate-stdout-filters",
    "duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr", "logs-specs", "numa-binding", "signals-to-handle",
    "shutdown-timeout",
}  # fmt: skip
_FLAGS = {"standalone", "module", "no-python", "run-path", "virtual-local-rank"}
_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}


@dataclass
class ShoalSlurmOpts(StructuredOpts):
    """Options of ``torchx run -s shoal_slurm -cfg NAME=VALUE,..``."""

    account: str | None = None
    """Account of Slurm."""

    partition: str | None = None
    """Partition of Slurm."""

    time: str | None = None
    """Limit of the run: 45m, 4h, 2d, 12:00:00 or 1-12:00:00."""

    grace: int = 30
    """Seconds from a signal, or from the notice of the time limit, to the end of a host's part. Its ranks have all but the last six."""

    nproc: int | None = None
    """Ranks per host. By default torchrun's --nproc_per_node, else as many as a host has GPUs, or 1."""

    driver: bool = False
    """Run the script once, on the first host: its Trainer starts the ranks."""

    shoal: str = "shoal"
    """The command on the hosts, as a name or a path."""

    job_dir: str | None = None
    """Folder in which the script runs and writes its output; the hosts share it. By default the working directory."""

    sbatch: str | None = None
    """Further options of sbatch, such as "--mem=64G --qos=high"."""


@dataclass(frozen=True)
class Request:
    """``command``: takes the script through its standard input."""

    command: list[str]
    script: str

    def __str__(self) -> str:
        return f"# {shlex.join(self.command)}\n{self.script}"


class ShoalSlurm(Scheduler[ShoalSlurmOpts]):
    """Reports on jobs come from slurmctld, which forgets a job some minutes after its end (MinJobAge). Afterwards they come from sacct, if
    Slurm keeps accounts."""

    def __init__(self, session_name: str):
        super().__init__("shoal_slurm", session_name)

    def _run_opts(self) -> runopts:
        return ShoalSlurmOpts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: ShoalSlurmOpts) -> None:
        """Allows roles without resources: they get whole hosts."""

    def _submit_dryrun(self, app: AppDef, cfg: ShoalSlurmOpts) -> AppDryRunInfo[Request, ShoalSlurmOpts]:
        role = _only_role(app)
        process = subprocess.run([binary(), "launch", "slurm", "--json", *_launch_words(role, cfg)], capture_output=True, text=True)
        if process.returncode:
            raise ValueError(f"shoal launch slurm refuses role {role.name}: {_message(process)}")
        directives, _, rest = json.loads(process.stdout)["text"].partition("\n\n")
        exports = "".join(_export(role, name, value) for name, value in role.env.items())
        command = ["sbatch", "--parsable", f"--comment={_COMMENT}", *shlex.split(cfg.sbatch or "")]
        command += [f"--chdir={cfg.job_dir}"] if cfg.job_dir else []
        return AppDryRunInfo(Request(command, f"{directives}\n\n{exports}{rest}"), str)

    def schedule(self, dryrun_info: AppDryRunInfo[Request, ShoalSlurmOpts]) -> str:
        request = dryrun_info.request
        if dryrun_info.cfg is not None and (folder := dryrun_info.cfg.get("job_dir")):
            Path(str(folder)).mkdir(parents=True, exist_ok=True)
        process = _slurm(*request.command, text=request.script)
        if process.returncode:
            raise RuntimeError(f"sbatch refuses the job: {_message(process)}")
        return process.stdout.strip().partition(";")[0]

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = _job(app_id)
        if job is None:
            return None
        name, state = job["JobName"], _state(job["JobState"])
        hosts = _hosts(job.get("NodeList", ""))
        count = max(len(hosts), int(job.get("NumNodes", "1").partition("-")[0] or 1))
        replicas = [ReplicaStatus(n, name, state, hosts[n] if n < len(hosts) else "") for n in range(count)]
        code, _, number = job.get("ExitCode", "0:0").partition(":")
        message = f"{job['JobState']}, exit code {code if number in ('', '0') else 128 + int(number)}"
        if job.get("Reason", "None") != "None":
            message += f" ({job['Reason']})"
        return DescribeAppResponse(
            app_id=app_id,
            state=state,
            msg=message,
            num_restarts=int(job.get("Restarts", 0)),
            roles_statuses=[RoleStatus(name, replicas)],
            roles=[Role(name, image="", num_replicas=count)],
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        process = _slurm("squeue", "--noheader", "--states=all", "--user", _user(), "--format=%i|%T|%k|%j")
        if process.returncode:
            raise RuntimeError(f"squeue fails: {_message(process)}")
        rows = [line.strip().split("|", 3) for line in process.stdout.splitlines() if line.count("|") >= 3]
        return [ListAppResponse(job, _state(state), name=name) for job, state, comment, name in rows if comment == _COMMENT]

    def _cancel_existing(self, app_id: str) -> None:
        process = _slurm("scancel", app_id)
        if process.returncode:
            raise RuntimeError(f"scancel does not end job {app_id}: {_message(process)}")

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """The output of all ranks in one file, as the first host prints it: the log of replica 0. ``since`` and ``until`` do nothing."""
        if k != 0:
            return []
        job = _job(app_id) or {}
        path = job.get("StdOut") or next((str(p) for p in Path().glob(f"*-{app_id}.out")), None)
        if path is None:
            raise RuntimeError(f"Slurm has forgotten job {app_id}, and no file *-{app_id}.out is in the working directory")
        lines = split_lines_iterator(LogIterator(app_id, path, self, should_tail=should_tail))
        return filter_regex(regex, lines) if regex else lines


def _only_role(app: AppDef) -> Role:
    if len(app.roles) != 1:
        raise ValueError(f"shoal_slurm takes an application of one role, not of {len(app.roles)}: {', '.join(r.name for r in app.roles)}")
    (role,) = app.roles
    if role.mounts:
        raise ValueError(f"role {role.name} has mounts, but shoal_slurm starts no containers")
    if role.max_retries:
        raise ValueError(f"role {role.name} has max_retries={role.max_retries}, but shoal_slurm does not repeat a run: submit it again")
    return macros.Values(img_root=role.image, app_id=macros.app_id, replica_id=macros.replica_id, rank0_env=macros.rank0_env).apply(role)


def _launch_words(role: Role, cfg: ShoalSlurmOpts) -> list[str]:
    """The options and the program of `shoal launch slurm` for a role."""
    program, nproc = _program(role)
    for macro in (macros.app_id, macros.replica_id, macros.rank0_env):
        if any(macro in word for word in program):
            raise ValueError(
                f"the arguments of role {role.name} have {macro}, which shoal_slurm does not replace: ranks read RANK and MASTER_ADDR"
            )
    words = ["--name", role.name, "--shoal", cfg.shoal, "--grace", str(cfg.grace)]
    least = role.min_replicas
    elastic = least is not None and least != role.num_replicas
    words += ["--min", str(least), "--max", str(role.num_replicas)] if elastic else ["--hosts", str(role.num_replicas)]
    nproc = cfg.nproc or nproc
    if nproc and not elastic and not cfg.driver:
        words += ["--nproc", str(nproc)]
    words += ["--driver"] if cfg.driver else []
    for option, value in (("--cpus-per-host", role.resource.cpu), ("--gpus-per-host", role.resource.gpu)):
        words += [option, str(value)] if value > 0 else []
    for option, text in (("--partition", cfg.partition), ("--account", cfg.account), ("--time", cfg.time)):
        words += [option, text] if text else []
    return [*words, "--", *program]


def _program(role: Role) -> tuple[list[str], int | None]:
    """Returns the words of one rank, and the ranks per host if the role names them. ``shoal run`` takes the place of torchrun, which the
    components ``dist.torchrun`` and ``dist.ddp`` start."""
    words = [role.entrypoint, *role.args]
    if words[:2] == ["bash", "-c"] and len(words) == 3 and words[2].startswith("torchrun "):
        words = shlex.split(words[2])
    if Path(words[0]).name != "torchrun":
        return words, None
    options, rest = _of_torchrun(words[1:], role.name)
    if options.get("max-restarts", "0") != "0":
        raise ValueError(
            f"role {role.name} has torchrun's --max-restarts {options['max-restarts']}, but shoal_slurm does not repeat a run: leave it out"
        )
    nproc = options.get("nproc-per-node", "")
    # "gpu" and "auto" are left to `shoal run`, which decides alike
    return (["python3", "-m", *rest] if "module" in options else rest), int(nproc) if nproc.isdecimal() else None


def _of_torchrun(words: list[str], role: str) -> tuple[dict[str, str], list[str]]:
    """Splits torchrun's words into its options, by their names with hyphens, and the program with its arguments."""
    found, rest = {}, list(words)
    while rest and rest[0].startswith("-"):
        word, given, value = rest.pop(0).partition("=")
        if word == "--":
            break
        long = _SHORT.get(word, word)
        name = long.removeprefix("--").replace("_", "-")
        if not long.startswith("--") or name not in _OPTIONS | _FLAGS or (given and name in _FLAGS):
            raise ValueError(f"role {role} has {word}{given}{value}, which is no option of torchrun that shoal_slurm knows")
        if name in _OPTIONS and not given:
            if not rest:
                raise ValueError(f"role {role} has torchrun's {word} without a value")
            value = rest.pop(0)
        found[name] = value
    if not rest:
        raise ValueError(f"role {role} has a torchrun without a script")
    return found, rest


def _export(role: Role, name: str, value: str) -> str:
    """The script's line that sets a variable. The shell inserts the job's number, which Slurm assigns after the script is written."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"role {role.name} has a variable {name!r} in its env: a name has letters, digits and _, and begins with no digit")
    for macro in (macros.replica_id, macros.rank0_env):
        if macro in value:
            raise ValueError(
                f"variable {name} of role {role.name} has {macro}, which shoal_slurm does not replace: ranks read RANK and MASTER_ADDR"
            )
    quoted = '"$SLURM_JOB_ID"'.join(shlex.quote(part) if part else "" for part in value.split(macros.app_id))
    return f"export {name}={quoted}\n"


# ---- Slurm's commands ----


def _state(text: str) -> AppState:
    between = {"CONFIGURING": AppState.PENDING, "COMPLETING": AppState.RUNNING}  # states that TorchX does not know
    return between.get(text) or appstate_from_slurm_state(text)


def _slurm(*words: str, text: str = "") -> subprocess.CompletedProcess:
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=_LIMIT_S)
    except FileNotFoundError:
        raise RuntimeError(f"there is no {words[0]} on PATH: use shoal_slurm where Slurm's commands are") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"{words[0]} has not answered within {_LIMIT_S} s")


def _message(process: subprocess.CompletedProcess) -> str:
    return (process.stderr or process.stdout).strip() or f"exit code {process.returncode}"


def _job(app_id: str) -> dict[str, str] | None:
    """Returns the fields of a job, by Slurm's names; None if Slurm says that it does not know it. Raises RuntimeError if Slurm does not
    answer: TorchX would take None for the end of the job."""
    if not app_id.isdecimal():
        return None
    for wait_s in (*_WAITS_S, None):
        process = _slurm("scontrol", "show", "job", app_id)
        if process.returncode == 0 and (fields := dict(re.findall(r"(\w+)=(\S*)", process.stdout))).get("JobState"):
            return fields | dict(re.findall(r"^ *(StdOut)=(.+)$", process.stdout, re.MULTILINE))  # a path may have spaces
        if "Invalid job id specified" in process.stderr:
            return _job_of_accounts(app_id)
        if wait_s is not None:
            time.sleep(wait_s)
    attempts = len(_WAITS_S) + 1
    raise RuntimeError(f"Slurm does not say the state of job {app_id}, in {attempts} attempts: {_message(process)}; repeat this later")


def _job_of_accounts(app_id: str) -> dict[str, str] | None:
    """Returns the fields of a job that slurmctld has forgotten; None if Slurm keeps no accounts, or has none of it."""
    try:
        process = _slurm(
            "sacct", "--jobs", app_id, "--allocations", "--noheader", "--parsable2", "--format=JobName,State,ExitCode,NNodes,NodeList"
        )
    except RuntimeError:  # there is no sacct
        return None
    if process.returncode and "accounting storage is disabled" not in process.stderr:
        raise RuntimeError(f"slurmctld has forgotten job {app_id}, and sacct fails: {_message(process)}; repeat this later")
    if process.returncode or not process.stdout.strip():
        return None
    row = process.stdout.splitlines()[-1].split("|")
    return dict(zip(("JobName", "JobState", "ExitCode", "NumNodes", "NodeList"), [row[0], row[1].partition(" ")[0], *row[2:]], strict=True))


def _hosts(names: str) -> list[str]:
    if names in ("", "(null)"):
        return []
    return _slurm("scontrol", "show", "hostnames", names).stdout.split()


def _user() -> str:
    import getpass  # late: only `list` needs it

    return getpass.getuser()


@register.scheduler()
def shoal_slurm(session_name: str, **kwargs: Any) -> ShoalSlurm:
    """TorchX calls this for ``-s shoal_slurm``."""
    return ShoalSlurm(session_name)
