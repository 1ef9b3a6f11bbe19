#include "runtime/loop/side_thread.h"

#include <pthread.h>

#include <csignal>

namespace shoal::runtime {

SideThread::SideThread(std::function<void()> run) {
  struct Blocked {  // RAII, because std::thread throws when the system has no more threads
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } const blocked;
  thread_ = std::thread(std::move(run));
}

SideThread::~SideThread() { thread_.join(); }

}  // namespace shoal::runtime
