"""Keeps the project's order: plain words, clocks and locks in few places, layers without circles.

    python tests/tidy_test.py --report    the words of comments, and the ten largest files, functions and classes
    python tests/tidy_test.py --record    lowers tests/tidy.json to what is left; it raises nothing

The rules are in tests/tidy (survey.py, sentences.py), the faults that the project still has in tests/tidy.json.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
from pathlib import Path

from tidy import cpp_scan, names, python_scan, ratchet
from tidy.sentences import sentences
from tidy.survey import Survey, read_sources, survey

# Bazel's runfiles link to the source: the whole tree is read, also files that no BUILD file names.
ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "tidy.json"
NUM_LARGEST = 10


@functools.cache
def project() -> tuple[Survey, ratchet.Record]:
    assert (ROOT / "WORKSPACE").is_file(), f"{ROOT} is no source tree: this test runs where its file is a link to the source"
    return survey(read_sources(ROOT)), json.loads(RECORD.read_text())


def demand(faults: list[str], advice: str) -> None:
    __tracebackhide__ = True
    if faults:
        raise AssertionError("\n".join([advice, *(f"  {fault}" for fault in faults)]))


# ---- the project ----


def test_sentences_open_with_their_subject() -> None:
    advice = (
        "A sentence of a comment, docstring or document opens with Who, What, Whose, Whether, Of, Nobody, None or That. Rewrite it: name "
        "the subject (a type, a process, an argument) and use an active verb; in Python, write `None` for the value."
    )
    demand(ratchet.of_counts(*project(), "openings"), advice)


def test_processes_are_not_told_and_do_not_hear() -> None:
    advice = (
        "A comment, docstring or document has told, heard, nobody or whoever. Messages are sent, reported, answered or logged; the caller, "
        "the thread or the process has a name."
    )
    demand(ratchet.of_counts(*project(), "words"), advice)


def test_identifiers_are_nouns_and_verbs_of_the_field() -> None:
    advice = (
        "A name in production code has made, done, ask, tell, hear, news, look, stay, ways or here (WORDS in tests/tidy/names.py). Name "
        "what the value is or what the function does. If an API dictates the name, add it to DICTATED there, with the reason."
    )
    demand(project()[0].vague_names, advice)


def test_every_dictated_name_exists() -> None:
    lost = [f"{path}: {name}" for path, name in names.DICTATED if not re.search(rf"\b{name}\b", (ROOT / path).read_text())]
    demand(lost, "DICTATED in tests/tidy/names.py has a name that its file lacks. Remove it.")


def test_clocks_are_read_in_listed_files_only() -> None:
    advice = (
        "A C++ file outside of runtime/ reads a clock. Take the time from runtime::Clock, so that simulations decide it. Where real time "
        'is needed, list the file under "clocks" in tests/tidy.json, with the reason.'
    )
    demand(ratchet.of_reasons(*project(), "clocks"), advice)


def test_locks_are_in_listed_files_only() -> None:
    advice = (
        "A C++ file outside of runtime/ has a std::mutex or std::condition_variable. Keep the state on the loop and post to it. Where "
        'several threads have to share it, list the file under "locks" in tests/tidy.json, with the reason.'
    )
    demand(ratchet.of_reasons(*project(), "locks"), advice)


def test_steps_wait_for_devices_in_listed_files_only() -> None:
    advice = (
        "A file that runs within a training step calls what makes the host wait for a device. Keep the value on the device, and order "
        'streams by events. Where the host has to wait, list the file under "host_waits" in tests/tidy.json, with the reason.'
    )
    demand(ratchet.of_reasons(*project(), "host_waits"), advice)


def test_folders_have_few_files() -> None:
    advice = (
        "A folder has too many source files. Give a concept of it a folder of its own. Where they belong together, list the folder under "
        '"folders" in tests/tidy.json, with the reason.'
    )
    demand(ratchet.of_reasons(*project(), "folders"), advice)


def test_python_modules_import_in_one_direction() -> None:
    advice = "Modules of shoal import each other in a circle, at the top or inside functions. Move what both need into a module below them."
    demand(ratchet.of_circles(*project(), "circles"), advice)
    advice = (
        "A function imports a module of shoal: the order of the layers is hidden in it. Import at the top of the file. Where the import "
        "has to be late, end its line with `# late: ` and the reason."
    )
    demand(ratchet.of_counts(*project(), "hidden_imports"), advice)


def test_python_imports_follow_the_order_of_the_layers() -> None:
    advice = (
        "A module of shoal imports from its own layer or one above (LAYERS in tests/tidy/survey.py). Move what both need down, pass a "
        "callable down, or let the upper module register itself when it is imported."
    )
    demand(ratchet.of_counts(*project(), "wrong_imports"), advice)


def test_tests_import_private_names_from_their_seam() -> None:
    advice = (
        "A test imports a private name of shoal. Use a public one, or list the name in the module of its package in tests/internals and "
        "import it from there."
    )
    demand(ratchet.of_counts(*project(), "private_imports"), advice)


def test_tests_replace_no_private_names() -> None:
    advice = (
        "A test replaces a private name of shoal or of a library. Replace a public one (unittest.mock, monkeypatch), use the fault seam "
        "`at_next(Moment..)` of tests/README.md, or build the object from parts of the test's own."
    )
    demand(ratchet.of_counts(*project(), "private_patches"), advice)


def test_cpp_includes_follow_the_order_of_the_rooms() -> None:
    demand(project()[0].wrong_includes, "A file includes a header of a room above its own (ARCHITECTURE.md). Move what it needs down.")


def test_cpp_folders_include_in_one_direction() -> None:
    advice = "C++ folders include each other's headers in a circle. Move what both need into a folder below them."
    demand(ratchet.of_circles(*project(), "folder_circles"), advice)


def test_files_that_comments_name_exist() -> None:
    advice = (
        "A comment names a source file that does not exist. A path begins at the repository's root, at any folder on the file's way, or at "
        "the comment's folder. A file of another project stands in angle brackets: <sys/socket.h>."
    )
    demand(project()[0].lost_paths, advice)


def test_commands_print_through_their_output_file() -> None:
    printing = re.compile(r"\bstd::(?:v?f?printf|fwrite|f?puts|cout|cerr)\b")
    paths = [path for path in (ROOT / "scheduler" / "cli").rglob("*.[ch]*") if path.name not in ("output.cc", "output.h")]
    found = [str(path.relative_to(ROOT)) for path in paths if printing.search(path.read_text())]
    demand(found, "A command prints a text of another process unescaped. Print through scheduler/cli/output.h.")


def test_all_sources_are_understood() -> None:
    demand(project()[0].unreadable, "The scan of tests/tidy does not understand a source file. Mend the file, or tests/tidy/cpp_scan.py.")


# ---- the checks, on broken examples ----

NOTHING: ratchet.Record = {rule: {} for rule in ratchet.COUNTS + ratchet.REASONS} | {rule: [] for rule in ratchet.CIRCLES}


def test_a_sentence_is_checked_in_every_kind_of_comment() -> None:
    s = survey(
        {
            "a/a.cc": "// Good. Of course\n// it goes on.\nint x;  // what it is\n/* A\n * test. That is it. */\n",
            "a/b.py": '"""What it does.\n\nNone: nothing.\n"""\nx = 1  # whose\n# ruff: noqa\ns = "# Who"\n',
            "a/c.md": "# A\n\n- Whether.\n- Fine.\n\n```\nWho\n```\nAll. Nobody knows.\n",
            "a/d.capnp": "struct A {  # of none\n}\n",
            "a/BUILD": "# Who may see what\n",
        }
    )
    assert [place.partition(": ")[0] for place in s.places["openings"]["a"]] == [
        *("a/a.cc:1", "a/a.cc:3", "a/a.cc:5", "a/b.py:1", "a/b.py:3", "a/b.py:5", "a/c.md:3", "a/c.md:9", "a/d.capnp:1", "a/BUILD:1")
    ]
    assert s.places["words"] == {"a": ["a/c.md:9: Nobody knows."]}
    assert s.num_sentences == 15


def test_code_and_text_inside_a_sentence_are_left_alone() -> None:
    text = """// `None` and ``told`` are names. `nobody. Of`
// Often (e.g. that) is so, Whatever of it.
auto s = "// Who" R"(// Of)"; int n = 1'000;  // A number
"""
    assert survey({"a.cc": text}).places == {}
    assert [line for line, _ in sentences("a.cc", text)] == [1, 1, 3]


def test_a_count_has_to_be_as_recorded() -> None:
    s = survey({"a/new.md": "Nobody.", "a/old.md": "Whoever."})
    assert ratchet.of_counts(s, NOTHING | {"words": {"a": 2}}, "words") == []
    (more,) = ratchet.of_counts(s, NOTHING | {"words": {"a": 1}}, "words")
    assert more.startswith("a: 2, at most 1")
    assert more.index("a/new.md:1: Nobody.") < more.index("a/old.md:1: Whoever.")
    assert len(ratchet.of_counts(s, NOTHING | {"words": {"a": 3, "b": 1}}, "words")) == 2
    assert ratchet.lowered(s, NOTHING | {"words": {"a": 1}})["words"] == {"a": 1}
    assert ratchet.lowered(s, NOTHING | {"words": {"a": 3, "b": 1}})["words"] == {"a": 2}


def test_vague_names_are_found() -> None:
    cpp = """enum { kDone };  // done
void f(int lookTimes, int other) { auto made = "asked"; g(made_by_, heard, ahead, therefore, newsletter); }
"""
    py = """import a as tell
def stay(here, *, shown=1):
    self.ways, total = f"{asks}", x.done()
    with f(news=2) as NEWS: pass
    match x:
        case [1, *made] as done: pass
"""
    s = survey({"a/a.cc": cpp, "a/b.py": py, "a/a_test.cc": cpp, "tests/b.py": py, "a/b_test.py": py})
    assert [place.partition("/")[2] for place in s.vague_names] == [
        *("a.cc:1: kDone", "a.cc:2: heard", "a.cc:2: lookTimes", "a.cc:2: made", "a.cc:2: made_by_"),
        *("b.py:1: tell", "b.py:2: here", "b.py:2: stay", "b.py:3: ways", "b.py:4: NEWS", "b.py:6: done", "b.py:6: made"),
    ]


def test_waits_of_the_host_are_found_in_rooms_of_a_step() -> None:
    text = 'a = t.item()\nb = t.to("cpu")\nc = t.cpu()\nd = t.to(device)\n'
    s = survey({"python/shoal/optim/a.py": text, "python/shoal/spmd/a.py": text})
    assert [place.split(":")[1] for place in s.places["host_waits"]["python/shoal/optim/a.py"]] == ["1", "2", "3"]
    assert list(s.places["host_waits"]) == ["python/shoal/optim/a.py"]


def test_clocks_and_locks_are_found_outside_of_runtime() -> None:
    clocks = """auto a = std::chrono::steady_clock::now();
// steady_clock::now
clock_gettime(CLOCK_REALTIME, &t);
auto b = std::time(nullptr);
r.time(0); end_time(&x);
"""
    locks = """std::mutex m;
std::shared_mutex s;
mutable std::condition_variable_any c;
std::unique_lock<std::mutex> lock(m);
"""
    s = survey({"actors/a.cc": clocks, "runtime/a.cc": clocks + locks, "fsdp/b.h": locks})
    assert [place.split(":")[1] for place in s.places["clocks"]["actors/a.cc"]] == ["1", "3", "4"]
    assert [place.split(":")[1] for place in s.places["locks"]["fsdp/b.h"]] == ["1", "2", "3"]
    assert len(ratchet.of_reasons(s, NOTHING, "clocks")) == 1
    assert len(ratchet.of_reasons(s, NOTHING | {"locks": {"fsdp/b.h": ""}}, "locks")) == 1, "a reason is a text"
    assert ratchet.of_reasons(s, NOTHING | {"locks": {"fsdp/b.h": "threads"}}, "locks") == []
    assert len(ratchet.of_reasons(s, NOTHING | {"locks": {"fsdp/b.h": "threads", "gone.cc": "threads"}}, "locks")) == 1


CPP = """namespace a::b {
enum class Kind { kOne, kTwo = 2 };
struct Options { int a = 1, b{2}; std::map<int, std::vector<int>> c = {{1, {}}}; };
template <class T, class = std::enable_if_t<(sizeof(T) > 4)>>
class Outer final : public Base<T> {
 public:
  explicit Outer(int a) : Base<T>{a}, map_{{a, 1}}, f_([a] { return a; }) { go(); }
  ~Outer() override;
  Outer(const Outer&) = delete;
  Outer& operator=(const Outer&) = delete;
  struct Inner {
    int x = 0;
    int twice() const { return 2 * x; }
  };
  template <class F>
    requires(sizeof(F) > 1)
  auto call(F f, std::vector<int> list = {}) const -> Result<int> {
    if (f) {
      for (int i = 0; i < 3; ++i) f("}", '{', R"({{)", 1'000);
    }
    return {};
  }
  bool operator<(const Outer& other) const;
  bool operator()(int) const { return true; }
  virtual void pure() = 0;
  static int made();
  using Map = std::map<int, int>;
  friend class Other;

 private:
  static constexpr int kMost = 3;
  Map map_;
  std::function<void(int)> f_;  // a field
  int *p_ = nullptr, n_{};
};
static const auto kTable = [] { return 1; }();
}  // namespace a::b
#define BRACE {
template <class T>
Result<void> Outer<T>::pure() {
  const auto f = [](int a) {
    return a;
  };
}
TEST_F(Suite, Case) {
}
"""


def test_cpp_classes_and_functions_are_measured() -> None:
    found = cpp_scan.scan(CPP)
    assert [(c.name, c.line, c.methods, c.fields) for c in found.classes] == [
        *(("Options", 3, 0, 3), ("Outer", 4, 5, 4), ("Outer::Inner", 11, 1, 1))
    ]
    assert [(f.name, f.line, f.lines) for f in found.functions] == [
        *(("Outer::Outer", 7, 1), ("Outer::Inner::twice", 13, 1), ("Outer::call", 15, 8), ("Outer::operator_", 24, 1)),
        *(("Outer::pure", 39, 6), ("Suite.Case", 45, 2)),
    ]


def test_python_classes_and_functions_are_measured() -> None:
    text = """class A:
    x: int
    def f(self):
        self.y, (self.z, q) = 1, (2, 3)
        def g():
            self.y += 1
        if q:
            class B: ...
"""
    found = python_scan.scan(ast.parse(text))
    assert [(c.name, c.methods, c.fields) for c in found.classes] == [("A", 1, 3), ("A.f.B", 0, 0)]
    assert [(f.name, f.lines) for f in found.functions] == [("A.f", 6), ("A.f.g", 2)]


def test_a_file_whose_braces_do_not_match_is_named() -> None:
    s = survey({"a.cc": "int f() {\n", "b.cc": "}\n", "c.py": "def\n"})
    assert [place.split(":")[0] for place in s.unreadable] == ["a.cc", "b.cc", "c.py"]


def test_the_report_lists_the_largest_files_functions_and_classes() -> None:
    cls = "class C {\n" + "".join(f"  int f{i}();\n  int x{i}_;\n" for i in range(31)) + "};\n"
    files = {f"a/f{lines}.cc": "void f() {\n" + "  g();\n" * lines + "}\n" for lines in range(12)}
    lines = report(survey({**files, "a/c.h": cls})).split("\n")
    functions = lines[lines.index("functions by lines") + 1 :][:NUM_LARGEST]
    assert [line.split() for line in functions] == [[f"{n + 2}", f"a/f{n}.cc:1:", "f"] for n in range(11, 1, -1)]
    for title, largest in (("files by lines", "64 a/c.h"), ("classes by methods", "31 a/c.h:1: C"), ("classes by fields", "31 a/c.h:1: C")):
        assert " ".join(lines[lines.index(title) + 1].split()) == largest


def test_a_folder_with_many_files_needs_a_reason() -> None:
    s = survey({f"a/{i}.cc": "" for i in range(21)} | {f"b/{i}.cc": "" for i in range(20)} | {"b/README.md": "", "b/BUILD": ""})
    (fault,) = ratchet.of_reasons(s, NOTHING, "folders")
    assert "a/: 21 source files" in fault
    assert ratchet.of_reasons(s, NOTHING | {"folders": {"a": "one concept"}}, "folders") == []


def test_circles_and_hidden_imports_are_found() -> None:
    s = survey(
        {
            "python/shoal/__init__.py": "from shoal import a, missing\n",
            "python/shoal/a.py": "import torch\nfrom .b import c\nfrom .b.d import x\nfrom shoal import _native\n",
            "python/shoal/b/__init__.py": "from . import d\n",
            "python/shoal/b/c.py": "def f():\n    import torch\n    from ..b import d\n    from shoal import a  # late: a reason\n",
            "python/shoal/b/d.py": "",
            "python/shoal/e.py": "if TYPE_CHECKING:\n    from shoal import f\n",
            "python/shoal/f.py": "def g():\n    for name in ('shoal.e', 'torch', 'shoal'):\n        sys.modules.get(name)\n",
            "tests/x.py": "def f():\n    import shoal.a\n",
        }
    )
    assert s.circles == [["shoal.a", "shoal.b.c"], ["shoal.e", "shoal.f"]]
    s.circles.pop()
    assert s.places["hidden_imports"] == {"python/shoal/b/c.py": ["python/shoal/b/c.py:3: shoal.b.d"]}
    assert ratchet.of_circles(s, NOTHING, "circles") == ["new: shoal.a shoal.b.c"]
    assert ratchet.of_circles(s, NOTHING | {"circles": s.circles}, "circles") == []
    larger = NOTHING | {"circles": [["shoal.a", "shoal.b.c", "shoal.x"]]}
    assert ratchet.of_circles(s, larger, "circles")[0].startswith("gone or smaller: shoal.a shoal.b.c shoal.x")
    assert ratchet.lowered(s, larger)["circles"] == s.circles


def test_private_imports_of_tests_are_found() -> None:
    line = "from shoal.a import B, _c\n"
    s = survey(
        {
            "tests/a/x.py": f"import shoal.a\nfrom shoal.a.__main__ import main\n{line}def f():\n    from shoal._a import b\n",
            "tests/a/y.py": "import shoal.a._b\nS = '''\nfrom shoal import _native\n'''\n",
            "tests/internals/a.py": line,
            "python/a_test.py": line,
        }
    )
    assert [p.partition(" ")[0] for p in s.places["private_imports"]["tests/a"]] == [
        f"tests/a/{p}:" for p in ("x.py:3", "x.py:5", "y.py:1", "y.py:3")
    ]
    assert list(s.places["private_imports"]) == ["tests/a"]


def test_private_patches_of_tests_are_found() -> None:
    found = "monkeypatch.setattr(a, '@b', c)\nwith patch.object(A.b, '@c'), mock.patch('shoal.a.@b'):\n    a.b().@c = 1\n"
    found = found.replace("'", '"').replace("@", "_")
    fine = 'monkeypatch.setattr(a, "b", c._d)\nself._a = 1\nx = a._b == 1\n# a._b = 1\n'
    s = survey({"tests/a/x.py": found + fine, "python/a_test.py": found, "python/shoal/a.py": found, "tests/internals/a.py": found})
    lines = {key: [place.split(":")[1] for place in places] for key, places in s.places["private_patches"].items()}
    assert lines == {"tests/a": ["1", "2", "3"], "python": ["1", "2", "3"]}


def test_circles_of_cpp_folders_are_found() -> None:
    s = survey(
        {
            "fsdp/a/a.h": '#include "fsdp/b/b.h"\n#include "fsdp/a/own.h"\n',
            "fsdp/b/b.cc": '#include "fsdp/c/inner/c.h"\n',
            "fsdp/c/inner/c.h": '#include <vector>\n#include "fsdp/a/a.h"\n',
            "fsdp/c/c.h": '#include "fsdp/c/inner/c.h"\n',
            "fsdp/a/a_test.cc": '#include "fsdp/c/c.h"\n',  # a test may use what lies above
        }
    )
    assert s.folder_circles == [["fsdp/a", "fsdp/b", "fsdp/c/inner"]]
    assert ratchet.of_circles(s, NOTHING, "folder_circles") == ["new: fsdp/a fsdp/b fsdp/c/inner"]


def test_an_import_against_the_order_of_the_layers_is_found() -> None:
    s = survey(
        {
            "python/shoal/_core/a.py": "from shoal._core import b\nfrom shoal._objects import refs\n",
            "python/shoal/_core/b.py": "from shoal import _native, exceptions\n",
            "python/shoal/_objects/refs.py": "import shoal._core.a\ndef f():\n    from shoal import _runtime_env  # late: a reason\n",
            "python/shoal/_runtime_env/__init__.py": "import shoal\n",
            "python/shoal/__init__.py": "from shoal._objects import refs\n",
            "python/shoal/exceptions.py": "",
            "python/shoal/new.py": "",
        }
    )
    assert [place.partition("python/shoal/")[2] for places in s.places["wrong_imports"].values() for place in places] == [
        "_core/a.py:2: shoal._core.a imports shoal._objects.refs",
        "_objects/refs.py:3: shoal._objects.refs imports shoal._runtime_env",
        "_runtime_env/__init__.py:1: shoal._runtime_env imports shoal",
        "new.py:1: shoal.new is in no layer",
    ]


def test_the_order_inside_of_a_package_is_checked() -> None:
    s = survey(
        {
            "python/shoal/fsdp/__init__.py": "from shoal.fsdp import _install\nfrom shoal.fsdp._engine import root\n",
            "python/shoal/fsdp/_install.py": "from shoal.fsdp1 import api\n",
            "python/shoal/fsdp/_engine/root.py": "from shoal.fsdp._engine import unit\nfrom shoal.fsdp._parameters import rows\n",
            "python/shoal/fsdp/_engine/unit.py": "from shoal import fsdp\n",
            "python/shoal/fsdp/_parameters/rows.py": "from shoal.fsdp._engine.root import x\n",
            "python/shoal/fsdp1/__init__.py": "import shoal.fsdp\nfrom shoal.fsdp1 import api\n",
            "python/shoal/fsdp1/api.py": "import shoal.fsdp._engine.root\nfrom shoal.fsdp import x\n",
        }
    )
    assert [place.partition("python/shoal/")[2] for places in s.places["wrong_imports"].values() for place in places] == [
        "fsdp/_engine/unit.py:1: shoal.fsdp._engine.unit imports shoal.fsdp",
        "fsdp/_parameters/rows.py:1: shoal.fsdp._parameters.rows imports shoal.fsdp._engine.root",
        "fsdp1/api.py:2: shoal.fsdp1.api imports shoal.fsdp",
    ]


def test_an_include_of_a_room_above_is_found() -> None:
    s = survey(
        {
            "actors/a.cc": '#include "runtime/a.h"\n#include "fsdp/b.h"\n',
            "tests/a.cc": '#include "fsdp/b.h"\n',
            "fsdp/a.h": '#include "scheduler/a.h"\n',
        }
    )
    assert s.wrong_includes == ['actors/a.cc:2: #include "fsdp/..', 'fsdp/a.h:1: #include "scheduler/..']


def test_a_lost_path_in_a_comment_is_found() -> None:
    s = survey(
        {
            "a/b/c/d.h": "// As a/b/c/d.h, b/c/d.h, c/d.h and ../c/d.h.\n// But not\n// b/d.h: see c/e.cc, or <sys/e.h> and /usr/a/e.h.\n",
            "a/b/e.py": '"""Runs c/d.h, and `c/f.py`."""\nx = "c/g.py"  # not ../d.h\n',
            "a/BUILD": "# As a/b/f.capnp.\n",
            "README.md": "See a/b/f.h.\n",
        }
    )
    assert s.lost_paths == [
        *("a/b/c/d.h:3: b/d.h", "a/b/c/d.h:3: c/e.cc", "a/b/e.py:1: c/f.py", "a/b/e.py:2: ../d.h", "a/BUILD:1: a/b/f.capnp")
    ]


# ---- the command ----


def report(s: Survey) -> str:
    openings = sum(len(places) for places in s.places["openings"].values())
    rows = [
        ("words of comments, docstrings and documents", f"{s.num_words}"),
        ("sentences with a banned opening", f"{openings} of {s.num_sentences} ({openings / max(1, s.num_sentences):.1%})"),
        ("sentences with a banned word", f"{sum(len(places) for places in s.places['words'].values())}"),
    ]
    rows += [(f"files outside of runtime/ with {rule}", f"{len(s.places[rule])}") for rule in ("clocks", "locks")]
    rows.append(("Python modules in circles", f"{sum(map(len, s.circles))}"))
    rows.append(("C++ folders in circles", f"{sum(map(len, s.folder_circles))}"))
    lines = [f"{name:45}{value}" for name, value in rows]
    for rule, title in (("lines", "files by lines"), ("functions", "functions by lines")):
        lines += [title, *largest(s, rule)]
    for rule in ("methods", "fields"):
        lines += [f"classes by {rule}", *largest(s, rule)]
    return "\n".join(lines)


def largest(s: Survey, rule: str) -> list[str]:
    """A review decides what a size means; nothing is cut in two to meet a number."""
    found = sorted(s.sizes[rule].values(), key=lambda found: (-found[0], found[1]))
    return [f"  {size:6} {place}" for size, place in found[:NUM_LARGEST]]


def main() -> None:
    s = survey(read_sources(ROOT))
    if sys.argv[1:] == ["--report"]:
        print(report(s))
    elif sys.argv[1:] == ["--record"]:
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps(ratchet.lowered(s, record), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
