"""cuda_fatbin: CUDA kernels as bytes of a library, which the driver loads at run time. Nothing links a library of CUDA."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("@cuda//:defs.bzl", "NVCC", "RELEASE")

# Machine code for A100, H100 and H200, B200; and PTX, which the driver compiles for what comes later.
ARCHS = ["80", "90", "100"]

def cuda_fatbin(name, src, symbol, hdrs, flags = [], **kwargs):
    """A library with `const unsigned char SYMBOL[]` and `const unsigned SYMBOL_bytes`, which is 0 if this build has no nvcc.

    Products and sums are not contracted: kernels say fma where they mean it, and have the bits of the host's references.
    """
    targets = ["-gencode arch=compute_%s,code=sm_%s" % (a, a) for a in ARCHS] + ["-gencode arch=compute_{0},code=compute_{0}".format(ARCHS[-1])]
    compile = " ".join([NVCC, "-std=c++17 -O3 -fmad=false -fatbin -I."] + flags + targets + ["-o $@ $(location %s)" % src])
    native.genrule(
        name = name + "_fatbin",
        srcs = [src] + hdrs,
        outs = [name + ".fatbin"],
        cmd = "# %s\n%s" % (RELEASE, compile) if NVCC else "touch $@",  # another compiler is another cache key
    )
    native.genrule(
        name = name + "_bytes",
        srcs = [name + ".fatbin"],
        outs = [name + ".S"],
        cmd = "\n".join([
            "cat > $@ <<'END'",
            ".section .rodata",
            ".global {0}, {0}_bytes",
            ".balign 16",
            "{0}: .incbin \"$(location {1}.fatbin)\"",
            "1: .balign 4",
            "{0}_bytes: .long 1b - {0}",
            ".section .note.GNU-stack,\"\",@progbits",
            "END",
        ]).format(symbol, name),
    )
    cc_library(name = name, srcs = [name + ".S"], textual_hdrs = [name + ".fatbin"], **kwargs)
