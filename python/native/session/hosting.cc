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
  if (how.force && interrupted) _exit(1);  // its caller has been answered
  if (calls.size() == kMaxCalls) calls.pop_front();
  calls.push_back(call);
  any = true;
  if (tells) untold.push_back(call);
  // One signal at a time: take_interrupt counts one. A further SIGINT would count as the user's and end the process.
  if (interrupted && !signalled.exchange(true)) pthread_kill(*interrupted, SIGINT);
}

// The answer and the call's entry in the book belong to the loop.
PyIncoming::~PyIncoming() {
  if (answered_) return;
  if (const auto session = PySession::use_of(users_)) {
    (*session)->own([&] { incoming_.fail(internal("a call was let go of without an answer").in(incoming_.call.method)); });
  } else {
    incoming_.taken.forget();
  }
}

bool Cancels::has(CallKey call) const { return std::find(calls.begin(), calls.end(), call) != calls.end(); }

namespace {

// Raises for a user's signal during a wait for room: that error is not the call's.
void raise_if_interrupted(const Result<Value>& value) {
  if (!value && value.error().reason() == "Interrupted") raise(value.error());
}

void answer(PySession& s, PyIncoming& incoming, const Result<Value>& value) {
  raise_if_interrupted(value);
  const auto use = s.use();
  Session& session = *use;
  const nb::gil_scoped_release release;
  session.own([&] {
    if (value) {
      incoming.reply(*value);
    } else {
      incoming.fail(value.error());
    }
  });
}

struct PyItem {
  Value value;
};

// The arguments' head if they are a pickle without buffers and references, as most are; else None.
nb::object plain_head(const actors::Call& call) {
  if (!call.deps.empty() || call.args.num_pieces() != 1 || call.args.shared()) return nb::none();
  const auto head = call.args.head();
  return nb::bytes(reinterpret_cast<const char*>(head.data()), head.size());
}

}  // namespace

void bind_hosting(nb::module_& m, nb::class_<PySession>& session) {
  nb::class_<PyItem>(m, "Item", "What a call yields.");
  nb::class_<PyIncoming>(m, "Incoming", "A call on an actor of this process.")
      .def_prop_ro("actor", [](const PyIncoming& i) { return to_string(i.call().actor); })
      .def_prop_ro(
          "key", [](const PyIncoming& i) { return std::pair(i.key().peer, i.key().request); }, "For take_cancelled.")
      .def_prop_ro("task_id", &PyIncoming::task_id)
      .def_prop_ro(
          "function", [](const PyIncoming& i) { return std::string(i.call().function_name()); }, "Its name; \"\" of a method.")
      .def_prop_ro("method", [](const PyIncoming& i) { return i.call().method; })
      .def_prop_ro("args", [](const PyIncoming& i) { return to_python(i.call().args); })
      .def_prop_ro("deps",
                   [](const PyIncoming& i) {
                     nb::list out;
                     for (const auto& d : i.call().deps) out.append(to_python(d));
                     return out;
                   })
      .def(
          "let_go_of_arguments", [](PyIncoming& i) { i.let_go_of_arguments(); },
          "Once they are loaded: what they hold is then whoever's who still has them.")
      .def_prop_ro(
          "plain", [](const PyIncoming& i) { return plain_head(i.call()); },
          "The head of the arguments, if they have no buffers and no references come with the call; None otherwise.");

  session
      .def(
          "made",
          [](PySession& s) {
            const auto use = s.use();
            use->own([&] { use->actor_host().made(); });
          },
          "The actor of this worker is made, and may begin with its calls.")
      .def(
          "leave",
          [](PySession& s) {
            const auto use = s.use();
            const auto done = [&] {
              const nb::gil_scoped_release release;
              return use->leave();
            }();
            unwrap(done);
          },
          "Of a worker whose actor is to end with it, even if it is one that is started again.")
      .def(
          "set_blocked",
          [](PySession& s, bool blocked) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.set_blocked(blocked);
          },
          nb::arg("blocked"), "Of a worker that waits for others: they may have its CPUs until it goes on.")
      .def(
          "serve",
          [](PySession& s) {
            const auto use = s.use();
            Session& session = *use;
            s.queue = std::make_shared<actors::CallQueue>();
            const auto ready = [&] {
              const nb::gil_scoped_release release;
              session.own([&] {
                s.queue->note_in(session.call_book());
                s.queue->on_cancel_taken([cancels = s.cancels](CallKey call, CancelHow how) { cancels->note(call, how); });
                session.actor_host().set_default(s.queue);
              });
              return session.ready();
            }();
            unwrap(ready);
          },
          "Takes calls from now on, for next_call.")
      .def(
          "next_call",
          [](PySession& s, std::optional<double> timeout) -> std::unique_ptr<PyIncoming> {
            const auto use = s.use();
            Session& session = *use;
            const auto deadline = deadline_in(timeout);
            bool got = false;
            const auto waited = [&] {
              const nb::gil_scoped_release release;
              return session.wait(
                  [&] {
                    // Answers to calls that arrived together are sent together.
                    if (s.due) s.due->send(s.queue->empty() ? runtime::Flush::kNow : runtime::Flush::kLater);
                    s.due.reset();
                    if (s.stopped || !s.cancels->untold.empty()) return true;
                    if (!s.taken && s.queue->empty()) return false;
                    if (!s.taken) s.taken = s.queue->pop();
                    return got = true;
                  },
                  deadline);
            }();
            if (!waited && waited.error().code() != Code::kDeadlineExceeded) unwrap(waited);
            if (!got) return nullptr;
            if (PyErr_CheckSignals() != 0) throw nb::python_error();  // before the call is handed over: it would be lost
            auto out = std::make_unique<PyIncoming>(*std::move(s.taken), s.users());
            s.taken.reset();
            return out;
          },
          nb::arg("timeout") = nb::none(),
          "The next call in order, or None when the time is over, nobody serves any more or take_cancelled has something (of a worker that "
          "is told).")
      .def(
          "reply",
          [](PySession& s, PyIncoming& incoming, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
             const std::vector<Ref*>& refs, bool raised) {
            const auto value = make_value(*s.use(), head, buffers, refs, raised ? Value::Kind::kRaised : Value::Kind::kResult);
            answer(s, incoming, value);
          },
          nb::arg("incoming"), nb::arg("head"), nb::arg("buffers"), nb::arg("refs") = nb::list(), nb::arg("raised") = false)
      .def(
          "reply_with_next",
          [](PySession& s, PyIncoming& incoming, const nb::bytes& head, const std::vector<ReadBuffer>& buffers,
             const std::vector<Ref*>& refs) {
            auto value = make_value(*s.use(), head, buffers, refs);
            raise_if_interrupted(value);
            s.due.emplace(incoming.release(), std::move(value));
          },
          nb::arg("incoming"), nb::arg("head"), nb::arg("buffers"), nb::arg("refs"),
          "Of the thread that takes calls, before its next_call, which sends it. Nothing of `incoming` but its arguments is used after it.")
      .def(
          "reply_many",
          [](PySession& s, PyIncoming& incoming,
             const std::vector<std::tuple<nb::bytes, std::vector<ReadBuffer>, std::vector<Ref*>>>& parts) {
            std::vector<Value::Pieces> pieces;
            std::vector<Ref*> all;
            for (const auto& [head, buffers, refs] : parts) {
              pieces.push_back(pieces_of(head, buffers));
              all.insert(all.end(), refs.begin(), refs.end());
            }
            const auto use = s.use();
            auto value = [&] {
              const nb::gil_scoped_release release;
              return Value::make_many(pieces, &use->memory());
            }();
            if (value) refer(*value, all);
            answer(s, incoming, value);
          },
          nb::arg("incoming"), nb::arg("parts"), "Replies with several values, (head, buffers, refs) each, for a caller that splits them.")
      .def(
          "item",
          [](PySession& s, const nb::bytes& head, const std::vector<ReadBuffer>& buffers, const std::vector<Ref*>& refs) {
            return PyItem{unwrap(make_value(*s.use(), head, buffers, refs))};
          },
          nb::arg("head"), nb::arg("buffers"), nb::arg("refs"), "What a call yields, for give_item.")
      .def(
          "give_item",
          [](PySession& s, const PyIncoming& incoming, std::uint64_t stream, std::uint64_t index, const PyItem& item,
             bool waits) -> std::optional<bool> {
            using Yielded = actors::ActorHost::Yielded;
            const auto use = s.use();
            Session& session = *use;
            Result<Yielded> given;
            const auto gives = [&] {
              given = session.actor_host().yields(incoming.incoming(), stream, index, item.value);
              return !given || *given != Yielded::kNoRoom;
            };
            const auto done = [&]() -> Result<void> {
              const nb::gil_scoped_release release;
              if (session.own(gives) || !waits) return {};
              return session.wait(gives);
            }();
            unwrap(done);
            const Yielded how = unwrap(std::move(given));
            return how == Yielded::kUnheard ? std::nullopt : std::optional(how == Yielded::kSent);
          },
          nb::arg("incoming"), nb::arg("stream"), nb::arg("index"), nb::arg("item"), nb::arg("waits"),
          "To its caller, before the reply. Whether it went: not when that one's socket takes nothing just now, unless it is waited for. "
          "None when nobody hears it, now or later.")
      .def(
          "refuse",
          [](PySession& s, PyIncoming& incoming, const std::string& reason, const std::string& message) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.own([&] { incoming.fail(unavailable(message).with_reason(reason)); });
          },
          nb::arg("incoming"), nb::arg("reason"), nb::arg("message"), "The call comes to this Unavailable.")
      .def(
          "stop_serving",
          [](PySession& s) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.own([&] { s.stopped = true; });
          },
          "Ends the wait of the thread that is in next_call.")
      .def(
          "drain",
          [](PySession& s, double timeout) {
            const auto use = s.use();
            Session& session = *use;
            const auto deadline = deadline_in(timeout);
            const nb::gil_scoped_release release;
            if (s.due) session.own([&] { std::exchange(s.due, std::nullopt)->send(runtime::Flush::kNow); });
            (void)session.wait([&] { return session.actor_host().queued_bytes() == 0; }, deadline);
          },
          nb::arg("timeout"), "Returns when the sockets have taken every reply, or the time is over.")
      .def(
          "send_last_metrics",
          [](PySession& s, double timeout) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.send_last_metrics(std::chrono::duration_cast<runtime::Duration>(std::chrono::duration<double>(timeout)));
          },
          nb::arg("timeout"), "The node has what this process measured when this returns, or the time is over.")
      .def(
          "interrupt_calls", [](PySession& s) { s.use()->own([&] { s.cancels->interrupted = pthread_self(); }); },
          "Of a worker that runs one call at a time in this thread: SIGINT is sent to it when one is cancelled, and with force it ends.")
      .def(
          "take_interrupt", [](PySession& s) { return s.cancels->signalled.exchange(false); }, "Whether SIGINT came for that reason.")
      .def(
          "report_cancelled", [](PySession& s) { s.use()->own([&] { s.cancels->tells = true; }); },
          "Of a worker that wants to know at once: next_call returns then.")
      .def(
          "hand_on", [](PySession& s) { s.use()->own([&] { s.queue->hands_on(); }); },
          "Of a worker whose calls wait for their turn after next_call: it says of each when that is (began).")
      .def(
          "began",
          [](PySession& s, PyIncoming& incoming) {
            const auto use = s.use();
            incoming.began();
          },
          nb::arg("incoming"), "It runs from now on.")
      .def(
          "take_cancelled",
          [](PySession& s) {
            const auto untold = s.use()->own([&] { return std::exchange(s.cancels->untold, {}); });
            std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
            for (const CallKey& call : untold) out.emplace_back(call.peer, call.request);
            return out;
          },
          "Keys of calls that were cancelled since.")
      .def(
          "cancelled",
          [](PySession& s, const PyIncoming& incoming) {
            if (!s.cancels->any) return false;
            return s.use()->own([&] { return s.cancels->has(incoming.key()); });
          },
          nb::arg("incoming"), "Whether nobody wants the answer any more.")
      .def(
          "refuse_cancelled",
          [](PySession& s, PyIncoming& incoming, const std::string& what) {
            const auto use = s.use();
            Session& session = *use;
            const nb::gil_scoped_release release;
            session.own([&] { incoming.fail(actors::call_cancelled(what)); });
          },
          nb::arg("incoming"), nb::arg("what"), "The call comes to its cancellation.");
}

}  // namespace shoal::python
