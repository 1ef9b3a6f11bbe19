#include "actors/api/worker/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>

#include <fmt/format.h>

#include "actors/api/worker/execution.h"
#include "runtime/loop/side_work.h"

namespace shoal::actors::api {

namespace {

constexpr std::chrono::seconds kLastMetrics{30};  // time for the node to take the last metrics
constexpr std::chrono::seconds kDrain{5};         // time for unsent answers when a worker ends
constexpr std::chrono::seconds kAgain{1};         // pause before the head is asked again

// Ends the process, whose node reports its printed error as the cause of death. Waiting calls are not answered, so that they fail with that
// cause. The actor is not restarted, because its constructor would fail again.
[[noreturn]] void end_unmade(Session& session, const Error& why) {
  std::fprintf(stderr, "%s\n", why.to_string().c_str());
  (void)session.hosting().leave();
  std::fflush(nullptr);
  std::_Exit(1);
}

// The main thread runs construct(), serve() and release() one after the other. state_ names the current one for handlers of the loop.
class Worker {
 public:
  Worker(Context& context, const Classes& classes)
      : context_(context), session_(context.session()), cancelled_(context.hub().cancelled), classes_(classes) {}

  int run(bool makes_itself) {
    session_.loop().own([&] {
      queue_->note_in(session_.call_book());
      queue_->on_cancel_taken([this](CallKey call, CancelHow how) { cancel(call, how); });
      session_.hosting().actors().set_default(queue_);
    });
    if (const auto ready = session_.hosting().ready(); !ready) {
      std::fprintf(stderr, "%s\n", ready.error().to_string().c_str());
      session_.loop().own([&] { queue_->on_cancel_taken({}); });  // the loop outlives this worker, which the handler refers to
      return 1;
    }
    if (makes_itself) {
      construct_again();
    } else if (auto incoming = construct()) {
      release(*std::move(incoming));
    }
    release(serve());
  }

 private:
  enum class State { kConstructing, kServing, kReleasing };

  // Takes calls up to the creator's, which constructs the actor. Returns a release instead if that comes first: the actor will never be
  // made then, since its constructor call would have come before.
  std::optional<Incoming> construct() {
    while (!instance_) {
      Incoming incoming = wait_for_call(session_.loop(), [this] { return take(); });
      if (incoming.call.method == kRelease) return incoming;
      if (incoming.call.method == kConstruct) {
        construct_by(std::move(incoming));
      } else {
        session_.loop().own([&] { early_.push_back(std::move(incoming)); });
      }
    }
    return std::nullopt;
  }
  std::optional<Incoming> take() {
    if (queue_->empty()) return std::nullopt;
    std::optional<Incoming> out(queue_->pop());
    taken_ = out->key();
    return out;
  }
  void construct_by(Incoming incoming) {
    const Call& call = incoming.call;
    context_.set_actor(call.actor);
    auto head = decode(ConstructHead(), call.args, {"the constructor"});
    if (!head || call.deps.empty()) {
      const Error error = head ? invalid_argument("the actor's constructor was called without its arguments") : head.error();
      return session_.loop().own([&] { send_answer(cancelled_, incoming, fail(error), runtime::Flush::kNow); });
    }
    const auto& [name, rank, world_size, threads, restarts] = *head;
    const Making making{name, rank, world_size, threads, call.deps[0], restarts};
    {
      const RunsCall runs({&context_, incoming.key(), call.method});
      auto instance = make(making, {call.deps.begin() + 1, call.deps.end()});
      if (!instance) {
        session_.loop().own([&] { incoming.fail(instance.error()); });
        end_unmade(session_, instance.error());
      }
      begin_serving(making, *std::move(instance));
    }
    session_.loop().own([&] { send_answer(cancelled_, incoming, encode(List<>()), runtime::Flush::kNow); });
  }
  // Constructs a restarted or detached actor from its creation spec.
  void construct_again() {
    const auto creation_spec = session_.hosting().creation_spec();
    if (!creation_spec) end_unmade(session_, creation_spec.error());
    context_.set_actor(creation_spec->row.id);
    const auto making = from_creation_spec(creation_spec->handle);
    if (!making) end_unmade(session_, making.error());
    const RunsCall runs({&context_, {}, kConstruct});
    auto instance = make(*making, {});
    if (!instance) end_unmade(session_, instance.error());
    begin_serving(*making, *std::move(instance));
  }
  Result<std::unique_ptr<Instance>> make(const Making& making, const std::vector<Value>& deps) {
    const auto it = classes_.find(making.full_class_name);
    if (it == classes_.end()) return fail(not_found(fmt::format("this program does not register actor {}", making.full_class_name)));
    return it->second(Place{Rank{making.rank}, making.world_size, &context_}, {making.args, &deps, &context_.hub()});
  }
  void begin_serving(const Making& making, std::unique_ptr<Instance> instance) {
    instance_ = std::move(instance);
    restarts_ = making.restarts;
    const Mode mode = mode_of(instance_->concurrency(), making.max_concurrency);
    session_.loop().own([&] {
      session_.hosting().actors().report_constructed();
      execution_ = make_execution(mode, {{context_, *instance_}, queue_, std::move(early_), making.max_concurrency});
      state_ = State::kServing;
    });
  }

  // Executes calls until the release that ends the actor, and returns it. A release does not end the actor while others hold handles that
  // the actor itself has passed on.
  Incoming serve() {
    while (true) {
      Incoming incoming = execution_->run_until_release();
      if (session_.loop().own([this] { return session_.actors().handles().may_end(); })) return incoming;
      session_.loop().own([&] {
        if (!restarts_) return send_answer(cancelled_, incoming, encode(List<>()), runtime::Flush::kNow);
        staying_.push_back(std::move(incoming));
        if (staying_.size() == 1) rule_out_restart();
      });
    }
  }
  // Answers a creator's releases that do not end the actor, because handles to it are left. The head first rules out a restart: a creator
  // with an answer sends no second release, so a restarted actor would live on. If the actor dies before the answer, the creator's call
  // fails, and it releases the restarted actor. Only while the loop is owned.
  void rule_out_restart() {
    leaving_.run([this] { has_left_ = session_.hosting().leave().has_value(); },
                 [this] {
                   if (!has_left_) {
                     again_ = session_.loop().clock()->after(kAgain, [this] { rule_out_restart(); });
                     return;
                   }
                   while (!staying_.empty()) {
                     Incoming incoming = pop(staying_);
                     send_answer(cancelled_, incoming, encode(List<>()), runtime::Flush::kNow);
                   }
                 });
  }

  [[noreturn]] void release(Incoming incoming) {
    session_.loop().own([this] { state_ = State::kReleasing; });
    if (restarts_) (void)session_.hosting().leave();  // an error is ignored: without a head there is no restart
    {
      const RunsCall runs({&context_, incoming.key(), incoming.call.method});
      execution_.reset();
      instance_.reset();  // runs the actor's destructor
    }
    session_.loop().own([&] { incoming.fail(unavailable("no handle of it was left").with_reason("ActorDied")); });
    session_.reporter().send_last_metrics(kLastMetrics);
    (void)session_.loop().wait([this] { return session_.hosting().actors().queued_bytes() == 0; }, session_.loop().deadline_in(kDrain));
    std::fflush(nullptr);
    std::_Exit(0);
  }

  // Called by a handler of the loop when a call is cancelled that has left the queue.
  void cancel(CallKey call, CancelHow how) {
    if (how.force && context_.hub().function_in != std::thread::id()) std::_Exit(1);  // the caller's process has failed the call already
    const auto waits = [&](const Incoming& incoming) { return incoming.key() == call; };
    if (state_ == State::kServing) {
      execution_->cancel(call);
    } else if (state_ == State::kConstructing && (call == taken_ || std::any_of(early_.begin(), early_.end(), waits))) {
      cancelled_.note(call);
    }
  }

  Context& context_;
  Session& session_;
  CancelledCalls& cancelled_;
  const Classes& classes_;
  const std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
  std::unique_ptr<Instance> instance_;
  bool restarts_ = false;

  // Only while the loop is owned.
  State state_ = State::kConstructing;
  CallKey taken_;                         // the call that construct() took last
  std::deque<Incoming> early_;            // calls that arrived before the creator's
  std::unique_ptr<Execution> execution_;  // set from kServing on
  std::deque<Incoming> staying_;          // releases that the actor survives, until they are answered
  bool has_left_ = false;                 // the head has confirmed that the actor will not restart
  runtime::Timer again_;
  runtime::SideWork leaving_{session_.loop().loop()};  // the final requests to the head block, so they run beside the loop
};

}  // namespace

int serve(Context& context, const Classes& classes, bool makes_itself) { return Worker(context, classes).run(makes_itself); }

}  // namespace shoal::actors::api
