// A node's answer to an inspection: its own data, and what its processes answer within a deadline. Those that do not answer are named.
// Nothing is kept. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/wire/inspection.h"
#include "runtime/net/peer.h"
#include "storage/memory_table.h"
#include "storage/reference_table.h"

namespace shoal::scheduler {

// The node's objects, and those that it knows from references only. Pure but for a look at the descriptors.
std::vector<actors::ObjectReport> report_objects(const storage::MemoryTable& memory, const storage::ReferenceTable& references);

// Joins the rows of one memory, the node's and those of its processes, into one. Pure.
void join_objects(actors::NodeReport& node);

// Asks, waits and answers. It lives as long as an answer may come.
class Inspection : public std::enable_shared_from_this<Inspection> {
 public:
  static constexpr runtime::Duration kPatience = std::chrono::seconds(3);         // for a process
  static constexpr runtime::Duration kMetricsPatience = std::chrono::seconds(2);  // scrapers wait ten seconds in all
  // Rows of all processes together. Beyond it, a process that answers is cut to an equal share of it.
  static constexpr std::size_t kMaxRows = 100'000;

  Inspection(actors::NodeReport begun, actors::Inspect asked, runtime::Responder responder)
      : reported_(std::move(begun)), asked_(asked), responder_(std::move(responder)) {}

  // `each` is called with each process's answer as it arrives, and may take it; `all` with all answers before they are sent.
  void pass_through(std::function<void(actors::ProcessReport&)> each, std::function<void(actors::NodeReport&)> all) {
    each_ = std::move(each);
    all_ = std::move(all);
  }
  // `who`: the row of the process, without its answer.
  void ask(runtime::Peer& peer, actors::ProcessReport who);
  // Cuts tasks and objects to `rows` each. Ended calls go first and are not counted as left out, as a process keeps only the latest of
  // them.
  static void leave(actors::ProcessReport& process, std::size_t rows);
  // Makes the answer wait until the returned function is called.
  std::function<void()> expect();
  // All processes have been asked: the answer is sent once they have answered.
  void asked_all();

 private:
  void received(actors::ProcessReport who, Result<runtime::Message> answer);
  void finish();

  actors::NodeReport reported_;
  const actors::Inspect asked_;
  std::optional<runtime::Responder> responder_;
  std::function<void(actors::ProcessReport&)> each_;
  std::function<void(actors::NodeReport&)> all_;
  std::size_t waiting_ = 1;  // answers, and asked_all()
  std::size_t asked_processes_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace shoal::scheduler
