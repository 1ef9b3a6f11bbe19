// The commit of steps by step records, from a seed: ranks record and make updates in random order and are killed, alone or several of them,
// at random moments. Those that adopt or finish a record are killed, too. The survivors then decide, settle, and train on.
//
// Invariants:
// - With all records, every begun step counts, and no step counts that a rank has not recorded.
// - The records of any ranks, the others being lost, can all be settled to the step that they decide on, and none of them has begun a later
//   one. It is the step that counts, or the one before.
// - A settled record has bit for bit the arrays after exactly the steps that count, wherever its ranks were killed, in several lanes, too.
// - Each step is made once: at the end, every rank has the arrays of a run without deaths.
//
// A failing seed is replayed by its number: bazel test --test_env=SHOAL_SEED=N //tests/simulation:step_record_test
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "fsdp/protect/adoption.h"
#include "fsdp/protect/protected_update.h"
#include "runtime/sim/seeds.h"

namespace shoal::fsdp {
namespace {

constexpr std::uint64_t kSeeds = 2000, kSteps = 5;
constexpr int kDeaths = 4;

struct Killed {};

// A rank's arrays in plain memory.
struct Plain {
  std::vector<float> p, m, v;
  float count = 0;
  bool operator==(const Plain&) const = default;
};

// A run's optimizer, and the gradients of each rank and step: all ranks have it in common.
class Problem {
 public:
  Problem(bool adam, std::vector<std::size_t> sizes) : adam_(adam), sizes_(std::move(sizes)) {}

  std::size_t num_ranks() const { return sizes_.size(); }
  std::size_t numel(std::size_t rank) const { return sizes_[rank]; }

  StepRecord::Item item(std::uint64_t step) const {
    StepRecord::Item out{};
    out.kernel = adam_ ? StepRecord::Item::Kernel::kAdam : StepRecord::Item::Kernel::kSgd;
    out.step = static_cast<std::int64_t>(step);
    out.sgd = {.lr = 0.1, .momentum = 0.5, .first = step == 1};
    out.dtypes.fill(DType::kFloat32);
    return out;
  }
  Elementwise update(std::uint64_t step) const {
    const auto i = item(step);
    return adam_ ? adam_update(i.adam, i.step, i.dtypes) : sgd_update(i.sgd, i.dtypes);
  }
  void gradient(std::size_t rank, std::uint64_t step, float* out) const {
    for (std::size_t i = 0; i < numel(rank); ++i) out[i] = static_cast<float>((rank * 77 + step * 991 + i * 37) % 2001) / 1000 - 1;
  }
  Plain begin(std::size_t rank) const {
    const std::size_t n = numel(rank);
    Plain out{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n)};
    for (std::size_t i = 0; i < n; ++i) out.p[i] = static_cast<float>(rank + i);
    return out;
  }
  // The rank's arrays after `steps` steps without records.
  Plain after(std::size_t rank, std::uint64_t steps) const {
    Plain out = begin(rank);
    std::vector<float> g(numel(rank));
    for (std::uint64_t k = 1; k <= steps; ++k) {
      gradient(rank, k, g.data());
      run_part(update(k), shard(out.p.data(), g.data(), out.m.data(), out.v.data(), numel(rank)), 0, numel(rank));
      out.count = static_cast<float>(k);
    }
    return out;
  }
  Shard shard(float* p, float* g, float* m, float* v, std::size_t numel) const {
    const auto at = [](float* f) { return reinterpret_cast<std::byte*>(f); };
    return {{at(p), at(g), at(m), adam_ ? at(v) : nullptr}, numel};
  }

 private:
  const bool adam_;
  const std::vector<std::size_t> sizes_;
};

// A rank's memories at its node: they outlive its process.
class Rank {
 public:
  Rank(const Problem& problem, std::size_t rank, std::uint64_t step, const Plain& from) : problem_(problem), rank_(rank) {
    const std::size_t n = problem.numel(rank);
    const Piece piece{0, n, n, 1};
    StepRecord::Spec spec{static_cast<int>(rank), {static_cast<int>(problem.num_ranks()), 1}, step, {{"arena", n * sizeof(float)}}, {}};
    spec.arrays = {{"param", 0, 0, DType::kFloat32, piece, 0},
                   {"grad", 0, 0, DType::kFloat32, piece, {}},
                   {"exp_avg", 0, 0, DType::kFloat32, piece, {}},
                   {"exp_avg_sq", 0, 0, DType::kFloat32, piece, {}},
                   {"step", 0, 0, DType::kFloat32, {0, 1, 1, 1}, {}}};
    record_memory_ = runtime::make_memory("record", StepRecord::bytes_for(spec).value()).value();
    arena_memory_ = runtime::make_memory("arena", n * sizeof(float)).value();
    record_map_ = runtime::map(record_memory_, StepRecord::bytes_for(spec).value(), runtime::Access::kReadWrite).value();
    arena_ = runtime::map(arena_memory_, n * sizeof(float), runtime::Access::kReadWrite).value();
    record_ = StepRecord::make(record_map_.span(), spec);
    std::ranges::copy(from.p, array(0));
    std::ranges::copy(from.m, array(2));
    std::ranges::copy(from.v, array(3));
    *array(4) = from.count;
    record_->set_usable(true);
  }

  bool alive = true;

  RecordWords words() const { return words_of(*record_); }
  void record_step(std::uint64_t step, bool killed_before_its_word) {
    ProtectedUpdate update(*record_, {arena_.span()});
    if (!update.begin(step).value()) return;
    problem_.gradient(rank_, step, array(1));
    const Shard shard = problem_.shard(array(0), array(1), array(2), array(3), problem_.numel(rank_));
    ASSERT_TRUE(update.add(problem_.item(step), shard, array(4)));
    if (!killed_before_its_word) update.record();
  }
  void make_update() const { ProtectedUpdate(*record_, {arena_.span()}).run(1); }

  // A kill within the update. Its threads have come to different moments, which the lanes show one after the other: meanwhile the other
  // lanes claim to be complete.
  void killed_in_update(std::mt19937_64& random) const {
    divide(random);
    const std::size_t num_lanes = record_->header().num_lanes;
    std::vector<std::uint64_t> progress;
    for (std::size_t i = 0; i < num_lanes; ++i) progress.push_back(record_->lane(i).progress);
    for (std::size_t i = 0; i < num_lanes; ++i) {
      const std::uint64_t end = record_->lane(i).end;
      if (progress[i] == 2 * end) continue;
      for (std::size_t j = 0; j < num_lanes; ++j) record_->lane(j).progress = j == i ? progress[j] : 2 * record_->lane(j).end;
      auto left = random() % 12;
      const auto at_moment = [&](Moment moment, std::uint64_t position) {
        const bool last = moment == Moment::kAfterChunk && position + StepRecord::kChunk >= end;
        if (last || left-- == 0) throw Killed{};
      };
      EXPECT_THROW(ProtectedUpdate(*record_, {arena_.span()}).run(1, at_moment), Killed);
      progress[i] = record_->lane(i).progress;
    }
    for (std::size_t i = 0; i < num_lanes; ++i) record_->lane(i).progress = progress[i];
  }

  // Another process of the host opens the memories and settles the record.
  Plain settled(std::uint64_t committed) const {
    const auto find = [&](const std::string& key) { return runtime::duplicate(key == "arena" ? arena_memory_ : record_memory_); };
    AdoptedShard shard = AdoptedShard::open("record", find).value();
    const auto result = shard.settle(committed);
    EXPECT_TRUE(result) << result.error().message();
    std::map<std::string, std::vector<float>> found;
    for (const auto& a : shard.arrays()) {
      const auto* const data = reinterpret_cast<const float*>(a.data);
      found[a.name].assign(data, data + a.piece.numel());
    }
    return {found["param"], found["exp_avg"], found["exp_avg_sq"], found["step"].at(0)};
  }

 private:
  float* array(std::size_t index) const {
    return reinterpret_cast<float*>(record_->at(record_->arrays()[index].place, Memories{arena_.span()}));
  }
  // Begins the update with a random number of lanes, as one of a model large enough for several threads does.
  void divide(std::mt19937_64& random) const {
    auto& h = record_->header();
    if (h.begun == h.recorded) return;
    const std::uint64_t numel = problem_.numel(rank_), count = 1 + random() % 4;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto& lane = record_->lane(i);
      lane.begin = numel * i / count;
      lane.end = numel * (i + 1) / count;
      lane.progress = 2 * lane.begin;
    }
    h.num_lanes = static_cast<std::uint32_t>(count);
    h.begun = h.recorded.load();
  }

  const Problem& problem_;
  const std::size_t rank_;
  Fd record_memory_, arena_memory_;
  runtime::Mapping record_map_, arena_;
  std::optional<StepRecord> record_;
};

Problem random_problem(std::mt19937_64& random) {
  std::vector<std::size_t> sizes(1 + random() % 4);
  for (auto& n : sizes) n = 1 + random() % (random() % 2 == 0 ? 20 : 900);
  return {random() % 2 == 0, std::move(sizes)};
}

class Training {
 public:
  explicit Training(std::uint64_t seed) : random_(seed), problem_(random_problem(random_)) {
    death_percent_ = random_() % 12;
    waits_for_rows_ = happens(50);
    for (std::size_t r = 0; r < problem_.num_ranks(); ++r) ranks_.emplace_back(problem_, r, 0, problem_.begin(r));
  }

  void run() {
    while (!testing::Test::HasFailure()) {
      bool waits = true;
      const std::size_t first = random_() % ranks_.size();
      for (std::size_t i = 0; i < ranks_.size() && waits; ++i) waits = !move(ranks_[(first + i) % ranks_.size()]);
      const bool death = std::ranges::any_of(ranks_, [](const Rank& r) { return !r.alive; });
      if (death && (waits || happens(20))) {
        recover();
      } else if (waits) {
        break;  // all are done
      }
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_EQ(ranks_[r].words().finished, kSteps);
      EXPECT_EQ(ranks_[r].settled(kSteps), problem_.after(r, kSteps)) << "rank " << r;
    }
  }

 private:
  bool happens(std::uint64_t percent) { return random_() % 100 < percent; }
  bool dies() {
    if (deaths_ == kDeaths || !happens(death_percent_)) return false;
    ++deaths_;
    return true;
  }

  // The rank's next move, which may be its last. Returns false if it waits for other ranks or is done.
  bool move(Rank& rank) {
    if (!rank.alive) return false;
    const RecordWords words = rank.words();
    const auto all = [&](auto has) { return std::ranges::all_of(ranks_, [&](const Rank& r) { return has(r.words()); }); };
    if (words.recorded == words.finished) {
      const std::uint64_t step = words.finished + 1;
      if (step > kSteps) return false;
      // A forward that needs the others' rows waits for them. Otherwise a fast rank records the next step while others update.
      if (waits_for_rows_ && !all([&](const RecordWords& w) { return w.finished + 1 >= step; })) return false;
      rank.alive = !dies();
      rank.record_step(step, !rank.alive && happens(50));
      return true;
    }
    if (!all([&](const RecordWords& w) { return w.recorded >= words.recorded; })) return false;
    if (dies()) {
      rank.alive = false;
      rank.killed_in_update(random_);
    } else {
      rank.make_update();
    }
    return true;
  }

  void recover() {
    std::vector<RecordWords> words, some;
    for (const Rank& r : ranks_) words.push_back(r.words());
    const std::uint64_t committed = committed_step(words, true);
    for (const RecordWords& w : words) {
      ASSERT_LE(w.begun, committed);
      ASSERT_GE(w.recorded, committed);
      if (happens(60)) some.push_back(w);
    }
    const std::uint64_t of_some = committed_step(some, false);
    for (const RecordWords& w : some) {
      ASSERT_LE(w.begun, of_some);
      ASSERT_TRUE(w.finished == of_some || (w.finished + 1 == of_some && w.recorded == of_some)) << w.finished << ' ' << of_some;
      ASSERT_TRUE(of_some == committed || of_some + 1 == committed);
    }
    std::deque<Rank> next;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].words().finished < committed) {
        while (happens(30)) ranks_[r].killed_in_update(random_);
      }
      const Plain found = ranks_[r].settled(committed);
      ASSERT_EQ(found, problem_.after(r, committed)) << "rank " << r << " at step " << committed;
      next.emplace_back(problem_, r, committed, found);
    }
    ranks_ = std::move(next);
  }

  std::mt19937_64 random_;
  const Problem problem_;
  std::uint64_t death_percent_ = 0;
  bool waits_for_rows_ = true;
  int deaths_ = 0;
  std::deque<Rank> ranks_;
};

TEST(StepRecordSimulation, NoDeathLosesAStepOrMakesOneTwice) {
  for (const std::uint64_t seed : runtime::seeds(kSeeds)) {
    Training(seed).run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "replay it: bazel test --test_env=SHOAL_SEED=" << seed
                                              << " //tests/simulation:step_record_test";
  }
}

}  // namespace
}  // namespace shoal::fsdp
