"""A warm interpreter that forks workers. A node starts it as ``python -m shoal._zygote NODE_PID plain|torch``.

Descriptor 3 is a socket of the node. The zygote has imported a worker's modules. A worker is a fresh interpreter instead if the zygote has
threads or has started CUDA's driver, or if the worker has other values of the variables that torch reads once. A worker is forked twice, so
that it becomes a child of the node (a subreaper), which is notified of its death.

``python -m shoal._zygote check`` does the imports, and prints which of them started CUDA's driver, for ``shoal doctor``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import subprocess
import sys
import traceback
import types

from shoal import _native
from shoal._actors.launch import interpreters_paths
from shoal._core import stacks
from shoal._core.cuda_start import ImportWatch, driver_started
from shoal._core.process import end_children_with_this
from shoal._core.variables import variable
from shoal._printable import say
from shoal._runtime_env import shipping
from shoal._runtime_env.environment import expanded
from shoal._worker.main import run as run_worker

_SOCKET = 3
_MAX_REQUEST = 1 << 20
# Prefixes of variables that torch's modules read once, at their import. Torch reads those of _READ_LATER later, or sets them itself.
_READ_AT_IMPORT = ("TORCH", "PYTORCH_", "AOT_", "ATEN_", "PARTITIONER_")
_READ_LATER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCHINDUCTOR_CACHE_DIR")


def main() -> int | None:
    if sys.argv[1] == "check":
        with ImportWatch() as watch:
            _import_torch()
        print(json.dumps({"cuda": watch.found}))
        return 0
    node, torch = int(sys.argv[1]), sys.argv[2] == "torch"
    link = socket.socket(fileno=_SOCKET)
    interpreters_paths()
    if torch:
        _import_torch()
    started = _find_start() if driver_started() else ""
    _native.die_with(node)
    gc.collect()
    gc.freeze()  # the garbage collector does not write to present objects from now on, so that workers share their pages
    link.send(json.dumps({"ready": True, "cuda": started}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(link, _MAX_REQUEST, 2)
        if not data:
            return 0
        request = json.loads(data)
        forkable = _can_be_forked(dict(request["env"]))
        first = os.fork()
        if first == 0:
            second = -1
            try:
                second = os.fork()
                if second > 0:
                    link.send(json.dumps({"id": request["id"], "pid": second}).encode())
            except OSError as error:
                link.send(json.dumps({"id": request["id"], "error": str(error)}).encode())
            if second != 0:
                os._exit(0)
            link.close()
            _native.die_with(node)
            return _become_worker(request, fds, forkable)
        os.waitpid(first, 0)
        for fd in fds:
            os.close(fd)


def _find_start() -> str:
    """Returns the import that has started CUDA's driver here. Another interpreter finds it: a look at the driver after each import would
    take a third of a second in every zygote."""
    program = [sys.executable, "-m", "shoal._zygote", "check"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, KeyError):
        found = subprocess.run(program, check=True, capture_output=True, text=True, timeout=120).stdout
        return json.loads(found.splitlines()[-1])["cuda"] or "an import"
    return "an import"


def _import_torch() -> None:
    """Imports what a training's worker needs, without Shoal's modules, some of which read the worker's variables at their import."""
    import torch
    import torch.distributed
    import torch.distributed.tensor

    with contextlib.suppress(ValueError):  # a wrong SHOAL_FSDP, which the worker's own import reports
        import torch.distributed.fsdp

    with contextlib.suppress(ImportError):  # a worker that needs it gets the error
        import torch._dynamo  # the first optimizer of a process imports it

    torch.set_num_threads(1)


def _can_be_forked(env: dict[str, str]) -> bool:
    """True if a fork of this process can become the worker with the variables ``env``. To be called before the fork: a forked process
    always has one thread, and neither torch nor the driver reports a CUDA context there."""
    if driver_started() or not _has_one_thread():
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    read = ((n, v) for n, v in env.items() if n.startswith(_READ_AT_IMPORT) and not n.startswith(_READ_LATER))
    other = any(os.environ.get(n) != v for n, v in read)
    return not other and not torch.cuda.is_initialized()


def _has_one_thread() -> bool:
    return len(os.listdir("/proc/self/task")) == 1


def _become_worker(request: dict, fds: list[int], forkable: bool) -> int:
    """Turns the new process into the worker. Returns the exit code of a script."""
    os.setsid()
    out, err = fds
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    for fd in (null, out, err):
        if fd > 2:
            os.close(fd)
    # One thread, unless the worker's CPUs or the job ask for more: several workers share the machine.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.pop(name, None)
    _set_environment(dict(request["env"]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.environ.get("SHOAL_PACKAGES"):
        request["cwd"], request["path"] = shipping.settle(request["cwd"], request["path"])
    if request["cwd"]:
        _enter(request["cwd"])
    if not forkable:
        _spawn_instead(request)
    _reseed()
    return _run_worker(request)


def _run_worker(request: dict) -> int:
    end_children_with_this()
    if "SHOAL_FSDP" in os.environ or "SHOAL_SPMD" in os.environ:  # the interpreter started without these variables
        import _shoal_switch  # late: only these variables need it

        _shoal_switch.switch_on()
    sys.path[:0] = [p for p in request["path"] if p not in sys.path]
    if request["script"]:
        stacks.offer(os.environ["SHOAL_WORKER_ID"])
        return _run_script(request["argv"])
    return run_worker()


def _runtime_env() -> dict:
    return json.loads(variable("SHOAL_RUNTIME_ENV", "{}"))


def _set_environment(given: dict[str, str]) -> None:
    """Sets the variables. Those of a runtime_env may refer to existing ones; a missing ``${NAME}`` becomes "", as in Ray."""
    own = json.loads(given.get("SHOAL_RUNTIME_ENV", "{}")).get("env_vars", {})
    os.environ.update({k: v for k, v in given.items() if k not in own})
    for name in own.keys() & given.keys():
        os.environ[name] = expanded(given[name])


def _enter(folder: str) -> None:
    """Enters the driver's folder, or the session's where this host lacks it. A runtime_env's working_dir must exist."""
    try:
        os.chdir(folder)
    except OSError as error:
        if folder == _runtime_env().get("working_dir"):
            raise
        os.chdir(os.environ["SHOAL_SESSION"])
        say(f"shoal: the driver's working directory is not available on this host ({error}); this worker runs in {os.getcwd()}")


def _spawn_instead(request: dict) -> None:
    """Executes a fresh interpreter in this process, for a worker that ``_can_be_forked`` refuses."""
    program = "import sys; from shoal import _zygote; sys.exit(_zygote.begin())"
    rest = json.dumps({name: request[name] for name in ("path", "script", "argv")})
    os.execv(sys.executable, [sys.executable, "-c", program, rest])


def begin() -> int:
    """Runs the worker in a fresh interpreter. Returns the exit code of a script."""
    if sys.path[:1] == [""]:  # python -c puts "" first
        del sys.path[0]
    return _run_worker(json.loads(sys.argv[1]))


def _reseed() -> None:
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _run_script(argv: list[str]) -> int:
    """Runs a script as ``python SCRIPT ARGS`` would, and returns the exit code."""
    script = os.path.abspath(argv[0])
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(script))
    module = types.ModuleType("__main__")
    module.__file__ = script
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        exec(code, module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__  # as the interpreter sets them
        # Without this module's frames: the traceback begins in the user's script.
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
