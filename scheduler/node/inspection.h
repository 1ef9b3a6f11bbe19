// A node's answer to an inspection: its own data, and the answers of its processes within a time limit. Processes that do not answer are
// named. Nothing is kept for later inspections. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "runtime/net/peer.h"
#include "storage/memory_table.h"
#include "storage/reference_table.h"

namespace shoal::scheduler {

// Rows for the objects in the node's memory, and for those that it has only references to. Pure, but for a look at the descriptors.
std::vector<actors::ObjectReport> report_objects(const storage::MemoryTable& memory, const storage::ReferenceTable& references);

// Joins the rows that belong to one memory, from the node and from its processes, into one row. Pure.
void join_objects(actors::NodeReport& node);

// One inspection: asks the processes, waits and answers. It exists until the last of their answers can no longer come.
class Inspection : public std::enable_shared_from_this<Inspection> {
 public:
  static constexpr runtime::Duration kPatience = std::chrono::seconds(3);  // time limit of a process's answer
  // The time limit for metrics, which is shorter: a scrape by Prometheus has ten seconds in all.
  static constexpr runtime::Duration kMetricsPatience = std::chrono::seconds(2);
  // Limit of the rows of all processes together. A process whose answer exceeds it is cut to an equal share of this number.
  static constexpr std::size_t kMaxRows = 100'000;

  Inspection(actors::NodeReport begun, actors::Inspect request, runtime::Responder responder)
      : reported_(std::move(begun)), request_(request), responder_(std::move(responder)) {}

  // `each` is called with each process's answer when that arrives, and may take its contents. `all` is called with the whole report before
  // it is sent.
  void pass_through(std::function<void(actors::ProcessReport&)> each, std::function<void(actors::NodeReport&)> all) {
    each_ = std::move(each);
    all_ = std::move(all);
  }
  // Sends the request to a process. `who`: the process's row, still without its answer.
  void request_report(runtime::Peer& peer, actors::ProcessReport who);
  // Cuts tasks and objects to `rows` each. Ended calls are cut first, and count as forgotten, since a process keeps only the last of them
  // anyway.
  static void leave(actors::ProcessReport& process, std::size_t rows);
  // Delays the answer until the returned function is called.
  std::function<void()> expect();
  // To be called when all processes have been asked. The answer is sent once they have answered.
  void sent_to_all();

 private:
  void received(actors::ProcessReport who, Result<runtime::Message> answer);
  void finish();

  actors::NodeReport reported_;
  const actors::Inspect request_;
  std::optional<runtime::Responder> responder_;
  std::function<void(actors::ProcessReport&)> each_;
  std::function<void(actors::NodeReport&)> all_;
  // Number of things for which the answer still waits: processes, functions of expect(), and sent_to_all().
  std::size_t waiting_ = 1;
  std::size_t num_processes_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace shoal::scheduler
