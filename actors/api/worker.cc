#include "actors/api/worker.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include <fmt/format.h>

namespace shoal::actors::api {

namespace {

struct Answer {
  Incoming incoming;
  Result<Value> result;
};

// `more`: answers that go with it.
void send(CancelledCalls& cancelled, Answer answer, bool more) {
  if (cancelled.any()) cancelled.forget(answer.incoming.key());
  if (answer.result) {
    answer.incoming.reply(*answer.result, more ? runtime::Flush::kLater : runtime::Flush::kNow);
  } else {
    answer.incoming.fail(answer.result.error());
  }
}

Result<std::unique_ptr<Instance>> make(Context& context, const Classes& classes, const Making& making, const std::vector<Value>& deps) {
  const auto it = classes.find(making.full_class_name);
  if (it == classes.end()) return fail(not_found(fmt::format("this program has no actor {}", making.full_class_name)));
  return it->second(Place{Rank{making.rank}, making.world_size, &context}, {making.args, &deps, &context.hub()});
}

// It printed why: its node tells whoever calls it from now on. At once: calls that wait here go unanswered, so that they fail with the
// death that the node tells of. It is not started again: it would come to the same.
[[noreturn]] void end_unmade(Session& session, const Error& why) {
  std::fprintf(stderr, "%s\n", why.to_string().c_str());
  (void)session.leave();
  std::fflush(nullptr);
  std::_Exit(1);
}

// Threads that run calls. Who hands them over gives as many as there are threads without one.
class Threads {
 public:
  Threads(std::size_t count, std::function<void(Incoming)> run) {
    for (std::size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, run] {
        while (true) {
          std::unique_lock lock(mutex_);
          changed_.wait(lock, [this] { return !given_.empty(); });
          Incoming incoming = std::move(given_.front());
          given_.pop_front();
          lock.unlock();
          run(std::move(incoming));
        }
      });
    }
  }
  void give(Incoming incoming) {
    {
      const std::lock_guard lock(mutex_);
      given_.push_back(std::move(incoming));
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Incoming> given_;
  std::vector<std::thread> threads_;  // they end with the process
};

class Server {
 public:
  Server(Context& context, const Classes& classes)
      : context_(context), session_(context.session()), cancelled_(context.hub().cancelled), classes_(classes) {}

  int run(bool makes_itself) {
    session_.own([&] {
      queue_->note_in(session_.call_book());
      queue_->on_cancel_taken([this](CallKey call, CancelHow how) {
        if (how.force && context_.hub().function_in != std::thread::id()) std::_Exit(1);  // its caller knows already
        cancelled_.note(call);
      });
      session_.actor_host().set_default(queue_);
    });
    if (const auto ready = session_.ready(); !ready) {
      std::fprintf(stderr, "%s\n", ready.error().to_string().c_str());
      return 1;
    }
    if (makes_itself) make_again();
    std::optional<Answer> due;
    while (true) {
      Incoming incoming = next(std::exchange(due, std::nullopt));
      if (incoming.call.method == kConstruct) {
        due.emplace(construct(std::move(incoming)));
      } else if (!instance_) {
        early_.push_back(std::move(incoming));
      } else if (threads_) {
        threads_->give(std::move(incoming));
      } else {
        due.emplace(call(std::move(incoming)));
      }
    }
  }

 private:
  // Sends what is due, then waits for the next call: one taking of the loop for both.
  Incoming next(std::optional<Answer> due) {
    std::optional<Incoming> out;
    const auto turn = [&] {
      // Answers to calls that arrived together go together.
      if (due) send(cancelled_, *std::exchange(due, std::nullopt), !queue_->empty());
      const bool has_early = instance_ && !early_.empty();
      if ((queue_->empty() && !has_early) || (threads_ && idle_ == 0)) return false;
      out.emplace(has_early ? std::move(early_.front()) : queue_->pop());
      if (has_early) early_.pop_front();
      if (threads_) --idle_;
      return true;
    };
    while (!session_.wait(turn)) {  // interrupted, which is nothing to a worker
    }
    return *std::move(out);
  }

  void made(const Making& making, std::unique_ptr<Instance> instance) {
    instance_ = std::move(instance);
    if (making.max_concurrency <= 1) return;
    idle_ = static_cast<std::size_t>(making.max_concurrency);
    threads_.emplace(idle_, [this](Incoming incoming) {
      auto answer = std::make_optional(call(std::move(incoming)));
      session_.own([&] {
        send(cancelled_, *std::exchange(answer, std::nullopt), false);
        ++idle_;
      });
    });
  }

  void make_again() {
    const auto birth = session_.birth();
    if (!birth) end_unmade(session_, birth.error());
    context_.is_of(birth->row.id);
    const auto making = from_birth(birth->handle);
    if (!making) end_unmade(session_, making.error());
    auto instance = make(context_, classes_, *making, {});
    if (!instance) end_unmade(session_, instance.error());
    made(*making, *std::move(instance));
  }

  Answer construct(Incoming incoming) {
    const Call& call = incoming.call;
    if (instance_) {  // it made itself before its creator's call came
      if (threads_) session_.own([&] { ++idle_; });
      return {std::move(incoming), encode(List<>())};
    }
    context_.is_of(call.actor);
    auto head = decode(ConstructHead(), call.args, {"the constructor"});
    if (!head || call.deps.empty()) return {std::move(incoming), fail(head ? invalid_argument("no arguments") : head.error())};
    const auto& [name, rank, world_size, threads] = *head;
    const Making making{name, rank, world_size, threads, call.deps[0]};
    const RunsCall runs({&context_, incoming.key(), call.method});
    auto instance = make(context_, classes_, making, {call.deps.begin() + 1, call.deps.end()});
    if (!instance) {
      session_.own([&] { incoming.fail(instance.error()); });
      end_unmade(session_, instance.error());
    }
    made(making, *std::move(instance));
    return {std::move(incoming), encode(List<>())};
  }

  Answer call(Incoming incoming) {
    const Call& call = incoming.call;
    const RunsCall runs({&context_, incoming.key(), call.method});
    if (is_cancelled()) return {std::move(incoming), fail(call_cancelled(call.method))};  // while it waited here
    auto result = instance_->call(call.method, {call.args, &call.deps, &context_.hub()});
    return {std::move(incoming), std::move(result)};
  }

  Context& context_;
  Session& session_;
  CancelledCalls& cancelled_;
  const Classes& classes_;
  const std::shared_ptr<CallQueue> queue_ = std::make_shared<CallQueue>();
  std::deque<Incoming> early_;  // calls of others that came before the creator's, which makes the actor
  std::unique_ptr<Instance> instance_;
  std::size_t idle_ = 0;  // threads without a call; belongs to the loop's owner
  std::optional<Threads> threads_;
};

}  // namespace

void runs_functions_for(Context& context, WorkerId creator, NodeId node) {
  Session& session = context.session();
  context.is_of({});
  session.own([&] { context.hub().function_in = std::this_thread::get_id(); });
  if (node != session.node()) return;  // of a process on another node nobody tells here
  // The node says so of a value that only that process could have made.
  const auto gone = session.fetch({session.job(), actors::of_no_stream(session.new_id<ObjectId>())}, creator);
  session.own([&] { gone.then([](const Result<Value>&) { std::_Exit(1); }); });
}

int serve(Context& context, const Classes& classes, bool makes_itself) { return Server(context, classes).run(makes_itself); }

}  // namespace shoal::actors::api
