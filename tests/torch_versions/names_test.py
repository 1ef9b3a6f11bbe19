"""Every name of torch that the package uses is in the record, with the versions of torch that lack it."""

import warnings

import names

# Names that some versions lack, and what the package does there.
_HOOKS = "torch._C._distributed_c10d."
GUARDED = {
    **{_HOOKS + name: "shoal.torch refuses hooks" for name in ("PreHookArgs", "PostHookArgs", "HookOpName")},
    **{f"{_HOOKS}HookOpName.{name}": "shoal.torch refuses hooks" for name in ("BROADCAST", "__members__")},
    "torch.distributed.fsdp.DataParallelMeshDims": "shoal.fsdp has None in its place",
}


def test_all_supported_versions_are_recorded():
    versions, _ = names.recorded()
    assert versions == ["2.11", "2.12", "2.13", "2.14", "2.15"]


def test_the_record_has_the_names_that_the_package_uses():
    _, known = names.recorded()
    assert names.used() == set(known), "run `python tests/torch_versions/names.py` with each supported version of torch"


def test_the_installed_torch_has_the_names_that_the_record_says():
    versions, known = names.recorded()
    assert names.VERSION in versions, f"torch {names.VERSION} is not among the supported versions"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        differ = {name for name, absent in known.items() if names.exists(name) != (names.VERSION not in absent)}
    assert not differ


def test_a_name_that_a_version_lacks_is_guarded():
    _, known = names.recorded()
    assert {name for name, absent in known.items() if absent} == set(GUARDED)
