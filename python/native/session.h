// The Session as Python holds it.
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

#include "actors/session/actor_host.h"
#include "actors/session/session.h"
#include "python/native/bindings.h"

namespace shoal::python {

// Calls that were taken from the queue and that nobody wants any more. The loop's, but for what is atomic.
struct Cancels {
  void note(actors::CallKey call, actors::CancelHow how);
  bool has(actors::CallKey call) const;

  static constexpr std::size_t kMaxCalls = 4096;  // the oldest are answered long since
  std::deque<actors::CallKey> calls;
  std::vector<actors::CallKey> untold;  // of those, if somebody wants to be told
  bool tells = false;
  std::optional<pthread_t> interrupted;  // the thread that runs them, if they can be
  std::atomic<bool> any = false;
  std::atomic<bool> signalled = false;
};

// Any thread may call any member.
class PySession {
 public:
  // Of all who use the session.
  struct Users {
    // One more uses it; null when it is closed, or elsewhere.
    std::shared_ptr<actors::Session> enter();
    std::mutex mutex;
    std::condition_variable left;
    int count = 0;                             // guarded by mutex
    std::shared_ptr<actors::Session> session;  // likewise; null once it is closed
    std::atomic<bool> ending{false};           // waits end
    bool forked = false;                       // this process is a child of the session's: nobody is there who might hold the mutex
  };
  // The session, which does not end while this lives.
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

  // Raises Unavailable when it is closed, or this process was forked from the one that opened it. With the GIL.
  Use use() const;
  // For who may outlive this object. Nothing where use() raises.
  static std::optional<Use> use_of(const std::shared_ptr<Users>& users);
  const std::shared_ptr<Users>& users() const { return users_; }
  // Ends the waits of other threads, which come to Cancelled, and returns when they have left and the session is closed. From inside a wait
  // of this thread (a signal handler): it is closed when that one has ended likewise.
  void close();
  void abandon_after_fork();

  std::shared_ptr<actors::CallQueue> queue;  // of a worker that serves
  // An answer that goes when the next call is taken, so that the loop is taken once for both. Of the thread that serves.
  struct Due {
    actors::Incoming incoming;
    Result<actors::Value> value;
    void send(runtime::Flush flush) {
      if (value) return incoming.reply(*value, flush);
      incoming.fail(value.error());
    }
  };
  std::optional<Due> due;
  std::optional<actors::Incoming> taken;  // by a next_call that a signal's handler ended; the next one returns it
  std::shared_ptr<Cancels> cancels = std::make_shared<Cancels>();
  std::vector<std::shared_ptr<const void>> pinned;                   // what references refer to that went where nobody counts
  bool stopped = false;                                              // its next_call ends; the loop's
  std::map<std::string, std::shared_ptr<actors::CallQueue>> queues;  // of actors that a driver hosts, by id

 private:
  explicit PySession(std::shared_ptr<Users> users) : users_(std::move(users)) {}

  const std::shared_ptr<Users> users_;
};

}  // namespace shoal::python
