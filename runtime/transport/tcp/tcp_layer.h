// A MessageLayer over TCP sockets, with TLS 1.3 or without. It needs no network library, no thread and no copy.
//
// Each pair of ranks has connections for each channel, so that a message without a receive blocks no other channel. One more connection,
// the watch, shows the other rank's end. Large messages travel in pieces over all connections of their channel.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/net/tls/tls.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

struct TcpOptions {
  int rank = 0;
  int world_size = 1;
  // Returns the bytes of each rank, in the order of ranks. Every rank calls it once; the bytes are secret and travel over an authenticated
  // channel.
  std::function<Result<std::vector<std::string>>(const std::string& own)> exchange;
  std::string interface;  // "eth0", or an address of this host; empty: the first one that is up
  // Encrypts all connections; every rank sets it, with the certificate of its host.
  std::shared_ptr<const Tls> tls;

  int connections = 2;                  // per channel with large messages, from 1 to 16; the same on every rank
  std::size_t piece_bytes = 256 << 10;  // a large message is cut into these; at most 16 MiB
  // A rank is lost if its host answers nothing for this time. A rank that is stopped is not lost: its host answers.
  Duration unanswered = std::chrono::milliseconds(1500);
  Duration connecting = std::chrono::seconds(30);  // for all connections, when the layer opens
  // Called every 100 ms while the layer opens. An error, such as the report of another rank's death, ends the opening. May be empty.
  std::function<Result<void>()> may_go_on;
};

// Raises this process's soft limit of open files to the hard one.
// Errors: InvalidArgument for wrong options, or if a rank's host has another byte order or protocol. Unavailable or DeadlineExceeded for
// a rank that cannot be reached, and the error of `may_go_on`.
Result<std::shared_ptr<MessageLayer>> make_tcp_layer(TcpOptions options);

}  // namespace shoal::runtime
