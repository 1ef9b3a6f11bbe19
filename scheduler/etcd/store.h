// The store of rows in etcd, for clusters with several heads. Only the leader can write.
//
// Every write is one transaction with two conditions. The leader's key is still the one that was won (its create_revision is the fencing
// token). The sequence key has the value that the previous write left. So a write whose answer was lost can be repeated, and one that
// arrives late, after it was given up, changes nothing. A commit that exceeds a transaction (etcd takes 128 operations and 1.5 MB) first
// goes to a journal. A last write marks the journal: from then on the commit is kept, and the next leader finishes it if needed.
//
// Keys below shoal/NAME/: `rows/TABLE/ID` (and `/PART` for long rows), `sequence`, `journal/NNNN`, `journal-marked`, and those of
// candidacy.h. Reads are of current values, never of a revision, so compaction disturbs none.
#pragma once

#include <memory>
#include <string>

#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/etcd/client.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler::etcd {

// The proof that a head leads: the leader's key that it won.
struct Leadership {
  std::string id;             // the id with which the head registered
  std::int64_t revision = 0;  // etcd's revision at which the leader's key was created
};
std::string leader_key(const Address& address);
std::string sequence_key(const Address& address);
std::string first_sequence(const std::string& id);

struct StoreOptions {
  runtime::Duration give_up = std::chrono::seconds(2);  // a commit that etcd has not answered by then fails with Unavailable
  runtime::Duration request_timeout = std::chrono::seconds(3);
  runtime::Duration compact_every = std::chrono::minutes(2);  // interval at which former values are discarded (compactor.h)
};

// Commits are answered on the loop. An error with the reason Fenced means that this head leads no more, and never will again.
Result<std::unique_ptr<Store>> open_store(runtime::Loop& loop, runtime::Clock& clock, runtime::Log log, const Address& address,
                                          const Leadership& leadership, const StoreOptions& options = {});

}  // namespace shoal::scheduler::etcd
