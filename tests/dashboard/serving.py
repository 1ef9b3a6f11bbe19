"""A dashboard that a test serves, and requests to it as a browser sends them."""

import http.client
import json
import urllib.parse
from dataclasses import dataclass

from launching.leftovers import wait_until


@dataclass
class Dashboard:
    url: str  # with the token
    running: object

    @property
    def address(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.url)

    @property
    def token(self) -> str:
        return self.address.fragment.removeprefix("token=")

    def request(self, path: str, method: str = "GET", **headers: str | None) -> tuple[int, dict[str, str], str]:
        """Status, headers and body. Headers of None are left out."""
        connection = http.client.HTTPConnection(self.address.netloc, timeout=60)
        sent = {"Authorization": f"Bearer {self.token}", **headers}
        connection.request(method, path, headers={name: value for name, value in sent.items() if value is not None})
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body

    def json(self, path: str) -> dict:
        status, _, body = self.request(path)
        assert status == 200, body
        return json.loads(body)


def serve(shoal_command, *words: object) -> Dashboard:
    running = shoal_command.popen("dashboard", *words)
    running.said("#token=")
    wait_until(lambda: "\n" in running.out, 10, "the address")
    return Dashboard(running.out.splitlines()[0], running)
