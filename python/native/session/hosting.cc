#include "python/native/session/hosting.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "python/native/session/refs.h"

namespace shoal::python {

using actors::CallKey;
using actors::CancelHow;
using actors::Session;
using actors::Value;
using Clock = std::chrono::steady_clock;

Clock::time_point deadline_in(std::optional<double> seconds) {
  if (!seconds || *seconds > 1e9) return runtime::LoopThread::kForever;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(0.0, *seconds)));
}

void Cancels::note(CallKey call, CancelHow how) {
  if (how.force && interrupted) _exit(1);  // the caller's process has failed the call already
  if (calls.size() == kMaxCalls) calls.pop_front();
  calls.push_back(call);
  any = true;
  if (reports) unreported.push_back(call);
  // Sends no second SIGINT before take_interrupt has counted the first. A further one would be taken as the user's Ctrl-C, and end the
  // process.
  if (interrupted && !signalled.exchange(true)) pthread_kill(*interrupted, SIGINT);
}

// The answer and the call's entry in the CallBook may be used only while this thread owns the loop.
PyIncoming::~PyIncoming() {
  if (answered_) return;
  if (const auto session = PySession::use_of(users_)) {
    (*session)->loop().own([&] { incoming_.fail(internal("a call was dropped without an answer").in(incoming_.call.method)); });
  } else {
    incoming_.taken.forget();
  }
}

bool Cancels::has(CallKey call) const { return std::find(calls.begin(), calls.end(), call) != calls.end(); }

namespace {

// Raises if a signal of the user ended a wait for room, because that error does not belong to the call.
void raise_if_interrupted(const Result<Value>& value) {
  if (!value && value.error().reason() == "Interrupted") raise(value.error());
}

void answer(const PySession& s, PyIncoming& incoming, const Result<Value>& value) {
  raise_if_interrupted(value);
  in_session(s, [&](Session& session) {
    session.loop().own([&] {
      if (value) {
        incoming.reply(*value);
      } else {
        incoming.fail(value.error());
      }
    });
  });
}

struct PyItem {
  Value value;
};

// The value head of the arguments if they are a pickle without buffers and references, as most are; otherwise None.
nb::object plain_head(const actors::Call& call) {
  if (!call.deps.empty() || call.args.num_pieces() != 1 || call.args.shared()) return nb::none();
  const auto head = call.args.head();
  return nb::bytes(reinterpret_cast<const char*>(head.data()), head.size());
}

// One of several values that answer a call: a pickle, its buffers, and the references that were pickled with it.
struct PyPart {
  nb::bytes head;
  std::vector<ReadBuffer> buffers;
  nb::object refs;
};

// ---- before and after the calls ----

void serve(PySession& s) {
  s.queue = std::make_shared<actors::CallQueue>();
  unwrap(in_session(s, [&](Session& session) {
    session.loop().own([&] {
      s.queue->note_in(session.call_book());
      s.queue->on_cancel_taken([cancels = s.cancels](CallKey call, CancelHow how) { cancels->note(call, how); });
      session.hosting().actors().set_default(s.queue);
    });
    return session.hosting().ready();
  }));
}

void report_constructed(const PySession& s) {
  const auto use = s.use();
  use->loop().own([&] { use->hosting().actors().report_constructed(); });
}

void leave(const PySession& s) {
  unwrap(in_session(s, [](Session& session) { return session.hosting().leave(); }));
}

void set_blocked(const PySession& s, bool blocked) {
  in_session(s, [&](Session& session) { session.hosting().set_blocked(blocked); });
}

void stop_serving(PySession& s) {
  in_session(s, [&](Session& session) { session.loop().own([&] { s.stopped = true; }); });
}

void drain(PySession& s, double timeout) {
  const auto deadline = deadline_in(timeout);
  in_session(s, [&](Session& session) {
    if (s.due) session.loop().own([&] { std::exchange(s.due, std::nullopt)->send(runtime::Flush::kNow); });
    (void)session.loop().wait([&] { return session.hosting().actors().queued_bytes() == 0; }, deadline);
  });
}

void send_last_metrics(const PySession& s, double timeout) {
  in_session(s, [&](Session& session) { session.reporter().send_last_metrics(duration_of(timeout)); });
}

// ---- calls and answers ----

std::unique_ptr<PyIncoming> next_call(PySession& s, std::optional<double> timeout) {
  const auto deadline = deadline_in(timeout);
  bool got = false;
  const auto waited = in_session(s, [&](Session& session) {
    return session.loop().wait(
        [&] {
          // Answers to calls that arrived together are sent together.
          if (s.due) s.due->send(s.queue->empty() ? runtime::Flush::kNow : runtime::Flush::kLater);
          s.due.reset();
          if (s.stopped || !s.cancels->unreported.empty()) return true;
          if (!s.taken && s.queue->empty()) return false;
          if (!s.taken) s.taken = s.queue->pop();
          return got = true;
        },
        deadline);
  });
  if (!waited && waited.error().code() != Code::kDeadlineExceeded) unwrap(waited);
  if (!got) return nullptr;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();  // raises before the call is passed to Python, where it would be lost
  auto out = std::make_unique<PyIncoming>(*std::move(s.taken), s.users());
  s.taken.reset();
  return out;
}

void reply(const PySession& s, PyIncoming& incoming, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
           const std::vector<Ref*>& refs, bool raised) {
  const auto value = make_value(*s.use(), head, buffers, refs, raised ? Value::Kind::kRaised : Value::Kind::kResult);
  answer(s, incoming, value);
}

void reply_with_next(PySession& s, PyIncoming& incoming, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
                     const std::vector<Ref*>& refs) {
  auto value = make_value(*s.use(), head, buffers, refs);
  raise_if_interrupted(value);
  s.due.emplace(incoming.release(), std::move(value));
}

void reply_many(const PySession& s, PyIncoming& incoming, const std::vector<PyPart*>& parts) {
  std::vector<Value::Pieces> pieces;
  std::vector<Ref*> all;
  for (const auto* part : parts) {
    pieces.push_back(pieces_of(part->head, part->buffers));
    const auto refs = nb::cast<std::vector<Ref*>>(part->refs);
    all.insert(all.end(), refs.begin(), refs.end());
  }
  auto value = in_session(s, [&](Session& session) { return Value::make_many(pieces, &session.objects().memory()); });
  if (value) refer(*value, all);
  answer(s, incoming, value);
}

PyItem item(const PySession& s, const nb::bytes& head, const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& refs) {
  return PyItem{unwrap(make_value(*s.use(), head, buffers, refs))};
}

std::optional<bool> give_item(const PySession& s, const PyIncoming& incoming, std::uint64_t stream, std::uint64_t index, const PyItem& item,
                              bool waits) {
  using Yielded = actors::ActorHost::Yielded;
  Result<Yielded> given;
  unwrap(in_session(s, [&](Session& session) -> Result<void> {
    const auto gives = [&] {
      given = session.hosting().actors().yields(incoming.incoming(), stream, index, item.value);
      return !given || *given != Yielded::kNoRoom;
    };
    if (session.loop().own(gives) || !waits) return {};
    return session.loop().wait(gives);
  }));
  const Yielded how = unwrap(std::move(given));
  return how == Yielded::kDisconnected ? std::nullopt : std::optional(how == Yielded::kSent);
}

bool has_caller(const PySession& s, const PyIncoming& incoming) {
  const auto use = s.use();
  return use->loop().own([&] { return use->hosting().actors().has_caller(incoming.incoming()); });
}

void refuse(const PySession& s, PyIncoming& incoming, const std::string& reason, const std::string& message) {
  in_session(s, [&](Session& session) { session.loop().own([&] { incoming.fail(unavailable(message).with_reason(reason)); }); });
}

// ---- cancelled calls ----

std::vector<std::pair<std::uint64_t, std::uint64_t>> take_cancelled(PySession& s) {
  const auto unreported = s.use()->loop().own([&] { return std::exchange(s.cancels->unreported, {}); });
  std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
  for (const CallKey& call : unreported) out.emplace_back(call.peer, call.request);
  return out;
}

bool cancelled(const PySession& s, const PyIncoming& incoming) {
  if (!s.cancels->any) return false;
  return s.use()->loop().own([&] { return s.cancels->has(incoming.key()); });
}

void refuse_cancelled(const PySession& s, PyIncoming& incoming, const std::string& what) {
  in_session(s, [&](Session& session) { session.loop().own([&] { incoming.fail(actors::call_cancelled(what)); }); });
}

nb::list deps_of(const PyIncoming& i) {
  nb::list out;
  for (const auto& d : i.call().deps) out.append(to_python(d));
  return out;
}

void bind_incoming(nb::module_& m) {
  nb::class_<PyItem>(m, "Item", "A value that a call yields.");
  nb::class_<PyPart>(m, "Part", "One of several values that answer a call, for reply_many.")
      .def(
          "__init__",
          [](PyPart* out, nb::bytes head, std::vector<ReadBuffer> buffers, nb::object refs) {
            new (out) PyPart{std::move(head), std::move(buffers), std::move(refs)};
          },
          nb::arg("head"), nb::arg("buffers"), nb::arg("refs"));
  nb::class_<PyIncoming>(m, "Incoming", "A call on an actor of this process.")
      .def_prop_ro("actor", [](const PyIncoming& i) { return to_string(i.call().actor); })
      .def_prop_ro(
          "key", [](const PyIncoming& i) { return std::pair(i.key().peer, i.key().request); }, "For take_cancelled.")
      .def_prop_ro("task_id", &PyIncoming::task_id)
      .def_prop_ro(
          "function", [](const PyIncoming& i) { return std::string(i.call().function_name()); }, "Its name; \"\" for a method.")
      .def_prop_ro("method", [](const PyIncoming& i) { return i.call().method; })
      .def_prop_ro("args", [](const PyIncoming& i) { return to_python(i.call().args); })
      .def_prop_ro("deps", &deps_of)
      .def("let_go_of_arguments", &PyIncoming::let_go_of_arguments,
           "Drops the arguments after they were loaded. Their objects then stay for their other holders only.")
      .def_prop_ro(
          "plain", [](const PyIncoming& i) { return plain_head(i.call()); },
          "The head of the arguments if they have no buffers and the call has no references; else None.");
}

void bind_serving(SessionClass& session) {
  session.def("serve", &serve, "Takes calls from now on, for next_call.")
      .def("report_constructed", &report_constructed, "The actor of this worker is made and may begin with its calls.")
      .def("leave", &leave, "For a worker whose actor ends with it, even if the actor has restarts left.")
      .def("set_blocked", &set_blocked, nb::arg("blocked"), "While a worker waits for others, they may have its CPUs.")
      .def("stop_serving", &stop_serving, "Ends the wait of the thread in next_call.")
      .def("drain", &drain, nb::arg("timeout"), "Returns when the sockets have taken every reply, or at the timeout.")
      .def("send_last_metrics", &send_last_metrics, nb::arg("timeout"),
           "Returns when the node has this process's measurements, or at the timeout.")
      .def(
          "hand_on", [](PySession& s) { s.use()->loop().own([&] { s.queue->hands_on(); }); },
          "For a worker whose calls wait for their turn after next_call: `began` reports the turn of each.")
      .def(
          "began",
          [](const PySession& s, PyIncoming& incoming) {
            const auto use = s.use();
            incoming.began();
          },
          nb::arg("incoming"), "The call runs from now on.");
}

void bind_answers(SessionClass& session) {
  session
      .def("next_call", &next_call, nb::arg("timeout") = nb::none(),
           "The next call in order. None at the timeout, after stop_serving, or (after report_cancelled) when take_cancelled has some.")
      .def("reply", &reply, nb::arg("incoming"), nb::arg("head"), nb::arg("buffers"), nb::arg("refs") = nb::list(),
           nb::arg("raised") = false)
      .def("reply_with_next", &reply_with_next, nb::arg("incoming"), nb::arg("head"), nb::arg("buffers"), nb::arg("refs"),
           "For the thread that takes calls: its next_call sends the reply. Only the arguments of `incoming` may be used afterwards.")
      .def("reply_many", &reply_many, nb::arg("incoming"), nb::arg("parts"), "Replies with several values, for a caller that splits them.")
      .def("item", &item, nb::arg("head"), nb::arg("buffers"), nb::arg("refs"), "A value that a call yields, for give_item.")
      .def("give_item", &give_item, nb::arg("incoming"), nb::arg("stream"), nb::arg("index"), nb::arg("item"), nb::arg("waits"),
           "Sends an item to the caller, before the reply. Returns True if it was sent; False if the socket has no room and `waits` is "
           "False; None if the caller takes no items, now or later.")
      .def("has_caller", &has_caller, nb::arg("incoming"), "False if the caller's connection is gone: no process gets the answer.")
      .def("refuse", &refuse, nb::arg("incoming"), nb::arg("reason"), nb::arg("message"), "Answers with this Unavailable.");
}

void bind_cancellation(SessionClass& session) {
  session
      .def(
          "interrupt_calls", [](PySession& s) { s.use()->loop().own([&] { s.cancels->interrupted = pthread_self(); }); },
          "For a worker that runs one call at a time in this thread: a cancellation sends it SIGINT, and with force ends the process.")
      .def(
          "take_interrupt", [](PySession& s) { return s.cancels->signalled.exchange(false); },
          "True if a cancellation sent SIGINT since the last call.")
      .def(
          "report_cancelled", [](PySession& s) { s.use()->loop().own([&] { s.cancels->reports = true; }); },
          "Makes next_call return as soon as a call was cancelled.")
      .def("take_cancelled", &take_cancelled, "Keys of the calls that were cancelled since the last call.")
      .def("cancelled", &cancelled, nb::arg("incoming"), "True if the call was cancelled.")
      .def("refuse_cancelled", &refuse_cancelled, nb::arg("incoming"), nb::arg("what"), "Answers that the call was cancelled.");
}

}  // namespace

void bind_hosting(nb::module_& m, SessionClass& session) {
  bind_incoming(m);
  bind_serving(session);
  bind_answers(session);
  bind_cancellation(session);
}

}  // namespace shoal::python
