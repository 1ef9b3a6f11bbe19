"""Jobs over HTTP and by `shoal job`: submit, status, logs, stop, list and delete; access control."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import sys
import urllib.parse

import pytest
from launching.leftovers import wait_until

import shoal
from shoal.exceptions import InvalidArgument, Unavailable, Unimplemented
from shoal.job_submission import DriverInfo, JobStatus, JobSubmissionClient, JobType


@pytest.fixture
def cluster(shoal_command):
    yield shoal_command.start(cpus=2)
    shoal_command.json("stop")


@pytest.fixture
def client(cluster):
    return JobSubmissionClient()


def url_of(cluster) -> urllib.parse.SplitResult:
    return urllib.parse.urlsplit(json.loads((cluster.session / "info.json").read_text())["http"])


def ended(client, job) -> JobStatus:
    wait_until(lambda: client.get_job_status(job).is_terminal(), 60, "the job's end")
    return client.get_job_status(job)


# ---- the client


def test_a_job_is_submitted_followed_and_listed_afterwards(client, tmp_path):
    lines = ["import os, sys", "print('to out', os.environ['COLOUR'], flush=True)", "print('to err', file=sys.stderr)"]
    (tmp_path / "hello.py").write_text("\n".join(lines))
    job = client.submit_job(
        entrypoint=f"{sys.executable} hello.py && echo done",
        runtime_env={"working_dir": str(tmp_path), "env_vars": {"COLOUR": "blue"}},
        metadata={"team": "a"},
        submission_id="mine",
    )
    assert job == "mine"
    assert ended(client, job) == JobStatus.SUCCEEDED == "SUCCEEDED"
    assert client.get_job_logs(job) == "to out blue\nto err\ndone\n"
    info = client.get_job_info(job)
    assert (info.type, info.submission_id, info.entrypoint) == (JobType.SUBMISSION, "mine", f"{sys.executable} hello.py && echo done")
    assert info.metadata == {"team": "a"}
    assert info.runtime_env["env_vars"] == {"COLOUR": "blue"}
    assert info.driver_exit_code == 0
    assert info.start_time <= info.end_time
    assert [j.submission_id for j in client.list_jobs()] == ["mine"]
    assert client.get_job_info(info.job_id) == info
    assert client.delete_job(job)
    assert client.list_jobs() == []
    with pytest.raises(RuntimeError, match=r"404.*no job mine"):
        client.get_job_status(job)


def test_a_job_is_a_driver_of_the_cluster(client, shoal_command):
    script = shoal_command.script(
        """
        import shoal
        shoal.init()

        @shoal.remote
        class Speaker:
            def say(self):
                print("from the actor")
                return shoal.get_runtime_context().get_job_id()

        assert shoal.get(Speaker.remote().say.remote()) == shoal.get_runtime_context().get_job_id()
        print("job", shoal.get_runtime_context().get_job_id())
        """
    )
    job = client.submit_job(entrypoint=f"{sys.executable} {script}")
    assert ended(client, job) == JobStatus.SUCCEEDED, client.get_job_logs(job)
    text = client.get_job_logs(job)
    assert f"job {client.get_job_info(job).job_id}" in text
    assert "(Speaker) from the actor" in text


def test_a_jobs_variables_may_refer_to_existing_ones(client):
    variables = {"PATH": "/mine:${PATH}", "NEW": "<${NO_SUCH_VARIABLE}>"}
    job = client.submit_job(entrypoint='echo "$NEW" "$PATH"', runtime_env={"env_vars": variables})
    assert ended(client, job) == JobStatus.SUCCEEDED
    new, path = client.get_job_logs(job).split()
    assert new == "<>"
    assert path.startswith("/mine:")
    assert "/bin" in path
    assert "$" not in path


def test_the_command_accepts_the_http_address(shoal_command, cluster):
    url = url_of(cluster)
    other = shoal_command.start()
    for address in (url.geturl(), f"http://localhost:{url.port}/"):
        done = shoal_command("job", "submit", "--address", address, "--", "echo here")
        assert (done.returncode, "here" in done.stdout) == (0, True), done
    assert len(shoal_command.json("job", "list", "--address", url.geturl())["rows"]) == 2
    assert shoal_command.json("job", "list", "--address", other.address)["rows"] == []
    done = shoal_command("job", "list", "--address", "http://127.0.0.1:1")
    assert done.returncode == 5, done
    assert "no running cluster" in done.stderr
    assert shoal_command("stop", "--address", other.address).returncode == 0
    assert JobSubmissionClient(url.geturl(), verify=False).list_jobs()


def test_a_failed_job_has_its_exit_code(client):
    job = client.submit_job(entrypoint="echo sorry; exit 3")
    assert ended(client, job) == JobStatus.FAILED
    info = client.get_job_info(job)
    assert info.driver_exit_code == 3
    assert "exited with code 3" in info.message


def test_a_running_job_is_followed_and_stopped(client):
    job = client.submit_job(entrypoint="echo begun; exec sleep 600")

    async def first_lines(then=lambda: True):
        said = ""
        async for piece in client.tail_job_logs(job):
            said += piece
            if "begun" in said:
                assert then()
        return said

    assert asyncio.run(first_lines(lambda: client.stop_job(job))) == "begun\n"
    assert ended(client, job) == JobStatus.STOPPED
    assert not client.stop_job(job)
    assert asyncio.run(first_lines()) == "begun\n"  # the log of the stopped job is still there
    with pytest.raises(RuntimeError, match=r"400.*submitted"):
        client.submit_job(entrypoint="true", submission_id=job)


def test_following_a_silent_job_can_be_cancelled(client):
    job = client.submit_job(entrypoint="echo begun; exec sleep 600")

    async def give_up():
        begun = asyncio.Event()

        async def follow():
            async for _ in client.tail_job_logs(job):
                begun.set()

        following = asyncio.create_task(follow())
        await begun.wait()
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following

    asyncio.run(give_up())  # returns only when the thread that reads the log has ended, although the job prints nothing
    assert client.get_job_status(job) == JobStatus.RUNNING
    client.stop_job(job)
    assert ended(client, job) == JobStatus.STOPPED


def test_the_token_is_sent_to_no_other_host(cluster, monkeypatch):
    port = url_of(cluster).port
    for _ in range(2):
        with pytest.raises(InvalidArgument, check=lambda e: e.reason == "TokenRefused"):
            JobSubmissionClient(f"http://192.0.2.1:{port}")
        assert JobSubmissionClient(f"http://localhost:{port}").list_jobs() == []
        monkeypatch.setenv("SHOAL_TOKEN_FILE", str(cluster.session / "token"))


class Squatter:
    """A process that listens on loopback in the place of a head. It runs as ``user``, if given, answers one request, and records that
    request."""

    def __init__(self, user: int | None):
        here, there = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            if user is not None:
                os.setuid(user)
            server = socket.create_server(("127.0.0.1", 0))
            os.write(there, b"%d\n" % server.getsockname()[1])
            connection, _ = server.accept()
            while heard := connection.recv(4096):
                os.write(there, heard)
                if heard.endswith(b"\r\n\r\n"):
                    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"version": ""}')
            os._exit(0)
        os.close(there)
        self._file = os.fdopen(here, "rb")
        self.address = f"http://127.0.0.1:{int(self._file.readline())}"

    def heard(self) -> bytes:
        with self._file:
            out = self._file.read()
        os.waitpid(self._pid, 0)
        return out


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_port_taken_by_another_user_receives_nothing(cluster, monkeypatch):
    monkeypatch.setenv("SHOAL_TOKEN_FILE", str(cluster.session / "token"))
    squatter = Squatter(65534)
    with pytest.raises(InvalidArgument, match=r"not sent .* belongs to user 65534"):
        JobSubmissionClient(squatter.address)
    assert squatter.heard() == b""


def test_requests_carry_the_http_token_and_not_the_clusters(cluster, monkeypatch):
    monkeypatch.setenv("SHOAL_TOKEN_FILE", str(cluster.session / "token"))
    squatter = Squatter(None)
    JobSubmissionClient(squatter.address)
    heard = squatter.heard()
    assert (cluster.session / "http-token").read_bytes().strip() in heard
    assert (cluster.session / "token").read_bytes().strip() not in heard
    assert (cluster.session / "http-token").stat().st_mode & 0o777 == 0o600


def test_invalid_submissions_are_refused(client, tmp_path):
    def refused(match, **how):
        with pytest.raises(RuntimeError, match=match):
            client.submit_job(**{"entrypoint": "true", **how})

    refused("has no entrypoint", entrypoint="")
    refused("needs GPU 64", entrypoint_num_gpus=64)
    refused("this host has no folder", runtime_env={"working_dir": str(tmp_path / "absent")})
    refused("501.*cannot be an address", runtime_env={"working_dir": "https://example.com/x.zip"})
    refused("501.*labels", entrypoint_label_selector={"zone": "a"})
    refused("a forbidden character", submission_id="a/b")
    refused("metadata is an object of strings", metadata={"a": 1})
    refused("not negative", entrypoint_num_cpus=-1)
    with pytest.raises(Unimplemented):
        client.submit_job(entrypoint="true", runtime_env={"conda": "x"})
    running = client.submit_job(entrypoint="exec sleep 600")
    with pytest.raises(RuntimeError, match=r"400.*stop it first"):
        client.delete_job(running)
    client.stop_job(running)
    assert ended(client, running) == JobStatus.STOPPED


def test_a_runtime_env_is_prepared_before_the_entrypoint(client, tmp_path):
    module = tmp_path / "greeting"
    module.mkdir()
    (module / "__init__.py").write_text("text = 'hello from a module'\n")
    command = f"{sys.executable} -c 'import greeting; print(greeting.text)'"
    job = client.submit_job(entrypoint=command, runtime_env={"py_modules": [str(module)]})
    assert ended(client, job) == JobStatus.SUCCEEDED, client.get_job_logs(job)
    assert client.get_job_logs(job) == "hello from a module\n"


def test_an_embedded_cluster_serves_http_on_request(home):
    shoal.init(num_cpus=1, include_dashboard=True)
    try:
        client = JobSubmissionClient()
        (mine,) = client.list_jobs()
        assert mine.driver_info == DriverInfo(id=mine.job_id, node_ip_address=None, pid=str(os.getpid()))
        assert (mine.type, mine.driver_node_id, mine.driver_agent_http_address) == (JobType.DRIVER, None, None)
        assert ended(client, client.submit_job(entrypoint="true")) == JobStatus.SUCCEEDED
    finally:
        shoal.shutdown()
    shoal.init(num_cpus=1)
    try:
        with pytest.raises(Unavailable, match="no HTTP interface"):
            JobSubmissionClient()
    finally:
        shoal.shutdown()


# ---- access control


PATHS = [
    ("GET", "/api/version"),
    ("GET", "/api/jobs/"),
    ("POST", "/api/jobs/"),
    ("GET", "/api/jobs/x"),
    ("DELETE", "/api/jobs/x"),
    ("POST", "/api/jobs/x/stop"),
    ("GET", "/api/jobs/x/logs"),
    ("GET", "/api/jobs/x/logs/tail"),
    ("GET", "/api/v0/actors"),
    ("POST", "/"),
    ("GET", "/api/v1/about"),
    ("GET", "/api/v1/runs"),
    ("GET", "/api/v1/runs/x/summary"),
    ("GET", "/nonsense"),
    ("OPTIONS", "/api/jobs/"),
]


def test_every_path_needs_token_known_host_and_same_origin(cluster):
    url = url_of(cluster)
    token = (cluster.session / "http-token").read_text().strip()
    secret = (cluster.session / "token").read_text().strip()

    def status(method, path, **headers):
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        connection.request(method, path, "{}" if method == "POST" else None, {k: v for k, v in headers.items() if v is not None})
        response = connection.getresponse()
        assert "access-control-allow-origin" not in {name.lower() for name, _ in response.getheaders()}
        assert token not in response.read().decode()
        connection.close()
        return response.status

    right = f"Bearer {token}"
    for method, path in PATHS:
        assert status(method, path) == 401, (method, path)
        assert status(method, path, Authorization="Bearer " + "0" * 64) == 401, (method, path)
        assert status(method, path, Authorization="Bearer " + secret) == 401, (method, path)
        assert status(method, path, Authorization=right, Host="evil.example:" + str(url.port)) == 403, (method, path)
        assert status(method, path, Authorization=right, Origin="http://evil.example") == 403, (method, path)
        assert status(method, path, Authorization=right) not in (401, 403), (method, path)
    # The page of the dashboard contains no data.
    assert status("GET", "/") == 200
    assert status("GET", "/", Host="evil.example:" + str(url.port)) == 403
    assert status("GET", "/", Origin="http://evil.example") == 403
    assert status("GET", f"/api/version?token={token}") == 401
    assert status("GET", "/api/version", Cookie=f"token={token}") == 401
    assert status("PUT", "/api/jobs/", Authorization=right) == 405
    assert status("POST", "/api/jobs//stop", Authorization=right) == 404
    assert url.hostname == "127.0.0.1"


def test_a_client_of_http_1_0_gets_a_list_without_chunks(cluster, client):
    ended(client, client.submit_job(entrypoint="true", submission_id="only"))
    url, token = url_of(cluster), (cluster.session / "http-token").read_text().strip()
    with socket.create_connection((url.hostname, url.port), timeout=30) as s:
        s.sendall(f"GET /api/jobs/ HTTP/1.0\r\nHost: {url.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        answer = b""
        while part := s.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert [job["submission_id"] for job in json.loads(body)] == ["only"]


def test_a_hostile_client_loses_only_its_connection(cluster, client):
    url = url_of(cluster)

    def say(*pieces: bytes) -> bytes:
        with socket.create_connection((url.hostname, url.port), timeout=30) as s:
            try:
                for piece in pieces:
                    s.sendall(piece)
                answer = b""
                while part := s.recv(4096):
                    answer += part
            except ConnectionError:
                return b""
            return answer

    assert say(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert say(b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000)[:12] in (b"HTTP/1.1 431", b"")
    head = b"POST /api/jobs/ HTTP/1.1\r\nHost: " + url.netloc.encode() + b"\r\n"
    assert say(head + b"Content-Length: 99999999\r\n\r\n").startswith(b"HTTP/1.1 413")
    assert say(head + b"Transfer-Encoding: chunked\r\n\r\n").startswith(b"HTTP/1.1 501")
    silent = [socket.create_connection((url.hostname, url.port)) for _ in range(200)]
    assert client.list_jobs() == []  # silent connections do not block requests
    refused = [socket.create_connection((url.hostname, url.port)) for _ in range(200)]
    for s in refused:
        with contextlib.suppress(ConnectionError):  # the server may have closed the connection to make room
            s.sendall(b"nonsense\r\n\r\n")
    assert client.list_jobs() == []  # connections that were answered and stay open do not block requests either
    for s in silent + refused:
        s.close()


def test_the_http_interface_is_optional(shoal_command):
    said = shoal_command.json("start", "--head", "--port", "0", "--include-dashboard=false")
    assert said["http"] == ""
    shoal_command.json("stop")


def test_a_taken_dashboard_port_is_an_error(shoal_command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = shoal_command("start", "--head", "--port", "0", "--dashboard-port", str(taken.getsockname()[1]))
        assert done.returncode == 1, done
        assert "--dashboard-port" in done.stderr


# ---- the command


def test_the_command_follows_a_job_and_prints_its_result(shoal_command, cluster):
    (shoal_command.home / "work").mkdir()
    done = shoal_command("job", "submit", "--submission-id", "first", "--working-dir", "work", "--", "sh", "-c", "echo it is; pwd")
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[:2] == ["it is", str(shoal_command.home / "work")]
    assert "Job first is SUCCEEDED." in done.stdout
    assert shoal_command("job", "submit", "--", "exit 3").returncode == 1
    assert shoal_command.json("job", "status", "first")["status"] == "SUCCEEDED"
    for words in (("job", "list"), ("list", "jobs")):
        assert " first " in shoal_command(*words).stdout, words
    assert "it is" in shoal_command("job", "logs", "first").stdout
    assert shoal_command("job", "delete", "first").returncode == 0
    assert shoal_command("job", "status", "first").returncode == 3
    assert [r["entrypoint"] for r in shoal_command.json("job", "list")["rows"]] == ["exit 3"]
    assert shoal_command("job", "submit").returncode == 2
    assert shoal_command("job", "submit", "--runtime-env-json", "[]", "--", "true").returncode == 1


ENVIRONMENT = """
# what the job finds around it
env_vars:
  COLOUR: blue
working_dir: work
"""


def test_the_command_reads_an_environment_as_yaml_or_json(shoal_command, cluster):
    (shoal_command.home / "work").mkdir()
    for text in (ENVIRONMENT, '{"env_vars": {"COLOUR": "blue"}, "working_dir": "work"}'):
        (shoal_command.home / "env").write_text(text)
        done = shoal_command("job", "submit", "--runtime-env", "env", "--", "sh", "-c", "echo $COLOUR; pwd")
        assert done.stdout.splitlines()[:2] == ["blue", str(shoal_command.home / "work")], done


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env_vars:\n  A: 1\n B: 2\n", "env, line 3, column 2: "),
        ("env_vars: {A: 1\n", "env, line 2, column 1: "),
        ("- env_vars\n", "is no runtime_env"),
        ("env_vars:\n  A: 1\n", "env_vars of runtime_env is an object of strings by strings"),
        ("colour: blue\n", "runtime_env has no colour"),
        (None, "no file env"),
    ],
)
def test_an_invalid_environment_file_is_refused_with_its_line(shoal_command, text, said):
    if text is not None:
        (shoal_command.home / "env").write_text(text)
    done = shoal_command("job", "submit", "--runtime-env", "env", "--", "true")
    assert done.returncode == (1 if text else 3), done
    assert said in done.stderr, done.stderr


def test_the_command_stops_a_job_and_detaches(shoal_command, cluster):
    done = shoal_command("job", "submit", "--json", "--no-wait", "--submission-id", "long", "--", "echo begun; exec sleep 600")
    assert json.loads(done.stdout)["submission_id"] == "long"
    following = shoal_command.popen("job", "logs", "-f", "long")
    following.said("begun")
    following.signal(2)
    assert following.code() == 130
    assert "goes on" in following.err
    assert shoal_command.json("job", "status", "long")["status"] == "RUNNING"
    assert shoal_command.json("job", "stop", "long")["status"] == "STOPPED"
    assert shoal_command("job", "status", "long").returncode == 1


def test_a_submitted_script_is_listed_as_a_job(shoal_command, cluster, client):
    assert shoal_command("submit", "--", "echo", "hello").returncode == 0
    (job,) = client.list_jobs()
    assert job.entrypoint == "echo hello"
    assert client.get_job_logs(job.submission_id) == "hello\n"
    assert os.path.exists(cluster.session)
