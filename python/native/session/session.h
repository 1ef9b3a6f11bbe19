// The class Session of Python.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/references/actor_host.h"
#include "actors/session/session.h"
#include "python/native/bindings.h"
#include "runtime/core/id.h"

namespace shoal::python {

// Cancelled calls that were already taken from the queue. Loop only, except for the atomics.
struct Cancels {
  void note(actors::CallKey call, actors::CancelHow how);
  bool has(actors::CallKey call) const;

  static constexpr std::size_t kMaxCalls = 4096;  // beyond it the oldest calls are forgotten, which have long been answered
  std::deque<actors::CallKey> calls;
  std::vector<actors::CallKey> unreported;  // if `reports`, the cancelled calls that take_cancelled has not returned yet
  bool reports = false;
  std::optional<pthread_t> interrupted;  // thread that runs the calls, if they can be interrupted
  std::atomic<bool> any = false;
  std::atomic<bool> signalled = false;
};

// Any thread may call any member.
class PySession {
 public:
  // The threads that use the session at the moment. The PySession and objects that may outlive it share this.
  struct Users {
    // Counts the caller as one that uses the session, so that close() waits for it. Null once the session is closed, and in a process that
    // was forked from the one that opened the session.
    std::shared_ptr<actors::Session> enter();
    std::mutex mutex;
    std::condition_variable left;
    int count = 0;                             // guarded by mutex
    std::shared_ptr<actors::Session> session;  // guarded by mutex; null once the session is closed
    std::atomic<bool> ending{false};           // true: all waits end
    bool forked = false;                       // forked child: the mutex may be held by a thread that does not exist here
  };
  // Keeps the session open during its lifetime.
  class Use {
   public:
    Use(std::shared_ptr<actors::Session> session, std::shared_ptr<Users> users);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    actors::Session& operator*() const { return *session_; }
    actors::Session* operator->() const { return session_.get(); }

   private:
    std::shared_ptr<actors::Session> session_;
    std::shared_ptr<Users> users_;
  };

  static std::unique_ptr<PySession> open(actors::SessionOptions options);
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;
  ~PySession();

  // Raises Unavailable if the session is closed, and in a process that was forked from the one that opened it. With the GIL.
  Use use() const;
  // The same for objects that may outlive this one. Returns nullopt where use() raises.
  static std::optional<Use> use_of(const std::shared_ptr<Users>& users);
  const std::shared_ptr<Users>& users() const { return users_; }
  // Ends other threads' waits with Cancelled; returns once they have left and the session is closed. Inside a wait of this thread (in a
  // signal handler) the session closes when that wait has ended, too.
  // `failure`: the uncaught exception that ends this program, if any.
  void close(const std::string& failure);
  void abandon_after_fork();

  std::shared_ptr<actors::CallQueue> queue;  // the calls to this process's actor, in a worker
  // An answer that is sent when the next call is taken, so that the loop changes hands once for both. Only for the thread that serves
  // calls.
  struct Due {
    actors::Incoming incoming;
    Result<actors::Value> value;
    void send(runtime::Flush flush) {
      if (value) return incoming.reply(*value, flush);
      incoming.fail(value.error());
    }
  };
  std::optional<Due> due;
  // A call that next_call had taken when a signal handler raised; the following next_call returns it.
  std::optional<actors::Incoming> taken;
  std::shared_ptr<Cancels> cancels = std::make_shared<Cancels>();
  std::vector<std::shared_ptr<const void>> pinned;                   // objects whose references were passed on without counting
  bool stopped = false;                                              // next_call returns without a call; loop only
  std::map<std::string, std::shared_ptr<actors::CallQueue>> queues;  // by actor id, for actors that a driver hosts

 private:
  explicit PySession(std::shared_ptr<Users> users) : users_(std::move(users)) {}

  const std::shared_ptr<Users> users_;
};

// Calls fn(session) without the GIL. The session stays open until it returns.
template <class F>
auto in_session(const PySession& s, F&& fn) {
  const auto use = s.use();
  const GilReleased release;
  return fn(*use);
}

// Ids are 16 hex digits in Python. Other text becomes 0, the id of nothing.
template <class Id>
Id id_of(std::string_view hex) {
  return Id{parse_hex(hex).value_or(0)};
}

inline runtime::Duration duration_of(double seconds) {
  return std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(seconds));
}

// These functions define the methods of Session, by subject.
using SessionClass = nb::class_<PySession>;
void bind_placement(SessionClass& session);                // actors, gangs and placement groups
void bind_cluster(nb::module_& m, SessionClass& session);  // the cluster's rows, resources, packages and logs
void bind_calls(SessionClass& session);                    // calls on actors, cancellation, the ends of actors
void bind_objects(SessionClass& session);                  // values that other processes fetch, items of streams
void bind_waits(nb::module_& m, SessionClass& session);    // waits for results, and for reports of workers
void bind_hosting(nb::module_& m, SessionClass& session);  // a worker's side of calls

}  // namespace shoal::python
