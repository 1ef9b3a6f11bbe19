#include "scheduler/web/gateway.h"

#include <algorithm>
#include <utility>

#include "scheduler/web/rows.h"

namespace shoal::scheduler::web {

using actors::from_bytes;
using actors::ListReply;
using actors::ListRequest;
using actors::Method;
using actors::number;
using actors::to_bytes;
using actors::WorkerRow;
using actors::WorkerState;
using runtime::Message;
using runtime::Peer;

namespace {
Message body(Bytes bytes) { return {std::move(bytes), {}, {}}; }
LogBook::Options kept_in(const std::string& folder) {
  LogBook::Options o;
  o.folder = folder;
  return o;
}
// Returns true for a process of the job itself, whose lines are printed as they are. Lines of actors get a label.
bool is_own(const WorkerRow& w) { return w.role == "driver" || w.role.starts_with("rank "); }

// True if the node is gone. Its logs can then be read only in this host's folder, if at all.
bool is_gone(const Result<actors::NodeRow>& node) {
  return node ? node->state == actors::NodeState::kDead : node.error().code() == Code::kNotFound;
}

constexpr std::size_t kMaxProcesses = 100;  // processes in one answer
constexpr std::size_t kMaxSlow = 3;         // slow calls to nodes at a time, as a multiple of max_node_calls

std::string prefixed(const std::string& who, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    out += "(" + who + ") " + std::string(text.substr(0, end)) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}
}  // namespace

Gateway::Gateway(runtime::Clock& clock, runtime::Network& network, Options options)
    : clock_(clock), network_(network), options_(std::move(options)), kept_(kept_in(options_.logs)) {}

void Gateway::on_request(Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a client takes no requests"));
}

void Gateway::on_closed(Peer&, const Error&) { const auto owned = std::move(head_); }

void Gateway::connect() {
  if (std::exchange(connecting_, true)) return;
  network_.connect(options_.head, runtime::Role::kClient, options_.timeout,
                   [this, alive = alive_](Result<std::unique_ptr<runtime::Connection>> connection) {
                     if (!*alive) return;
                     connecting_ = false;
                     if (connection) head_ = std::make_unique<Peer>(*std::move(connection), clock_, *this);
                     const std::optional<Error> why = connection ? std::nullopt : std::optional(connection.error());
                     for (const auto& go : std::exchange(waiting_, {})) go(why ? &*why : nullptr);
                   });
}

void Gateway::call_head(Method method, Bytes bytes, Answer answer) {
  if (!*alive_) return answer(fail(cancelled("the cluster ends")));
  if (!head_) {
    const auto shared = std::make_shared<Bytes>(std::move(bytes));
    waiting_.push_back([this, method, shared, answer = std::move(answer)](const Error* why) mutable {
      if (why != nullptr) return answer(fail(*why));
      call_head(method, std::move(*shared), std::move(answer));
    });
    return connect();
  }
  head_->call(number(method), body(std::move(bytes)), options_.timeout, std::move(answer));
}

void Gateway::list_page(const ListRequest& request, Rows rows) {
  call_head(Method::kList, to_bytes(request),
            [rows = std::move(rows)](Result<Message> r) { rows(r ? from_bytes<ListReply>(r->body) : Result<ListReply>(fail(r.error()))); });
}

void Gateway::list(ListRequest::What what, JobId job, Rows rows) {
  list_after({what, job, 0}, std::make_shared<ListReply>(), std::move(rows));
}

void Gateway::list_after(ListRequest request, std::shared_ptr<ListReply> sofar, Rows rows) {
  list_page(request, [this, request, sofar, rows = std::move(rows)](Result<ListReply> page) mutable {
    if (!page) return rows(fail(page.error()));
    const auto append = [](auto& to, auto& from) { to.insert(to.end(), std::move_iterator(from.begin()), std::move_iterator(from.end())); };
    append(sofar->actors, page->actors);
    append(sofar->nodes, page->nodes);
    append(sofar->workers, page->workers);
    append(sofar->jobs, page->jobs);
    append(sofar->groups, page->groups);
    if (page->last == 0) return rows(std::move(*sofar));
    request.after = page->last;
    list_after(request, sofar, std::move(rows));
  });
}

void Gateway::find_node(NodeId node, std::function<void(Result<actors::NodeRow>)> found) {
  call_head(Method::kWatchNode, to_bytes(actors::NodeRef{node}), [found = std::move(found)](Result<Message> r) {
    const auto reply = r ? from_bytes<ListReply>(r->body) : Result<ListReply>(fail(r.error()));
    if (!reply) return found(fail(reply.error()));
    if (reply->nodes.empty()) return found(fail(data_loss("the answer about a node has no row")));
    found(reply->nodes.front());
  });
}

void Gateway::find_job(const std::string& id, std::function<void(Result<actors::JobRow>)> found) {
  find_job_after(0, id, std::move(found));
}

void Gateway::find_job_after(std::uint64_t last, const std::string& id, std::function<void(Result<actors::JobRow>)> found) {
  list_page({ListRequest::What::kJobs, {}, last}, [this, id, found = std::move(found)](Result<ListReply> r) {
    if (!r) return found(fail(r.error()));
    const auto it = std::find_if(r->jobs.begin(), r->jobs.end(), [&](const auto& j) { return is_job(j, id); });
    if (it == r->jobs.end() && r->last != 0) return find_job_after(r->last, id, found);
    if (it == r->jobs.end()) return found(fail(not_found("no job " + id).with_hint("see shoal list jobs")));
    // Fetches the whole row, because a list has only the first line of a cause.
    call_head(Method::kWatchJob, to_bytes(actors::JobRef{it->id}), [found, row = *it](Result<Message> whole) {
      auto read = whole ? from_bytes<actors::JobRow>(whole->body) : Result<actors::JobRow>(fail(whole.error()));
      found(read ? *std::move(read) : row);
    });
  });
}

// ---- logs

// A request to a node on a separate connection. One time limit is for connection and request together.
class Gateway::NodeCall final : public runtime::PeerHandler, public std::enable_shared_from_this<NodeCall> {
 public:
  NodeCall(Gateway& gateway, runtime::TimePoint until, Answer answer)
      : gateway_(gateway),
        until_(until),
        answer_(std::move(answer)),
        slow_after_(gateway_.clock_.after(gateway_.options_.slow_node_call, [this] { become_slow(); })) {}
  void go(const std::string& endpoint, Method method, Bytes bytes) {
    const auto to = runtime::parse_endpoint(endpoint);
    if (!to) return finish(fail(to.error()));
    const auto shared = std::make_shared<Bytes>(std::move(bytes));
    gateway_.network_.connect(
        *to, runtime::Role::kClient, left(),
        [self = shared_from_this(), alive = gateway_.alive_, method, shared](Result<std::unique_ptr<runtime::Connection>> connection) {
          if (!*alive) return;
          if (!connection) return self->finish(fail(connection.error()));
          self->peer_ = std::make_unique<Peer>(*std::move(connection), self->gateway_.clock_, *self);
          self->peer_->call(number(method), body(std::move(*shared)), self->left(),
                            [self](Result<Message> r) { self->finish(std::move(r)); });
        });
  }

  void stop() { finish(fail(cancelled("the cluster ends"))); }

 private:
  void finish(Result<Message> result) {
    if (!answer_) return;
    const auto self = shared_from_this();
    gateway_.calls_.erase(self);
    slow_after_ = {};
    if (slow_) --gateway_.num_slow_calls_;
    std::exchange(answer_, {})(std::move(result));
    peer_.reset();
    if (*alive_) gateway_.call_next_node();
  }
  void become_slow() {
    slow_ = true;
    ++gateway_.num_slow_calls_;
    gateway_.call_next_node();
  }
  runtime::Duration left() const { return std::max(runtime::Duration::zero(), until_ - gateway_.clock_.now()); }
  void on_request(Peer&, runtime::Request, runtime::Responder responder) override { responder.fail(unimplemented("a client")); }
  void on_notice(Peer&, runtime::Request) override {}
  void on_closed(Peer&, const Error& why) override { finish(fail(why)); }

  Gateway& gateway_;
  const std::shared_ptr<const bool> alive_ = gateway_.alive_;
  const runtime::TimePoint until_;
  Answer answer_;
  runtime::Timer slow_after_;
  bool slow_ = false;
  std::unique_ptr<Peer> peer_;
};

void Gateway::call_node(const std::string& endpoint, Method method, Bytes bytes, runtime::Duration patience, Answer answer) {
  later_calls_.push_back([this, endpoint, method, shared = std::make_shared<Bytes>(std::move(bytes)), patience,
                          until = clock_.now() + 2 * patience, answer = std::move(answer)](const Error* why) {
    if (why != nullptr) return answer(fail(*why));
    const auto now = clock_.now();
    if (now >= until) return answer(fail(deadline_exceeded("too many other nodes do not answer")));
    const auto call = std::make_shared<NodeCall>(*this, std::min(now + patience, until), answer);
    calls_.insert(call);
    call->go(endpoint, method, std::move(*shared));
  });
  call_next_node();
}

void Gateway::call_next_node() {
  if (std::exchange(calling_, true)) return;  // called by a call that ended at once: the loop below goes on with the next one
  const auto alive = alive_;
  const auto has_room = [this] {
    return calls_.size() - num_slow_calls_ < options_.max_node_calls && num_slow_calls_ < kMaxSlow * options_.max_node_calls;
  };
  while (*alive && !later_calls_.empty() && has_room()) {
    const auto call = std::move(later_calls_.front());
    later_calls_.pop_front();
    call(nullptr);
  }
  if (*alive) calling_ = false;
}

void Gateway::read_log(const WorkerRow& worker, std::uint16_t stream, std::function<void(Result<std::string>)> text) {
  const auto kept = [this, worker = worker.id, stream] {
    return kept_.read(worker, static_cast<Launcher::Stream>(stream), options_.max_log_bytes).value_or("");
  };
  find_node(worker.node, [this, worker, stream, kept, text = std::move(text)](Result<actors::NodeRow> node) {
    if (is_gone(node)) return text(kept());
    if (!node) return text(fail(node.error()));
    const auto answered = [this, at = worker.node, kept, text](Result<Message> said) {
      if (said) return text(std::string(said->payload.view()));
      if (said.error().code() == Code::kNotFound) return text("");  // a process that has printed nothing has no log
      find_node(at, [kept, text, why = said.error()](Result<actors::NodeRow> now) { is_gone(now) ? text(kept()) : text(fail(why)); });
    };
    const actors::ReadLog what{worker.id, stream, options_.max_log_bytes};
    call_node(node->endpoint, Method::kReadLog, to_bytes(what), options_.timeout, answered);
  });
}

void Gateway::read_logs(JobId job, std::function<void(Result<std::string>)> text) {
  list(ListRequest::What::kWorkers, job, [this, text = std::move(text)](Result<ListReply> r) mutable {
    if (!r) return text(fail(r.error()));
    std::sort(r->workers.begin(), r->workers.end(),
              [](const auto& a, const auto& b) { return std::pair(is_own(a), -a.rank) > std::pair(is_own(b), -b.rank); });
    if (r->workers.size() > kMaxProcesses) r->workers.resize(kMaxProcesses);
    std::reverse(r->workers.begin(), r->workers.end());
    auto left = std::make_shared<std::vector<std::pair<WorkerRow, std::uint16_t>>>();  // read from the back
    for (const auto& w : r->workers) {
      left->push_back({w, 2});
      left->push_back({w, 1});
    }
    read_next(left, std::make_shared<std::string>(), std::move(text));
  });
}

void Gateway::read_next(std::shared_ptr<std::vector<std::pair<WorkerRow, std::uint16_t>>> left, std::shared_ptr<std::string> sofar,
                        std::function<void(Result<std::string>)> text) {
  if (left->empty()) return text(std::move(*sofar));
  const auto [worker, stream] = left->back();
  left->pop_back();
  read_log(worker, stream, [this, left, sofar, worker, text = std::move(text)](const Result<std::string>& lines) mutable {
    if (!lines) return text(fail(lines.error()));
    if (worker.role == "driver") {
      *sofar += *lines;
    } else {
      *sofar += prefixed(worker.role.starts_with("actor ") ? worker.role.substr(6) : worker.role, *lines);
    }
    if (sofar->size() > options_.max_log_bytes) left->clear();
    read_next(left, sofar, std::move(text));
  });
}

// Follows a job's process: finds it, then subscribes to its node's log lines.
class Gateway::Tail final : public runtime::PeerHandler, public std::enable_shared_from_this<Tail> {
 public:
  Tail(Gateway& gateway, JobId job, std::shared_ptr<Reader> reader) : gateway_(gateway), job_(job), reader_(std::move(reader)) {}

  void poll() {
    if (reader_->gone()) return finish();
    gateway_.list(ListRequest::What::kWorkers, job_, [self = shared_from_this()](Result<ListReply> r) {
      if (!r) return self->finish();
      const auto own = std::find_if(r->workers.begin(), r->workers.end(), [](const WorkerRow& w) { return is_own(w) && w.rank <= 0; });
      if (own == r->workers.end()) return self->wait_for_it();
      self->worker_ = *own;
      if (own->state == WorkerState::kExited) return self->read_all();
      self->listen();
    });
  }
  void stop() { finish(); }

 private:
  // Waits until the job has a process, or ended without one.
  void wait_for_it() {
    gateway_.call_head(Method::kWatchJob, to_bytes(actors::JobRef{job_}), [self = shared_from_this()](Result<Message> r) {
      const auto row = r ? from_bytes<actors::JobRow>(r->body) : Result<actors::JobRow>(fail(r.error()));
      if (!row || actors::ended(row->state)) return self->finish();
      self->again_ = self->gateway_.clock_.after(self->gateway_.options_.poll_interval, [self] { self->poll(); });
    });
  }

  void read_all() {
    gateway_.read_logs(job_, [self = shared_from_this()](Result<std::string> text) {
      if (text) self->reader_->lines(*text);
      self->finish(text.has_value());
    });
  }

  void listen() {
    gateway_.find_node(worker_.node, [self = shared_from_this()](Result<actors::NodeRow> node) {
      if (!node && node.error().code() != Code::kNotFound) return self->finish();
      const auto to = node ? runtime::parse_endpoint(node->endpoint) : Result<runtime::Endpoint>(fail(node.error()));
      if (!to) return self->read_all();
      self->gateway_.network_.connect(*to, runtime::Role::kClient, self->gateway_.options_.timeout,
                                      [self, alive = self->gateway_.alive_](Result<std::unique_ptr<runtime::Connection>> connection) {
                                        if (!*alive) return;
                                        if (!connection) return self->read_all();
                                        self->follow(*std::move(connection));
                                      });
    });
  }

  void follow(std::unique_ptr<runtime::Connection> connection) {
    peer_ = std::make_unique<Peer>(std::move(connection), gateway_.clock_, *this);
    peer_->call(number(Method::kFollowLogs), body(to_bytes(actors::JobRef{job_})), gateway_.options_.timeout,
                [self = shared_from_this()](Result<Message> r) {
                  if (!r) self->finish();
                });
    check_gone();
  }

  void check_gone() {
    if (reader_->gone()) return finish();
    again_ = gateway_.clock_.after(std::chrono::seconds(1), [self = shared_from_this()] { self->check_gone(); });
  }

  void on_notice(Peer&, runtime::Request notice) override {
    const auto self = shared_from_this();
    const auto method = static_cast<Method>(notice.method);
    if (method == Method::kLogLines) {
      const auto m = from_bytes<actors::LogLines>(notice.message.body);
      const auto text = notice.message.payload.view();
      if (m) reader_->lines(m->label == "driver" ? std::string(text) : prefixed(m->label, text));
    } else if (method == Method::kWorkerExited) {
      const auto m = from_bytes<actors::WorkerUpdate>(notice.message.body);
      if (m && m->worker == worker_.id) finish();
    }
  }
  void on_request(Peer&, runtime::Request, runtime::Responder responder) override { responder.fail(unimplemented("a client")); }
  void on_closed(Peer&, const Error&) override { finish(); }

  // `whole`: false for a log that cannot be read. The answer then gets no end, so that its reader sees it as cut off.
  void finish(bool whole = true) {
    const auto self = shared_from_this();
    if (gateway_.tails_.erase(self) == 0) return;
    again_ = {};
    if (whole) reader_->end();
    const auto owned = std::move(peer_);
  }

  Gateway& gateway_;
  const JobId job_;
  const std::shared_ptr<Reader> reader_;
  WorkerRow worker_;
  std::unique_ptr<Peer> peer_;
  runtime::Timer again_;
};

void Gateway::follow_logs(JobId job, std::shared_ptr<Reader> reader) {
  const auto tail = std::make_shared<Tail>(*this, job, std::move(reader));
  tails_.insert(tail);
  tail->poll();
}

Gateway::~Gateway() {
  *alive_ = false;
  const Error over = cancelled("the cluster ends");
  for (const auto& go : std::exchange(waiting_, {})) go(&over);
  for (const auto& call : std::exchange(later_calls_, {})) call(&over);
  while (!tails_.empty()) std::shared_ptr(*tails_.begin())->stop();
  while (!calls_.empty()) std::shared_ptr(*calls_.begin())->stop();
  head_.reset();
}

}  // namespace shoal::scheduler::web
