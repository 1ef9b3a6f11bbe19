#include "actors/api/context/functions.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/protocol/cluster/function_worker.h"
#include "actors/session/session.h"

namespace shoal::actors::api {

namespace {

constexpr std::chrono::milliseconds kShort{1};  // pause between visits, while a pool wants something new at each visit

// Identifies a kind of worker: calls with equal keys may share workers.
std::string key_of(const Resources& resources, const FunctionOptions& o) {
  const shoal::Where& w = o.where;
  std::string out = fmt::format("{} {} {} {} {} {} {} {} {}", resources.all(), o.env, o.working_dir, w.group.value, w.bundle, w.node.value,
                                w.soft, w.at_once, w.spread);
  for (const auto* labels : {&w.labels, &w.prefers}) {
    out += " of";
    for (const auto& l : *labels) out += fmt::format(" {} {} {}", l.label, l.values, l.negated);
  }
  return out;
}

// An actor that a worker leaves to its keeper.
struct LeftItem {
  ActorId actor;
  std::string class_name;
  bool restarts = false;
  std::optional<std::tuple<JobId, ObjectId, NodeId>> token;
  static constexpr auto fields = shoal::fields(&LeftItem::actor, &LeftItem::class_name, &LeftItem::restarts, &LeftItem::token);
};

// A worker's answer when it shall end: a flag, false if the worker is still needed, and the actors that it leaves.
using Words = List<bool, std::vector<LeftItem>>;
bool said_all(const Value& words) {
  const auto said = decode(Words(), words, {"hand-over"});
  return !said || std::get<0>(*said);
}

bool is_over(const Result<void>& ended) { return ended || ended.error().code() == Code::kNotFound; }

constexpr std::chrono::seconds kAgain(1);  // pause before another attempt to end workers
// A worker waits up to Options::needed, then this long: together less than the keeper waits for the answer.
constexpr std::chrono::seconds kLastMetrics(9);

}  // namespace

// The keeper (the process for which the worker runs functions) takes over the actors that the ending worker has made, one by one.
// Fails while no head answers.
Result<void> FunctionPools::adopt(Leaving& leaving) {
  const Value& words = *leaving.words.peek();
  SHOAL_TRY(const auto left, decode(Words(), words, {"hand-over"}));
  const auto kept = words.refs().empty() ? nullptr : std::make_shared<const Value>(words);
  Session& session = hub_.session;
  for (; leaving.adopted < std::get<1>(left).size(); ++leaving.adopted) {
    const LeftItem& item = std::get<1>(left)[leaving.adopted];
    const auto known = session.actors().know(item.actor, item.class_name);
    if (!is_over(known)) return fail(known.error());
    if (!known) continue;  // the head has no row of this actor any more
    Handles::Left one{item.actor, {item.class_name, item.restarts, item.restarts ? kept : nullptr}, {}};
    if (item.token) one.token = std::make_from_tuple<ObjectKey>(*item.token);
    session.loop().own([&] { session.actors().handles().adopt(std::move(one)); });
  }
  return {};
}

// A worker is needed while calls that it made are open, since they would be lost with it.
Result<Value> FunctionPools::hand_over(const Value& request) {
  Session& session = hub_.session;
  SHOAL_TRY(const auto within, decode(List<std::int64_t>(), request, {"hand-over"}));
  const auto until = session.loop().deadline_in(std::chrono::milliseconds(std::max<std::int64_t>(10, std::get<0>(within))));
  const auto none_open = [&] { return !session.calls().any_open(); };
  const auto needed = [] { return encode(Words(), false, std::vector<LeftItem>()); };
  if (!session.loop().own(none_open)) lend();
  if (!session.loop().wait(none_open, until) || !see_off_all(until)) return needed();
  session.reporter().send_last_metrics(kLastMetrics);   // the node then has this worker's objects, too: they were sent before
  if (!session.loop().own(none_open)) return needed();  // threads may have made calls meanwhile
  std::vector<LeftItem> out;
  std::vector<ObjectKey> refs;
  auto holds = std::make_shared<std::vector<std::shared_ptr<const Value>>>();
  for (const auto& left : session.loop().own([&] { return session.actors().handles().left(); })) {
    out.push_back({left.actor, left.making.class_name, left.making.restarts, {}});
    if (left.token) out.back().token = {left.token->job, left.token->id, left.token->home};
    if (!left.making.kept) continue;
    refs.insert(refs.end(), left.making.kept->refs().begin(), left.making.kept->refs().end());
    holds->push_back(left.making.kept);
  }
  SHOAL_TRY(Value words, encode(Words(), true, out));
  if (!refs.empty()) words.refer(std::move(refs), std::move(holds));
  return words;
}

// Lends this process's CPUs for good, since it runs no more functions.
void FunctionPools::lend() {
  if (!lent_.exchange(true)) hub_.session.hosting().set_blocked(true);
}

FunctionPools::~FunctionPools() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  hub_.session.loop().own([&] {
    *alive_ = false;
    for (const auto& [key, pool] : pools_) pool->tasks->close();
  });
}

Reply FunctionPools::submit(std::string_view name, const FunctionOptions& options, Result<Encoded> args) {
  const auto queued = [&]() -> Result<ValueFuture> {
    if (!args) return fail(std::move(args).error());
    if (!known_.contains(name)) {
      return fail(invalid_argument(fmt::format("this program does not register function {}", name))
                      .with_hint(fmt::format("name it in main: shoal::main<shoal::Functions<&{}>, ..>(argc, argv, run)", name)));
    }
    SHOAL_TRY(const auto pool, pool_for(options));
    TaskPool::Task task;
    task.name = task.method = name;
    task.function = static_cast<std::uint64_t>(std::distance(known_.begin(), known_.find(name)));
    task.args = std::move(args->value);
    task.deps = std::move(args->deps);
    task.retries = options.max_retries;
    task.max_calls = options.max_calls;
    task.parent = this_threads_call.key;
    return hub_.session.loop().own([&] { return pool->tasks->submit(std::move(task)); });
  };
  auto future = queued();
  if (!future) return ready_reply(hub_, {}, name, fail(std::move(future).error()));
  return Reply(hub_, {}, name, *std::move(future));
}

Result<std::shared_ptr<FunctionPools::Pool>> FunctionPools::pool_for(const FunctionOptions& options) {
  SHOAL_TRY(const auto resources, resources_of(options.num_cpus, options.num_gpus, options.memory, options.resources));
  const std::string key = key_of(resources, options);
  const std::lock_guard lock(pools_mutex_);
  if (const auto it = pools_.find(key); it != pools_.end()) return it->second;
  auto pool = std::make_shared<Pool>(Pool{resources, options, {}});
  // Takes mutex_ on the loop, which must not block. So no thread that holds mutex_ waits for the loop.
  const auto wanted = [this] {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = true;
    }
    changed_.notify_all();
  };
  // Workers lend their CPUs only if they hold no other resources, which become free only when a worker ends.
  const auto& held = resources.all();
  const bool lends =
      resources.units("CPU") > 0 && std::all_of(held.begin(), held.end(), [](const auto& r) { return r.first == "CPU" || r.second == 0; });
  pool->tasks = hub_.session.calls().pools().make(wanted, {.lends = lends});
  pools_[key] = pool;  // the thread starts all workers, since the head may be away and the caller must not wait for it
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  return pool;
}

Result<void> FunctionPools::grow(Pool& pool) {
  Session& session = hub_.session;
  SHOAL_TRY(const GangSpec spec,
            launcher_.gang(1, actors::kFunctionWorker, pool.resources, {pool.options.where, pool.options.env, pool.options.working_dir}));
  const ActorId id = spec.actors[0].id;
  Making making{.full_class_name = std::string(kFunctionClass)};
  SHOAL_TRY(making.args, encode(List<WorkerId, NodeId>(), session.identity().worker, session.identity().node));
  SHOAL_OK(session.actors().create_gang(spec));
  SHOAL_TRY(const auto constructed, launcher_.construct(id, making, {}));
  if (constructed_.size() >= sweep_at_) {
    std::erase_if(constructed_, [&](const auto& worker) { return session.actors().dead(worker.first); });
    sweep_at_ = std::max<std::size_t>(64, 2 * constructed_.size());
  }
  constructed_[id] = constructed;
  session.loop().own([&] { pool.tasks->add(id, constructed); });
  return {};
}

std::size_t FunctionPools::room_for(const Pool& pool, std::size_t workers, bool starting) {
  if (pool.options.where.group) return starting ? 0 : 1;  // only the head knows the group's free room: let one worker wait for it there
  const auto status = hub_.session.cluster().status();
  if (!status) return 0;
  std::size_t out = workers;
  for (const auto& [name, units] : pool.resources.all()) {
    const auto free = std::max<std::int64_t>(0, status->available.units(name));
    out = std::min(out, static_cast<std::size_t>(free / units));
  }
  return out;
}

bool FunctionPools::attend(Pool& pool) {
  Session& session = hub_.session;
  const auto wants = session.loop().own([&] { return pool.tasks->take_wants(options_.idle); });
  for (const ActorId id : wants.ended) end(id);
  for (const ActorId id : wants.condemned) leaving_.push_back({id, {}, {}, Leaving::How::kKilled});
  if (wants.workers == 0) return false;
  const std::size_t room = room_for(pool, wants.workers, wants.starting);
  for (std::size_t i = 0; i < std::max<std::size_t>(room, wants.alone); ++i) {
    if (const auto grown = grow(pool); !grown) {
      session.loop().own([&] { pool.tasks->fail_waiting(Error(grown.error()).in("starting a worker for remote functions")); });
      break;
    }
  }
  return room < wants.workers;
}

void FunctionPools::end(ActorId worker) {
  const auto constructed = constructed_.extract(worker);
  if (constructed.empty() || !constructed.mapped().ready() || !constructed.mapped().peek()) {
    return leaving_.push_back({worker, {}, {}, Leaving::How::kRetired});  // the worker was never constructed, so it leaves no actors
  }
  leaving_.push_back({worker, {}, {}});
  request_last_words(leaving_.back());
}

void FunctionPools::request_last_words(Leaving& leaving) {
  Session& session = hub_.session;
  auto within = encode(List<std::int64_t>(), options_.needed.count());
  SHOAL_CHECK(within.has_value(), "the request has no encoded number");
  Call call;
  call.actor = leaving.worker;
  call.method = kHandOver;
  call.args = *std::move(within);
  call.retries = -1;
  const ValueFuture words = leaving.words = session.calls().call(std::move(call), {});
  leaving.until = session.loop().deadline_in(options_.hand_over);
  session.loop().own([&] {
    words.then([this, alive = alive_](const Result<Value>&) {
      if (!*alive) return;
      {
        const std::lock_guard lock(mutex_);
        wanted_ = true;
      }
      changed_.notify_all();
    });
  });
}

void FunctionPools::see_off() {
  Session& session = hub_.session;
  using How = Leaving::How;
  // The time for which this process itself stood still is added to the deadlines of the workers that it has asked.
  const auto last_check = std::exchange(checked_at_, session.loop().deadline_in({}));
  if (const auto still = checked_at_ - last_check; still > options_.hand_over / 2) {
    for (Leaving& leaving : leaving_) leaving.until += still;
  }
  std::vector<Leaving> remaining;
  for (Leaving& leaving : leaving_) {
    const auto now = session.loop().deadline_in({});
    const bool requested = leaving.how == How::kRequested, received = requested && leaving.words.ready() && leaving.words.peek();
    const bool waits = requested && !leaving.words.ready() && now < leaving.until;
    if (received && !said_all(*leaving.words.peek())) {  // the worker is still needed
      request_last_words(leaving);
    } else if (!waits && now >= again_at_) {
      const auto adopted = received ? adopt(leaving) : Result<void>();
      const bool retired = received || leaving.how == How::kRetired;
      if (adopted && is_over(retired ? session.actors().retire(leaving.worker) : session.actors().kill(leaving.worker))) continue;
      // The answer is invalid, so the worker is killed.
      if (!adopted && adopted.error().code() == Code::kInvalidArgument) leaving.how = How::kKilled;
      again_at_ = session.loop().deadline_in(kAgain);
    }
    remaining.push_back(std::move(leaving));
  }
  // The next round begins with another worker, so that one that does not answer delays no other for long.
  if (!remaining.empty()) std::rotate(remaining.begin(), remaining.begin() + 1, remaining.end());
  leaving_ = std::move(remaining);
}

bool FunctionPools::see_off_all(std::chrono::steady_clock::time_point until) {
  Session& session = hub_.session;
  std::vector<std::shared_ptr<TaskPool>> pools;
  {
    const std::lock_guard all(pools_mutex_);
    for (const auto& [key, pool] : pools_) pools.push_back(pool->tasks);
  }
  const std::lock_guard retiring(retiring_mutex_);
  for (const auto& tasks : pools) {
    const auto wants = session.loop().own([&] { return tasks->take_wants({}); });
    for (const ActorId id : wants.ended) end(id);
    for (const ActorId id : wants.condemned) leaving_.push_back({id, {}, {}, Leaving::How::kKilled});
  }
  const auto says_nothing = [](const Leaving& l) { return l.how != Leaving::How::kRequested || l.words.ready(); };
  const auto received = [&] { return std::all_of(leaving_.begin(), leaving_.end(), says_nothing); };
  if (!leaving_.empty()) lend();
  while (!leaving_.empty() && session.loop().deadline_in({}) < until && session.loop().wait(received, until)) {
    see_off();
    (void)session.loop().wait([] { return false; }, std::min(until, again_at_));
  }
  return leaving_.empty();
}

void FunctionPools::run() {
  const auto rest = options_.idle / 4;
  std::unique_lock lock(mutex_);
  auto pause = rest;
  while (!ending_) {
    changed_.wait_for(lock, pause, [&] { return wanted_ || ending_; });
    wanted_ = false;
    lock.unlock();
    std::vector<std::shared_ptr<Pool>> pools;
    {
      const std::lock_guard all(pools_mutex_);
      for (const auto& [key, pool] : pools_) pools.push_back(pool);
    }
    bool wants_more = false;
    {
      const std::lock_guard retiring(retiring_mutex_);
      for (const auto& pool : pools) wants_more |= attend(*pool);
      see_off();
    }
    lock.lock();
    if (wants_more) changed_.wait_for(lock, kShort, [&] { return ending_; });
    pause = wants_more ? options_.room_interval : rest;
  }
}

}  // namespace shoal::actors::api
