#include "runtime/log/log.h"

#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

namespace shoal::runtime {

namespace {
constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %l %n %v";
}

Result<Log> make_file_log(const std::string& name, const std::string& path, std::size_t max_bytes) {
  try {
    auto log = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, max_bytes, 1));
    log->set_pattern(kPattern);
    log->flush_on(spdlog::level::info);
    return log;
  } catch (const spdlog::spdlog_ex& e) {
    return fail(invalid_argument(std::string("cannot log to ") + path + ": " + e.what()));
  }
}

Log make_stderr_log(const std::string& name) {
  auto log = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  log->set_pattern("shoal: %l: %v");
  log->set_level(spdlog::level::warn);
  return log;
}

Log make_null_log() { return std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>()); }

}  // namespace shoal::runtime
