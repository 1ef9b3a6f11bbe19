#include "scheduler/cli/run/child.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include <fmt/format.h>

namespace shoal::scheduler::cli {

namespace {
constexpr auto kStartLimit = std::chrono::seconds(40);

// The error that a command has printed as JSON.
Error error_of(const nlohmann::json& said) {
  Code code = Code::kInternal;
  for (std::uint16_t i = 0; i < kNumCodes; ++i) {
    if (said.value("code", "") == code_name(static_cast<Code>(i))) code = static_cast<Code>(i);
  }
  return Error(code, said.value("message", "")).with_reason(said.value("reason", "")).with_hint(said.value("hint", ""));
}

}  // namespace

Result<Child> Child::start(const Common& common, std::vector<std::string> words, std::vector<std::string> env, bool captured) {
  runtime::SpawnSpec spec;
  spec.argv = std::move(words);
  spec.argv.insert(spec.argv.begin(), common.self);
  spec.env = std::move(env);
  spec.env.insert(spec.env.begin(), "SHOAL_PYTHON=" + common.python);  // the interpreter that this command itself uses
  spec.death_signal = SIGHUP;                                          // on this signal the command ends what it has started
  // Schedulers send these to all processes of a job, and this command reacts for all of them.
  spec.ignored = {SIGTERM, SIGUSR1, SIGUSR2};
  Child out;
  if (captured) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
    out.out_ = Fd(ends[0]);
    spec.out = Fd(ends[1]);
  }
  SHOAL_TRY(out.pid_, runtime::spawn(std::move(spec)));
  return out;
}

Result<nlohmann::json> Child::report() {
  const auto line = runtime::read_line(out_, 64 << 10, kStartLimit);
  auto said = line ? nlohmann::json::parse(*line, nullptr, false) : nlohmann::json();
  if (said.is_object() && said.value("schema", "") == "shoal.error/1") return fail(error_of(said));
  if (said.is_object()) return said;
  return fail(unavailable(fmt::format("this host's part of the cluster has reported nothing within {} s", kStartLimit.count()))
                  .with_hint("what it has printed on stderr may say why"));
}

}  // namespace shoal::scheduler::cli
