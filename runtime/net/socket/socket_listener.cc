#include "runtime/net/socket/socket_listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/loop/loop.h"

namespace shoal::runtime {

namespace {

constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptsAtOnce = 16;  // limit per turn of the loop: a flood of callers delays no other work

class SocketListener final : public Listener {
 public:
  using Room = std::function<Duration()>;  // returns the next caller's wait
  using OnSocket = std::function<void(Fd)>;

  SocketListener(Loop& loop, Clock& clock, Fd fd, Endpoint endpoint, std::shared_ptr<Door> door, Room room, OnSocket on_socket)
      : loop_(loop),
        state_(std::make_shared<State>(loop, clock, std::move(fd), std::move(room), std::move(on_socket))),
        door_(std::move(door)),
        endpoint_(std::move(endpoint)) {
    loop_.track(state_->descriptor.native_handle());
    door_->goes_on = [state = state_.get()] { state->go_on(); };
    state_->wait();
  }
  ~SocketListener() override {
    loop_.untrack(state_->descriptor.native_handle());
    std::error_code ignored;
    state_->descriptor.close(ignored);
    state_->again = {};
    door_->close();  // also ends the hellos under way
  }
  const Endpoint& endpoint() const override { return endpoint_; }

 private:
  struct State : std::enable_shared_from_this<State> {
    State(Loop& loop, Clock& clock, Fd fd, Room room, OnSocket on_socket)
        : clock(clock), descriptor(loop.io(), fd.release()), room(std::move(room)), on_socket(std::move(on_socket)) {}

    void wait() {
      descriptor.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
        if (!error) self->accept();
      });
    }

    void accept() {
      for (int i = 0; descriptor.is_open(); ++i) {
        // room() may close a hello to make room, so it is called only while a caller waits.
        if (i == kAcceptsAtOnce || !has_caller()) return wait();
        if (const Duration pause = room(); pause > Duration::zero()) {  // the caller stays in the backlog
          full = true;
          again = clock.after(pause, [self = shared_from_this()] { self->go_on(); });
          return;
        }
        Fd fd(accept4(descriptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) {
          on_socket(std::move(fd));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
          return wait();
        } else if (errno != EINTR && errno != ECONNABORTED) {
          // Out of descriptors or memory: the caller stays in the backlog. Without a pause the descriptor would be readable again at once.
          again = clock.after(kAcceptPause, [self = shared_from_this()] { self->accept(); });
          return;
        }
      }
    }

    bool has_caller() {
      pollfd caller{descriptor.native_handle(), POLLIN, 0};
      return poll(&caller, 1, 0) > 0;
    }

    void go_on() {
      if (std::exchange(full, false)) accept();
    }

    Clock& clock;
    asio::posix::stream_descriptor descriptor;
    Room room;
    OnSocket on_socket;
    bool full = false;  // too many hellos under way
    Timer again;
  };
  Loop& loop_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Door> door_;
  Endpoint endpoint_;
};

class TwoListeners final : public Listener {
 public:
  TwoListeners(std::unique_ptr<Listener> local, std::unique_ptr<Listener> elsewhere)
      : local_(std::move(local)), elsewhere_(std::move(elsewhere)), endpoint_(elsewhere_->endpoint()) {
    endpoint_.unix_name = local_->endpoint().unix_name;
  }
  const Endpoint& endpoint() const override { return endpoint_; }

 private:
  const std::unique_ptr<Listener> local_, elsewhere_;
  Endpoint endpoint_;
};

}  // namespace

Duration Door::wait_for_room(std::size_t max, TimePoint now, Duration pause) {
  if (greeting.size() < max) return Duration::zero();
  for (auto it = greeting.begin(); it != greeting.end(); ++it) {
    if (it->first > now) return it->first - now;
    std::error_code ignored;
    if (it->second->socket.available(ignored) > 0) continue;
    it->second->close();
    greeting.erase(it);
    return Duration::zero();
  }
  return pause;
}

void Door::stepped(const Line& line, TimePoint until) {
  const auto it = std::ranges::find_if(greeting, [&](const auto& entry) { return entry.second.get() == &line; });
  if (it == greeting.end()) return;
  auto node = greeting.extract(it);
  node.key() = until;
  greeting.insert(std::move(node));
}

void Door::ended(const Line& line) {
  std::erase_if(greeting, [&](const auto& entry) { return entry.second.get() == &line; });
  if (goes_on) goes_on();
}

void Door::close() {
  accepted = nullptr;
  goes_on = nullptr;
  for (const auto& [until, line] : std::exchange(greeting, {})) line->close();
}

std::unique_ptr<Listener> make_socket_listener(Loop& loop, Clock& clock, Fd fd, Endpoint endpoint, std::shared_ptr<Door> door,
                                               std::function<Duration()> room, std::function<void(Fd)> on_socket) {
  return std::make_unique<SocketListener>(loop, clock, std::move(fd), std::move(endpoint), std::move(door), std::move(room),
                                          std::move(on_socket));
}

std::unique_ptr<Listener> make_two_listeners(std::unique_ptr<Listener> local, std::unique_ptr<Listener> elsewhere) {
  return std::make_unique<TwoListeners>(std::move(local), std::move(elsewhere));
}

}  // namespace shoal::runtime
