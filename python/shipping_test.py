"""Zip files of a runtime_env: equal bytes for equal files, no paths outside of the target, and the packages that a host keeps."""

import io
import json
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from shoal._runtime_env import environment, shipping
from shoal.exceptions import DataLoss, RuntimeEnvSetupError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a.txt").write_text("a")
    (tmp_path / "in" / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "in" / "run.sh").chmod(0o755)
    return tmp_path / "in"


def packed(folder):
    file = io.BytesIO()
    return shipping.pack(shipping.files_in(folder), file), file.getvalue()


def test_equal_files_are_one_package_for_any_mtime(folder):
    before = packed(folder)
    (folder / "deep" / "a.txt").write_text("a")
    assert packed(folder) == before
    (folder / "run.sh").chmod(0o700)
    assert packed(folder)[0] != before[0]


def test_a_package_round_trips(folder, tmp_path):
    _, data = packed(folder)
    assert shipping.unpack(io.BytesIO(data), tmp_path / "out") == len("a#!/bin/sh")
    assert (tmp_path / "out" / "deep" / "a.txt").read_text() == "a"
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755


def test_an_empty_folder_is_a_package(tmp_path):
    _, data = packed(tmp_path)
    assert shipping.unpack(io.BytesIO(data), tmp_path / "out") == 0
    assert list((tmp_path / "out").iterdir()) == []


def zip_with(name, text="x", mode=stat.S_IFREG | 0o644):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        archive.writestr(entry, text)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "file",
    [
        zip_with("../out.txt"),
        zip_with("in/../../out.txt"),
        zip_with("/etc/out.txt"),
        zip_with("link", "/etc/passwd", stat.S_IFLNK | 0o777),
        zip_with("pipe", "", stat.S_IFIFO | 0o644),
    ],
)
def test_paths_outside_of_the_target_are_refused_before_any_write(file, tmp_path):
    with pytest.raises(RuntimeEnvSetupError, match="forbidden entry"):
        shipping.unpack(file, tmp_path / "in" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_unpacks_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MAX_BYTES", 1000 << 10)
    with pytest.raises(RuntimeEnvSetupError, match="unpacks to 1 MiB"):
        shipping.unpack(zip_with("large", "0" * (1 << 20)), tmp_path / "out")


def test_a_package_with_too_many_entries_is_refused_before_any_write(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MAX_ENTRIES", 10)
    with pytest.raises(RuntimeEnvSetupError, match="more than 10 files and folders"):
        shipping.unpack(zip_with("deep/" * 10 + "a"), tmp_path / "out")
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for i in range(11):
            archive.writestr(str(i), "")
    loaded = []
    monkeypatch.setattr(zipfile, "ZipFile", loaded.append)
    with pytest.raises(RuntimeEnvSetupError, match="more than 10 entries"):
        shipping.unpack(many, tmp_path / "out")
    assert loaded == []  # refused by its own count, before a description of each entry is loaded
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(RuntimeEnvSetupError, match="a path of 6001 characters"):
        shipping.unpack(zip_with("a/" * 3000 + "a"), tmp_path / "out")


def test_files_of_one_folder_count_their_parents_once(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MAX_ENTRIES", 10)
    files = io.BytesIO()
    with zipfile.ZipFile(files, "w") as archive:
        for i in range(7):
            archive.writestr(f"a/b/c/{i}", "")
    assert shipping.unpack(files, tmp_path / "out") == 0


def test_a_working_dir_with_too_many_entries_is_refused_where_it_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "MAX_ENTRIES", 10)
    (tmp_path / "a").mkdir()
    for i in range(9):
        (tmp_path / "a" / str(i)).touch()
    assert len(environment.chosen(tmp_path, [], "working_dir")) == 9
    (tmp_path / "b").touch()
    with pytest.raises(RuntimeEnvSetupError, match="11 files and folders"):
        environment.chosen(tmp_path, [], "working_dir")


def test_a_package_that_is_damaged_in_the_middle_leaves_no_folder(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "first")
        archive.writestr("b", "second")
    (tmp_path / "p.zip").write_bytes(file.getvalue().replace(b"second", b"secona", 1))
    with pytest.raises(zipfile.BadZipFile):
        shipping.unpack(tmp_path / "p.zip", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["p.zip"]


def test_a_working_dir_that_cannot_be_unpacked_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "given.zip").write_bytes(zip_with("../out.txt").read())
    monkeypatch.setattr(environment, "session", lambda: SimpleNamespace(folder=tmp_path))
    with pytest.raises(RuntimeEnvSetupError, match="forbidden entry"):
        environment._kept(str(tmp_path / "given.zip"), [], "working_dir")
    assert list((tmp_path / "files").iterdir()) == []


class Head:
    """A head that serves packages in small parts."""

    def __init__(self):
        self.packages, self.asked = {}, []

    def get_package(self, name, offset):
        self.asked.append(name)
        return len(self.packages[name]), self.packages[name][offset : offset + 100]


@pytest.fixture
def host(tmp_path, monkeypatch, folder):
    """A process on another host than the packages' creator."""
    head = Head()
    monkeypatch.setattr(shipping, "attach_worker", lambda: head)
    monkeypatch.setenv("SHOAL_SESSION", str(tmp_path / "session"))
    (tmp_path / "session").mkdir()
    head.name, head.packages = packed(folder)[0], dict([packed(folder)])
    return head


def told(monkeypatch, of, env):
    monkeypatch.setenv("SHOAL_PACKAGES", json.dumps({"store": "/far/files", "of": of}))
    monkeypatch.setenv("SHOAL_RUNTIME_ENV", json.dumps(env))


def test_paths_are_local_and_each_package_is_fetched_once(host, tmp_path, monkeypatch):
    import os

    given = {"working_dir": "/far/files/1", "py_modules": ["/far/files/1/deep"]}
    for _ in range(2):
        told(monkeypatch, {"/far/files/1": host.name}, given)
        cwd, path = shipping.settle("/far/files/1", ["/far/files/1", "/far/files/10", "/usr/lib"])
        here = str(tmp_path / "session" / "files" / host.name[:24])
        assert (cwd, path) == (here, [here, "/far/files/10", "/usr/lib"])
        assert json.loads(os.environ["SHOAL_RUNTIME_ENV"]) == {"working_dir": here, "py_modules": [here + "/deep"]}
        assert json.loads(os.environ["SHOAL_PACKAGES"])["of"] == {here: host.name}
    assert len(host.asked) == -(-len(host.packages[host.name]) // 100)
    assert shipping.settle(cwd, path) == (cwd, path)  # local paths stay unchanged
    assert sorted(p.name for p in (tmp_path / "session" / "files").iterdir()) == [host.name[:24] + end for end in ("", ".bringing", ".use")]


def test_a_half_unpacked_package_is_unpacked_again(host, tmp_path, monkeypatch):
    half = tmp_path / "session" / "files" / (host.name[:24] + ".making")
    half.mkdir(parents=True)
    (half / "rubbish").write_text("")
    told(monkeypatch, {"/far/files/1": host.name}, {})
    cwd, _ = shipping.settle("/far/files/1", [])
    assert sorted(p.name for p in tmp_path.joinpath(cwd).iterdir()) == ["deep", "run.sh"]
    assert not half.exists()


def test_a_package_with_a_wrong_hash_is_refused(host, tmp_path, monkeypatch):
    host.packages["0" * 64] = host.packages[host.name]
    told(monkeypatch, {"/far/files/1": "0" * 64}, {})
    with pytest.raises(DataLoss, match="other content"):
        shipping.settle("/far/files/1", [])
    assert not (tmp_path / "session" / "files" / ("0" * 24)).exists()


def test_an_environment_without_packages_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_SESSION", str(tmp_path))
    monkeypatch.delenv("SHOAL_PACKAGES", raising=False)
    assert shipping.settle("/work", ["/lib"]) == ("/work", ["/lib"])
    monkeypatch.setenv("SHOAL_PACKAGES", json.dumps({"store": str(tmp_path / "files"), "of": {"/work": "0" * 64}}))
    assert shipping.settle("/work", ["/lib"]) == ("/work", ["/lib"])


def test_a_waiter_fetches_a_package_whose_first_fetch_failed(host, tmp_path, monkeypatch):
    begun, go, fetches, get_package = threading.Event(), threading.Event(), [], host.get_package

    def get_late(name, offset):
        begun.set()
        assert go.wait(60)
        fetches.extend([name] if offset == 0 else [])
        if len(fetches) == 1:
            raise DataLoss("the first of them")
        return get_package(name, offset)

    monkeypatch.setattr(host, "get_package", get_late)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(shipping._fetched, host.name, tmp_path) for _ in range(4)]
        assert begun.wait(60)
        go.set()
        failed = [f for f in asked if f.exception(60)]
        assert len(failed) == 1
        assert {f.result() for f in asked if f not in failed} == {str(tmp_path / host.name[:24])}
    assert len(fetches) == 2  # all hold the package, and none waits for another


def test_a_package_is_sent_as_it_was_before_any_use(folder, tmp_path):
    shipping.keep_packed(folder, tmp_path / "kept.zip")
    before = packed(folder)
    (folder / "written.by.a.worker").write_text("x")
    with (tmp_path / "kept.zip").open("rb") as file:
        assert shipping.digest_of(file) == before[0]
    assert packed(folder)[0] != before[0]
