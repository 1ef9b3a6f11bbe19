#include "runtime/transport/shm/ledger.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "runtime/core/utf8.h"

namespace shoal::runtime {

namespace {

// How often to check whether the cause of a failure is written.
constexpr int kPatience = 10'000;
// How long a cycle of waits has to last without change until it proves a deadlock.
constexpr auto kProof = std::chrono::seconds(1);

void copy_text(char* out, std::size_t size, std::string_view text) {
  const std::string cut(utf8_prefix(valid_utf8(text), size - 1));
  std::memcpy(out, cut.data(), cut.size());
  out[cut.size()] = 0;
}

// Words are stored with release and loaded with acquire. So a reader that sees one new word also sees that the line is being written.
void store_line(std::atomic<std::uint64_t>* out, std::span<const std::uint64_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) out[i].store(words[i], std::memory_order_release);
}
void load_line(const std::atomic<std::uint64_t>* in, std::span<std::uint64_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = in[i].load(std::memory_order_acquire);
}

}  // namespace

std::vector<int> waiting_circle(std::span<const Standing> before, std::span<const Standing> now, int from) {
  std::vector<int> path;
  for (int r = from; path.size() <= now.size();) {
    const auto& s = now[static_cast<std::size_t>(r)];
    const auto& b = before[static_cast<std::size_t>(r)];
    if (s.wait_number == 0 || s.wait_number != b.wait_number || s.beat < b.beat + 2 || s.waits_for != b.waits_for) return {};
    if (s.waits_for < 0 || static_cast<std::size_t>(s.waits_for) >= now.size() || s.waits_for == r) return {};
    if (const auto at = std::find(path.begin(), path.end(), r); at != path.end()) return {at, path.end()};
    path.push_back(r);
    r = s.waits_for;
  }
  return {};
}

std::size_t Ledger::bytes(int world_size) { return sizeof(Failure) + sizeof(Rank) * static_cast<std::size_t>(world_size); }

Ledger::Ledger(std::byte* memory, MembershipPage membership_page, int rank, int world_size)
    : failure_(reinterpret_cast<Failure*>(memory)),
      ranks_(reinterpret_cast<Rank*>(memory + sizeof(Failure))),
      membership_page_(membership_page),
      rank_(rank),
      world_size_(world_size) {}

void Ledger::enter(const Entry& e) {
  Rank& r = ranks_[rank_];
  auto* line = r.entries[e.sequence % kEntries];
  std::uint64_t words[kEntryWords - 1] = {static_cast<std::uint64_t>(e.kind) | static_cast<std::uint64_t>(e.dtype) << 8 |
                                              static_cast<std::uint64_t>(e.op) << 16 |
                                              static_cast<std::uint64_t>(static_cast<std::uint32_t>(e.root)) << 32,
                                          e.bytes, e.counts, e.step};
  char label[kLabelBytes] = {};
  if (!e.label.empty()) copy_text(label, sizeof label, e.label);
  std::memcpy(words + 4, label, sizeof label);
  line[0].store(0, std::memory_order_relaxed);
  store_line(line + 1, words);
  line[0].store(e.sequence, std::memory_order_release);
  r.latest.store(e.sequence, std::memory_order_release);
}

std::optional<Entry> Ledger::entry(int rank, std::uint64_t sequence) const {
  const auto* line = ranks_[rank].entries[sequence % kEntries];
  if (sequence == 0 || line[0].load(std::memory_order_acquire) != sequence) return std::nullopt;
  std::uint64_t words[kEntryWords - 1];
  load_line(line + 1, words);
  if (line[0].load(std::memory_order_relaxed) != sequence) return std::nullopt;
  Entry e;
  e.sequence = sequence;
  e.kind = static_cast<Collective>(words[0] & 0xff);
  e.dtype = static_cast<DType>(words[0] >> 8 & 0xff);
  e.op = static_cast<ReduceOp>(words[0] >> 16 & 0xff);
  e.root = static_cast<std::int32_t>(words[0] >> 32);
  e.bytes = words[1];
  e.counts = words[2];
  e.step = words[3];
  char label[kLabelBytes];
  std::memcpy(label, words + 4, sizeof label);
  e.label.assign(label, strnlen(label, sizeof label));
  return e;
}

void Ledger::block(int waits_for, const std::string& what) {
  Rank& r = ranks_[rank_];
  const auto peer = static_cast<std::uint64_t>(waits_for + 1);
  if (r.wait_number.load(std::memory_order_relaxed) == 0 || r.waits_for.load(std::memory_order_relaxed) != peer) {
    std::uint64_t words[kTextWords] = {};
    char out[sizeof words] = {};
    copy_text(out, sizeof out, what);
    std::memcpy(words, out, sizeof out);
    const auto version = r.text_version.load(std::memory_order_relaxed);
    r.text_version.store(version + 1, std::memory_order_relaxed);  // an odd version: the text is being written
    store_line(r.text, words);
    r.text_version.store(version + 2, std::memory_order_release);
    r.waits_for.store(peer, std::memory_order_relaxed);
    r.wait_number.store(++num_waits_, std::memory_order_release);
  }
  r.beat.fetch_add(1, std::memory_order_release);
}

void Ledger::unblock() {
  before_.clear();
  since_.clear();
  if (ranks_[rank_].wait_number.load(std::memory_order_relaxed) != 0) ranks_[rank_].wait_number.store(0, std::memory_order_release);
}

void Ledger::leave() {
  ranks_[rank_].left.store(1, std::memory_order_release);
  membership_page_.notify_all();
}

bool Ledger::has_left(int rank) const { return ranks_[rank].left.load(std::memory_order_acquire) != 0; }

Standing Ledger::standing(int rank) const {
  const Rank& r = ranks_[rank];
  Standing s;
  s.wait_number = r.wait_number.load(std::memory_order_acquire);
  s.waits_for = static_cast<int>(r.waits_for.load(std::memory_order_acquire)) - 1;
  s.beat = r.beat.load(std::memory_order_acquire);
  return s;
}

std::string Ledger::text(int rank) const {
  const Rank& r = ranks_[rank];
  for (int i = 0; i < 100; ++i) {
    const auto version = r.text_version.load(std::memory_order_acquire);
    if (version % 2 != 0) continue;
    std::uint64_t words[kTextWords];
    load_line(r.text, words);
    if (r.text_version.load(std::memory_order_relaxed) != version) continue;
    char out[sizeof words];
    std::memcpy(out, words, sizeof out);
    return {out, strnlen(out, sizeof out)};
  }
  return "something";
}

std::string Ledger::describe(int rank) const {
  const Standing s = standing(rank);
  if (s.wait_number != 0) {
    const std::string whom = s.waits_for < 0 ? "" : fmt::format(" for rank {}", s.waits_for);
    return fmt::format("rank {} waits{} in {}", rank, whom, text(rank));
  }
  const auto latest = entry(rank, ranks_[rank].latest.load(std::memory_order_acquire));
  const std::string last = latest ? "last came to " + runtime::describe(*latest) : "has called no collective yet";
  return fmt::format("rank {} {}{}", rank, has_left(rank) ? "has left and " : "", last);
}

Result<void> Ledger::check_circle(TimePoint now) {
  std::vector<Standing> all;
  for (int r = 0; r < world_size_; ++r) all.push_back(standing(r));
  // Only waits that have lasted for kProof without change may prove a cycle. `old` is the state in which this rank first found a wait; for
  // a younger wait it is the present state. So a younger wait has made no check since `old`, and waiting_circle() leaves it out.
  before_.resize(all.size());
  since_.resize(all.size(), now);
  std::vector<Standing> old = before_;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].wait_number != before_[r].wait_number || all[r].waits_for != before_[r].waits_for) {
      before_[r] = all[r];
      since_[r] = now;
    }
    old[r] = now - since_[r] < kProof ? all[r] : before_[r];
  }
  const auto circle = waiting_circle(old, all, rank_);
  if (circle.empty()) return {};
  std::string who;
  for (int r = 0; r < world_size_; ++r) {
    if (all[static_cast<std::size_t>(r)].wait_number != 0) who += (who.empty() ? "" : "; ") + describe(r);
  }
  return shoal::fail(invalid_argument("the ranks wait for each other: " + who)
                         .with_reason("Diverged")
                         .with_hint("every rank must make the same calls in the same order"));
}

void Ledger::fail(const Error& cause) {
  std::uint32_t none = 0;
  if (!failure_->state.compare_exchange_strong(none, 1)) return;
  failure_->code = static_cast<std::uint16_t>(cause.code());
  copy_text(failure_->reason, sizeof failure_->reason, cause.reason());
  copy_text(failure_->message, sizeof failure_->message, cause.message());
  copy_text(failure_->hint, sizeof failure_->hint, cause.hint());
  failure_->state.store(2, std::memory_order_release);
  membership_page_.notify_all();
}

std::optional<Error> Ledger::failure() const {
  auto state = failure_->state.load(std::memory_order_acquire);
  // The rank that writes the cause finishes soon, unless it died while it wrote.
  for (int i = 0; i < kPatience && state == 1; ++i) {
    std::this_thread::yield();
    state = failure_->state.load(std::memory_order_acquire);
  }
  if (state == 1) return unavailable("the group failed, and the rank that knew why died before it had said so").with_reason("ActorDied");
  if (state != 2) return std::nullopt;
  const auto text = [](const char* at, std::size_t size) { return std::string(at, strnlen(at, size)); };
  Error e(static_cast<Code>(std::min<std::uint16_t>(failure_->code, kNumCodes - 1)), text(failure_->message, sizeof failure_->message));
  return std::move(e).with_reason(text(failure_->reason, sizeof failure_->reason)).with_hint(text(failure_->hint, sizeof failure_->hint));
}

}  // namespace shoal::runtime
