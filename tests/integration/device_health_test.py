"""GPUs of a host in doctor, status and metrics, with a fake of NVIDIA's management library."""

import os
import pathlib

import pytest

BUILT = "runtime/device/nvml/fake/libfake_nvml.so"
ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = next((str(p) for p in (ROOT / BUILT, ROOT / "bazel-bin" / BUILT) if p.exists()), BUILT)


@pytest.fixture
def gpus(shoal_command):
    """The environment of a host with three GPUs: one that this process uses, one in two slices, one that is lost."""
    return shoal_command.env(SHOAL_NVML_LIBRARY=LIBRARY, SHOAL_FAKE_NVML=f"ecc=3 pid={os.getpid()}; mig=2; lost")


def test_doctor_has_a_line_for_each_device_with_a_remedy(shoal_command, gpus):
    done = shoal_command("doctor", env=gpus)
    said = shoal_command.json("doctor", code=done.returncode, env=gpus)
    used, divided, lost = (c for c in said["checks"] if c["name"].startswith("gpu "))
    assert [c["verdict"] for c in (used, divided, lost)] == ["warning"] * 3
    assert "GPU-0, 1.0 GiB of 80.0 GiB used" in used["found"]
    assert f"used by process {os.getpid()} (" in used["found"]
    assert "3 uncorrected ECC errors" in used["found"]
    assert "nvidia-smi --gpu-reset -i 0" in used["fix"]
    assert "2 MIG slices: MIG-1-0 (1.0 GiB of 10.0 GiB used), MIG-1-1" in divided["found"]
    assert "CUDA_VISIBLE_DEVICES=MIG-1-0,MIG-1-1" in divided["fix"]
    assert "lost" in lost["found"]
    assert "xid" in lost["fix"]
    assert all(c["found"] in done.stdout and c["fix"] in done.stdout for c in (used, divided, lost))


def test_status_and_metrics_have_the_devices_of_a_node(shoal_command, gpus):
    cluster = shoal_command.json("start", "--head", "--port", "0", "--num-cpus", "1", "--num-gpus", "1", env=gpus)
    try:
        first, second, third = shoal_command.json("status", "-v")["devices"]
        assert (first["gpu"], first["uuid"], first["processes"], first["faults"]) == (0, "GPU-0", 1, ["ecc"])
        assert (first["memory_used_bytes"], first["memory_total_bytes"], first["utilization"]) == (1 << 30, 80 << 30, 0.25)
        assert [s["uuid"] for s in second["slices"]] == ["MIG-1-0", "MIG-1-1"]
        assert third["faults"] == ["lost"]
        text = shoal_command("status", "-v").stdout
        assert "gpu 0  NVIDIA H100 80GB HBM3  1.0 GiB of 80.0 GiB, 25 % busy, 1 processes; faults: ecc" in text
        series = shoal_command("metrics").stdout
        for name in ("memory_used_bytes", "utilization_ratio", "processes", "fault", "slice_memory_total_bytes"):
            assert f"shoal_node_gpu_{name}{{" in series
    finally:
        assert shoal_command("stop", "--address", cluster["address"]).returncode in (0, 3)
