"""``pip`` and ``uv`` of a runtime_env: their fields, and the folder with the installed packages. Fields are Ray's."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.exceptions import RuntimeEnvSetupError

__all__ = ["check", "end_of", "installed"]

_FIELDS = {
    "pip": {"pip_check": bool, "pip_version": str, "pip_install_options": list},
    "uv": {"uv_check": bool, "uv_version": str, "uv_pip_install_options": list},
}


def check(tool: str, given: Any) -> dict[str, Any]:
    """Returns a dict with ``packages`` (a list) and the other fields. Requirement files are read, including nested ones."""
    config = dict(given) if isinstance(given, dict) else {"packages": given}
    fields = _FIELDS[tool]
    if unknown := config.keys() - fields.keys() - {"packages"}:
        raise ValueError(f"{tool} of runtime_env has no {', '.join(sorted(unknown))}; there are packages, {', '.join(fields)}")
    if "packages" not in config:
        raise ValueError(f"{tool} of runtime_env is a dict without packages: {given!r}")
    for name, kind in fields.items():
        value = config.get(name, kind())
        if not isinstance(value, kind) or (kind is list and not all(isinstance(w, str) for w in value)):
            raise TypeError(f"{name} of runtime_env is a {'list of str' if kind is list else kind.__name__}, not {value!r}")
    packages = config["packages"]
    if isinstance(packages, (str, os.PathLike)):
        packages = list(_lines(Path(packages)))
    if not isinstance(packages, (list, tuple)) or not all(isinstance(p, str) for p in packages):
        raise TypeError(f"{tool} of runtime_env is a list of requirements, or the path of a file of them, not {given!r}")
    config["packages"] = list(dict.fromkeys(packages))
    return config


def _lines(file: Path) -> Iterator[str]:
    """Yields the lines of a requirement file, without comments. Continued lines are joined, nested files inlined, constraint paths made
    absolute."""
    for line in file.read_text().replace("\\\n", " ").splitlines():
        line = line.split(" #")[0].strip()
        words = line.replace("=", " ", 1).split(None, 1) if line.startswith("--") else [line[:2], line[2:].strip()]
        if words[0] in ("-r", "--requirement"):
            yield from _lines(file.parent / words[1])
        elif words[0] in ("-c", "--constraint"):
            yield f"-c {shlex.quote(str((file.parent / words[1]).resolve()))}"
        elif line and not line.startswith("#"):
            yield line


def end_of(env: dict[str, Any]) -> float | None:
    """The deadline (``time.monotonic``) for installing the packages of a runtime_env, or None without a timeout in its ``config``."""
    limit_s = env.get("config", {}).get("setup_timeout_seconds", -1)
    return time.monotonic() + limit_s if limit_s > 0 else None


def installed(tool: str, config: dict[str, Any], store: Path, end: float | None = None) -> str:
    """Returns a folder with these packages, from the tool's configured index. It is made once for each ``config``. Raises
    RuntimeEnvSetupError if that fails or exceeds ``end``."""
    text = json.dumps([sys.version, tool, config], sort_keys=True)
    target = store / (tool + "-" + hashlib.sha256(text.encode()).hexdigest()[:24])
    if target.exists():
        return str(target)
    making = Path(tempfile.mkdtemp(dir=store))
    try:
        with _requirements(config["packages"], store) as words:
            command, env = (_pip if tool == "pip" else _uv)(config, store, end)
            _run(tool, config, [*command, "--target", str(making), *words], env, end)
        if config.get(f"{tool}_check"):
            _run(tool, config, [sys.executable, "-m", "pip", "check"], {"PYTHONPATH": str(making)}, end)
        making.rename(target)
    except OSError:
        if not target.exists():  # another process may have made it meanwhile
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return str(target)


@contextlib.contextmanager
def _requirements(packages: list[str], store: Path) -> Iterator[list[str]]:
    """Yields the command line's words. Options are passed as they are; requirements go into a file, because they may have options."""
    options = [word for p in packages if p.startswith("-") for word in shlex.split(p)]
    with tempfile.NamedTemporaryFile("w", dir=store, suffix=".txt") as file:
        file.write("".join(f"{p}\n" for p in packages if not p.startswith("-")))
        file.flush()
        yield [*options, "-r", file.name]


def _pip(config: dict[str, Any], store: Path, end: float | None) -> tuple[list[str], dict[str, str]]:
    env = {}
    if version := config.get("pip_version"):  # another version of pip than this interpreter's
        env["PYTHONPATH"] = installed("pip", {"packages": [f"pip{version}"]}, store, end)
    options = config.get("pip_install_options", ["--disable-pip-version-check"])
    return [sys.executable, "-m", "pip", "install", "--quiet", *options], env


def _uv(config: dict[str, Any], store: Path, end: float | None) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else [shutil.which("uv") or ""]
    if not command[-1]:
        raise RuntimeEnvSetupError(
            "uv of runtime_env needs uv, which this host does not have", hint="pip install uv, or use pip of runtime_env"
        )
    if version := config.get("uv_version"):
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout.split()
        if len(said) < 2 or said[1] != version.removeprefix("=="):
            raise RuntimeEnvSetupError(f"uv of runtime_env asks for version {version}, but this host has {' '.join(said) or 'another'}")
    return [*command, "pip", "install", "--quiet", "--python", sys.executable, *config.get("uv_pip_install_options", ["--no-cache"])], {}


_TIDY_S = 5.0  # seconds for an interrupted installer to clean up


def _end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TIDY_S)
    process.kill()


def _run(tool: str, config: dict[str, Any], words: list[str], env: dict[str, str], end: float | None) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env}) as process:
        try:
            out, err = process.communicate(timeout=None if end is None else max(0.0, end - time.monotonic()))
        except BaseException as error:  # also an interrupt: the installer must not go on alone
            _end(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise RuntimeEnvSetupError(
                f"{tool} of runtime_env did not finish in time to install {', '.join(config['packages'])}",
                hint="set a larger setup_timeout_seconds in config of runtime_env",
            ) from None
    if process.returncode:
        last = "\n".join((err.strip() or out.strip()).splitlines()[-5:])
        verb = "found a conflict among" if words[-1] == "check" else "failed to install"
        raise RuntimeEnvSetupError(f"{tool} of runtime_env {verb} {', '.join(config['packages'])}:\n{last}")
