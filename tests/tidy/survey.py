"""The survey of the repository's sources: faults of words and layers, and sizes."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tidy import cpp_scan, names, python_scan
from tidy.sentences import blocks, faults, sentences

CPP = (".cc", ".h", ".cu")
SOURCES = (*CPP, ".py", ".capnp", ".sh")
STARLARK = (".bzl", "BUILD", "WORKSPACE")
READ = (*SOURCES, *STARLARK, ".md", "dev")
FOREIGN = "third_party/nccl"  # headers as NVIDIA has written them
LEFT_OUT = ("bazel-", ".", "__pycache__", "out", "dist")  # folders that begin so are not the repository's sources

MOST_FILES = 20  # in a folder without a reason

CLOCK = re.compile(r"_clock::now\b|\b(?:clock_gettime|gettimeofday|timespec_get)\b|(?<![\w.>])time\s*\(\s*(?:nullptr|NULL|0|&\w+)\s*\)")
LOCK = re.compile(r"\bstd::(?:\w*mutex|condition_variable\w*)\b(?!\s*>)")
# Calls by which Python's host waits for a device, in rooms that run within a training step.
HOST_WAIT = re.compile(r"\.(?:item|tolist|cpu|synchronize)\(\)|\.to\((?:device=)?\"cpu\"")
STEP_ROOMS = tuple(f"python/shoal/{room}/" for room in ("fsdp/_devices", "fsdp/_engine", "fsdp/_parameters", "optim"))
INCLUDE = re.compile(r'^#include "(\w+)/', re.MULTILINE)
INCLUDED_FOLDER = re.compile(r'^\s*#\s*include\s*["<]([\w/-]+)/[^">/]+[">]', re.MULTILINE)
PRIVATE = re.compile(r"^ *(?:(?:from|import) shoal[\w.]*\._[a-z].*|from shoal[\w.]* import (?:.*\W)?_[a-z]\w*)", re.MULTILINE)
# A test replaces a private name of others: by a patch, or by an assignment to an attribute of another object than `self`.
PATCH = re.compile(
    r"""^(?!\s*\#).*\b(?:setattr|patch\.object)\([^\n]*?,\s*"_[a-z]\w*"
      | ^(?!\s*\#).*\bpatch\("[\w.]*\._[a-z]\w*"
      | ^[ ]*(?!self\b|cls\b)\w[\w.()\[\]]*\._[a-z]\w*\ =\ """,
    re.MULTILINE | re.VERBOSE,
)
TEST_FILE = re.compile(r"_tests?(_\d+)?\.cc$|_fixture\.h$|/tested_\w+\.h$")
# A source file that a comment names with a folder. Its first folder follows no part of a longer path, and no "<" as in <sys/socket.h>.
CITED = re.compile(r"(?<![\w./<>{}*$~-])(?:[\w.-]+/)+[\w.-]*\w\.(?:h|cc|cu|py|capnp|sh)\b(?![/*])")
# The top-level folders whose headers each of them may include, besides its own (ARCHITECTURE.md, "Folders").
BELOW = {
    "runtime": (),
    "actors": ("runtime",),
    "storage": ("runtime",),
    "scheduler": ("runtime", "actors", "storage"),
    "fsdp": ("runtime", "actors", "storage"),
    "python": ("runtime", "actors", "storage", "scheduler", "fsdp"),
}

# The layers of the package shoal, the lowest first (python/README.md). A module may import modules of its own name, of the names before it
# in its layer, and of the layers below. A name stands for a module and for the modules below it that have no longer name here. A name with
# a dot at its end leaves out the package's __init__.py. "" is shoal/__init__.py.
LAYERS = (
    # this process in a cluster
    ("_printable", "exceptions", "cloudpickle", "_core"),
    # objects, actors, tasks
    ("_objects", "_runtime_env", "_actors", "_tasks"),
    # both ends of a session, and the ranks of a mesh
    ("_worker", "_driver", "_distributed"),
    # Ray's public modules
    ("_raylet", "actor", "remote_function", "runtime_env", "types", "util", "cluster_utils", "dag", "job_submission", "runtime_context"),
    # collectives and optimizers
    ("optim", "collective", "torch", "_stored_names"),
    # sharded parameters on their devices
    ("fsdp._errors", "fsdp._names", "fsdp._ranges", "fsdp._draw", "fsdp._parameters", "fsdp._devices"),
    # a training step
    ("fsdp._engine", "fsdp._repeats"),
    # plans and descriptions of a sharded model; results have fixed names, because programs may pickle them
    ("fsdp._graph", "fsdp._describe", "fsdp._memory", "fsdp._later", "fsdp._plan", "fsdp._graph_worker", "fsdp._protect", "fsdp._reshard"),
    # the ways into sharding; _install replaces torch's names
    ("fsdp._module", "fsdp._join", "fsdp.graph", "fsdp._fully_shard", "fsdp1.", "fsdp._libraries", "fsdp._install", "fsdp", "fsdp1"),
    # trainings that go on after a death
    ("checkpoint", "train", "ray", "trackers"),
    # torch_xla's SPMD: tensors, then its public modules
    ("spmd._layout", "spmd._rules", "spmd._engine", "spmd._marks", "spmd._fsdp", "spmd._auto", "spmd._controller"),
    ("spmd.runtime", "spmd.xla_model", "spmd.", "spmd._names", "spmd"),
    # the package, and programs that are started by their name
    ("", "spmd.run", "_zygote", "_entrypoint", "_submitting", "_microbenchmark", "_scripts"),
)
_ORDER = {name: k for k, name in enumerate(name for names in LAYERS for name in names)}
EXTENSION = "shoal._native"
LATE = re.compile(r"# late: \w")  # the comment that gives the reason of an import inside a function

Places = list[str]  # "file:line: text"


@dataclass
class Survey:
    """The faults and sizes of the sources, in the order in which those were read. Keys: a folder, a file, or "file
    name-of-class-or-function"."""

    num_words: int = 0
    num_sentences: int = 0
    unreadable: Places = field(default_factory=list)
    wrong_includes: Places = field(default_factory=list)
    lost_paths: Places = field(default_factory=list)  # names of files in comments without such a file
    vague_names: Places = field(default_factory=list)  # identifiers with a word that names nothing
    places: dict[str, dict[str, Places]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))  # by rule and key
    sizes: dict[str, dict[str, tuple[int, str]]] = field(default_factory=lambda: defaultdict(dict))  # by rule and key: size, place
    circles: list[list[str]] = field(default_factory=list)  # Python modules
    folder_circles: list[list[str]] = field(default_factory=list)  # folders with C++ sources

    def add_size(self, rule: str, key: str, size: int, place: str) -> None:
        if size > self.sizes[rule].get(key, (0, ""))[0]:  # overloads share a name: the largest counts
            self.sizes[rule][key] = (size, place)


def read_sources(root: Path) -> dict[str, str]:
    """Reads all sources below `root`: text by path. The file changed last comes first, and so do its faults."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(LEFT_OUT) and Path(folder, name) != root / FOREIGN)
        found += [Path(folder, name) for name in files if name.endswith(READ)]
    found.sort(key=lambda path: (-path.stat().st_mtime, path))
    return {str(path.relative_to(root)): path.read_text() for path in found}


def survey(sources: dict[str, str]) -> Survey:
    s = Survey()
    modules = {python_scan.module_name(path) for path in sources if path.startswith("python/shoal/") and path.endswith(".py")}
    edges: dict[str, set[str]] = defaultdict(set)
    num_files: dict[str, int] = defaultdict(int)
    folders: dict[str, set[str]] = defaultdict(set)
    ends = {path[begin:] for path in sources for begin in (0, *(slash.end() for slash in re.finditer("/", path)))}
    for path, text in sources.items():
        try:
            tree = ast.parse(text) if path.endswith((".py", *STARLARK)) else None
            add_sentences(s, path, text, tree)
            if not path.endswith(".md"):  # documents_test.py has the paths of documents
                add_lost_paths(s, path, text, tree, sources, ends)
            if path.startswith(STEP_ROOMS) and path.endswith(".py"):
                for found in HOST_WAIT.finditer(text):
                    s.places["host_waits"][path].append(f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}")
            if path.endswith(SOURCES):
                num_files[path.rpartition("/")[0]] += 1
            if path.endswith((*CPP, ".py")):
                add_sizes(s, path, text, tree)
                s.vague_names += names.faults(path, text, tree)
            if path.endswith(CPP):
                add_rooms(s, path, text)
            if path.startswith("tests/") and not path.startswith("tests/internals/") and path.endswith(".py"):
                for found in PRIVATE.finditer(text):
                    line = text.count("\n", 0, found.start()) + 1
                    s.places["private_imports"][path.rpartition("/")[0]].append(f"{path}:{line}: {found[0].strip()}")
            if path.endswith(".py") and names.TEST.search(path) and not path.startswith("tests/internals/"):
                for found in PATCH.finditer(text):
                    line = text.count("\n", 0, found.start()) + 1
                    s.places["private_patches"][path.rpartition("/")[0]].append(f"{path}:{line}: {found[0].strip()}")
            if path.endswith(CPP) and path.partition("/")[0] in BELOW and not TEST_FILE.search(path):
                folder = path.rpartition("/")[0]
                folders[folder].update(other for other in INCLUDED_FOLDER.findall(text) if other.partition("/")[0] in BELOW)
        except (SyntaxError, ValueError) as error:
            s.unreadable.append(f"{path}: {error}")
            continue
        if tree is not None and python_scan.module_name(path) in modules:
            found = list(python_scan.imports(tree, path, modules | {EXTENSION}))
            edges[python_scan.module_name(path)].update(name for name, _, _ in found)
            add_imports(s, path, text, found)
    for folder, size in num_files.items():
        s.add_size("folders", folder, size, f"{folder}/")
    s.circles = python_scan.circles(edges)
    s.folder_circles = python_scan.circles({folder: others - {folder} for folder, others in folders.items()})
    return s


def add_sentences(s: Survey, path: str, text: str, tree: ast.Module | None) -> None:
    for line, sentence in sentences(path, text, tree):
        s.num_sentences += 1
        s.num_words += len(sentence.split())
        for rule in faults(sentence):
            s.places[rule][path.rpartition("/")[0] or "."].append(f"{path}:{line}: {sentence}")


def add_lost_paths(s: Survey, path: str, text: str, tree: ast.Module | None, sources: dict[str, str], ends: set[str]) -> None:
    """Finds paths in comments that are neither the end of a source's path (`ends`) nor lead to a source from the comment's folder."""
    for first, block in blocks(path, text, tree):
        for found in CITED.finditer(block):
            if found[0] not in ends and os.path.normpath(f"{path}/../{found[0]}") not in sources:
                s.lost_paths.append(f"{path}:{first + block.count(chr(10), 0, found.start())}: {found[0]}")


def add_sizes(s: Survey, path: str, text: str, tree: ast.Module | None) -> None:
    s.add_size("lines", path, text.count("\n"), path)
    scan = cpp_scan.scan(text) if tree is None else python_scan.scan(tree)
    for function in scan.functions:
        s.add_size("functions", f"{path} {function.name}", function.lines, f"{path}:{function.line}: {function.name}")
    for cls in scan.classes:
        place = f"{path}:{cls.line}: {cls.name}"
        s.add_size("methods", f"{path} {cls.name}", cls.methods, place)
        s.add_size("fields", f"{path} {cls.name}", cls.fields, place)


def layer_of(module: str) -> tuple[int, str]:
    """The place of a module's name in the order of LAYERS, and the name; -1 if none stands for it."""
    name = module.partition(".")[2]
    candidates = [name]
    while name:
        name = name.rpartition(".")[0]
        candidates += [f"{name}.", name] if name else []
    return next(((_ORDER[name], name) for name in candidates if name in _ORDER), (-1, ""))


def add_imports(s: Survey, path: str, text: str, imports: list[tuple[str, bool, int]]) -> None:
    """Finds imports inside functions without a reason, and imports against the order of the layers."""
    lines, module = text.split("\n"), python_scan.module_name(path)
    layer, own = layer_of(module)
    if layer < 0:
        s.places["wrong_imports"][path].append(f"{path}:1: {module} is in no layer")
    for name, inside, line in imports:
        if inside and not LATE.search(lines[line - 1]):
            s.places["hidden_imports"][path].append(f"{path}:{line}: {name}")
        if name != EXTENSION and layer_of(name) != (layer, own) and not layer_of(name)[0] < layer:
            s.places["wrong_imports"][path].append(f"{path}:{line}: {module} imports {name}")


def add_rooms(s: Survey, path: str, text: str) -> None:
    """Finds clocks and locks outside of runtime/, and includes against the order of the top-level folders."""
    room = path.partition("/")[0]
    for found in INCLUDE.finditer(text):
        if room in BELOW and found[1] in BELOW and found[1] != room and found[1] not in BELOW[room]:
            s.wrong_includes.append(f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}..")
    if room == "runtime":
        return
    code = cpp_scan.mask(text)[0]
    for rule, pattern in (("clocks", CLOCK), ("locks", LOCK)):
        for found in pattern.finditer(code):
            s.places[rule][path].append(f"{path}:{code.count(chr(10), 0, found.start()) + 1}: {found[0]}")
