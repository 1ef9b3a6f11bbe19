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
  // Limits the objects that are counted, and those that contain others.
  std::size_t max_references = 1 << 20;

  // ---- files (Spiller) ----
  std::string spill_folder = {};  // folder for objects that are moved out of memory
  // Runs `work` in another thread, then `then` on the loop. Empty: the node moves no objects into files.
  std::function<void(std::function<void()> work, std::function<void()> then)> write_aside = {};
  std::size_t max_checks = 4096;  // objects that are examined for each request for room

  // ---- room for replicas (ReplicaRoom) ----
  std::uint64_t uncounted_bytes = 128 << 10;                            // smaller replicas need no room
  runtime::Duration patience = std::chrono::seconds(5);                 // how long a transfer waits without progress
  runtime::Duration room_interval = std::chrono::milliseconds(5);       // interval at which a transfer that waits checks the free room
  runtime::Duration request_interval = std::chrono::milliseconds(100);  // interval at which processes are asked for room again

  // ---- memory of dropped replicas (ReplicaMemory) ----
  // Interval at which the memory of dropped replicas is checked: does any process still map it?
  runtime::Duration left_again = std::chrono::milliseconds(500);
  std::size_t left_at_once = 500;  // number of memories in each such check
};

}  // namespace shoal::scheduler
