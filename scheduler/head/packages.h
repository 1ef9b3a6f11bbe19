// Packages: zip files of folders, which drivers send to the head for hosts that lack these folders. The head keeps them in its session
// folder. A package is named by the hash of its content, which is checked, and exists as a whole or not at all. Unused packages are removed
// when room is short. Loop thread only, since parts are small.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "actors/protocol/wire/packages.h"
#include "runtime/loop/clock.h"
#include "runtime/net/sha256.h"

namespace shoal::scheduler {

class Packages {
 public:
  struct Options {
    std::string folder;  // made with the first package; "": packages are refused
    // Limit on all packages together. One that arrives counts with its announced size.
    std::uint64_t max_bytes = std::uint64_t{4} << 30;
    std::size_t max_packages = 10'000;
    std::size_t max_arriving = 4;  // packages that one connection sends at a time
    // How long a package has to be unused before it may be removed.
    runtime::Duration unused = std::chrono::minutes(10);
    // How long an incomplete package may get no part before another one may take its room.
    runtime::Duration stalled = std::chrono::minutes(1);
  };
  // Returns those of the packages that a living or waiting process, actor or job needs. A call is slow, as it looks through all of these.
  using Used = std::function<std::set<std::string>(const std::set<std::string>& names)>;
  Packages(runtime::Clock& clock, Options options, Used used);

  // Stores a part. `from`: the connection that it came over. If two connections send the same package at once, the first complete one
  // stays.
  Result<actors::HasPackage> put(std::uint64_t from, const actors::PackagePart& part);
  Result<actors::PackagePart> get(const actors::PackagePart& request);
  // Removes the incomplete packages of a closed connection.
  void closed(std::uint64_t from);

 private:
  struct Kept {
    std::uint64_t bytes = 0;
    runtime::TimePoint last;  // time of the last request for this package
  };
  struct Coming {
    std::uint64_t total = 0;  // the announced size
    std::uint64_t bytes = 0;  // received so far
    runtime::Sha256 digest;   // digest of the bytes received so far
    runtime::TimePoint last;  // time of the last part
  };
  std::string path(const std::string& name) const { return options_.folder + "/" + name + ".zip"; }
  std::string path(std::uint64_t from, const std::string& name) const { return path(name) + "." + std::to_string(from); }
  Result<void> open();
  Result<void> make_room(std::uint64_t from, std::uint64_t bytes);
  void drop_stalled();

  runtime::Clock& clock_;
  const Options options_;
  const Used used_;
  Result<void> write(std::uint64_t from, const actors::PackagePart& part, Coming& coming);
  Result<void> keep(std::uint64_t from, const actors::PackagePart& last, Coming coming);
  void drop(std::uint64_t from, const std::string& name);

  bool opened_ = false;
  std::map<std::string, Kept> kept_;
  std::map<std::pair<std::uint64_t, std::string>, Coming> coming_;
};

}  // namespace shoal::scheduler
