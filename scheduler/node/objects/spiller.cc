#include "scheduler/node/objects/spiller.h"

#include <algorithm>

#include "runtime/shm/spill_file.h"

namespace shoal::scheduler {

namespace {
constexpr std::uint64_t kSpilledAhead = 256u << 20, kSpilledAtMost = std::uint64_t{8} << 30;
}  // namespace

void Spiller::spill(std::uint64_t bytes) {
  const auto board = uncounted_.board();
  if (!options_.write_aside || !board) return;
  const std::uint64_t ahead = std::min(board->limit() / 8, kSpilledAhead);
  to_spill_ = std::max(to_spill_, std::clamp(bytes, ahead, std::max(ahead, kSpilledAtMost)));
  if (writing_ || (in_vain_ && clock_.now() - *in_vain_ < options_.request_interval)) return;
  checks_left_ = options_.max_checks;
  spill_next();
}

void Spiller::spill_next() {
  auto object = to_spill_ > 0 ? memory_.next_idle(checks_left_) : std::nullopt;
  if (!object) {
    if (to_spill_ > 0) in_vain_ = clock_.now();
    to_spill_ = 0;
    return;
  }
  struct Moved {
    storage::MemoryTable::Idle from;
    Result<Fd> to;
  };
  auto moved = std::make_shared<Moved>(Moved{*std::move(object), fail(cancelled("not yet"))});
  writing_ = true;
  options_.write_aside(
      [moved, folder = options_.spill_folder, over = over_] {
        moved->to = runtime::spill_to_file(moved->from.memory, moved->from.bytes, folder, [&] { return over->load(); });
        moved->from.memory.reset();
      },
      [this, over = over_, moved] {
        if (*over) return;
        writing_ = false;
        const auto& from = moved->from;
        to_spill_ -= std::min(to_spill_, from.bytes);
        // The next file would fail as well, so nothing more is moved.
        if (!moved->to) {
          to_spill_ = 0;
          const std::string& why = moved->to.error().message();
          if (why != no_file_) log_->warn("object={} is not moved to a file: {}", to_string(from.id), why);
          no_file_ = why;
        } else {
          no_file_.clear();
          (void)memory_.move_idle(from.job, from.id, *std::move(moved->to));
        }
        uncounted_.report();
        spill_next();
      });
}

}  // namespace shoal::scheduler
