#include "runtime/log/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>

#include "runtime/core/printable.h"

namespace shoal::runtime {

namespace {

constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e %l %n %v";

// Writes an entry as kPattern says, with a printable message.
class EntryFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& entry, spdlog::memory_buf_t& out) override {
    const std::string_view message(entry.payload.data(), entry.payload.size());
    if (is_printable(message)) return pattern_.format(entry, out);
    const std::string safe = printable_lines(message, "  | ");
    spdlog::details::log_msg copy = entry;
    copy.payload = safe;
    pattern_.format(copy, out);
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<EntryFormatter>(); }

 private:
  spdlog::pattern_formatter pattern_{kPattern};
};

}  // namespace

Result<Log> make_file_log(const std::string& name, const std::string& path, std::size_t max_bytes) {
  try {
    auto log = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, max_bytes, 1));
    log->set_formatter(std::make_unique<EntryFormatter>());
    log->flush_on(spdlog::level::info);
    return log;
  } catch (const spdlog::spdlog_ex& e) {
    return fail(invalid_argument(std::string("cannot log to ") + path + ": " + e.what()));
  }
}

Log make_null_log() { return std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>()); }

}  // namespace shoal::runtime
