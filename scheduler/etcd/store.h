// The head's rows in etcd, for clusters with several heads: whoever leads writes, and nobody else can.
//
// Every write is one transaction that holds only while the leader's key is the one that was won (its create_revision: the fencing token)
// and while the sequence key has the value that the write before left there. So a write whose answer was lost can be sent again, and one
// that arrives late, after it was given up, changes nothing. What does not fit a transaction (etcd takes 128 operations and 1.5 MB) is
// written to a journal first: a last write marks it, from then on it is kept, and whoever leads next finishes it.
//
// Keys below shoal/NAME/: `rows/TABLE/ID` (and `/PART` for what is long), `sequence`, `journal/NNNN`, `journal-marked`, and those of
// candidacy.h. All are read as they are now, never as they were at some revision: compacting disturbs nobody.
#pragma once

#include <memory>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/etcd/client.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler::etcd {

// What was won with the leader's key.
struct Leadership {
  std::string id;             // of the head
  std::int64_t revision = 0;  // at which the leader's key was created
};
std::string leader_key(const Address& address);
std::string sequence_key(const Address& address);
std::string first_sequence(const std::string& id);

struct StoreOptions {
  runtime::Duration give_up = std::chrono::seconds(2);  // on a commit that etcd does not answer: Unavailable
  runtime::Duration request_timeout = std::chrono::seconds(3);
  runtime::Duration compact_every = std::chrono::minutes(2);  // compactor.h
};

// Commits are answered on the loop. Reason "Fenced": another head leads, or nobody, and this one never will again.
Result<std::unique_ptr<Store>> open_store(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, const Address& address,
                                          const Leadership& leadership, const StoreOptions& options = {});

}  // namespace shoal::scheduler::etcd
