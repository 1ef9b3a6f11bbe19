// The log of a simulated cluster: the last lines of all its processes, with the world's time. A line of level error is a bug.
#pragma once

#include <memory>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"

namespace shoal::simulation {

class SimLog {
 public:
  SimLog(runtime::Clock& clock, std::size_t kept_lines);

  runtime::Log make(const std::string& name) const;
  std::size_t num_errors() const;
  std::string text() const;  // the last lines

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace shoal::simulation
