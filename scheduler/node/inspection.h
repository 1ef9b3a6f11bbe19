// What a node answers to somebody who looks at the cluster: what it knows itself, and what its processes tell within a deadline. Those that
// do not are named. Nothing is kept. Loop thread only.
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

// The node's objects, and those that it only knows to be referred to. Pure but for a look at the descriptors.
std::vector<actors::ToldObject> tell_objects(const storage::MemoryTable& memory, const storage::ReferenceTable& references);

// One row per memory: what its processes tell of theirs is joined to the node's, and to each other's. Pure.
void join_objects(actors::ToldNode& node);

// Asks, waits and answers. It lives as long as an answer may come.
class Inspection : public std::enable_shared_from_this<Inspection> {
 public:
  static constexpr runtime::Duration kPatience = std::chrono::seconds(3);         // with a process
  static constexpr runtime::Duration kMetricsPatience = std::chrono::seconds(2);  // scrapers wait for ten seconds in all
  // Of all processes together; when they are more, who comes then has its share of so many, no more.
  static constexpr std::size_t kMaxRows = 100'000;

  Inspection(actors::ToldNode begun, actors::Inspect asked, runtime::Responder responder)
      : told_(std::move(begun)), asked_(asked), responder_(std::move(responder)) {}

  // Sees what a process tells as soon as it does, and may take it; and what all have told, before it is sent.
  void pass_through(std::function<void(actors::ToldProcess&)> each, std::function<void(actors::ToldNode&)> all) {
    each_ = std::move(each);
    all_ = std::move(all);
  }
  // `who`: all but what it tells.
  void ask(runtime::Peer& peer, actors::ToldProcess who);
  // Leaves as many rows. Of calls those that are over go first, and are not counted: of these a process tells what it has room for.
  static void leave(actors::ToldProcess& process, std::size_t rows);
  // Something else is waited for, until what is returned was called.
  std::function<void()> expect();
  // Everybody has been asked: it answers as soon as they have.
  void asked_all();

 private:
  void heard(actors::ToldProcess who, Result<runtime::Message> answer);
  void finish();

  actors::ToldNode told_;
  const actors::Inspect asked_;
  std::optional<runtime::Responder> responder_;
  std::function<void(actors::ToldProcess&)> each_;
  std::function<void(actors::ToldNode&)> all_;
  std::size_t waiting_ = 1;  // for answers, and for asked_all
  std::size_t asked_processes_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace shoal::scheduler
