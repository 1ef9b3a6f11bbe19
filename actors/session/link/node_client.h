// The client of this process's node: its connection, and the memories that the node keeps by name.
#pragma once

#include <string>
#include <vector>

#include "actors/protocol/wire/node_messages.h"
#include "actors/session/link/identity.h"
#include "actors/session/link/link.h"
#include "runtime/core/fd.h"

namespace shoal::actors {

class NodeClient {
 public:
  struct Options {
    runtime::Duration connect_timeout = {}, control_timeout = {};
  };
  NodeClient(SessionLoop& loop, runtime::Network& network, const Identity& self, Options options);

  // ---- any thread ----
  // Connects to the node and presents this process to it, once. The descriptor is that of the node's usage board, if it has one.
  struct Presented {
    Attached node;
    std::vector<Fd> membership_page;
  };
  Result<Presented> attach(const std::string& endpoint, const Attach& process);
  // The node's endpoint, constant once attach() has returned.
  const std::string& endpoint() const { return link_.endpoints(); }
  Result<runtime::Message> request(Method method, Bytes bytes) { return link_.request(method, std::move(bytes), options_.control_timeout); }
  // The job's shared memory of this key at the node, filled with zeros for the first process that opens it. `lasting`: deaths of
  // holders do not free it. It ends when a process drops it and no living one holds it, or as MemoryTable::open says.
  Result<Fd> open_arena(const std::string& key, std::uint64_t bytes, std::int32_t member = -1, bool lasting = false);
  // The memory of that key, which exists already, of any size. Returns NotFound if there is none.
  Result<Fd> find_arena(const std::string& key);
  // This process holds the arena no longer, or never did: frees it if no living process holds it.
  void drop_arena(const std::string& key);

  // ---- only while the loop is owned ----
  Link& link() { return link_; }
  const Link& link() const { return link_; }

 private:
  SessionLoop& loop_;
  const Identity& self_;
  const Options options_;
  Link link_;
};

}  // namespace shoal::actors
