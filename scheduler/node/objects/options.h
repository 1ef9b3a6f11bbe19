// Limits and delays of the classes that handle a node's objects (Spiller, ReplicaRoom, ReplicaMemory, ...), in one struct.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/loop/clock.h"
#include "scheduler/node/peers/chunk_sender.h"
#include "storage/replica_table.h"

namespace shoal::scheduler {

struct ObjectOptions {
  storage::ReplicaTable::Options replicas;
  ChunkSender::Options parts;
  std::size_t max_references = 1 << 20;  // objects that are counted, and objects that contain some

  // ---- files (Spiller) ----
  std::string spill_folder = {};  // for objects that are moved out of memory
  // Runs `work` in a thread of its own, then `then` on the loop. Empty: objects that only the node has are never moved into files.
  std::function<void(std::function<void()> work, std::function<void()> then)> write_aside = {};
  std::size_t looks = 4096;  // objects that are examined per request for room

  // ---- room for replicas (ReplicaRoom) ----
  std::uint64_t uncounted_bytes = 128 << 10;                       // smaller replicas are not counted
  runtime::Duration patience = std::chrono::seconds(5);            // wait for processes to make room
  runtime::Duration look = std::chrono::milliseconds(5);           // between two looks of a waiting request at the free room
  runtime::Duration asked_again = std::chrono::milliseconds(100);  // until processes are asked for room again

  // ---- memory of dropped replicas (ReplicaMemory) ----
  runtime::Duration left_again = std::chrono::milliseconds(500);  // between two checks whether processes still map it
  std::size_t left_at_once = 500;                                 // memories per check
};

}  // namespace shoal::scheduler
