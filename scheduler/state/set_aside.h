// Stored rows that a head cannot use, and what takes their place.
//
// A row that cannot be decoded, or that others need and the store lacks, gets a stand-in. The stand-in then ends like any node, job or
// process, so that everything that depends on it ends or restarts, and the rest goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/bytes.h"
#include "scheduler/state/parts.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

struct SetAside {
  TableName table = TableName::kNodes;
  std::uint64_t id = 0;
  std::string name;
  Error why;
  Bytes bytes;  // the record; empty if the store has none
};
std::string to_string(const SetAside& row);

// Puts stand-ins into the tables, after all readable rows. Adds the rows that others need and the store lacks to `rows`.
void put_stand_ins(Parts& s, std::vector<SetAside>& rows);
// Ends the stand-ins, once the tables are complete.
void end_stand_ins(Parts& s, const std::vector<SetAside>& rows);

}  // namespace shoal::scheduler
