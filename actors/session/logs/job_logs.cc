#include "actors/session/logs/job_logs.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "runtime/core/printable.h"

namespace shoal::actors {

using runtime::Message;

namespace {

// Time for a node to deliver all lines.
constexpr runtime::Duration kOwnNode = std::chrono::seconds(1), kOtherNodes = std::chrono::seconds(3);

void warn(const std::string& text) { std::fprintf(stderr, "shoal: warning: %s\n", printable(text).c_str()); }

}  // namespace

JobLogs::JobLogs(SessionLoop& loop, runtime::Network& network, HeadClient& head, NodeClient& node, const Identity& self, Options options,
                 std::function<void(const WorkerUpdate&)> exited)
    : loop_(loop), network_(network), head_(head), node_(node), self_(self), options_(options), exited_(std::move(exited)) {
  head.link().on_opened([this] {
    if (!self_.job) return;
    head_.link().call(Method::kWatchJob, body(to_bytes(JobRef{self_.job})), runtime::Peer::kNoTimeout, [](const Result<Message>&) {});
  });
  head.on_notice<ListReply>(Method::kJobOnNode, [this](const ListReply& places) {
    if (!remote_) return;
    for (const NodeRow& row : places.nodes) {
      if (row.id != self_.node) remote_->follow(row);
    }
  });
  head.on_notice<Warning>(Method::kWarning, [this](const Warning& warning) {
    // Every process of the job gets the warning. A worker drops it, since the driver shows its own copy.
    if (self_.owns_job || options_.print) warn(warning.text);
  });
  node.link().on_notice(Method::kLogLines, [this](const Message& lines) { print(self_.host, lines); });
}

Result<void> JobLogs::follow() {
  if (!prints()) return {};
  loop_.own([&] {
    remote_ = std::make_unique<RemoteLogs>(
        *loop_.clock(), network_, self_.job, [this](const std::string& host, runtime::Request notice) { on_remote(host, notice); },
        [this](NodeId node, const std::string& text) { warn_unless_drained(node, text); });
  });
  SHOAL_OK(node_.request(Method::kFollowLogs, to_bytes(JobRef{self_.job})));
  return {};
}

Result<void> JobLogs::sync() {
  if (!prints()) return {};
  SHOAL_OK(node_.link().request(Method::kSyncLogs, to_bytes(JobRef{self_.job}), kOwnNode));
  loop_.own([this] { remote_->sync(); });
  (void)loop_.wait([this] { return !remote_->syncing(); }, loop_.deadline_in(kOtherNodes));
  loop_.own([this] {
    if (printer_) printer_->flush();
  });
  return {};
}

void JobLogs::on_remote(const std::string& host, const runtime::Request& notice) {
  if (static_cast<Method>(notice.method) != Method::kWorkerExited) return print(host, notice.message);
  if (const auto process = from_bytes<WorkerUpdate>(notice.message.body)) exited_(*process);
}

void JobLogs::print(const std::string& host, const Message& lines) {
  const auto m = from_bytes<LogLines>(lines.body);
  if (!m) return;
  const std::string rank = m->rank >= 0 && !m->label.starts_with("rank") ? fmt::format(" {}", m->rank) : "";
  const std::string at = host == self_.host ? "" : ", ip=" + host;
  if (!printer_) printer_.emplace(*loop_.clock(), options_.fold);
  printer_->print(fmt::format("{}{} pid={}{}", m->label, rank, m->pid, at), m->stream == 2, lines.payload.view());
}

// Warns that a node's lines come no more, unless the head reports that the node is draining.
void JobLogs::warn_unless_drained(NodeId node, const std::string& text) {
  const ListRequest request{ListRequest::What::kNodes, {}, node.value - 1};
  head_.call(Method::kList, to_bytes(request), [this, node, text](const Result<Message>& reply) {
    if (!remote_) return;  // this process leaves, so it warns no more
    const auto page = reply ? from_bytes<ListReply>(reply->body) : Result<ListReply>(fail(reply.error()));
    const bool drained = page && std::any_of(page->nodes.begin(), page->nodes.end(),
                                             [&](const NodeRow& n) { return n.id == node && n.scheduling() == NodeScheduling::kDraining; });
    if (!drained) warn(text);
  });
}

}  // namespace shoal::actors
