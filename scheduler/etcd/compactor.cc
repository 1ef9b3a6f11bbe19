#include "scheduler/etcd/compactor.h"

namespace shoal::scheduler::etcd {

Compactor::Compactor(runtime::Log log, std::unique_ptr<Client> client, runtime::Duration every, std::function<std::int64_t()> written)
    : log_(std::move(log)), client_(std::move(client)), every_(every), written_(std::move(written)), thread_([this] { run(); }) {}

Compactor::~Compactor() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  woken_.notify_one();
}

// A head that leads no more writes nothing. Then `written` stays the same, and nothing is compacted.
void Compactor::run() {
  for (std::int64_t next = written_(), last = 0;;) {
    {
      std::unique_lock lock(mutex_);
      if (woken_.wait_for(lock, every_, [this] { return over_; })) return;
    }
    if (next > last) {
      if (const auto compacted = client_->compact(next)) {
        last = next;
      } else {
        log_->warn("etcd: not compacted: {}", compacted.error().message());
      }
    }
    next = written_();
  }
}

}  // namespace shoal::scheduler::etcd
