#include "actors/session/session.h"

#include <unistd.h>

#include "actors/session/folder/open_network.h"
#include "runtime/process/process.h"
#include "runtime/process/standard_streams.h"

namespace shoal::actors {

using runtime::Message;

namespace {

constexpr runtime::Duration kLeaveWithin = std::chrono::seconds(3), kDrainWithin = std::chrono::seconds(5);

}  // namespace

Session::Session(SessionOptions options)
    : options_(std::move(options)),
      loop_(loop_thread_, options_.interrupted),
      random_(runtime::make_real_random()),
      network_(std::make_unique<runtime::SocketNetwork>(loop_.loop(), *loop_.clock(), *random_, options_.credentials.token,
                                                        socket_options(options_.credentials))),
      book_(*loop_.clock()),
      node_(loop_, *network_, identity_, {options_.connect_timeout, options_.control_timeout}),
      memory_(std::make_shared<NodeMemory>(node_)),
      head_(loop_, *network_, node_, {options_.connect_timeout, options_.control_timeout, options_.head_timeout}),
      calls_(loop_, *network_, head_, book_, identity_, options_.retry_delay),
      objects_(loop_, node_, calls_, identity_),
      actors_(loop_, head_, node_, calls_, objects_, *random_, identity_, options_.control_timeout),
      groups_(loop_, head_, *random_),
      hosting_(loop_, *network_, head_, node_, calls_, identity_),
      logs_(loop_, *network_, head_, node_, identity_, {options_.print_logs, options_.fold_logs},
            [this](const WorkerUpdate& process) { actors_.process_gone(process); }),
      cluster_(loop_, head_, identity_),
      reporter_(loop_, node_, calls_, objects_, book_, *random_, identity_, options_.measured),
      loop_thread_(loop_.loop()) {}

Session::~Session() {
  outlived_->end();
  memory_->close();
  reporter_.send_last_metrics(kLeaveWithin);
  if (identity_.owns_job) {
    head_.hurry(kLeaveWithin);
    // Connects, to report the driver's end: the job of a driver that ends without a report counts as failed.
    if (!loop_.own([this] { return head_.link().connected(); })) (void)head_.reach();
  }
  bool drained = false;
  loop_.own([this, &drained] {
    // One turn of the loop does all of this. So open calls are cancelled before they could fail by the end of the job's actors or of a
    // node.
    if (identity_.owns_job && !failure_.empty()) {
      const Error cause = unavailable("its program failed: " + failure_).with_reason("ProgramFailed");
      const WorkerUpdate end = {identity_.worker, WorkerState::kExited, getpid(), "", 1, cause, identity_.job, "driver"};
      (void)head_.link().notify(Method::kWorkerUpdate, body(to_bytes(end)));
    }
    if (identity_.owns_job) (void)head_.link().notify(Method::kEndDriver, body(to_bytes(JobRef{identity_.job})));
    calls_.pools().close();
    groups_.close();
    logs_.close();
    calls_.close();
    hosting_.close();
    head_.link().close();
    node_.link().close();
    network_->stop([&drained] { drained = true; });
  });
  loop_thread_.wait([&drained] { return drained; }, loop_.deadline_in(kDrainWithin));  // not interrupted by signals
}

Result<std::unique_ptr<Session>> Session::open(SessionOptions options) {
  runtime::open_standard_streams();
  runtime::raise_descriptor_limit();
  std::unique_ptr<Session> session(new Session(std::move(options)));
  SHOAL_OK(session->connect());
  return session;
}

Result<void> Session::connect() {
  if (options_.node.empty()) {
    SHOAL_OK(connect_driver());
  } else {
    loop_.own([this] { identity_.job = options_.job; });
    SHOAL_OK(connect_node(options_.node));
  }
  const auto at = options_.credentials.endpoint("shoal-" + to_string(identity_.worker) + "-" + to_string(new_id<ObjectId>()));
  return loop_.own([&] {
    calls_.by_actor()->count_with(objects_.references(), objects_.memory().at_once(), identity_.worker, identity_.node);
    hosting_.actors().count_with(objects_.references(), objects_.memory().at_once());
    return hosting_.actors().listen(at);
  });
}

Result<void> Session::connect_driver() {
  loop_.own([&] { head_.link().set_endpoints(options_.head); });
  if (const auto reached = head_.link().reach(); !reached) {
    const Error& why = reached.error();
    if (why.code() != Code::kUnavailable || why.reason() == "HungUp") return fail(why);
    return fail(unavailable("no head answers at " + options_.head + ": " + why.message())
                    .with_reason(why.reason())
                    .with_hint("the node beside a head starts it again when it dies; `shoal status` shows the result, and what to do"));
  }
  SHOAL_TRY(const Message reply,
            head_.request_once(Method::kRegisterDriver, to_bytes(RegisterDriver{options_.name, getpid(), options_.job})));
  SHOAL_TRY(const auto registered, from_bytes<RegisteredDriver>(reply.body));
  loop_.own([&] {
    identity_.job = registered.job;
    identity_.owns_job = !options_.job && options_.ends_job;
  });
  const std::string node = options_.own_node.empty() ? registered.node : options_.own_node;
  SHOAL_TRY(const auto at, runtime::parse_endpoint(node));
  if (at.is_both() && at.host != options_.credentials.host) {
    return fail(unavailable("no node of the cluster runs on this host")
                    .with_reason("NoNode")
                    .with_hint("shoal start --address " + head_.endpoints() +
                               " --token-file FILE --ca-fingerprint sha256:.. adds this host to the cluster"));
  }
  return connect_node(node);
}

Result<void> Session::connect_node(const std::string& endpoint) {
  SHOAL_TRY(auto presented, node_.attach(endpoint, Attach{options_.worker, identity_.job, options_.role}));
  const Attached& attached = presented.node;
  loop_.own([&] {
    identity_ = {.job = attached.job,
                 .worker = attached.worker,
                 .node = attached.node,
                 .folder = attached.session,
                 .host = attached.host,
                 .owns_job = identity_.owns_job,
                 .started_by_node = static_cast<bool>(options_.worker)};
    head_.link().set_endpoints(attached.head);
  });
  if (attached.member >= 0 && presented.membership_page.size() == 1) {
    SHOAL_OK(objects_.share_limit({.membership_page = std::move(presented.membership_page[0]),
                                   .member = attached.member,
                                   .folder = attached.spill,
                                   .interrupted = options_.interrupted}));
  }
  return logs_.follow();
}

runtime::Traffic Session::traffic() {
  return loop_.own([this] { return network_->traffic(); });
}

void Session::abandon_after_fork() {
  loop_.loop().close_tracked();
  objects_.memory().abandon_after_fork();
}

}  // namespace shoal::actors
