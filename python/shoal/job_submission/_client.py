"""``JobSubmissionClient``. Names and semantics are Ray's."""

from __future__ import annotations

import asyncio
import codecs
import os
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

from shoal._driver.http import Http, refusal
from shoal._runtime_env.environment import check
from shoal.job_submission._details import JobDetails, JobStatus

__all__ = ["JobSubmissionClient"]


class JobSubmissionClient:
    """``address``: ``"http://HOST:PORT"`` of a cluster's HTTP interface (``shoal start --head`` prints it). The default is this process's
    cluster, else the running one. ``headers`` are sent with every request.

    The token is found only for a cluster on this host. For another host, forward the port (``ssh -L``), with the cluster's token in the
    file that ``$SHOAL_TOKEN_FILE`` names. Or give ``headers={"Authorization": "Bearer TOKEN"}`` with its session's ``http-token``. Methods
    raise RuntimeError for refused requests, and Unavailable without an answer."""

    def __init__(
        self,
        address: str | None = None,
        create_cluster_if_needed: bool = False,
        cookies: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        verify: str | bool | None = True,
        **kwargs: Any,
    ):
        del create_cluster_if_needed, cookies, verify, kwargs  # Ray's arguments, for cookies and certificates
        self._metadata = dict(metadata or {})
        self._http = Http(address, headers)
        self._http.request("GET", "/api/version")  # an early check of address and token

    def get_address(self) -> str:
        return self._http.address

    def get_version(self) -> str:
        return self._http.request("GET", "/api/version")["version"]

    def submit_job(
        self,
        *,
        entrypoint: str,
        job_id: str | None = None,
        runtime_env: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        submission_id: str | None = None,
        entrypoint_num_cpus: float | None = None,
        entrypoint_num_gpus: float | None = None,
        entrypoint_memory: int | None = None,
        entrypoint_resources: dict[str, float] | None = None,
        entrypoint_label_selector: dict[str, str] | None = None,
    ) -> str:
        """Starts a shell command line as a job; returns its submission id. ``runtime_env``: ``working_dir`` (a folder or .zip on the
        cluster's host; a folder is used in place), ``env_vars``, ``pip``, ``py_modules``, ``excludes``. The resources are those of the
        entrypoint's own process. A job that no node can ever run is refused."""
        env = check(runtime_env)
        if "working_dir" in env and "://" not in str(env["working_dir"]):
            env = {**env, "working_dir": os.path.abspath(os.path.expanduser(env["working_dir"]))}
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id or job_id,
            "runtime_env": env or None,
            "metadata": {**self._metadata, **(metadata or {})},
            "entrypoint_num_cpus": entrypoint_num_cpus,
            "entrypoint_num_gpus": entrypoint_num_gpus,
            "entrypoint_memory": entrypoint_memory,
            "entrypoint_resources": entrypoint_resources,
            "entrypoint_label_selector": entrypoint_label_selector,
        }
        said = self._http.request("POST", "/api/jobs/", {k: v for k, v in body.items() if v is not None})
        return said["submission_id"]

    def list_jobs(self) -> list[JobDetails]:
        return [JobDetails.from_row(row) for row in self._http.request("GET", "/api/jobs/")]

    def get_job_info(self, job_id: str) -> JobDetails:
        return JobDetails.from_row(self._http.request("GET", _path(job_id)))

    def get_job_status(self, job_id: str) -> JobStatus:
        return self.get_job_info(job_id).status

    def stop_job(self, job_id: str) -> bool:
        """Ends a job, with SIGTERM, then SIGKILL. False if it had ended already."""
        return self._http.request("POST", _path(job_id, "stop"))["stopped"]

    def delete_job(self, job_id: str) -> bool:
        """Removes the record of an ended job."""
        return self._http.request("DELETE", _path(job_id))["deleted"]

    def get_job_logs(self, job_id: str) -> str:
        """The output of the entrypoint so far, at most the last 16 MiB of each of its processes."""
        return self._http.request("GET", _path(job_id, "logs"))["logs"]

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """Yields the entrypoint's output in pieces, from the beginning until it ends."""
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(None, lambda: self._http.open("GET", _path(job_id, "logs/tail"), patient=True))
        try:
            if response.status != 200:
                raise refusal(response.status, response.read().decode())
            decode = codecs.getincrementaldecoder("utf-8")("replace").decode
            while piece := await loop.run_in_executor(None, response.read1, 65536):
                if text := decode(piece):
                    yield text
        finally:
            response.close()


def _path(job_id: str, what: str = "") -> str:
    return f"/api/jobs/{urllib.parse.quote(job_id, safe='')}" + (f"/{what}" if what else "")
