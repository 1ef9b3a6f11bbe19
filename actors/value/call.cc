#include "actors/value/call.h"

#include <algorithm>
#include <optional>
#include <span>

#include "actors/protocol/wire/control.capnp.h"
#include "actors/protocol/wire/object_key.h"
#include "actors/protocol/wire/portions.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

namespace {

void describe(wire::Value::Builder m, const Value& value, bool local) {
  m.setShared(value.shared() && local);
  m.setRaised(value.raised());
  if (!value.refs().empty()) fill_keys(m.initContains(static_cast<unsigned>(value.refs().size())), value.refs());
  if (value.shared() && local) return;  // the header of the shared memory has the sizes
  const auto all = value.sizes();
  auto sizes = m.initBuffers(static_cast<unsigned>(all.size()));
  for (unsigned i = 0; i < sizes.size(); ++i) sizes.set(i, all[i]);
}

// Returns true for a value that needs no description in the message's body: as the only value of a message, it is the whole payload.
bool is_plain(const Value& value, bool local) {
  return value.num_pieces() == 1 && !value.raised() && value.refs().empty() && !(value.shared() && local);
}

// Attaches the bytes and descriptors of `first`, then of the others.
Result<void> attach(runtime::Message& message, bool local, const Value& first, std::span<const Value> others = {}) {
  std::size_t total = 0;
  const auto count = [&](const Value& v) { total += v.shared() && local ? 0 : v.total_bytes(); };
  count(first);
  for (const auto& v : others) count(v);
  auto payload = runtime::allocate(total);
  if (!payload) return fail(resource_exhausted("this process has no memory for a message of " + std::to_string(total) + " bytes"));
  message.payload = *std::move(payload);
  std::size_t at = 0;
  const auto add = [&](const Value& v) -> Result<void> {
    if (v.shared() && local) {
      SHOAL_TRY(const auto memory, v.own_memory());
      SHOAL_TRY(Fd fd, memory->descriptor());
      message.fds.push_back(std::move(fd));
    } else if (v.shared()) {
      SHOAL_TRY(const auto pinned, v.pin());
      for (const auto& piece : pinned.pieces) {
        if (!piece.empty()) std::memcpy(message.payload.data() + at, piece.data(), piece.size());
        at += piece.size();
      }
    } else if (const auto data = v.inline_data(); !data.empty()) {
      std::memcpy(message.payload.data() + at, data.data(), data.size());
      at += data.size();
    }
    return {};
  };
  SHOAL_OK(add(first));
  for (const auto& v : others) SHOAL_OK(add(v));
  return {};
}

struct Shape {
  PieceSizes sizes;
  bool shared = false;
  bool raised = false;
  std::vector<ObjectKey> contains;
};

Shape read_shape(wire::Value::Reader m) {
  Shape out;
  out.shared = m.getShared();
  out.raised = m.getRaised();
  if (m.hasContains()) out.contains = read_keys(m.getContains());
  const auto sizes = m.getBuffers();
  KJ_REQUIRE(sizes.size() <= Value::kMaxBuffers, "too many buffers");
  out.sizes = PieceSizes(sizes.size());
  for (const auto s : sizes) out.sizes.push_back(s);
  return out;
}

void add_contained(std::vector<ObjectKey>& to, wire::Value::Reader m) {
  if (!m.hasContains()) return;
  const auto keys = read_keys(m.getContains());
  to.insert(to.end(), keys.begin(), keys.end());
}

std::vector<Shape> read_shapes(capnp::List<wire::Value>::Reader list) {
  KJ_REQUIRE(list.size() <= Call::kMaxDeps, "too many references");
  std::vector<Shape> out;
  out.reserve(list.size());
  for (const auto v : list) out.push_back(read_shape(v));
  return out;
}

// The value of a message whose body describes none: the whole payload.
Result<Value> plain_value(runtime::Message& message, ValueMemory* memory) {
  const auto piece = message.payload.span();
  if (piece.size() > Value::kMaxInlineBytes) return Value::make_shared({&piece, 1}, Value::Kind::kResult, memory);
  PieceSizes sizes(1);
  sizes.push_back(piece.size());
  return Value::from_inline(std::move(sizes), std::move(message.payload), Value::Kind::kResult);
}

// Takes the values' bytes and descriptors from a message, in order.
class Detacher {
 public:
  Detacher(runtime::Message& message, ValueMemory* memory) : message_(message), memory_(memory), size_(message.payload.size()) {}
  Result<Value> next(Shape shape) {
    auto contains = std::move(shape.contains);
    SHOAL_TRY(Value value, bytes_of(std::move(shape)));
    value.refer(std::move(contains), nullptr);
    return value;
  }

 private:
  Result<Value> bytes_of(Shape shape) {
    if (shape.shared) {
      if (next_fd_ >= message_.fds.size()) {
        return fail(invalid_argument("a shared value arrived without its memory")
                        .with_hint("this process may have too many files open: release values, or raise its limit (ulimit -n)"));
      }
      return Value::from_memory(std::move(message_.fds[next_fd_++]));
    }
    std::size_t total = 0;
    for (const auto s : shape.sizes.all()) {
      if (s > size_) return fail(invalid_argument("a value is larger than its frame"));
      total += s;
    }
    if (total > size_ - at_) return fail(invalid_argument("a value is larger than its frame"));
    const auto kind = shape.raised ? Value::Kind::kRaised : Value::Kind::kResult;
    if (total > Value::kMaxInlineBytes) {  // its bytes come from another host, and go into shared memory like those of any large value
      Value::Pieces pieces;
      for (const auto size : shape.sizes.all()) {
        pieces.emplace_back(message_.payload.data() + at_, size);
        at_ += size;
      }
      return Value::make_shared(pieces, kind, memory_);
    }
    Bytes data;
    if (total == size_) {
      data = std::move(message_.payload);
    } else if (total > 0) {
      data = Bytes::copy_of(message_.payload.data() + at_, total);
    }
    at_ += total;
    return Value::from_inline(std::move(shape.sizes), std::move(data), kind);
  }

  runtime::Message& message_;
  ValueMemory* const memory_;
  const std::size_t size_;
  std::size_t at_ = 0, next_fd_ = 0;
};

Result<std::vector<Value>> values_of(std::vector<Shape> shapes, Detacher& detach) {
  std::vector<Value> out;
  out.reserve(shapes.size());
  for (auto& shape : shapes) {
    SHOAL_TRY(Value value, detach.next(std::move(shape)));
    out.push_back(std::move(value));
  }
  return out;
}

}  // namespace

Error call_cancelled(const std::string& what) { return cancelled("the call of " + what + " was cancelled").with_reason("TaskCancelled"); }

Error caller_gone(const std::string& what) {
  return cancelled("the caller of " + what + " has stopped reading its items").with_reason("CallerGone");
}

Result<runtime::Message> to_message(const Call& call, bool local, std::size_t sent) {
  const auto values = std::span(call.deps).subspan(sent);
  runtime::Message out;
  out.body = runtime::write<wire::Call>([&](wire::Call::Builder m) {
    m.setActor(call.actor.value);
    m.setMethod(call.method);
    m.setCaller(call.caller);
    m.setFrom(call.from.value);
    m.setFromNode(call.from_node.value);
    m.setTask(call.task);
    if (call.function) m.setFunction(*call.function);
    if (!values.empty() || !is_plain(call.args, local)) describe(m.initArgs(), call.args, local);
    if (values.empty()) return;
    auto deps = m.initDeps(static_cast<unsigned>(values.size()));
    for (unsigned i = 0; i < deps.size(); ++i) describe(deps[i], values[i], local);
  });
  SHOAL_OK(attach(out, local, call.args, values));
  return out;
}

namespace {

// The function's name, shared with the call before if that ran the same function, as most do.
std::shared_ptr<const std::string> shared_name(std::string_view name) {
  thread_local std::shared_ptr<const std::string> last;
  if (last == nullptr || *last != name) last = std::make_shared<const std::string>(name);
  return last;
}

}  // namespace

namespace {

// Decodes a call; leaves the message's body in place, for a caller that reads it after a failure.
Result<Call> take_call(runtime::Message& message, ValueMemory* memory) {
  Call call;
  std::optional<Shape> args;
  SHOAL_TRY(auto deps, runtime::read<wire::Call>(message.body, [&](wire::Call::Reader m) {
              call.actor = ActorId{m.getActor()};
              call.method = runtime::text(m.getMethod());
              call.caller = runtime::text(m.getCaller());
              call.from = WorkerId{m.getFrom()};
              call.from_node = NodeId{m.getFromNode()};
              call.task = m.getTask();
              if (m.hasFunction()) call.function = shared_name({m.getFunction().cStr(), m.getFunction().size()});
              if (m.hasArgs()) args = read_shape(m.getArgs());
              return m.hasDeps() ? read_shapes(m.getDeps()) : std::vector<Shape>();
            }));
  if (!args) {
    if (!deps.empty()) return fail(invalid_argument("a call has references, but no arguments that contain them"));
    SHOAL_TRY(call.args, plain_value(message, memory));
    return call;
  }
  Detacher detach(message, memory);
  SHOAL_TRY(call.args, detach.next(*std::move(args)));
  SHOAL_TRY(call.deps, values_of(std::move(deps), detach));
  return call;
}

}  // namespace

Result<Call> call_from(runtime::Message message, ValueMemory* memory) { return take_call(message, memory); }

Result<Call> call_from(runtime::Message message, ValueMemory* memory, Unread& unread) {
  auto call = take_call(message, memory);
  if (call) return call;
  (void)runtime::read<wire::Call>(message.body, [&](wire::Call::Reader m) {
    unread.actor = ActorId{m.getActor()};
    add_contained(unread.contains, m.getArgs());
    for (const auto v : m.getDeps()) add_contained(unread.contains, v);
  });
  return call;
}

std::size_t Call::inline_bytes() const {
  std::size_t out = args.inline_bytes();
  for (const Value& d : deps) out += d.inline_bytes();
  return out;
}

bool goes_with_call(const Call& call, std::size_t first, bool local) {
  Portion portion(call, local);
  return std::all_of(call.deps.begin() + static_cast<std::ptrdiff_t>(first), call.deps.end(),
                     [&](const Value& v) { return portion.add(v); });
}

std::size_t end_of_portion(const Call& call, std::size_t first, bool local) {
  Portion portion(local);
  std::size_t end = first;
  while (end < call.deps.size() && portion.add(call.deps[end])) ++end;
  return end;
}

Result<runtime::Message> arguments_message(const Call& call, std::size_t first, std::size_t end, bool local) {
  const auto values = std::span(call.deps).subspan(first, end - first);
  runtime::Message out;
  out.body = runtime::write<wire::Arguments>([&](wire::Arguments::Builder m) {
    m.setActor(call.actor.value);
    m.setFirst(first);
    auto all = m.initValues(static_cast<unsigned>(values.size()));
    for (unsigned i = 0; i < all.size(); ++i) describe(all[i], values[i], local);
  });
  SHOAL_OK(attach(out, local, Value(), values));
  return out;
}

Result<Arguments> arguments_from(runtime::Message message, ValueMemory* memory) {
  Arguments out{{}, 0, std::vector<Value>()};
  SHOAL_TRY(auto shapes, runtime::read<wire::Arguments>(message.body, [&](wire::Arguments::Reader m) {
              out.actor = ActorId{m.getActor()};
              out.first = m.getFirst();
              return read_shapes(m.getValues());
            }));
  Detacher detach(message, memory);
  out.values = values_of(std::move(shapes), detach);
  if (!out.values) {
    (void)runtime::read<wire::Arguments>(message.body, [&](wire::Arguments::Reader m) {
      for (const auto v : m.getValues()) add_contained(out.unread, v);
    });
  }
  return out;
}

Result<runtime::Message> item_message(std::uint64_t stream, std::uint64_t index, const Value& value, bool local) {
  runtime::Message out;
  out.body = runtime::write<wire::Item>([&](wire::Item::Builder m) {
    m.setStream(stream);
    m.setIndex(index);
    describe(m.initValue(), value, local);
  });
  SHOAL_OK(attach(out, local, value));
  return out;
}

Result<Item> item_from(runtime::Message message, ValueMemory* memory) {
  Item out{0, 0, Value()};
  SHOAL_TRY(Shape shape, runtime::read<wire::Item>(message.body, [&](wire::Item::Reader m) {
              out.stream = m.getStream();
              out.index = m.getIndex();
              return read_shape(m.getValue());
            }));
  out.value = Detacher(message, memory).next(std::move(shape));
  return out;
}

Bytes to_bytes(const CancelCall& v) {
  return runtime::write<wire::CancelCall>([&](wire::CancelCall::Builder m) {
    m.setActor(v.actor.value);
    m.setRequest(v.request);
    m.setRecursive(v.how.recursive);
    m.setForce(v.how.force);
  });
}

Result<CancelCall> cancel_from(const Bytes& bytes) {
  return runtime::read<wire::CancelCall>(bytes, [](wire::CancelCall::Reader m) {
    return CancelCall{ActorId{m.getActor()}, m.getRequest(), {m.getRecursive(), m.getForce()}};
  });
}

Result<runtime::Message> to_message(const Value& value, bool local) {
  runtime::Message out;
  if (!is_plain(value, local)) out.body = runtime::write<wire::Value>([&](wire::Value::Builder m) { describe(m, value, local); });
  SHOAL_OK(attach(out, local, value));
  return out;
}

Result<Value> value_from(runtime::Message message, ValueMemory* memory) {
  if (message.body.empty()) return plain_value(message, memory);
  SHOAL_TRY(Shape shape, runtime::read<wire::Value>(message.body, read_shape));
  return Detacher(message, memory).next(std::move(shape));
}

}  // namespace shoal::actors
