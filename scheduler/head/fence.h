// Stops the decisions of a head that no longer leads: with several heads, one of them leads. A head that has lost the lead stays fenced. If
// its process is elected again, it leads with a new Head.
//
// Loop thread only.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "runtime/log/log.h"

namespace shoal::scheduler {

class Fence {
 public:
  // `leads`: returns true while this head leads; empty if it is the only one. `on_fenced`: called once; may be empty.
  Fence(runtime::Log log, std::function<bool()> leads, std::function<void()> on_fenced)
      : log_(std::move(log)), leads_(std::move(leads)), on_fenced_(std::move(on_fenced)) {}

  // Returns true once this head leads no more.
  bool fenced() {
    if (!fenced_ && leads_ && !leads_()) fence("this head no longer leads");
    return fenced_;
  }
  void fence(const std::string& why) {
    if (std::exchange(fenced_, true)) return;
    log_->warn("{}", why);
    if (on_fenced_) on_fenced_();
  }

 private:
  const runtime::Log log_;
  const std::function<bool()> leads_;
  const std::function<void()> on_fenced_;
  bool fenced_ = false;
};

}  // namespace shoal::scheduler
