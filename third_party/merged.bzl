"""Sources that are compiled as a few files, for rooms whose files spend most of their compile time in the same headers."""

load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")
load("//third_party:single_threaded.bzl", "single_threaded_test")

def merged_library(name, srcs, parts = 1, textual_hdrs = [], **kwargs):
    """A cc_library whose sources (.cc) are compiled as `parts` files. Headers among srcs stay the library's own."""
    files = [s for s in srcs if s.endswith(".cc")]
    headers = [s for s in srcs if not s.endswith(".cc")]
    cc_library(name = name, srcs = merged(name, files, parts) + headers, textual_hdrs = files + textual_hdrs, **kwargs)

def merged_test(name, srcs, deps, parts = 1, single_threaded = False, **kwargs):
    """One program of a room's tests, whose sources are compiled as `parts` files."""
    files = [s for s in srcs if s.endswith(".cc")]
    headers = [s for s in srcs if not s.endswith(".cc")]
    cc_library(name = name + "_files", testonly = True, textual_hdrs = files)
    rule = single_threaded_test if single_threaded else cc_test
    rule(name = name, srcs = merged(name, files, parts) + headers, deps = deps + [name + "_files"], **kwargs)

def merged(name, srcs, parts):
    """Files `<name>_1.cc` to `<name>_<parts>.cc`, each of which includes its share of srcs in their order.

    A library names them as srcs, and the files themselves as textual_hdrs. Names in anonymous namespaces are shared by one part.
    """
    size = (len(srcs) + parts - 1) // parts
    outs = []
    for i in range(parts):
        out = "%s_%d.cc" % (name, i + 1)
        lines = "".join(["#include \\\"%s/%s\\\"\\n" % (native.package_name(), s) for s in srcs[i * size:(i + 1) * size]])
        native.genrule(name = "%s_part_%d" % (name, i + 1), outs = [out], cmd = "printf \"%s\" > $@" % lines)
        outs.append(out)
    return outs
