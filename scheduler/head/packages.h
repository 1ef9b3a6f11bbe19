// Zip files that drivers left with the head for hosts that lack their folders: named by their content, which is looked at, in the session's
// folder, whole or not there. Those that nobody uses go when there are too many. Loop thread only: parts are small.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "actors/wire/packages.h"
#include "runtime/loop/clock.h"
#include "runtime/net/sha256.h"

namespace shoal::scheduler {

class Packages {
 public:
  struct Options {
    std::string folder;                                   // made when the first comes; "": none are kept
    std::uint64_t max_bytes = std::uint64_t{4} << 30;     // of all together
    runtime::Duration unused = std::chrono::minutes(10);  // at least, before one that nobody uses goes
  };
  // `used`: whether something that lives, or waits, was started with this one.
  Packages(runtime::Clock& clock, Options options, std::function<bool(const std::string& name)> used);

  // From a connection. Of what comes twice at once the last to be whole stays.
  Result<actors::HasPackage> put(std::uint64_t from, const actors::PackagePart& part);
  Result<actors::PackagePart> get(const actors::PackagePart& asked);
  // What it had sent of one goes.
  void closed(std::uint64_t from);

 private:
  struct Kept {
    std::uint64_t bytes = 0;
    runtime::TimePoint last;  // that somebody asked for it
  };
  struct Coming {
    std::uint64_t bytes = 0;  // that are there
    runtime::Sha256 digest;   // of them
  };
  std::string path(const std::string& name) const { return options_.folder + "/" + name + ".zip"; }
  std::string path(std::uint64_t from, const std::string& name) const { return path(name) + "." + std::to_string(from); }
  Result<void> open();
  Result<void> make_room(std::uint64_t bytes);

  runtime::Clock& clock_;
  const Options options_;
  const std::function<bool(const std::string&)> used_;
  Result<void> write(std::uint64_t from, const actors::PackagePart& part, Coming& coming);
  Result<void> keep(std::uint64_t from, const actors::PackagePart& last, Coming coming);
  void drop(std::uint64_t from, const std::string& name);

  bool opened_ = false;
  std::map<std::string, Kept> kept_;
  std::map<std::pair<std::uint64_t, std::string>, Coming> coming_;
};

}  // namespace shoal::scheduler
