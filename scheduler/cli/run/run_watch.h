// Watches a run's folder while its script runs: prints each new verdict on the run, and records it there as an event.
//
// A thread of its own reads the folder, which may lie on a file system that does not answer.
#pragma once

#include <memory>
#include <string>

#include "runtime/loop/side_thread.h"

namespace shoal::scheduler::cli {

class RunWatch {
 public:
  // Processes that are in the folder now are an earlier run's.
  explicit RunWatch(const std::string& folder);
  // The script has ended by itself. The thread reads on until it knows of the ranks that have died with it.
  void script_ended();
  // Ends the thread. If the file system holds the thread up, does not wait for it: it runs on by itself.
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

 private:
  class Work;
  std::shared_ptr<Work> work_;
  std::unique_ptr<runtime::SideThread> thread_;
};

}  // namespace shoal::scheduler::cli
