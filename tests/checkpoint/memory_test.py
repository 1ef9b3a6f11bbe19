"""New memory for the tensors of a load: its pages get memory before the reads."""

import ctypes
import mmap

import pytest
import torch
from internals.checkpoint import _MADV_POPULATE_WRITE, CHUNK, Buffer, Reader, open_store

from shoal import checkpoint


def test_a_large_read_gets_all_of_its_new_memory_ahead(tmp_path, monkeypatch):
    large = torch.randn(2 * CHUNK // 4 + 1111)
    checkpoint.save(tmp_path, {"large": large})
    manifest, asked = checkpoint.read_manifest(tmp_path), []
    monkeypatch.setattr(Buffer, "populate", lambda buffer, begin, end: asked.append((begin, end, len(buffer))))
    with Reader(open_store(tmp_path), manifest) as reader:
        assert torch.equal(reader.fetch("large", manifest.tensors["large"]), large)
    begins, ends, (size, *_) = zip(*asked, strict=True)
    assert begins == (0, *ends[:-1])
    assert ends[-1] >= size > large.nbytes


def test_populated_pages_have_memory():
    page, num_pages = mmap.PAGESIZE, 8
    try:
        mmap.mmap(-1, page).madvise(_MADV_POPULATE_WRITE)
    except OSError:
        pytest.skip("a kernel before 5.14")
    buffer, found = Buffer(num_pages * page), (ctypes.c_ubyte * num_pages)()

    def with_memory():
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(buffer.address), ctypes.c_size_t(len(buffer)), found) == 0
        return [at for at, state in enumerate(found) if state & 1]

    assert with_memory() == []
    buffer.populate(2 * page, 5 * page)
    assert with_memory() == [2, 3, 4]
    buffer.populate(6 * page, 99 * page)  # it ends with the buffer
    assert with_memory() == [2, 3, 4, 6, 7]
