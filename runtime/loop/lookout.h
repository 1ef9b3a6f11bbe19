// What a loop looks at in memory, where no descriptor tells of news: the rings of this process's connections.
//
// A ring is looked at while it is in use. When the loop has nothing to do it looks on for a moment (Spin), tells the other ends to wake it
// through their sockets from now on (doze), and sleeps. So a process that does nothing looks at nothing. The loop's owner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/shm/spin.h"

namespace shoal::runtime {

class Polled {
 public:
  // Does a bounded piece of what there is to do; false if there was nothing.
  virtual bool poll() = 0;
  // The loop looks away. True: a descriptor will tell of news. False: there is something to do now.
  virtual bool doze() = 0;

 protected:
  ~Polled() = default;
};

class Lookout {
 public:
  // `polled` is looked at until it dozes, or look_away().
  void look_at(std::shared_ptr<Polled> polled);
  void look_away(const Polled& polled);
  bool empty() const { return awake_.empty(); }

  // Polls some of them, each in its turn, until one had something to do; false if none had.
  bool look();
  // The same, again and again for as long as that is worth it; `between` runs now and then, and ends it likewise.
  template <class Between>
  bool look_long(Between&& between) {
    if (awake_.empty() || !spin_.worth()) return false;
    int looks = 0;
    return spin_.run([&] { return look() || (++looks % kLooksBetween == 0 && between()); });
  }
  // Before the loop sleeps. False: it is not to sleep.
  bool doze();

 private:
  static constexpr int kAtOnce = 8;  // looked at by one look()
  static constexpr int kLooksBetween = 64;
  static constexpr std::size_t kFew = 16;  // awake ones, among which none is sent to sleep for itself
  static constexpr std::uint32_t kIdleLooks = 1000;

  struct Awake {
    std::shared_ptr<Polled> polled;
    std::uint32_t idle = 0;  // looks in vain, one after the other
  };
  void remove(std::size_t index);

  std::vector<Awake> awake_;
  std::size_t next_ = 0;
  Spin spin_;
};

}  // namespace shoal::runtime
