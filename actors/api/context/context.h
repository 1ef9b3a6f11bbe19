// A process's access to its cluster: spawns actors, kills them, runs coroutines. A driver gets it from shoal::main, an actor from its
// Place.
//
// Any thread may call any member, and block in it. User code never runs on the loop.
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

#include "actors/api/context/functions.h"
#include "actors/api/context/handle.h"
#include "actors/api/context/options.h"
#include "actors/api/record/step_record.h"

namespace shoal::actors {
struct FoundActor;
}

namespace shoal {

// Resources reserved together, bundle by bundle, in which Where places actors and functions. Copies name the same group.
struct PlacementGroup {
  GroupId id;
  Future<void> ready;  // ready once all bundles are reserved
};

class Context {
 public:
  struct Options {
    std::string program;                             // this binary, which its workers run too
    std::string build_id;                            // the build that workers must have
    std::string caller = "driver";                   // describes this process in errors of the actors that it calls
    std::set<std::string, std::less<>> class_names;  // full names of the program's actor classes
    std::set<std::string, std::less<>> functions;    // the program's remote functions
    std::string name_space;                          // for names of actors and groups; empty: the job's own
    std::uint32_t num_restarts = 0;                  // restarts of this process's actor
    std::map<std::string, std::string> env = {};     // variables of the processes that this process starts
    std::string working_dir = "";                    // the working folder of those processes
    std::string run_folder = "";                     // where record() writes; empty: nowhere
    std::chrono::milliseconds hand_over{30'000};     // time in which a worker of functions that shall end reports the actors that it leaves
    std::chrono::milliseconds needed{5'000};         // a worker whose calls are still open after this time answers that it is needed
  };
  Context(std::unique_ptr<actors::Session> session, Options options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Returns when the head accepts the actor, which is constructed in its own process; calls wait for it. It ends with its last handle
  // (handle.h), unless detached. Returns InvalidArgument for a class that is not in shoal::main, and Unavailable/HeadGone if no head
  // answers. With refuse_infeasible it returns ResourceExhausted/Infeasible if no present node could ever hold the actor.
  template <actors::api::Actor T, class... A>
  Result<Handle<T>> spawn(const ActorOptions& options, const A&... args) {
    SHOAL_TRY(auto handles, spawn_gang<T>(1, false, options, args...));
    return std::move(handles[0]);
  }
  // `count` actors, placed together or not at all, each with the same arguments and its own Place.
  template <actors::api::Actor T, class... A>
  Result<Mesh<T>> spawn_mesh(std::size_t count, const ActorOptions& options, const A&... args) {
    SHOAL_TRY(auto handles, spawn_gang<T>(count, true, options, args...));
    return Mesh<T>(hub_, std::move(handles));
  }
  // An actor that another process spawned. This handle does not count, so it does not keep the actor alive.
  template <actors::api::Actor T>
  Result<Handle<T>> handle(ActorId id) {
    return Handle<T>::from_id(hub_, id);
  }
  // The living actor of this name, in any job; this handle does not count. Returns NotFound/NoSuchName if there is none, and
  // InvalidArgument if the actor is of another class.
  template <actors::api::Actor T>
  Result<Handle<T>> get_actor(const std::string& name, const std::string& name_space = "") {
    SHOAL_TRY(const ActorId id, find(name, name_space, actors::api::full_class_name<T>()));
    return Handle<T>::from_id(hub_, id);
  }
  // Ends an actor's process at once; open and later calls fail with Unavailable/ActorDied. With no_restart = false an actor with restarts
  // left only loses its process.
  template <class T>
  Result<void> kill(const Handle<T>& handle, bool no_restart = true) {
    return kill(handle.id(), no_restart);
  }

  // A remote function listed in shoal::main: context.remote<&square>()(5).get(). It runs in a worker that this process keeps for
  // functions with these options.
  template <auto function>
  actors::api::RemoteFunction<function> remote(FunctionOptions options = {}) {
    return {*functions_, std::move(options)};
  }

  // A ready future with `value`, to be the argument of several calls. The value is encoded once; a large one is copied to shared memory
  // once.
  template <class T>
  Result<Future<actors::api::Returned<T>>> put(const T& value) {
    SHOAL_TRY(auto encoded, actors::api::encode_result<T>(&hub_.memory(), value));
    return Future<actors::api::Returned<T>>(actors::api::ready_reply(hub_, {}, "put", std::move(encoded)));
  }

  // Returns when the head accepts the group; `ready` waits for its room. Returns InvalidArgument/NameTaken if a living group has its name.
  Result<PlacementGroup> placement_group(const std::vector<std::map<std::string, double>>& bundles, const GroupOptions& options = {});
  // Removes the group. Actors and functions in it end.
  Result<void> remove(const PlacementGroup& group);

  // Identity and location of this process.
  JobId job() const;
  NodeId node() const;
  WorkerId worker() const;
  ActorId actor() const { return actor_; }  // the actor of this process; none in a driver, and in a worker of functions
  const std::string& name_space() const { return options_.name_space; }
  std::uint32_t num_restarts() const { return options_.num_restarts; }

  // The steps of this driver's training, for `shoal show` and the dashboard.
  StepRecord& record() { return record_; }

  // Runs a coroutine in this thread until it ends. It may await futures of this Context, and other Tasks. After `timeout` it is
  // cancelled, and the result is DeadlineExceeded; an exception is Internal. Each thread may run one.
  template <class T>
  Result<T> run(Task<T> task, Duration timeout = kForever) {
    std::optional<Result<T>> result;
    asio::io_context loop;
    asio::cancellation_signal cancel;
    asio::co_spawn(loop, std::move(task),
                   asio::bind_cancellation_slot(cancel.slot(), [&result](std::exception_ptr thrown, Result<T> value) {
                     if (thrown) value = fail(actors::api::from_exception(thrown, internal, "the coroutine"));
                     result.emplace(std::move(value));
                   }));
    const auto driven = drive(loop, cancel, [&result] { return result.has_value(); }, timeout);
    if (!driven) return fail(driven.error());
    return *std::move(result);
  }

  // The layer below (actors/session/session.h), for lists, status and untyped calls.
  actors::Session& session() { return *session_; }
  actors::api::Hub& hub() { return hub_; }
  const Options& options() const { return options_; }
  actors::api::FunctionPools& functions() { return *functions_; }
  void set_actor(ActorId actor);  // called by the worker before all else

 private:
  template <class T, class... A>
  Result<std::vector<Handle<T>>> spawn_gang(std::size_t count, bool mesh, const ActorOptions& options, const A&... args) {
    using Params = typename actors::api::Table<T>::Construction::Params;
    actors::api::check_arguments(Params(), actors::api::List<A...>());
    SHOAL_TRY(const auto encoded, actors::api::encode_call(&hub_.memory(), Params(), args...));
    const auto name = actors::api::class_name<T>();
    const Class actor_class{name, actors::api::full_class_name<T>(), actors::api::Table<T>::kOnLoop};
    SHOAL_TRY(auto created, create(count, mesh, actor_class, options, encoded));
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
    actors::ValueFuture constructed;  // the constructor call's answer
    actors::Handles::Share share;     // null: its handle does not count
  };
  // The gang's actors, by rank.
  Result<std::vector<Created>> create(std::size_t count, bool mesh, const Class& actor_class, const ActorOptions& options,
                                      const actors::api::Encoded& args);
  static constexpr std::int32_t kMaxThreads = 1000, kMaxOnLoop = 1'000'000, kOnLoop = 1000;
  Result<void> kill(ActorId actor, bool no_restart);
  Result<void> check_class(const actors::FoundActor& found, std::string_view full_class_name) const;
  Result<ActorId> find(const std::string& name, const std::string& name_space, std::string_view full_class_name);
  // Runs handlers of `loop` until ready(). After `timeout` it cancels once, goes on until ready(), and returns DeadlineExceeded.
  Result<void> drive(asio::io_context& loop, asio::cancellation_signal& cancel, const std::function<bool()>& ready, Duration timeout);

  const std::unique_ptr<actors::Session> session_;
  const Options options_;
  actors::api::Hub hub_;
  const actors::api::Launcher launcher_;
  ActorId actor_;
  const std::unique_ptr<actors::api::FunctionPools> functions_;
  StepRecord record_;
};

}  // namespace shoal
