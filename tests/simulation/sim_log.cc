#include "tests/simulation/sim_log.h"

#include <fmt/format.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>

#include <deque>

namespace shoal::simulation {

class SimLog::Sink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  Sink(runtime::Clock& clock, std::size_t kept) : clock_(clock), kept_(kept) {}
  std::deque<std::string> lines;
  std::size_t num_errors = 0;

 private:
  void sink_it_(const spdlog::details::log_msg& m) override {
    const double seconds = std::chrono::duration<double>(clock_.now().time_since_epoch()).count();
    lines.push_back(fmt::format("{:.6f} {} {}", seconds, std::string_view(m.logger_name.data(), m.logger_name.size()),
                                std::string_view(m.payload.data(), m.payload.size())));
    if (lines.size() > kept_) lines.pop_front();
    num_errors += m.level >= spdlog::level::err;
  }
  void flush_() override {}
  runtime::Clock& clock_;
  const std::size_t kept_;
};

SimLog::SimLog(runtime::Clock& clock, std::size_t kept_lines) : sink_(std::make_shared<Sink>(clock, kept_lines)) {}

runtime::Log SimLog::make(const std::string& name) const {
  auto log = std::make_shared<spdlog::logger>(name, sink_);
  log->set_level(spdlog::level::debug);
  return log;
}

std::size_t SimLog::num_errors() const { return sink_->num_errors; }

std::string SimLog::text() const {
  std::string out;
  for (const auto& line : sink_->lines) out += line + "\n";
  return out;
}

}  // namespace shoal::simulation
