#include "python/native/session/refs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "python/native/session/hosting.h"
#include "runtime/core/check.h"

namespace shoal::python {

using actors::Call;
using actors::Session;
using actors::Value;
using actors::ValueFuture;

Value::Pieces pieces_of(const nb::bytes& head, const std::vector<ReadBuffer>& buffers) {
  Value::Pieces out = {span_of(head)};
  for (const auto& b : buffers) out.push_back(span_of(b));
  return out;
}

Result<Value> make_value(Session& session, const nb::bytes& head, const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& refs,
                         Value::Kind kind) {
  auto value = [&] {
    if (buffers.empty() && head.size() <= Value::kMaxInlineBytes) return Value::from_pieces(std::array{span_of(head)}, kind);
    const auto pieces = pieces_of(head, buffers);
    const GilReleased release;
    return Value::make(pieces, kind, &session.objects().memory());
  }();
  if (value) refer(*value, refs);
  return value;
}

void refer(Value& value, const std::vector<Ref*>& refs) {
  if (refs.empty()) return;
  std::vector<actors::ObjectKey> objects;
  auto holds = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (const Ref* ref : refs) {
    objects.push_back(ref->object());
    holds->push_back(ref->hold());
  }
  value.refer(std::move(objects), std::move(holds));
}

void stand_alone(Session& session, const std::vector<Ref*>& refs) {
  for (const Ref* ref : refs) {
    if (!ref->ready()) continue;
    const auto& value = ref->future().peek();
    if (!value || !value->shared() || value->whole()) continue;
    auto own = [&] {
      const GilReleased release;
      return value->own_memory(&session.objects().memory());
    }();
    if (!own && own.error().reason() == "ObjectStoreFull") continue;  // then the call makes a copy outside the object store's limit
    unwrap(std::move(own));
  }
}

namespace {

// Returns true if the pickle names the function that makes tensors (python/shoal/_core/serialize.py).
bool may_have_tensors(std::span<const std::byte> head) {
  constexpr std::string_view kMaker = "_tensor";
  return memmem(head.data(), head.size(), kMaker.data(), kMaker.size()) != nullptr;
}

bool all_aligned(const Value::Pieces& pieces) {
  return std::all_of(pieces.begin() + 1, pieces.end(),
                     [](const auto& p) { return reinterpret_cast<std::uintptr_t>(p.data()) % Value::kAlignment == 0; });
}

// Copies a small value's buffers to aligned addresses, because behind its pickle they are not aligned.
void align(Value::Pinned& pinned) {
  const auto room = [](std::size_t bytes) { return (bytes + Value::kAlignment - 1) / Value::kAlignment * Value::kAlignment; };
  std::size_t total = 0;
  for (std::size_t i = 1; i < pinned.pieces.size(); ++i) total += room(pinned.pieces[i].size());
  constexpr std::align_val_t kAt{Value::kAlignment};
  auto* at = static_cast<std::byte*>(::operator new(std::max<std::size_t>(total, 1), kAt));
  const std::shared_ptr<const void> block(at, [at](const void*) { ::operator delete(at, kAt); });
  for (std::size_t i = 1; i < pinned.pieces.size(); ++i) {
    auto& piece = pinned.pieces[i];
    if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
    piece = {at, piece.size()};
    at += room(piece.size());
  }
  pinned.keep = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      block, pinned.keep);  // the new block keeps the pickle alive, too
}

}  // namespace

nb::tuple to_python(const Value& given) {
  auto pinned = unwrap(given.pin());
  if (pinned.pieces.size() > 1) {
    const bool is_users = may_have_tensors(pinned.pieces[0]);  // its tensors are the user's, and have to be writable
    if (is_users && given.shared()) pinned = unwrap(unwrap(given.for_user()).pin());
    if (!given.shared() && (is_users || !all_aligned(pinned.pieces))) align(pinned);
  }
  const auto& pieces = pinned.pieces;
  nb::object head = given.shared() && pieces[0].size() > Value::kMaxInlineBytes
                        ? memory_view(pieces[0], pinned.keep)
                        : nb::object(nb::bytes(reinterpret_cast<const char*>(pieces[0].data()), pieces[0].size()));
  nb::list buffers;
  for (std::size_t i = 1; i < pieces.size(); ++i) buffers.append(memory_view(pieces[i], pinned.keep));
  return nb::make_tuple(head, buffers);
}

std::string Ref::known_as(const std::string& fresh) const {
  if (!future_.ready()) return fresh;
  const auto& result = future_.peek();
  if (!result || !result->shared() || !result->whole()) return fresh;
  std::uint64_t name = 0;
  const std::uint64_t wished = parse_hex(fresh).value_or(0);
  return hex(result->memory()->name.compare_exchange_strong(name, wished) ? wished : name);
}

nb::tuple Ref::value() const {
  const auto& result = future_.peek();
  if (!result) raise(result.error());
  if (result->num_pieces() == 1 && !result->shared()) {
    const auto head = result->head();
    return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(head.data()), head.size()), nb::tuple());
  }
  return to_python(*result);
}

void Ref::follow(const std::shared_ptr<Tally>& tally) const {
  if (followers_ && !ready()) return followers_->push_back(tally);
  followers_ = std::make_shared<Followers>(1, tally);
  future_.then([followers = followers_](const Result<Value>& value) {
    for (const auto& t : *followers) {
      ++t->ready;
      t->failed |= !value || value->raised();
    }
  });
}

void Ref::leave(const std::shared_ptr<Tally>& tally) const {
  if (followers_) std::erase(*followers_, tally);
}

// ---- Readiness ----

Readiness::Readiness() : noted_(std::make_shared<Noted>()) {
  noted_->event = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!noted_->event) raise(unavailable("the process has no descriptor left for an event").with_reason("Full"));
}

// Wakes the reader if this is the first note. take() clears the event before it takes the notes, so that none is missed.
void Readiness::Noted::push(std::uint64_t number) {
  Node* before = last.load();
  Node* const node = new Node{number, before};
  while (!last.compare_exchange_weak(before, node)) node->next = before;
  const std::uint64_t one = 1;
  if (before == nullptr) {  // another thread may have taken `node` by now
    SHOAL_CHECK(write(event.get(), &one, sizeof one) == sizeof one || errno == EAGAIN, "an event cannot be set");
  }
}

Readiness::Noted::~Noted() {
  for (const Node* n = last.load(); n != nullptr;) delete std::exchange(n, n->next);
}

void Readiness::add(Session& session, const ValueFuture& future, std::uint64_t number) const {
  session.loop().own([&] { future.then([noted = noted_, number](const Result<Value>&) { noted->push(number); }); });
}

std::vector<std::uint64_t> Readiness::take() const {
  std::uint64_t count = 0;
  (void)!read(noted_->event.get(), &count, sizeof count);
  std::vector<std::uint64_t> out;
  for (const Node* n = noted_->last.exchange(nullptr); n != nullptr;) {
    out.push_back(n->number);
    delete std::exchange(n, n->next);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// ---- Attempts ----

Ref Attempts::start(Session& session, Call call, std::vector<ValueFuture> deps, bool judge_raised, Readiness readiness,
                    std::uint64_t number) const {
  const bool cancelled = session.loop().own([&] {
    if (source_->task == 0) {
      source_->task = session.calls().new_task();
      session.calls().note_open(promise_.future());
    }
    call.attempts = source_->attempts;
    call.task = actors::task_number(source_->task, (*source_->attempts)++);
    return source_->cancelled;
  });
  if (cancelled) {
    const auto error = actors::call_cancelled(call.method);
    session.loop().own([&] { promise_.set(fail(error)); });
    return Ref(promise_.future());
  }
  const auto attempt = session.calls().call(std::move(call), deps);
  session.loop().own([&] {
    source_->call = attempt;
    attempt.then(
        [self = *this, given = std::move(deps), judge_raised, readiness = std::move(readiness), number](const Result<Value>& result) {
          // An argument that failed is no failure of the function, so the call is not repeated.
          const bool argument_failed =
              std::any_of(given.begin(), given.end(), [](const ValueFuture& d) { return d.ready() && (!d.peek() || d.peek()->raised()); });
          const bool died = !result && result.error().code() == Code::kUnavailable;
          const bool raised = result && result->raised();
          if (!argument_failed && (died || (raised && judge_raised))) return readiness.note(number);
          self.promise_.set(result);
        });
  });
  return Ref(attempt);
}

std::vector<ValueFuture> futures_of(Session& session, const std::vector<Ref*>& refs) {
  std::vector<ValueFuture> out;
  std::vector<std::pair<std::size_t, std::shared_ptr<const void>>> to_hold;
  for (const auto* r : refs) {
    if (r->hold() && !r->ready()) to_hold.emplace_back(out.size(), r->hold());
    out.push_back(r->future());
  }
  if (to_hold.empty()) return out;
  const GilReleased release;
  session.loop().own([&] {
    for (const auto& [at, hold] : to_hold) {
      const runtime::Promise<Value> promise;
      out[at].then([promise, hold = hold](const Result<Value>& value) { promise.set(value); });
      out[at] = promise.future();
    }
  });
  return out;
}

namespace {

// The `count` results of a call as separate refs.
std::vector<Ref> split(Session& session, const Ref& whole, std::size_t count) {
  std::vector<Ref> out;
  const auto source = whole.source() ? whole.source() : std::make_shared<Ref::Source>(Ref::Source{whole.future()});
  for (auto& part : session.calls().split(whole.future(), count)) out.push_back(Ref(std::move(part), source).of_task(whole.task()));
  return out;
}

// Returns (true if all are ready, index of the first one that has failed or -1).
std::pair<bool, std::ptrdiff_t> settled(const std::vector<Ref*>& refs) {
  bool all = true;
  std::ptrdiff_t failed = -1, at = 0;
  for (const Ref* ref : refs) {
    const bool ready = ref->ready();
    all &= ready;
    if (ready && failed < 0 && ref->failed()) failed = at;
    ++at;
  }
  return std::pair(all, failed);
}

Ref start(const Attempts& a, PySession& s, const std::string& actor, const std::string& method, const Ref& args,
          const std::vector<Ref*>& deps, bool judge_raised, const Readiness& readiness, std::uint64_t number, const PyIncoming* parent) {
  const auto use = s.use();
  Session& session = *use;
  Call call;
  call.parent = key_of(parent);
  call.actor = id_of<ActorId>(actor);
  call.method = method;
  call.args = unwrap(Result<Value>(args.future().peek()));
  stand_alone(session, deps);
  auto futures = futures_of(session, deps);
  const GilReleased release;
  return a.start(session, std::move(call), std::move(futures), judge_raised, readiness, number);
}

void bind_ref(nb::module_& m) {
  m.def("settled", &settled, nb::arg("refs"), "(True if all are ready, index of the first that has failed or -1).");
  nb::class_<Ref>(m, "Ref", "A value that exists or will exist.")
      .def_prop_ro("ready", &Ref::ready)
      .def_prop_ro("failed", &Ref::failed, "For a ready one: True if the method raised or could not be called.")
      .def("known_as", &Ref::known_as, nb::arg("fresh"), "The second half of its id: `fresh`, or the name that its value has already.")
      .def_prop_ro("raised", &Ref::raised, "For a ready one: True if the method raised; its value is the exception.")
      .def("value", &Ref::value, "(head, buffers) of a ready one. Raises when the result is an Error.")
      .def_prop_ro(
          "task", [](const Ref& ref) { return ref.task() == 0 ? std::string() : hex(actors::task_number(ref.task(), 0)); },
          "Number of the call of this process that made it, as 16 digits; \"\" if none did.")
      .def("follows", &Ref::follows, nb::arg("other"), "It is of the same call.")
      .def(
          "split",
          [](const Ref& ref, const PySession& s, std::size_t count) {
            return in_session(s, [&](Session& session) { return split(session, ref, count); });
          },
          nb::arg("session"), nb::arg("count"), "The references to a call's `count` results.");
}

void bind_readiness(nb::module_& m) {
  nb::class_<Readiness>(m, "Readiness", "Reports through a descriptor which references have become ready.")
      .def(nb::init<>())
      .def_prop_ro("fd", &Readiness::fd, "Readable (for poll; not to be read) once there are some.")
      .def(
          "add",
          [](const Readiness& r, const PySession& s, const Ref& ref, std::uint64_t number) {
            in_session(s, [&](Session& session) { r.add(session, ref.future(), number); });
          },
          nb::arg("session"), nb::arg("ref"), nb::arg("number"))
      .def("take", &Readiness::take, "Numbers of the references that have become ready since the last call.");
}

void bind_attempts(nb::module_& m) {
  nb::class_<Attempts>(m, "Attempts", "The result of a call that may be repeated.")
      .def(nb::init<>())
      .def_prop_ro("ref", &Attempts::ref)
      .def("start", &start, nb::arg("session"), nb::arg("actor"), nb::arg("method"), nb::arg("args"), nb::arg("deps"),
           nb::arg("judge_raised"), nb::arg("readiness"), nb::arg("number"), nb::arg("parent") = nb::none(),
           "One call, with arguments that were put. Its result is final unless the process died, or (judge_raised) the method raised: then "
           "`number` becomes ready, and the caller calls start or settle.")
      .def(
          "settle",
          [](const Attempts& a, const PySession& s, const Ref& attempt) {
            in_session(s, [&](Session& session) { session.loop().own([&] { a.settle(attempt.future()); }); });
          },
          nb::arg("session"), nb::arg("attempt"), "Makes this attempt's result the final one.");
}

}  // namespace

void bind_refs(nb::module_& m) {
  bind_ref(m);
  bind_readiness(m);
  bind_attempts(m);
  bind_task_pool(m);
}

}  // namespace shoal::python
