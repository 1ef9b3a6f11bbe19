// fill_store DATABASE JOB: adds the rows of a large cluster (many_rows.h) to the store of a head that does not run. Its actors belong to
// that job, its jobs wait, and its nodes are gone.
#include <cstdio>
#include <optional>

#include "scheduler/state/many_rows.h"
#include "scheduler/store/store.h"

int main(int argc, char** argv) {
  using namespace shoal;
  const auto job = argc == 3 ? parse_hex(argv[2]) : std::nullopt;
  if (!job) {
    std::fputs("fill_store DATABASE JOB\n", stderr);
    return 2;
  }
  auto store = scheduler::open_sqlite_store(argv[1]);
  std::optional<Result<void>> outcome = store ? std::nullopt : std::optional<Result<void>>(fail(store.error()));
  if (store) {
    const auto records =
        scheduler::many_rows({.node_state = actors::NodeState::kDead, .job_state = actors::JobState::kPending, .owner = JobId{*job}});
    (*store)->commit(records, [&outcome](Result<void> stored) { outcome = std::move(stored); });
  }
  if (outcome && *outcome) return 0;
  std::fprintf(stderr, "fill_store: %s\n", outcome ? outcome->error().message().c_str() : "the commit did not end");
  return 1;
}
