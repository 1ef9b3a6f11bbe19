#include "scheduler/state/actions.h"

#include <fmt/format.h>

namespace shoal::scheduler {

std::string to_string(const Action& action) {
  struct Visitor {
    std::string operator()(const StartWorkerOn& a) const {
      return fmt::format("StartWorker node={} worker={} label='{}' rank={}", to_string(a.node), to_string(a.message.worker),
                         a.message.label, a.message.rank);
    }
    std::string operator()(const StopWorkerOn& a) const {
      return fmt::format("StopWorker node={} worker={} signal={}", to_string(a.node), to_string(a.message.worker), a.message.signal);
    }
    std::string operator()(const EndJobOn& a) const { return fmt::format("EndJob node={} job={}", to_string(a.node), to_string(a.job)); }
    std::string operator()(const KillHostedOn& a) const {
      return fmt::format("KillHosted node={} worker={} actor={}", to_string(a.node), to_string(a.message.worker),
                         to_string(a.message.actor));
    }
    std::string operator()(const Disconnect& a) const { return fmt::format("Disconnect node={}", to_string(a.node)); }
    std::string operator()(const EndNodeOn& a) const { return fmt::format("EndNode node={}", to_string(a.node)); }
    std::string operator()(const ForgetJob& a) const { return fmt::format("ForgetJob job={}", to_string(a.job)); }
    std::string operator()(const FindPortOn& a) const {
      return fmt::format("FindPort node={} job={}", to_string(a.node), to_string(a.job));
    }
    std::string operator()(const NotifyActor& a) const {
      return fmt::format("NotifyActor actor={} state={}{}", to_string(a.row.id), actors::to_string(a.row.state),
                         a.row.cause ? " cause='" + a.row.cause->message() + "'" : "");
    }
    std::string operator()(const NotifyJob& a) const {
      return fmt::format("NotifyJob job={} state={} exit={}", to_string(a.row.id), actors::to_string(a.row.state), a.row.exit_code);
    }
    std::string operator()(const NotifyGroup& a) const {
      return fmt::format("NotifyGroup group={} state={}", to_string(a.row.id), actors::to_string(a.row.state));
    }
    std::string operator()(const AnswerHosted& a) const {
      return fmt::format("AnswerHosted actor={} {}", to_string(a.actor), a.result ? "complete" : a.result.error().message());
    }
    std::string operator()(const Warn& a) const { return fmt::format("Warn job={} '{}'", to_string(a.job), a.text); }
  };
  return std::visit(Visitor(), action);
}

}  // namespace shoal::scheduler
