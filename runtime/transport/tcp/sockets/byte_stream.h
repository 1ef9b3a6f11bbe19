// A connected, non-blocking socket, with TLS or without.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

class ByteStream {
 public:
  ByteStream(Fd socket, std::shared_ptr<const Tls> tls, TlsSession::Side side);

  int socket() const { return socket_.get(); }
  bool encrypted() const { return tls_.has_value(); }
  // Advances the handshake. True once it is complete, or at once without TLS.
  Result<bool> handshake();
  TlsBinding binding() const { return tls_ ? tls_->binding() : TlsBinding{}; }

  struct Moved {
    std::size_t bytes = 0;
    bool blocked = false;  // the socket can move no more now
    bool ended = false;    // the other side has closed it
  };
  // Fills two memories, one after the other. `last`: the socket has an end or error, so a short read does not mean that it is empty.
  Result<Moved> read(std::span<std::byte> first, std::span<std::byte> second, bool last);
  // Writes two memories, one after the other. After a call that wrote less than all, call it with the rest.
  Result<Moved> write(std::span<const std::byte> first, std::span<const std::byte> second);

 private:
  Result<Moved> read_encrypted(std::span<std::byte> first, std::span<std::byte> second);
  Result<Moved> write_encrypted(std::span<const std::byte> first, std::span<const std::byte> second);

  Fd socket_;
  std::optional<TlsSession> tls_;
  std::vector<std::byte> record_;  // joins two memories in one record
};

}  // namespace shoal::runtime
