#include "actors/api/worker/worker.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "actors/api/worker/concurrent.h"

namespace shoal::actors::api {

namespace {

constexpr std::chrono::seconds kLastMetrics{30};  // time for the node to take the last metrics
constexpr std::chrono::seconds kDrain{5};         // time for unsent answers when a worker ends

constexpr std::chrono::seconds kAgain{1};  // pause before the head is asked again

struct Answer {
  Incoming incoming;
  Result<Value> result;
};

Result<std::unique_ptr<Instance>> make(Context& context, const Classes& classes, const Making& making, const std::vector<Value>& deps) {
  const auto it = classes.find(making.full_class_name);
  if (it == classes.end()) return fail(not_found(fmt::format("this program does not register actor {}", making.full_class_name)));
  return it->second(Place{Rank{making.rank}, making.world_size, &context}, {making.args, &deps, &context.hub()});
}

// Ends the process, whose node reports its printed error as the cause of death. Waiting calls are not answered, so that they fail with that
// cause. The actor is not restarted, because its constructor would fail again.
[[noreturn]] void end_unmade(Session& session, const Error& why) {
  std::fprintf(stderr, "%s\n", why.to_string().c_str());
  (void)session.hosting().leave();
  std::fflush(nullptr);
  std::_Exit(1);
}

class Server {
 public:
  Server(Context& context, const Classes& classes)
      : context_(context), session_(context.session()), cancelled_(context.hub().cancelled), classes_(classes) {}

  int run(bool makes_itself) {
    session_.loop().own([&] {
      queue_->note_in(session_.call_book());
      queue_->on_cancel_taken([this](CallKey call, CancelHow how) { cancel(call, how); });
      session_.hosting().actors().set_default(queue_);
    });
    if (const auto ready = session_.hosting().ready(); !ready) {
      std::fprintf(stderr, "%s\n", ready.error().to_string().c_str());
      return 1;
    }
    if (makes_itself) make_again();
    std::optional<Answer> due;
    while (true) {
      auto turn = next(due);
      Incoming& incoming = turn->incoming;
      if (incoming.call.method == kConstruct) {
        due.emplace(construct(*std::move(turn)));
      } else if (incoming.call.method == kRelease) {
        due = release(std::move(incoming));
      } else if (incoming.call.method == kHandOver) {
        auto words = context_.functions().hand_over(incoming.call.args);
        due.emplace(Answer{std::move(incoming), std::move(words)});
      } else if (!instance_) {
        session_.loop().own([&] { early_.push_back(std::move(incoming)); });
      } else if (turns_) {
        incoming.taken.began();
        loop_ ? loop_->begin(*std::move(turn)) : threads_->begin(*std::move(turn));
      } else {
        auto result = call(incoming);
        due.emplace(std::move(incoming), std::move(result));
      }
    }
  }

 private:
  // Sends the answer that is due, then waits for the next call, in a single turn of the loop's ownership.
  std::optional<Turn> next(std::optional<Answer>& due) {
    std::optional<Turn> out;
    const auto turn = [&] {
      if (due) {
        send(*due, !queue_->empty());  // answers to calls that arrived together are sent together
        due.reset();
      }
      const bool has_early = instance_ && !early_.empty();
      if (turns_) {
        while (!early_.empty()) add(pop(early_));
        while (!queue_->empty()) add(queue_->pop());
        out = turns_->next();
        if (out) begun_.insert(of(out->incoming.key()));
        if (!out && !releases_.empty() && begun_.empty()) out.emplace(Turn{0, pop(releases_)});
        return out.has_value();
      }
      if (queue_->empty() && !has_early) return false;
      out.emplace(std::size_t{0}, has_early ? pop(early_) : queue_->pop());
      now_ = out->incoming.key();
      return true;
    };
    while (!session_.loop().wait(turn)) {  // wait() fails for an interruption by a signal, which a worker ignores
    }
    return out;
  }
  // `more`: further answers follow at once, and are sent together with this one.
  void send(Answer& answer, bool more) {
    const CallKey key = answer.incoming.key();
    if (cancelled_.any()) cancelled_.forget(key);
    if (turns_) begun_.erase(of(key));
    now_ = {};
    if (answer.result) {
      answer.incoming.reply(*answer.result, more ? runtime::Flush::kLater : runtime::Flush::kNow);
    } else {
      answer.incoming.fail(answer.result.error());
    }
  }
  static Incoming pop(std::deque<Incoming>& from) {
    Incoming out = std::move(from.front());
    from.pop_front();
    return out;
  }
  void add(Incoming incoming) {
    if (incoming.call.method == kRelease) return releases_.push_back(std::move(incoming));  // runs after all other calls
    const std::size_t group = instance_->group_of(incoming.call.method);
    turns_->add({group, std::move(incoming)});
  }

  // Called by a handler of the loop.
  void cancel(CallKey call, CancelHow how) {
    if (how.force && context_.hub().function_in != std::thread::id()) std::_Exit(1);  // the caller's process has failed the call already
    if (turns_) {
      if (auto waits = turns_->cancel(call)) return waits->fail(call_cancelled(waits->call.method));
    }
    const auto is_early = [&] { return std::any_of(early_.begin(), early_.end(), [&](const Incoming& i) { return i.key() == call; }); };
    // It is answered already, so that a note of its cancellation would stay for ever.
    if (call != now_ && !begun_.contains(of(call)) && !is_early()) return;
    cancelled_.note(call);
    if (loop_) loop_->cancel(call);
  }

  static std::pair<std::uint64_t, std::uint64_t> of(CallKey call) { return {call.peer, call.request}; }

  void made(const Making& making, std::unique_ptr<Instance> instance) {
    instance_ = std::move(instance);
    restarts_ = making.restarts;
    session_.loop().own([&] { session_.hosting().actors().made(); });
    const Concurrency wants = instance_->concurrency();
    if (making.max_concurrency <= 1 && !wants.on_loop && wants.groups.empty()) return;
    std::vector<std::size_t> sizes = {static_cast<std::size_t>(making.max_concurrency)};
    sizes.insert(sizes.end(), wants.groups.begin(), wants.groups.end());
    session_.loop().own([&] {
      queue_->hands_on();
      turns_.emplace(sizes);
      if (wants.on_loop) {
        loop_.emplace(
            context_, [this](const Incoming& incoming) { return instance_->start(incoming.call.method, arguments(incoming)); },
            [this](Turn turn, Result<Value> result) { done(turn.group, {std::move(turn.incoming), std::move(result)}); });
      }
    });
    if (wants.on_loop) return;
    threads_.emplace(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), [this](Turn turn) {
      auto result = call(turn.incoming);
      done(turn.group, {std::move(turn.incoming), std::move(result)});
    });
  }
  // Answers a call that ran beside others. Any thread: the call's arguments are freed without owning the loop.
  void done(std::size_t group, Answer answer) {
    session_.loop().own([&] {
      send(answer, false);
      turns_->done(group);
    });
  }

  void make_again() {
    const auto creation_spec = session_.hosting().creation_spec();
    if (!creation_spec) end_unmade(session_, creation_spec.error());
    context_.is_of(creation_spec->row.id);
    const auto making = from_creation_spec(creation_spec->handle);
    if (!making) end_unmade(session_, making.error());
    const RunsCall runs({&context_, {}, kConstruct});
    auto instance = make(context_, classes_, *making, {});
    if (!instance) end_unmade(session_, instance.error());
    made(*making, *std::move(instance));
  }

  Answer construct(Turn turn) {
    Incoming& incoming = turn.incoming;
    const Call& call = incoming.call;
    if (instance_) {  // made from its creation spec, before its creator's call arrived
      if (turns_) session_.loop().own([&] { turns_->done(turn.group); });
      return {std::move(incoming), encode(List<>())};
    }
    context_.is_of(call.actor);
    auto head = decode(ConstructHead(), call.args, {"the constructor"});
    if (!head || call.deps.empty())
      return {std::move(incoming),
              fail(head ? invalid_argument("the actor's constructor was called without its arguments") : head.error())};
    const auto& [name, rank, world_size, threads, restarts] = *head;
    const Making making{name, rank, world_size, threads, call.deps[0], restarts};
    const RunsCall runs({&context_, incoming.key(), call.method});
    auto instance = make(context_, classes_, making, {call.deps.begin() + 1, call.deps.end()});
    if (!instance) {
      session_.loop().own([&] { incoming.fail(instance.error()); });
      end_unmade(session_, instance.error());
    }
    made(making, *std::move(instance));
    return {std::move(incoming), encode(List<>())};
  }

  // The final call, sent when no handle is left, except those of itself that the actor passed on. An actor that is not made by now never
  // will be, since its constructor call would have come first.
  std::optional<Answer> release(Incoming incoming) {
    incoming.taken.began();
    if (instance_ && !session_.loop().own([this] { return session_.actors().handles().may_end(); })) {
      if (!restarts_) return Answer{std::move(incoming), encode(List<>())};
      stay(std::move(incoming));
      return std::nullopt;
    }
    if (restarts_) (void)session_.hosting().leave();  // an error is ignored: without a head there is no restart
    {
      const RunsCall runs({&context_, incoming.key(), incoming.call.method});
      loop_.reset();
      instance_.reset();  // runs its destructor
    }
    session_.loop().own([&] { incoming.fail(unavailable("no handle of it was left").with_reason("ActorDied")); });
    session_.reporter().send_last_metrics(kLastMetrics);
    (void)session_.loop().wait([this] { return session_.hosting().actors().queued_bytes() == 0; }, session_.loop().deadline_in(kDrain));
    std::fflush(nullptr);
    std::_Exit(0);
  }

  // Answers a release that the actor survives, once the head has confirmed that it will not restart, since a restarted actor would get no
  // release. If it dies before, its creator sees the failure and releases the next one.
  void stay(Incoming incoming) {
    std::thread([this, waits = std::make_shared<Incoming>(std::move(incoming))] {
      while (!session_.hosting().leave()) std::this_thread::sleep_for(kAgain);
      const auto nothing = encode(List<>());
      session_.loop().own([&] { nothing ? waits->reply(*nothing, runtime::Flush::kNow) : waits->fail(nothing.error()); });
    }).detach();  // detached, because this process ends by _Exit
  }

  Arguments arguments(const Incoming& incoming) const { return {incoming.call.args, &incoming.call.deps, &context_.hub(), &incoming}; }

  Result<Value> call(const Incoming& incoming) {
    const RunsCall runs({&context_, incoming.key(), incoming.call.method});
    SHOAL_OK(check_cancelled());  // it was cancelled while it waited here
    return instance_->call(incoming.call.method, arguments(incoming));
  }

  Context& context_;
  Session& session_;
  CancelledCalls& cancelled_;
  const Classes& classes_;
  const std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
  std::deque<Incoming> early_;                               // calls that arrived before the construct call
  CallKey now_;                                              // the running call, until its answer is sent
  std::set<std::pair<std::uint64_t, std::uint64_t>> begun_;  // calls that run beside others, until their answers are sent
  std::deque<Incoming> releases_;                            // final calls, for an actor that runs several calls at once
  std::unique_ptr<Instance> instance_;
  bool restarts_ = false;
  std::optional<CallScheduler> turns_;  // set for an actor that runs several calls at once; only while the loop is owned
  std::optional<CallThreads> threads_;
  std::optional<CallLoop> loop_;
};

}  // namespace

void runs_functions_for(Context& context, WorkerId creator, NodeId node) {
  Session& session = context.session();
  context.is_of({});
  session.loop().own([&] { context.hub().function_in = std::this_thread::get_id(); });
  if (node != session.identity().node) return;  // this node does not report a keeper on another node
  // Fetches an object that only the keeper could make and never makes. So the fetch fails when the keeper ends, and shows that.
  const auto gone = session.objects().fetch({session.identity().job, session.new_id<ObjectId>()}, creator);
  session.loop().own([&] { gone.then([](const Result<Value>&) { std::_Exit(1); }); });
}

int serve(Context& context, const Classes& classes, bool makes_itself) { return Server(context, classes).run(makes_itself); }

}  // namespace shoal::actors::api
