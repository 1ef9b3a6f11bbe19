#include "runtime/loop/side_thread.h"

#include <pthread.h>

#include <csignal>

namespace shoal::runtime {

SideThread::SideThread(std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SideThread::~SideThread() { thread_.join(); }

}  // namespace shoal::runtime
