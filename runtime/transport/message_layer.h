// Messages between this process and the other ranks of a group: nonblocking, in order, without copies where the transport allows it.
//
// A layer only moves bytes; MessageCommunicator makes collectives from it. All functions but wake() belong to the thread that drives the
// communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "runtime/core/error.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

class MessageLayer {
 public:
  // Messages from one rank to another on one channel are received in the order in which they were sent.
  enum class Channel : std::uint8_t { kHeaders, kData, kResults, kMessages, kMessageData, kControl };

  // A send or receive under way. Its owner keeps it at one address, and keeps its memory, until it has ended.
  struct Transfer {
    enum class State : std::uint8_t { kIdle, kPending, kComplete, kFailed } state = State::kIdle;
    std::size_t bytes = 0;    // size of the received message
    void* request = nullptr;  // for the layer's own use
    bool complete() const { return state == State::kComplete; }
  };

  virtual ~MessageLayer() = default;
  virtual const char* name() const = 0;  // "ucx", ...

  virtual void send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) = 0;
  // The next message of that rank on this channel. A longer message than `data` fails the transfer.
  virtual void receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) = 0;
  // Advances transfers, and returns true if one has ended.
  virtual bool progress() = 0;
  // Sleeps until progress may be possible, or wake() is called, at most `limit`.
  virtual void wait(Duration limit) = 0;
  // Ends a wait() under way, or else the next one. Any thread.
  virtual void wake() = 0;

  // The reason why a rank cannot be reached any more; nullopt while its connection stands.
  virtual std::optional<Error> lost(int rank) const = 0;
  // Waits until the other ranks have received all sent messages, at most `limit`.
  virtual void flush(Duration limit) = 0;
  // Fails all transfers, whose memory is then free, makes the connections anew, and begins the next epoch. A rank receives only messages
  // that others send in the same epoch. Only the ranks in `gone` stay lost.
  virtual void reset(std::span<const int> gone) = 0;
  // Begins the next epoch on the same connections, with no send pending. Pending receives fail.
  virtual void begin_epoch() = 0;
};

}  // namespace shoal::runtime
