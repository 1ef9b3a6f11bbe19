"""single_threaded_test: a cc_test without threads, which is left out under ThreadSanitizer."""

load("@rules_cc//cc:defs.bzl", "cc_test")

def single_threaded_test(name, deps, tags = [], **kwargs):
    """ThreadSanitizer finds nothing where one thread runs: .bazelrc filters the tag. A test that creates a thread all the same aborts."""
    cc_test(name = name, deps = deps + ["//third_party:no_threads"], tags = tags + ["single_threaded"], **kwargs)
