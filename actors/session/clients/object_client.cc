#include "actors/session/clients/object_client.h"

#include <array>

#include "actors/protocol/wire/cancelling.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

using runtime::Message;
using runtime::Peer;

namespace {

// The shared memory of a result, to be put at the node. An error becomes an object too, so that those who get it receive the error.
Result<std::shared_ptr<SharedMemory>> shared_memory(const Result<Value>& value, ValueMemory& memory) {
  if (value && value->shared()) return value->own_memory(&memory);
  SHOAL_TRY(const Value copy,
            value ? Value::make_shared(value->pieces(), value->kind(), &memory)
                  : Value::make_shared(std::array{runtime::encode_error(value.error()).span()}, Value::Kind::kError, &memory));
  return copy.memory();
}

}  // namespace

ValueFuture ready_future(Value value) {
  const runtime::Promise<Value> promise;
  promise.set(std::move(value));
  return promise.future();
}

ObjectClient::ObjectClient(SessionLoop& loop, NodeClient& node, CallClient& calls, const Identity& self)
    : loop_(loop),
      node_(node),
      calls_(calls),
      self_(self),
      references_([this] { loop_.post([this] { references_.flush(); }); }, [this](const auto& changes) { count(changes); }) {
  node.link().on_notice(Method::kMakeRoom, [this](const Message& message) {
    if (const auto wanted = from_bytes<MakeRoom>(message.body)) store_.wanted(wanted->bytes);
  });
  node.link().on_request(Method::kCancelResult, [this](const Message& message) -> Result<Message> {
    SHOAL_TRY(const auto cancel, from_bytes<CancelResult>(message.body));
    SHOAL_OK(cancel_published(cancel.object, {cancel.recursive, cancel.force}));
    return Message();
  });
}

// The object store calls these functions in threads that do not own the loop.
Result<void> ObjectClient::share_limit(Limit limit) {
  using runtime::UsageBoard;
  SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(limit.membership_page));
  if (bytes != UsageBoard::kBytes || static_cast<std::size_t>(limit.member) >= UsageBoard::kMaxMembers)
    return fail(internal("malformed membership page"));
  ObjectStore::Place place;
  SHOAL_TRY(place.membership_page, runtime::map(limit.membership_page, bytes, runtime::Access::kReadWrite));
  place.member = static_cast<std::size_t>(limit.member);
  place.folder = std::move(limit.folder);
  place.interrupted = std::move(limit.interrupted);
  place.request_room = [this](std::uint64_t wanted) { notify_later(Method::kMakeRoom, body(to_bytes(MakeRoom{wanted}))); };
  place.moved = [this](const ObjectKey& object, Result<Fd> file) {
    if (!file) return;  // without a file the object stays in the node's memory
    Message m = body(to_bytes(ObjectRef{object.id, object.job, 0, {}, {}, object.home}));
    m.fds.push_back(*std::move(file));
    notify_later(Method::kMoveObject, std::move(m));
  };
  store_.join(std::move(place));
  return {};
}

void ObjectClient::notify_later(Method method, Message message) {
  loop_.post(
      [this, method, shared = std::make_shared<Message>(std::move(message))] { (void)node_.link().notify(method, std::move(*shared)); });
}

std::shared_ptr<const void> ObjectClient::publish(ObjectId id, const ValueFuture& future, ToCancel to_cancel) {
  auto hold = references_.hold({{self_.job, id, self_.node}});
  loop_.own([&] { put_when_ready(id, future, std::move(to_cancel)); });
  return hold;
}

void ObjectClient::give(ObjectId id, const ValueFuture& future) {
  loop_.own([&] { put_when_ready(id, future); });
}

void ObjectClient::put_when_ready(ObjectId id, const ValueFuture& future, ToCancel to_cancel) {
  if (!future.ready()) promised_[id] = to_cancel.answer ? std::move(to_cancel) : ToCancel{[future] { return future; }, [] {}};
  future.then([this, id](const Result<Value>& value) {
    promised_.erase(id);
    put(id, value);
  });
}

void ObjectClient::put(ObjectId id, const Result<Value>& value) {
  if (!node_.link().connected()) return;
  references_.flush();
  const auto shared = [&]() -> Result<void> {
    const std::vector<ObjectKey> contains = value ? value->refs() : std::vector<ObjectKey>();
    Message m = body(to_bytes(ObjectRef{id, self_.job, value ? value->total_bytes() : 0, self_.worker, contains}));
    SHOAL_TRY(const auto memory, shared_memory(value, store_.at_once()));
    if (value && value->shared()) memory->published_as({self_.job, id});
    SHOAL_TRY(Fd fd, memory->descriptor());
    m.fds.push_back(std::move(fd));
    return node_.link().notify(Method::kPutObject, std::move(m));
  };
  const auto published = shared();
  if (published) return;
  Message m = body(to_bytes(ObjectRef{id, self_.job, 0, self_.worker, {}}));
  m.payload = runtime::encode_error(Error(published.error()).in("an object that was to be shared"));
  (void)node_.link().notify(Method::kPutObject, std::move(m));  // so that requests for the object fail instead of waiting for it
}

// Without a connection to the node the changes are dropped, since no node counts for this process any more.
void ObjectClient::count(const std::vector<References::Change>& changes) {
  if (!node_.link().connected()) return;
  CountObjects out;
  for (const auto& c : changes) {
    out.changes.push_back({c.object, c.holder, c.by, c.holder_node});
    if (out.changes.size() < CountObjects::kMaxChanges && &c != &changes.back()) continue;
    (void)node_.link().notify(Method::kCountObjects, body(to_bytes(out)));
    out.changes.clear();
  }
}

ValueFuture ObjectClient::fetch(const ObjectKey& object, WorkerId owner) {
  return loop_.own([&] { return fetch_now(object, owner); });
}

ValueFuture ObjectClient::fetch_now(const ObjectKey& object, WorkerId owner) {
  // The node has to receive earlier releases before this request.
  references_.flush();
  const runtime::Promise<Value> promise;
  node_.link().call(Method::kGetObject, body(to_bytes(ObjectRef{object.id, object.job, 0, owner, {}, object.home})), Peer::kNoTimeout,
                    [this, promise, object](Result<Message> reply) { promise.set(arrived(object, std::move(reply))); });
  return promise.future();
}

Result<Value> ObjectClient::arrived(const ObjectKey& object, Result<Message> reply) {
  if (!reply) return fail(reply.error());
  if (reply->fds.size() != 1) return fail(internal("an object arrived without its memory"));
  auto value = Value::from_memory(std::move(reply->fds[0]));
  if (!value) return value;
  value->memory()->published_as({object.job, object.id, object.home == self_.node ? NodeId() : object.home});
  store_.keeps(value->memory());
  if (value->kind() == Value::Kind::kError) {
    const auto head = value->pieces()[0];
    return fail(runtime::decode_error(Bytes::copy_of(head.data(), head.size())));
  }
  if (const auto described = from_bytes<ObjectRef>(reply->body)) {
    value->refer(described->contains, references_.received(described->contains));
  }
  return value;
}

void ObjectClient::drop(ObjectId id) {
  loop_.own(
      [&] { (void)node_.link().notify(Method::kDropObject, body(to_bytes(ObjectRef{id, self_.job, 0, {}, {}})), runtime::Flush::kLater); });
}

Result<void> ObjectClient::cancel(const ObjectKey& object, WorkerId owner, CancelHow how) {
  if (owner == self_.worker) return loop_.own([&] { return cancel_published(object, how); });
  SHOAL_OK(node_.request(Method::kCancelResult, to_bytes(CancelResult{object, owner, how.recursive, how.force})));
  return {};
}

Result<void> ObjectClient::cancel_published(const ObjectKey& object, CancelHow how) {
  const auto promised = promised_.find(object.id);
  if (promised == promised_.end() || object.job != self_.job) return {};  // the object is ready, so there is no call to cancel
  const ToCancel what = promised->second;                                 // a copy, since the cancellation may erase the entry
  return calls_.cancel_now(what, how);
}

}  // namespace shoal::actors
