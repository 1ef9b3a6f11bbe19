#include "actors/api/stream.h"

#include <algorithm>

namespace shoal::actors::api {

namespace {

constexpr std::string_view kEnd = "end of stream";  // no CBOR of ours
constexpr std::uint64_t kOfUnknown = 1 << 20;       // items that may be there, or come, when nobody can tell how many there are
constexpr WorkerId kNobody{~std::uint64_t{0}};      // a process that is not there: what it owns is there already, or never will be
constexpr std::uint64_t kOfStreams = std::uint64_t{1} << 63;  // the bit that their ids have (storage/memory_table.h: of_stream)

bool is_end(const Value& value) {
  const auto head = value.head();
  return value.num_pieces() == 1 && std::ranges::equal(head, std::as_bytes(std::span(kEnd)));
}

}  // namespace

ObjectId new_stream(Hub& hub) { return {hub.session.new_id<ObjectId>().value >> 2 | kOfStreams}; }

void Publisher::give(Value item) {
  hub_.session.give({first_.value + count_}, hub_.session.put(std::move(item)));
  ++count_;
}

void Publisher::end() {
  auto mark = Value::make({std::as_bytes(std::span(kEnd))});
  const ObjectId last{first_.value + count_};
  hub_.session.give(last, mark ? hub_.session.put(*std::move(mark)) : ready_reply(hub_, {}, {}, fail(mark.error())).future());
  const auto there = hub_.session.fetch({hub_.session.job(), last}, kNobody);
  (void)hub_.session.wait([&] { return there.ready(); });
}

Items::~Items() {
  if (!over_) hub_.session.drop(item_id(), left());
}

// That nobody has taken, with the mark.
std::uint64_t Items::left() const {
  if (!done_.ready()) return kOfUnknown;
  const auto count = done_.result<std::uint64_t>();
  return count ? std::max<std::uint64_t>(1, *count + 1 - std::min(taken_, *count)) : kOfUnknown;
}

ValueFuture Items::fetch(WorkerId owner) const { return hub_.session.fetch({hub_.session.job(), item_id()}, owner); }

bool Items::is_item() const {
  const auto& value = ahead_.peek();
  return value && !is_end(*value);
}

// There was such an item, and the node could not keep it or has lost it: then it says so.
bool Items::lost() const {
  if (ahead_.peek()) return false;
  const auto count = done_.result<std::uint64_t>();
  return count && taken_ < *count;
}

bool Items::seen(Look waits) const {
  if (waits == Look::kWaitsForDone) return done_.ready();
  return ahead_.ready() || (waits == Look::kWaitsForEither && done_.ready());
}

Items::Look Items::look(Next& out) {
  if (over_) return Look::kOver;
  if (!ahead_.valid()) ahead_ = fetch({});
  if (!ahead_.ready() && !done_.ready()) return Look::kWaitsForEither;
  if (!ahead_.ready() && !std::exchange(asked_again_, true)) ahead_ = fetch(kNobody);  // the node has it by now, or never will
  if (!ahead_.ready()) return Look::kWaitsForItem;
  if (!is_item() && !done_.ready()) return Look::kWaitsForDone;
  if (is_item() || lost()) {
    out = done_.with(std::exchange(ahead_, {}));
    hub_.session.drop(item_id());
    ++taken_;
    asked_again_ = false;
    return Look::kItem;
  }
  over_ = true;
  hub_.session.drop(item_id(), left());
  if (done_.result<std::uint64_t>()) return Look::kOver;
  out = done_;
  return Look::kItem;
}

Result<Items::Next> Items::next(Duration timeout) {
  const auto deadline = hub_.session.deadline_in(timeout);
  while (true) {
    Next out;
    const Look looked = look(out);
    if (looked == Look::kItem || looked == Look::kOver) return out;
    const auto waited = hub_.wait([&] { return seen(looked); }, deadline);
    if (!waited) return fail(done_.located(waited.error()));
  }
}

Task<Items::Next> Items::next_async(std::shared_ptr<Items> self) {
  while (true) {
    Next out;
    const Look looked = self->look(out);
    if (looked == Look::kItem || looked == Look::kOver) co_return out;
    Reply awaited = looked == Look::kWaitsForDone ? self->done_ : self->done_.with(self->ahead_);
    if (looked == Look::kWaitsForEither) {
      const runtime::Promise<Value> either;
      self->hub_.session.own([&] {
        if (self->waiter_ == nullptr) {
          self->waiter_ = std::make_shared<Waiter>();
          self->done_.future().then([waiter = self->waiter_](const Result<Value>& value) {
            if (waiter->now) waiter->now->set(value);
          });
        }
        self->waiter_->now = either;
        self->ahead_.then([either](const Result<Value>& value) { either.set(value); });
      });
      awaited = self->done_.with(either.future());
    }
    const auto waited = co_await Reply::until_ready(awaited);
    if (!waited) co_return fail(waited.error());
  }
}

}  // namespace shoal::actors::api
