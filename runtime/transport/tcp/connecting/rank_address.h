// The address at which a rank listens for data connections, as the ranks of a group exchange it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/result.h"
#include "runtime/net/hello.h"

namespace shoal::runtime {

struct RankAddress {
  std::string host;  // a numeric address
  std::uint16_t port = 0;
  Token token;  // proves that a caller belongs to the group

  // A line of text; it is secret, because it has the token.
  std::string text() const;
  // InvalidArgument for another protocol, another byte order, or a malformed text. `rank` names its sender in the error.
  static Result<RankAddress> parse(const std::string& text, int rank);
};

}  // namespace shoal::runtime
