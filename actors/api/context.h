// A process's way to its cluster: spawns actors, kills them, runs coroutines. A driver gets one from shoal::main, an actor from its Place.
//
// Threads: any thread may call any member, and block in it. User code never runs on the loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>

#include "actors/api/handle.h"

namespace shoal {

// What an actor asks of the node it is placed on. CPUs are logical: an actor asks for none unless told so.
struct ActorOptions {
  double num_cpus = 0;
  double num_gpus = 0;
  double memory = 0;  // bytes
  std::map<std::string, double> resources = {};
  std::map<std::string, std::string> env = {};  // added to its process's
  // Fail with ResourceExhausted/Infeasible when no present node could ever hold it, instead of waiting for one that can.
  bool refuse_infeasible = false;
};

class Context {
 public:
  struct Options {
    std::string program;                             // this binary: its workers are processes of it
    std::string build_id;                            // and must be of this build
    std::string caller = "driver";                   // this process, in its actors' eyes
    std::set<std::string, std::less<>> class_names;  // full ones, that the program's workers know
  };
  Context(std::unique_ptr<actors::Session> session, Options options);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Accepted by the head; the actor is constructed in a process of its own, with calls on it waiting. InvalidArgument for a class that
  // shoal::main was not told of; ResourceExhausted/Infeasible; Unavailable/HeadGone.
  template <actors::api::Actor T, class... A>
  Result<Handle<T>> spawn(const ActorOptions& options, const A&... args) {
    SHOAL_TRY(auto handles, spawn_gang<T>(1, false, options, args...));
    return std::move(handles[0]);
  }
  // `count` of them, placed together or not at all, each with the same arguments and its own Place.
  template <actors::api::Actor T, class... A>
  Result<Mesh<T>> spawn_mesh(std::size_t count, const ActorOptions& options, const A&... args) {
    SHOAL_TRY(auto handles, spawn_gang<T>(count, true, options, args...));
    return Mesh<T>(hub_, std::move(handles));
  }
  // An actor that another process has spawned.
  template <actors::api::Actor T>
  Result<Handle<T>> handle(ActorId id) {
    const actors::api::Callee callee{id, actors::api::class_name<T>()};
    SHOAL_OK(hub_.session.know(id, std::string(callee.class_name)));
    return Handle<T>(hub_, callee, there_already(callee));
  }
  // Ends an actor and its process at once; pending and later calls on it fail with Unavailable/ActorDied.
  template <class T>
  Result<void> kill(const Handle<T>& handle) {
    return hub_.session.kill(handle.id());
  }

  // Runs a coroutine in this thread until it ends; it awaits futures of this Context, and coroutines that do. When the time is over it is
  // cancelled and the result is DeadlineExceeded; what it throws is Internal. Several threads may run one each.
  template <class T>
  Result<T> run(Task<T> task, Duration timeout = kForever) {
    std::optional<Result<T>> result;
    asio::io_context here;
    asio::cancellation_signal cancel;
    asio::co_spawn(here, std::move(task),
                   asio::bind_cancellation_slot(cancel.slot(), [&result](std::exception_ptr thrown, Result<T> value) {
                     if (thrown) value = fail(actors::api::from_exception(thrown, internal, "the coroutine"));
                     result.emplace(std::move(value));
                   }));
    const auto driven = drive(here, cancel, [&result] { return result.has_value(); }, timeout);
    if (!driven) return fail(driven.error());
    return *std::move(result);
  }

  // What lies below: lists, status, and everything untyped.
  actors::Session& session() { return *session_; }

 private:
  template <class T, class... A>
  Result<std::vector<Handle<T>>> spawn_gang(std::size_t count, bool mesh, const ActorOptions& options, const A&... args) {
    using Params = typename actors::api::Table<T>::Construction::Params;
    actors::api::check_arguments(Params(), actors::api::List<const A&...>());
    SHOAL_TRY(const auto encoded, actors::api::encode(Params(), args...));
    const auto name = actors::api::class_name<T>();
    SHOAL_TRY(auto constructed, create(count, name, actors::api::full_class_name<T>(), options, encoded));
    std::vector<Handle<T>> out;
    for (std::size_t i = 0; i < count; ++i) {
      const actors::api::Callee callee{constructed[i].first, name, mesh ? static_cast<std::int32_t>(i) : -1};
      out.emplace_back(hub_, callee, actors::api::Reply(hub_, callee, actors::api::kConstruct, std::move(constructed[i].second)));
    }
    return out;
  }
  // The gang's actors and the answers of their constructors, by rank.
  Result<std::vector<std::pair<ActorId, actors::ValueFuture>>> create(std::size_t count, std::string_view class_name,
                                                                      std::string_view full_class_name, const ActorOptions& options,
                                                                      const actors::Value& args);
  actors::api::Reply there_already(const actors::api::Callee& callee);
  // Runs handlers of `here` until done(); cancels once when the time is over, and reports that after done().
  Result<void> drive(asio::io_context& here, asio::cancellation_signal& cancel, const std::function<bool()>& done, Duration timeout);

  const std::unique_ptr<actors::Session> session_;
  const Options options_;
  actors::api::Hub hub_;
};

}  // namespace shoal
