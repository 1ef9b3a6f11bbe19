// A command of this executable that ends when this process ends, for whatever reason.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/process/process.h"
#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class Child {
 public:
  // `captured`: report() reads its output.
  static Result<Child> start(const Common& common, std::vector<std::string> words, std::vector<std::string> env, bool captured);
  // The line that it prints once it is ready.
  Result<nlohmann::json> report();
  bool ended() {
    if (!status_) status_ = runtime::wait_exit(pid_, std::chrono::nanoseconds(0));
    return status_.has_value();
  }
  int code() const { return status_->shell_code(); }
  void signal(int number) {
    if (!ended()) kill(pid_, number);
  }
  bool ends_within(std::chrono::nanoseconds limit) {
    if (!status_) status_ = runtime::wait_exit(pid_, limit);
    return status_.has_value();
  }

 private:
  pid_t pid_ = 0;
  Fd out_;
  std::optional<runtime::ExitStatus> status_;
};

}  // namespace shoal::scheduler::cli
