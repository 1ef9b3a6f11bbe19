#include "actors/api/context/hub.h"

#include <algorithm>

#include "actors/session/session.h"

namespace shoal::actors::api {

namespace {

constexpr std::chrono::milliseconds kShortWait{2};  // a wait up to this length lends no CPUs

}  // namespace

ValueMemory& Hub::memory() const { return session.objects().memory(); }

Result<void> Hub::know(ActorId actor, std::string_view class_name) const { return session.actors().know(actor, std::string(class_name)); }

Result<void> Hub::wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline) {
  if (function_in != std::this_thread::get_id()) return session.loop().wait(ready, deadline);
  bool stopped = false;
  const auto over = [&] { return ready() || (stopped = cancelled.has(this_threads_call.key)); };
  const auto soon = std::min(deadline, session.loop().deadline_in(kShortWait));
  auto waited = session.loop().wait(over, soon);
  if (!waited && soon != deadline && waited.error().code() == Code::kDeadlineExceeded) {
    session.hosting().set_blocked(true);
    waited = session.loop().wait(over, deadline);
    session.hosting().set_blocked(false);
  }
  if (stopped) return fail(call_cancelled(std::string(this_threads_call.name)));
  return waited;
}

struct Hub::Published {
  Name name;
  ValueFuture future;  // kept, so that no other future gets its address while the name is in use
};

Name Hub::publish(const ValueFuture& future, const ValueFuture& call) {
  const auto named = [&]() -> std::shared_ptr<const Published> {
    const auto it = published_.find(future.identity());
    return it == published_.end() ? nullptr : it->second.lock();
  };
  // Looks for an existing name first. A new id that is dropped again would be one more freed object that the node has to remember.
  if (const auto there = session.loop().own(named)) return {there->name.object, there->name.owner, there};
  const ObjectKey object{session.identity().job, session.new_id<ObjectId>(), session.identity().node};
  auto fresh = std::make_shared<const Published>(
      Published{{object, session.identity().worker, session.objects().references().hold({object})}, future});
  const auto known = session.loop().own([&] {
    if (auto there = named()) return there;  // another thread has published it meanwhile
    if (published_.size() >= sweep_at_) {
      std::erase_if(published_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = std::max<std::size_t>(64, 2 * published_.size());
    }
    published_[future.identity()] = fresh;
    return fresh;
  });
  if (known == fresh) {
    ToCancel what;
    if (!(call == future)) what = {[call] { return call; }, [] {}};
    (void)session.objects().publish(object.id, future, std::move(what));  // `fresh` holds the object
  }
  return {known->name.object, known->name.owner, known};
}

}  // namespace shoal::actors::api
