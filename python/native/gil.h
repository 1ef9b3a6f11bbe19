// The GIL, released or taken for a scope.
//
// A thread that asks for the GIL while the interpreter ends never gets it. Python before 3.14 then ends the thread by pthread_exit(), which
// unwinds the stack. nanobind's frames do not allow that, and the process would abort. So the thread sleeps until the process has ended.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace shoal::python {

namespace nb = nanobind;

// Calls fn, which takes the GIL.
template <class F>
auto take_gil(F&& fn) {
  try {
    return fn();
  } catch (abi::__forced_unwind&) {
    while (true) ::pause();
  }
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// On any thread, also on one that Python has not made.
class GilTaken {
 public:
  GilTaken() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~GilTaken() { PyGILState_Release(state_); }
  GilTaken(const GilTaken&) = delete;

 private:
  const PyGILState_STATE state_;
};

}  // namespace shoal::python
