"""The variables of a Trainer's ranks."""

from shoal.train._ranks import Place, environments


def variables(*names, places):
    return [[e.get(name) for name in names] for e in environments(places)]


def test_ranks_count_within_their_node():
    places = [Place(node, f"host of {node}", 1) for node in ("a", "b", "a")]
    found = variables("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", places=places)
    assert found == [
        ["0", "0", "2", "0", "host of a", None],
        ["1", "0", "1", "1", "host of a", None],
        ["2", "1", "2", "0", "host of a", None],
    ]


def test_a_rank_sees_the_devices_of_its_node_in_the_order_of_local_ranks():
    places = [Place(node, "host", 1, device=device) for node, device in (("a", "3"), ("b", "0"), ("a", "GPU-7"))]
    assert variables("CUDA_VISIBLE_DEVICES", "SHOAL_LOCAL_DEVICE", "LOCAL_RANK", "SHOAL_DEVICE_TRANSPORT", places=places) == [
        ["3,GPU-7", "0", "0", None],
        ["0", "0", "0", None],
        ["3,GPU-7", "1", "1", None],
    ]


def test_ranks_that_share_a_device_copy_between_their_processes():
    places = [Place("a", "host", 1, device="0"), Place("a", "host", 1, device="0"), Place("b", "host", 1, device="0")]
    names = ("CUDA_VISIBLE_DEVICES", "SHOAL_LOCAL_DEVICE", "SHOAL_DEVICE_TRANSPORT")
    assert variables(*names, places=places) == [["0", "0", "cuda_ipc"]] * 3


def test_workers_with_devices_inherit_the_settings_of_their_libraries(monkeypatch, tmp_path):
    from shoal.train import _trainer

    for name in ("NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "SHOAL_TIMEOUT"):
        monkeypatch.setenv(name, "1")
    assert {"NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"}.isdisjoint(_trainer._settings(str(tmp_path), use_gpu=False))
    found = _trainer._settings(str(tmp_path), use_gpu=True)
    assert {"NCCL_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "SHOAL_TIMEOUT"} <= found.keys()
    assert "CUDA_VISIBLE_DEVICES" not in found
