"""What workers on other nodes than the driver's print, and how they end: with two nodes on one host, and on two."""

import pytest
from two_nodes import DRIVER, KINDS, two_nodes

SPEAKER = """
@shoal.remote(num_cpus=0)
class Speaker:
    def say(self, text):
        print(text, flush=True)
        print(text, file=sys.stderr, flush=True)
        return os.getpid()

    def say_there(self, text):
        return shoal.get(Speaker.options(label_selector={"host": "b"}).remote().say.remote(text))

def speaker(host):
    return Speaker.options(label_selector={"host": host}).remote()

(ip,) = {n["host"] for n in shoal.nodes() if n["labels"]["host"] == "b"}
"""


@pytest.fixture(scope="module", params=KINDS)
def nodes(request):
    yield from two_nodes(request.param)


def run(nodes, body):
    driver = nodes.a.driver("import sys\n" + DRIVER + SPEAKER + body, HEAD=nodes.address)
    assert driver.code(90) == 0, driver.err
    return driver.out, driver.err


def test_a_driver_shows_what_its_workers_print_wherever_they_are(nodes):
    out, err = run(
        nodes,
        """
here, there = speaker("a"), speaker("b")
print("expected", ip, *shoal.get([here.say.remote("from here"), there.say.remote("from there"), here.say_there.remote("from a child")]))
""",
    )
    ip, here, there, child = next(line.split()[1:] for line in out.splitlines() if line.startswith("expected"))
    at = f", ip={ip}" if nodes.hosts else ""
    for text in (out, err):
        assert f"(Speaker pid={here}) from here\n" in text
        assert f"(Speaker pid={there}{at}) from there\n" in text
        assert f"(Speaker pid={child}{at}) from a child\n" in text
        assert text.count("from there") == 1


def test_nothing_of_another_job_is_shown(nodes):
    for text, other in (("from one job", "from another"), ("from another", "from one job")):
        said = "".join(run(nodes, f"shoal.get(speaker('b').say.remote({text!r}))"))
        assert text in said
        assert other not in said


def test_log_to_driver_false_shows_nothing(nodes):
    said = run(
        nodes,
        """
shoal.shutdown()
shoal.init(address=os.environ["HEAD"], log_to_driver=False)
shoal.get(speaker("b").say.remote("from there"))
""",
    )
    assert "from there" not in "".join(said)
