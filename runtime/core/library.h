// Libraries that a process loads at run time, so that one binary runs with and without them.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>
#include <type_traits>

#include "runtime/core/result.h"

namespace shoal {

// Loads a library for the rest of the process's life, and returns its path. `fill` gets a function, and calls it with each pointer of a
// table and the name of the library's function for it. Unavailable if the library or a function is missing; with `needed` false, the
// pointer to a missing function is null.
template <class Fill>
Result<std::string> load_functions(const std::string& path, const Fill& fill) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(unavailable(dlerror()));
  const void* first = nullptr;
  const char* absent = nullptr;
  fill([&](auto& function, const char* name, bool needed = true) {
    void* const found = dlsym(library, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    if (found == nullptr && needed && absent == nullptr) absent = name;
    if (first == nullptr) first = found;
  });
  if (absent != nullptr) {
    dlclose(library);
    return fail(unavailable(path + " has no function " + absent));
  }
  Dl_info info{};
  return dladdr(first, &info) != 0 ? std::string(info.dli_fname) : path;
}

// Returns the first of these libraries that `open` opens. Unavailable, with all attempts, if there is none.
template <class T>
Result<T> open_first(const std::string& what, std::span<const std::string> paths, Result<T> (*open)(const std::string&)) {
  std::string attempts;
  for (const auto& path : paths) {
    auto library = open(path);
    if (library) return library;
    attempts += (attempts.empty() ? "" : "; ") + library.error().message();
  }
  return fail(unavailable(what + " could not be loaded: " + attempts));
}

}  // namespace shoal
