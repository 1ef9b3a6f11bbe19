#include "scheduler/node/processes/zygote.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>

extern char** environ;

namespace shoal::scheduler {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxMessage = 1 << 20;
constexpr std::size_t kStderrTail = 4000;

std::vector<std::string> zygote_env(const std::string& python) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry(*e);
    // Without these limits, numpy and torch would start threads when they are imported, and a process with threads cannot be forked.
    if (!entry.starts_with("OPENBLAS_NUM_THREADS=") && !entry.starts_with("OMP_NUM_THREADS=")) out.emplace_back(entry);
  }
  out.push_back("OPENBLAS_NUM_THREADS=1");
  out.push_back("OMP_NUM_THREADS=1");
  out.push_back("PYTHONUNBUFFERED=1");
  (void)python;
  return out;
}

int send_with_fds(int socket, const std::string& text, const std::vector<int>& fds) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)];
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

}  // namespace

struct Zygote::Impl : std::enable_shared_from_this<Impl> {
  Impl(runtime::Loop& loop, runtime::Log log, std::function<void()> died)
      : loop(loop), log(std::move(log)), socket(loop.io()), err(loop.io()), died(std::move(died)) {}

  struct Waiting {
    std::string text;
    Fd out, err;
    Started started;
  };

  // Sends as many requests as the socket takes; the others follow when it has room.
  void send() {
    while (ready && !unsent.empty()) {
      const std::string id = unsent.front();
      Waiting& w = waiting.at(id);
      const int error = send_with_fds(socket.native_handle(), w.text, {w.out.get(), w.err.get()});
      if (error == EINTR) continue;
      if (error == EAGAIN || error == ENOBUFS) {
        if (std::exchange(sending, true)) return;
        return socket.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](std::error_code failed) {
          self->sending = false;
          if (!failed && !self->over) self->send();
        });
      }
      unsent.pop_front();
      w.out.reset();
      w.err.reset();
      w.text.clear();
      if (error) answer(id, fail(from_errno(error, "the zygote does not accept requests")));
    }
  }

  void answer(const std::string& id, Result<pid_t> pid) {
    auto w = waiting.extract(id);
    if (w) w.mapped().started(std::move(pid));
  }

  void fail_waiting(const Error& why) {
    unsent.clear();
    for (auto& [id, w] : std::exchange(waiting, {})) w.started(fail(why));
  }

  void read() {
    socket.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
      if (error) return;
      std::string text(kMaxMessage, 0);
      while (true) {
        const ssize_t n = recv(self->socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return self->read();
        if (n <= 0) return self->end("it closed its socket");
        self->received(std::string_view(text.data(), static_cast<std::size_t>(n)));
      }
    });
  }

  void received(std::string_view text) {
    const json m = json::parse(text, nullptr, false);
    if (!m.is_object()) return log->error("zygote sent a malformed message: {}", text);
    if (m.contains("ready")) {
      ready = true;
      log->info("zygote pid={} ready torch={}", pid, torch);
      if (const auto started = m.value("cuda", ""); !started.empty()) {
        log->warn(
            "zygote pid={} forks no workers, as its driver of CUDA cannot be forked: {} started it. Each worker starts a fresh interpreter",
            pid, started);
      }
      return send();
    }
    const std::string id = m.value("id", "");
    if (m.contains("pid")) {
      answer(id, m["pid"].get<pid_t>());
    } else {
      answer(id, fail(unavailable("a worker could not be forked: " + m.value("error", "no reason given"))));
    }
  }

  void read_err() {
    err.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
      if (error) return;
      char text[4096];
      const ssize_t n = ::read(self->err.native_handle(), text, sizeof text);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return self->read_err();
      if (n <= 0) return;
      self->tail.append(text, static_cast<std::size_t>(n));
      if (self->tail.size() > kStderrTail) self->tail.erase(0, self->tail.size() - kStderrTail);
      self->read_err();
    });
  }

  void end(const std::string& how) {
    if (std::exchange(over, true)) return;
    log->warn("zygote pid={} ended: {}{}{}", pid, how, tail.empty() ? "" : "\n", tail);
    Error why = unavailable("the Python zygote " + how).with_reason("ZygoteDied");
    if (!tail.empty()) why = std::move(why).with_hint("the end of its stderr:\n" + tail);
    fail_waiting(why);
    close();
    if (died) std::exchange(died, nullptr)();
  }

  void close() {
    std::error_code ignored;
    socket.close(ignored);
    err.close(ignored);
  }

  runtime::Loop& loop;
  const runtime::Log log;
  asio::posix::stream_descriptor socket, err;
  std::function<void()> died;
  std::unique_ptr<runtime::ProcessWatch> watch;
  std::map<std::string, Waiting> waiting;  // requests without an answer, by the worker's id
  std::deque<std::string> unsent;          // the ids of requests in `waiting` that are not sent yet, in order
  std::string tail;                        // the last bytes of the process's stderr
  pid_t pid = 0;
  bool torch = false;
  bool ready = false;
  bool sending = false;  // a wait for room in the socket is under way
  bool over = false;
};

Result<std::unique_ptr<Zygote>> Zygote::start(runtime::Loop& loop, runtime::Log log, const std::string& python, bool torch,
                                              std::function<void()> died) {
  int pair[2], errors[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return fail(from_errno(errno, "socketpair"));
  Fd ours(pair[0]), theirs(pair[1]);
  if (pipe2(errors, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
  Fd err_read(errors[0]), err_write(errors[1]);
  fcntl(err_read.get(), F_SETFL, O_NONBLOCK);
  const int bytes = static_cast<int>(kMaxMessage);
  setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  runtime::SpawnSpec spec;
  spec.argv = {python, "-m", "shoal._zygote", std::to_string(getpid()), torch ? "torch" : "plain"};
  spec.env = zygote_env(python);
  spec.cwd = "/";
  spec.err = std::move(err_write);
  spec.inherited.push_back(std::move(theirs));
  SHOAL_TRY(const pid_t pid, runtime::spawn(std::move(spec)));
  auto impl = std::make_shared<Impl>(loop, std::move(log), std::move(died));
  impl->socket.assign(ours.release());
  impl->err.assign(err_read.release());
  impl->pid = pid;
  impl->torch = torch;
  impl->watch =
      std::make_unique<runtime::ProcessWatch>(loop, pid, [raw = impl.get()](runtime::ExitStatus status) { raw->end(status.to_string()); });
  impl->read();
  impl->read_err();
  return std::unique_ptr<Zygote>(new Zygote(std::move(impl)));
}

Zygote::~Zygote() {
  impl_->died = nullptr;
  impl_->watch.reset();
  if (!std::exchange(impl_->over, true)) runtime::signal_group(impl_->pid, SIGKILL);
  impl_->close();
  // Deferred to the loop, since the caller may iterate over the workers that wait for this zygote.
  impl_->loop.post([impl = impl_] { impl->fail_waiting(unavailable("the Python zygote was ended").with_reason("ZygoteDied")); });
}

pid_t Zygote::pid() const { return impl_->pid; }

bool Zygote::busy() const { return !impl_->waiting.empty(); }

void Zygote::fork(const actors::StartWorker& spec, const Env& env, Fd out, Fd err, Started started) {
  if (impl_->over) return started(fail(unavailable("the Python zygote is gone")));
  json request;
  const std::string id = to_string(spec.worker);
  request["id"] = id;
  request["script"] = spec.launch.kind == actors::Launch::Kind::kPythonScript;
  request["argv"] = spec.launch.argv;
  request["cwd"] = spec.launch.cwd;
  request["path"] = spec.launch.python_path;
  request["env"] = json::array();
  for (const auto* list : {&spec.launch.env, &env}) {
    for (const auto& [name, value] : *list) request["env"].push_back({name, value});
  }
  std::string text = request.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxMessage / 2) {
    return started(fail(invalid_argument("arguments and environment of a worker exceed " + std::to_string(kMaxMessage / 2) + " bytes")));
  }
  impl_->waiting[id] = {std::move(text), std::move(out), std::move(err), std::move(started)};
  impl_->unsent.push_back(id);
  impl_->send();
}

}  // namespace shoal::scheduler
