"""@cuda//:defs.bzl: where nvcc is. NVCC is "" on a machine without it, where everything else still builds (cuda.bzl)."""

load(":python.bzl", "find_package")

def _nvcc(ctx):
    # The wheel nvidia-cuda-nvcc puts the compiler into the folder nvidia/cu13 of the Python environment (requirements-cuda.txt).
    wheel = find_package(ctx, "nvidia.cu13")
    named = ctx.os.environ.get("SHOAL_NVCC")
    places = [named, ctx.which("nvcc"), "/usr/local/cuda/bin/nvcc", wheel + "/bin/nvcc" if wheel else None]
    if named == "none":  # builds as on a machine without nvcc
        places = []
    nvcc, release = "", ""
    for place in places:
        if not place or nvcc or not ctx.path(str(place)).exists:
            continue
        # An older one does not know sm_100, and is passed over.
        version = ctx.execute([str(place), "--version"]).stdout
        if "release 13." in version or "release 12.9" in version or "release 12.8" in version:
            nvcc, release = str(place), version.strip().split("\n")[-1]
    ctx.file("defs.bzl", "NVCC = %r\nRELEASE = %r\n" % (nvcc, release))
    ctx.file("BUILD", "")

nvcc = repository_rule(implementation = _nvcc, environ = ["SHOAL_NVCC", "SHOAL_PYTHON", "PATH"], local = True, configure = True)
