#include "scheduler/node/processes/posix_launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <cerrno>
#include <csignal>
#include <map>

#include "scheduler/node/processes/guard.h"
#include "scheduler/node/processes/zygote.h"

extern char** environ;

namespace shoal::scheduler {

using actors::Launch;
using runtime::ExitStatus;

namespace {

constexpr std::size_t kMaxLine = 4u << 20;  // bytes; a longer line is cut into several
constexpr std::size_t kReadBytes = 16 << 10;
constexpr int kReadsPerWake = 8;

// The length of `text` without an incomplete UTF-8 character at its end.
std::size_t end_of_characters(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;     // the last byte is a character by itself
    if (byte < 0xC0) continue;  // a further byte of a character, which begins before
    const std::size_t size = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return back < size && back < text.size() ? text.size() - back : text.size();
  }
  return text.size();
}

// Reads one output stream of a worker, and passes it on in lines.
class Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  using Lines = std::function<void(std::string_view)>;
  Pipe(runtime::Loop& loop, Fd fd, Lines lines) : descriptor_(loop.io(), fd.release()), lines_(std::move(lines)) {}

  void read() {
    descriptor_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](std::error_code error) {
      if (!error && self->drain()) self->read();
    });
  }

  // Reads what the stream has, at most as much as a pipe holds, so that a worker that prints fast does not delay others. Returns false at
  // the end of the stream.
  bool drain() {
    for (int i = 0; i < kReadsPerWake && descriptor_.is_open(); ++i) {
      char text[kReadBytes];
      const ssize_t n = ::read(descriptor_.native_handle(), text, sizeof text);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return true;
      if (n <= 0) {
        finish();
        return false;
      }
      const std::string_view came(text, static_cast<std::size_t>(n));
      const auto last = came.rfind('\n');
      const std::size_t before = buffer_.size();
      buffer_.append(came);
      if (last != std::string_view::npos) {
        lines_(std::string_view(buffer_).substr(0, before + last + 1));
        buffer_.erase(0, before + last + 1);
      } else if (buffer_.size() > kMaxLine) {
        const std::size_t end = end_of_characters(buffer_);
        lines_(buffer_.substr(0, end) + "\n");
        buffer_.erase(0, end);
      }
    }
    return descriptor_.is_open();
  }

  // Passes on a line that has no newline yet.
  void end_line() {
    if (!buffer_.empty()) lines_(std::exchange(buffer_, {}) + "\n");
  }

  // Passes on a last line that has no newline, and closes the stream.
  void finish() {
    if (!descriptor_.is_open()) return;
    std::error_code ignored;
    descriptor_.close(ignored);
    end_line();
  }

 private:
  asio::posix::stream_descriptor descriptor_;
  Lines lines_;
  std::string buffer_;
};

struct Streams {
  Fd out, err;  // the worker's ends of the pipes
  std::shared_ptr<Pipe> out_pipe, err_pipe;
};

class PosixLauncher final : public Launcher {
 public:
  PosixLauncher(runtime::Loop& loop, runtime::Random& random, runtime::Log log, PosixLauncherOptions options)
      : loop_(loop),
        random_(random),
        log_(std::move(log)),
        options_(std::move(options)),
        clock_(runtime::make_real_clock(loop)),
        child_ended_(loop.io(), SIGCHLD) {
    runtime::become_subreaper();
    if (auto guard = Guard::start()) {
      guard_ = *std::move(guard);
    } else {
      log_->warn("no guard: {}", guard.error().message());
    }
    wait_for_children();
    if (!options_.python.empty()) {
      if (const auto z = zygote(options_.python, false); !z) log_->warn("no zygote: {}", z.error().message());
    }
  }

  ~PosixLauncher() override {
    std::error_code ignored;
    child_ended_.cancel(ignored);
    for (auto& [id, w] : workers_) runtime::signal_group(w.pid, SIGKILL);
  }

  void set_events(Events* events) override { events_ = events; }

  void start(const actors::StartWorker& spec, const Env& env, std::function<void(Result<pid_t>)> started) override {
    auto streams = make_streams(spec.worker);
    if (!streams) return started(fail(streams.error()));
    const WorkerId id = spec.worker;
    auto adopt = [this, id, out = streams->out_pipe, err = streams->err_pipe, started](Result<pid_t> pid) {
      if (pid) adopt_worker(id, *pid, out, err);
      started(std::move(pid));
    };
    if (spec.launch.kind == Launch::Kind::kPythonWorker || spec.launch.kind == Launch::Kind::kPythonScript) {
      auto z = zygote(spec.launch.program, spec.launch.torch);
      if (!z) return adopt(fail(z.error()));
      return (*z)->fork(spec, env, std::move(streams->out), std::move(streams->err), std::move(adopt));
    }
    runtime::SpawnSpec s;
    s.argv = spec.launch.argv;
    if (spec.launch.kind == Launch::Kind::kNativeWorker) s.argv = {spec.launch.program};
    s.cwd = spec.launch.cwd;
    s.out = std::move(streams->out);
    s.err = std::move(streams->err);
    std::map<std::string, std::string> merged;
    for (char** e = environ; *e != nullptr; ++e) {
      const std::string entry(*e);
      merged[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
    }
    for (const auto* list : {&spec.launch.env, &env}) {
      for (const auto& [name, value] : *list) merged[name] = value;
    }
    if (spec.launch.kind == Launch::Kind::kNativeWorker) merged["SHOAL_BUILD_ID"] = spec.launch.build_id;
    for (const auto& [name, value] : merged) s.env.push_back(name + "=" + value);
    adopt(runtime::spawn(std::move(s)));
  }

  void drain_output() override {
    for (auto& [id, w] : workers_) {
      w.out->drain();
      w.err->drain();
    }
  }

  void end_lines(WorkerId worker) override {
    const auto it = workers_.find(worker);
    if (it == workers_.end()) return;
    for (const auto& pipe : {it->second.out, it->second.err}) pipe->end_line();
  }

  void signal(WorkerId worker, int signal) override {
    if (const auto it = workers_.find(worker); it != workers_.end()) runtime::signal_group(it->second.pid, signal);
  }

  void signal_process(pid_t pid, int signal) override {
    if (pid > 1) ::kill(pid, signal);
  }

  std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone) override {
    return std::make_shared<runtime::ProcessWatch>(loop_, pid, [gone = std::move(gone)](ExitStatus) { gone(); });
  }

  void retire_torch() override {
    std::erase_if(zygotes_, [](const auto& z) { return z.first.second; });
  }

  // Ports below 32768 are outside of the kernel's ephemeral range, so no outgoing connection takes the port meanwhile.
  Result<std::uint16_t> free_port() override {
    for (int i = 0; i < 200; ++i) {
      const auto port = static_cast<std::uint16_t>(20'000 + random_.below(12'000));
      const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
    }
    return fail(resource_exhausted("the host has no free TCP port between 20000 and 32000"));
  }

 private:
  struct Worker {
    pid_t pid = 0;
    std::shared_ptr<Pipe> out, err;
    std::unique_ptr<runtime::ProcessWatch> watch;
  };

  Result<Streams> make_streams(WorkerId id) {
    Streams s;
    const auto one = [&](Stream stream, Fd& theirs, std::shared_ptr<Pipe>& ours) -> Result<void> {
      int ends[2];
      if (pipe2(ends, O_CLOEXEC) != 0) return fail(from_errno(errno, "pipe"));
      theirs = Fd(ends[1]);
      fcntl(ends[0], F_SETFL, O_NONBLOCK);
      ours = std::make_shared<Pipe>(loop_, Fd(ends[0]), [this, id, stream](std::string_view lines) {
        if (events_ != nullptr) events_->output(id, stream, lines);
      });
      return {};
    };
    SHOAL_OK(one(Stream::kOut, s.out, s.out_pipe));
    SHOAL_OK(one(Stream::kErr, s.err, s.err_pipe));
    return s;
  }

  void adopt_worker(WorkerId id, pid_t pid, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> err) {
    auto& w = workers_[id];
    w.pid = pid;
    if (guard_) guard_->watch(pid);
    w.out = std::move(out);
    w.err = std::move(err);
    w.out->read();
    w.err->read();
    w.watch = std::make_unique<runtime::ProcessWatch>(loop_, pid, [this, id](ExitStatus status) { ended(id, status); });
  }

  void ended(WorkerId id, ExitStatus status) {
    const auto node = workers_.extract(id);
    Worker& w = node.mapped();
    // Processes that the worker has left, such as data loaders and shells.
    runtime::signal_group(w.pid, SIGKILL);
    if (guard_) guard_->forget(w.pid);
    for (const auto& pipe : {w.out, w.err}) {
      pipe->drain();
      pipe->finish();
    }
    if (events_ != nullptr) events_->exited(id, status);
  }

  void wait_for_children() {
    child_ended_.async_wait([this](std::error_code error, int) {
      if (error) return;
      reap_orphans();
      wait_for_children();
    });
  }

  // Reaps processes that workers have left, which then became children of this process. Watches reap workers and zygotes themselves. Tries
  // again later while a zygote has not reported a worker's pid, since a child may be that worker.
  void reap_orphans() {
    while (true) {
      siginfo_t info{};
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      if (guard_ && guard_->pid() == info.si_pid) {
        log_->warn("guard pid={} is gone", guard_->pid());
        guard_.reset();
        continue;
      }
      bool ours = false;
      for (const auto& [key, z] : zygotes_) ours |= z->busy() || z->pid() == info.si_pid;
      for (const auto& [id, w] : workers_) ours |= w.pid == info.si_pid;
      if (ours) {
        again_ = clock_->after(std::chrono::milliseconds(50), [this] { reap_orphans(); });
        return;
      }
      waitpid(info.si_pid, nullptr, 0);
    }
  }

  Result<Zygote*> zygote(const std::string& python, bool torch) {
    const auto key = std::pair{python, torch};
    if (const auto it = zygotes_.find(key); it != zygotes_.end()) return it->second.get();
    SHOAL_TRY(auto z, Zygote::start(loop_, log_, python, torch, [this, key] { loop_.post([this, key] { zygotes_.erase(key); }); }));
    return (zygotes_[key] = std::move(z)).get();
  }

  runtime::Loop& loop_;
  runtime::Random& random_;
  const runtime::Log log_;
  const PosixLauncherOptions options_;
  std::unique_ptr<runtime::Clock> clock_;
  asio::signal_set child_ended_;
  runtime::Timer again_;
  std::unique_ptr<Guard> guard_;
  Events* events_ = nullptr;
  std::map<std::pair<std::string, bool>, std::unique_ptr<Zygote>> zygotes_;
  std::map<WorkerId, Worker> workers_;
};

}  // namespace

std::unique_ptr<Launcher> make_posix_launcher(runtime::Loop& loop, runtime::Random& random, runtime::Log log,
                                              PosixLauncherOptions options) {
  return std::make_unique<PosixLauncher>(loop, random, std::move(log), std::move(options));
}

}  // namespace shoal::scheduler
