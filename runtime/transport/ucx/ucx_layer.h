// A MessageLayer over UCX: tagged messages, on whatever network UCX finds between the hosts (TCP, InfiniBand, RoCE).
//
// A group has a UCX worker of its own. Its progress needs no thread: the driving thread sleeps on the worker's event descriptor.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

struct UcxOptions {
  int rank = 0;
  int world_size = 1;
  // Returns the bytes of each rank, in the order of ranks. Every rank calls it once; the bytes travel over an authenticated channel.
  std::function<Result<std::vector<std::string>>(const std::string& own)> exchange;
  std::string devices;  // as UCX_NET_DEVICES, which comes first: "mlx5_0:1,ib0"; empty: UCX chooses
};

// Unavailable/NoUcx without the library. InvalidArgument if a rank's host has another byte order or protocol.
Result<std::shared_ptr<MessageLayer>> make_ucx_layer(const UcxOptions& options);

}  // namespace shoal::runtime
