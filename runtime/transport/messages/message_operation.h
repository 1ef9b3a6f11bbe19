// The operations of a MessageCommunicator: headers are compared, then data travel in chunks, several at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/transport/entry.h"
#include "runtime/transport/messages/chunk_stream.h"
#include "runtime/transport/messages/header.h"
#include "runtime/transport/messages/message_group.h"
#include "runtime/transport/operation.h"

namespace shoal::runtime {

class MessageOperation : public Operation {
 public:
  using Operation::Operation;
  // An operation that has not started sent nothing: after a failure it does not start.
  bool started() const { return started_; }

 protected:
  bool started_ = false;
};

// A collective. Every rank sends a header to every other one. A rank's data of at most kInlineBytes for another travel in the header's
// message; larger data follow as a stream of chunks. Ranks own shares of an all_reduce and of a broadcast. The owner of a share reduces it,
// or gets it from the root, and passes each chunk on at once.
class MessageCollective final : public MessageOperation {
 public:
  // `sequence` counts the rank's collectives from 1.
  MessageCollective(MessageGroup& group, std::uint64_t sequence, CollectiveSpec spec, Call call, TimePoint began);

  Result<bool> advance() override;
  bool complete() const override;
  int missing() const override;
  std::string what() const override { return describe(entry_); }

 private:
  struct Peer {
    std::vector<std::byte> out, in;  // header, and data of at most kInlineBytes
    MessageLayer::Transfer sent, received;
    bool described = false;  // the peer's header was received, and agrees
    const std::byte* inlined() const { return in.data() + sizeof(Header); }
  };
  using Channel = MessageLayer::Channel;

  void start();
  void plan();
  void plan_reduction();
  void plan_results();
  void plan_shares_of_broadcast();
  Result<void> meet(int rank);
  bool is_open(const ChunkStream& stream) const;  // may begin its next chunk
  bool reduce_next();
  bool copy_own_part();
  // The data that this rank sends to another rank, and the size of the data that it gets from that rank, apart from Channel::kResults.
  std::span<const std::byte> data_to(int rank) const;
  std::size_t bytes_from(int rank) const;
  bool is_small_reduction() const;  // every rank gets all inputs in the headers
  std::span<std::byte> share(int rank) const;

  MessageGroup& group_;
  const int rank_, world_size_;
  CollectiveSpec spec_;
  std::vector<std::byte> input_copy_;  // the input, if set_input_apart() has copied it
  const std::size_t chunk_;
  const Entry entry_;
  const std::vector<std::size_t> begins_, receive_begins_, share_begins_;
  std::vector<Peer> peers_;
  std::vector<ChunkStream> streams_;
  // The rest of this rank's own part, which this rank copies while data of the other ranks travel.
  std::span<const std::byte> own_part_;
  std::byte* own_part_into_ = nullptr;
  // The reduction of this rank's share, chunk by chunk.
  std::span<std::byte> reduced_into_;
  const std::byte* own_input_ = nullptr;
  std::vector<std::byte> scratch_;  // the other ranks' latest chunks
  std::size_t reduced_ = 0, to_reduce_ = 0;
};

// A message between two ranks. The receiver compares the header with its call; data above kInlineBytes follow it as a stream.
class MessageToRank final : public MessageOperation {
 public:
  using Way = ChunkStream::Way;
  MessageToRank(MessageGroup& group, Way way, int peer, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call,
                TimePoint began);

  Result<bool> advance() override;
  bool complete() const override { return matched_ && header_moved_.complete() && stream_.complete(); }
  int missing() const override { return complete() ? -1 : peer_; }
  std::string what() const override;

 private:
  bool sends() const { return way_ == Way::kSend; }
  void start();
  Result<void> meet();

  MessageGroup& group_;
  const Way way_;
  const int peer_;
  const std::span<std::byte> data_;
  const DType dtype_;
  const std::uint32_t tag_;
  std::vector<std::byte> header_;
  MessageLayer::Transfer header_moved_;
  ChunkStream stream_;
  bool matched_ = false;  // the receiver's header agrees with its call; a sender does not wait for that
};

}  // namespace shoal::runtime
