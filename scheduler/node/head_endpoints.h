// The endpoints of a cluster's heads that a node has: the configured ones, then those that a head has reported. One of them is in use, or
// will be tried next.
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "runtime/net/endpoint.h"

namespace shoal::scheduler {

class HeadEndpoints {
 public:
  explicit HeadEndpoints(std::vector<runtime::Endpoint> configured) : configured_(std::move(configured)), all_(configured_) {}

  std::size_t size() const { return all_.size(); }
  const runtime::Endpoint& in_use() const { return all_[at_]; }
  void next() { at_ = (at_ + 1) % all_.size(); }
  // All endpoints, beginning with the one in use; reported ones are last.
  std::vector<std::string> in_order() const;
  // Sets the reported list of all heads. Returns the notice for the node's clients if the order has changed.
  std::optional<actors::Heads> set_reported(const std::vector<std::string>& reported);

 private:
  const std::vector<runtime::Endpoint> configured_;
  std::vector<runtime::Endpoint> all_;
  std::size_t at_ = 0;
  std::vector<std::string> last_;  // the order in the last notice
};

}  // namespace shoal::scheduler
