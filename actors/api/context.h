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

#include "actors/api/functions.h"
#include "actors/api/handle.h"
#include "actors/api/options.h"

namespace shoal {

// Resources that are reserved together, bundle by bundle; Where places actors and functions in them. A value.
struct PlacementGroup {
  GroupId id;
  Future<void> ready;  // once all bundles are reserved
};

class Context {
 public:
  struct Options {
    std::string program;                             // this binary: its workers are processes of it
    std::string build_id;                            // and must be of this build
    std::string caller = "driver";                   // this process, in its actors' eyes
    std::set<std::string, std::less<>> class_names;  // full ones, that the program's workers know
    std::set<std::string, std::less<>> functions;    // likewise
    std::string name_space;                          // of names; empty: the job's own
    std::uint32_t num_restarts = 0;                  // of this process's actor
    std::map<std::string, std::string> env = {};     // of what it starts
    std::string working_dir = "";                    // likewise
    std::chrono::milliseconds last_words{30'000};    // for a worker of functions that ends to say what actors it leaves,
    std::chrono::milliseconds needed{5'000};         // or, when calls that it has made are open for so long, that it is needed
  };
  Context(std::unique_ptr<actors::Session> session, Options options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Accepted by the head; the actor is constructed in a process of its own, with calls on it waiting. It ends with the last of its handles
  // (handle.h), unless it is detached. InvalidArgument for a class that shoal::main was not told of; ResourceExhausted/Infeasible;
  // Unavailable/HeadGone.
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
  // An actor that another process has spawned. This handle does not count: it keeps nobody.
  template <actors::api::Actor T>
  Result<Handle<T>> handle(ActorId id) {
    return Handle<T>::of(hub_, id);
  }
  // The living actor of this name, whoever spawned it; this handle keeps it no longer than others do. NotFound/NoSuchName; InvalidArgument
  // when it is of another class.
  template <actors::api::Actor T>
  Result<Handle<T>> get_actor(const std::string& name, const std::string& name_space = "") {
    SHOAL_TRY(const ActorId id, find(name, name_space, actors::api::full_class_name<T>()));
    return Handle<T>::of(hub_, id);
  }
  // Ends an actor's process at once; pending and later calls on it fail with Unavailable/ActorDied. With no_restart = false one that has
  // max_restarts left only loses its process.
  template <class T>
  Result<void> kill(const Handle<T>& handle, bool no_restart = true) {
    return hub_.session.kill(handle.id(), !no_restart);
  }

  // A remote function, which shoal::main was told of: context.remote<&square>()(5).get(). It runs in one of the processes that this one
  // keeps for functions with such options.
  template <auto function>
  actors::api::RemoteFunction<function> remote(FunctionOptions options = {}) {
    return {*functions_, std::move(options)};
  }

  // A value that is there already, as an argument of several calls: encoded once, and, if it is large, once in memory.
  template <class T>
  Result<Future<actors::api::Returned<T>>> put(const T& value) {
    SHOAL_TRY(auto encoded, actors::api::encode_result<T>(&session_->memory(), value));
    return Future<actors::api::Returned<T>>(actors::api::ready_reply(hub_, {}, "put", std::move(encoded)));
  }

  // Accepted by the head: `ready` tells when there is room. InvalidArgument/NameTaken.
  Result<PlacementGroup> placement_group(const std::vector<std::map<std::string, double>>& bundles, const GroupOptions& options = {});
  // What is in it ends.
  Result<void> remove(const PlacementGroup& group) { return hub_.session.remove_group(group.id); }

  // Who and where this process is.
  JobId job() const { return session_->job(); }
  NodeId node() const { return session_->node(); }
  WorkerId worker() const { return session_->worker(); }
  ActorId actor() const { return actor_; }  // of this process; none in a driver, and where functions run
  const std::string& name_space() const { return options_.name_space; }
  std::uint32_t num_restarts() const { return options_.num_restarts; }

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
  actors::api::Hub& hub() { return hub_; }
  const Options& options() const { return options_; }
  actors::api::FunctionPools& functions() { return *functions_; }
  void is_of(ActorId actor) {  // by its worker, before anything else
    actor_ = actor;
    session_->own([&] { session_->handles().is_of(actor); });
  }

 private:
  template <class T, class... A>
  Result<std::vector<Handle<T>>> spawn_gang(std::size_t count, bool mesh, const ActorOptions& options, const A&... args) {
    using Params = typename actors::api::Table<T>::Construction::Params;
    actors::api::check_arguments(Params(), actors::api::List<A...>());
    SHOAL_TRY(const auto encoded, actors::api::encode_call(&session_->memory(), Params(), args...));
    const auto name = actors::api::class_name<T>();
    const Class of{name, actors::api::full_class_name<T>(), actors::api::Table<T>::kOnLoop};
    SHOAL_TRY(auto created, create(count, mesh, of, options, encoded));
    std::vector<Handle<T>> out;
    for (std::size_t i = 0; i < created.size(); ++i) {
      Created& c = created[i];
      const actors::api::Callee callee{c.id, name, mesh ? static_cast<std::int32_t>(i) : -1};
      out.emplace_back(hub_, callee, actors::api::Reply(hub_, callee, actors::api::kConstruct, std::move(c.constructed)),
                       std::move(c.share));
    }
    return out;
  }
  struct Class {
    std::string_view name, full_name;
    bool on_loop = false;  // its calls run on a loop, not on threads
  };
  struct Created {
    ActorId id;
    actors::ValueFuture constructed;  // the answer of its constructor
    actors::Handles::Share share;     // null: its handle does not count
  };
  // The gang's actors, by rank.
  Result<std::vector<Created>> create(std::size_t count, bool mesh, const Class& of, const ActorOptions& options,
                                      const actors::api::Encoded& args);
  static constexpr std::int32_t kMaxThreads = 1000, kMaxOnLoop = 1'000'000, kOnLoop = 1000;
  Result<void> check_class(const actors::FoundActor& found, std::string_view full_class_name) const;
  Result<ActorId> find(const std::string& name, const std::string& name_space, std::string_view full_class_name);
  // Runs handlers of `here` until done(); cancels once when the time is over, and reports that after done().
  Result<void> drive(asio::io_context& here, asio::cancellation_signal& cancel, const std::function<bool()>& done, Duration timeout);

  const std::unique_ptr<actors::Session> session_;
  const Options options_;
  actors::api::Hub hub_;
  const actors::api::Launcher launcher_;
  ActorId actor_;
  const std::unique_ptr<actors::api::FunctionPools> functions_;
};

}  // namespace shoal
