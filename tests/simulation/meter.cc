#include "tests/simulation/meter.h"

#include <ctime>
#include <utility>

namespace shoal::simulation {

namespace {

using runtime::Connection;
using runtime::Endpoint;

class MeteredClock final : public runtime::Clock {
 public:
  MeteredClock(Meter& meter, runtime::Clock& clock) : meter_(meter), clock_(clock) {}
  runtime::TimePoint now() const override { return clock_.now(); }
  std::int64_t unix_millis() const override { return clock_.unix_millis(); }
  runtime::Timer after(runtime::Duration delay, std::function<void()> fn) override {
    return clock_.after(delay, [&meter = meter_, fn = std::move(fn)] { meter.count(fn); });
  }

 private:
  Meter& meter_;
  runtime::Clock& clock_;
};

class MeteredConnection final : public Connection, private runtime::ConnectionHandler {
 public:
  MeteredConnection(Meter& meter, std::unique_ptr<Connection> connection) : meter_(meter), connection_(std::move(connection)) {}
  void start(runtime::ConnectionHandler& handler) override {
    handler_ = &handler;
    connection_->start(*this);
  }
  void send(runtime::Frame frame, runtime::Flush flush) override { connection_->send(std::move(frame), flush); }
  std::size_t queued_bytes() const override { return connection_->queued_bytes(); }
  void read_arrived() override { connection_->read_arrived(); }
  const runtime::PeerIdentity& identity() const override { return connection_->identity(); }
  const runtime::FrameLimits& limits() const override { return connection_->limits(); }

 private:
  // The handler may destroy this object, but not the meter.
  void on_frame(runtime::Frame frame) override {
    Meter& meter = meter_;
    meter.count([&] { handler_->on_frame(std::move(frame)); });
  }
  void on_closed(Error why) override {
    Meter& meter = meter_;
    meter.count([&] { handler_->on_closed(std::move(why)); });
  }
  void on_drained() override {
    Meter& meter = meter_;
    meter.count([&] { handler_->on_drained(); });
  }

  Meter& meter_;
  const std::unique_ptr<Connection> connection_;
  runtime::ConnectionHandler* handler_ = nullptr;
};

class MeteredNetwork final : public runtime::Network {
 public:
  MeteredNetwork(Meter& meter, runtime::Network& network) : meter_(meter), network_(network) {}
  Result<std::unique_ptr<runtime::Listener>> listen(const Endpoint& endpoint, Accepted accepted) override {
    return network_.listen(endpoint, [&meter = meter_, accepted = std::move(accepted)](std::unique_ptr<Connection> c) {
      meter.count([&] { accepted(std::make_unique<MeteredConnection>(meter, std::move(c))); });
    });
  }
  void connect(const Endpoint& endpoint, runtime::Role role, runtime::Duration timeout, Connected connected) override {
    network_.connect(endpoint, role, timeout, [&meter = meter_, connected = std::move(connected)](Result<std::unique_ptr<Connection>> r) {
      meter.count([&] {
        connected(r ? Result<std::unique_ptr<Connection>>(std::make_unique<MeteredConnection>(meter, *std::move(r))) : std::move(r));
      });
    });
  }

 private:
  Meter& meter_;
  runtime::Network& network_;
};

}  // namespace

double Meter::cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::unique_ptr<runtime::Clock> metered(Meter& meter, runtime::Clock& clock) { return std::make_unique<MeteredClock>(meter, clock); }
std::unique_ptr<runtime::Network> metered(Meter& meter, runtime::Network& network) {
  return std::make_unique<MeteredNetwork>(meter, network);
}

}  // namespace shoal::simulation
