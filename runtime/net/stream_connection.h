// A Connection that delegates to a stream. Pending handlers share the stream and may outlive the Connection for one turn of the loop.
#pragma once

#include <memory>
#include <utility>

#include "runtime/net/connection.h"

namespace shoal::runtime {

template <class Stream>
class StreamConnection final : public Connection {
 public:
  explicit StreamConnection(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  ~StreamConnection() override { stream_->abandon(); }
  void start(ConnectionHandler& handler) override { stream_->start(handler); }
  void send(Frame frame, Flush flush) override { stream_->send(std::move(frame), flush); }
  std::size_t queued_bytes() const override { return stream_->queued_bytes(); }
  void read_arrived() override {
    const auto stream = stream_;  // the handler may destroy this connection
    stream->read_arrived();
  }
  const PeerIdentity& identity() const override { return stream_->identity(); }
  const FrameLimits& limits() const override { return stream_->limits(); }

 private:
  std::shared_ptr<Stream> stream_;
};

template <class Stream, class... Args>
std::unique_ptr<Connection> make_stream_connection(Args&&... args) {
  return std::make_unique<StreamConnection<Stream>>(std::make_shared<Stream>(std::forward<Args>(args)...));
}

}  // namespace shoal::runtime
