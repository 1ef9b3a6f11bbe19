#include "fsdp/protect/protected_update.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "fsdp/kernels/cast.h"

namespace shoal::fsdp {
namespace {

using Item = StepRecord::Item;

// An optimizer over some parameters of the given sizes. The last `num_low` of them are bf16 with master copies.
struct Case {
  const char* name;
  Item::Kernel kernel;
  Adam adam = {};
  Sgd sgd = {};
  std::vector<std::size_t> sizes = {700, 1, 1536, 600};
  std::size_t num_low = 1;
  DType gradients = DType::kFloat32;
};

// One rank's parameters, states and record, in memory that survives the processes forked from this one.
class Shards {
 public:
  explicit Shards(const Case& c) : case_(c) {
    StepRecord::Spec spec;
    for (const std::size_t n : c.sizes) arena_bytes_ += (n * 4 + 63) / 64 * 64;
    spec.units = {{"mesh/unit-0", arena_bytes_}};
    std::size_t in_arena = 0;
    for (std::uint32_t i = 0; i < c.sizes.size(); ++i) {
      const Piece piece{0, c.sizes[i], c.sizes[i], 1};
      const auto add = [&](const char* name, DType dtype, std::optional<std::size_t> place = {}) {
        spec.arrays.push_back({name, 0, i, dtype, piece, place});
      };
      add("param", low(i) ? DType::kBFloat16 : DType::kFloat32, in_arena);
      in_arena += (c.sizes[i] * 4 + 63) / 64 * 64;
      add("grad", c.gradients);
      add("exp_avg", DType::kFloat32);
      add("exp_avg_sq", DType::kFloat32);
      add("master", DType::kFloat32);
      spec.arrays.push_back({"step", 0, i, DType::kFloat32, {0, 1, 1, 1}, {}});
    }
    bytes_ = StepRecord::bytes_for(spec).value();
    memory_ = shared(bytes_);
    arena_ = shared(arena_bytes_);
    record_ = StepRecord::make({memory_, bytes_}, spec);
    for (std::uint32_t i = 0; i < c.sizes.size(); ++i) {
      fill(i, kParam, 1);
      fill(i, kMaster, 1);
    }
    record_->set_usable(true);
  }
  ~Shards() {
    munmap(memory_, bytes_);
    munmap(arena_, arena_bytes_);
  }

  ProtectedUpdate update() const { return {*record_, arenas()}; }
  const StepRecord& record() const { return *record_; }

  // A step as the optimizer makes it, up to the recording.
  void record_step(ProtectedUpdate& update, std::uint64_t step) {
    if (!update.begin(step).value()) return;
    for (std::uint32_t i = 0; i < case_.sizes.size(); ++i) {
      fill(i, kGrad, 10 + static_cast<unsigned>(step));
      Item item{};
      item.kernel = case_.kernel;
      item.adam = case_.adam;
      item.sgd = case_.sgd;
      item.sgd.first = step == 1;
      item.step = static_cast<std::int64_t>(step);
      item.dtypes = {DType::kFloat32, case_.gradients, DType::kFloat32, DType::kFloat32, {}, DType::kBFloat16};
      Shard shard{{data(i, low(i) ? kMaster : kParam), data(i, kGrad), data(i, kM)}, case_.sizes[i]};
      if (case_.kernel == Item::Kernel::kAdam) shard.at[AdamArrays::kV] = data(i, kV);
      if (low(i)) shard.at[kCopy] = data(i, kParam);
      ASSERT_TRUE(update.add(item, shard, reinterpret_cast<float*>(data(i, kStep))));
    }
    update.record();
  }
  void make_step(std::uint64_t step, int num_threads = 1, const OnMoment& on_moment = {}) {
    auto u = update();
    record_step(u, step);
    u.run(num_threads, on_moment);
  }

  // All bytes that a step changes: parameters, states, counts of steps.
  std::vector<std::byte> content() const {
    std::vector<std::byte> out(arena_, arena_ + arena_bytes_);
    for (const auto& a : record_->arrays()) {
      const auto* from = record_->at(a.place, arenas());
      if (a.name != std::string_view("grad")) out.insert(out.end(), from, from + a.piece.numel() * dtype_bytes(a.dtype));
    }
    return out;
  }

 private:
  enum Kind : std::size_t { kParam, kGrad, kM, kV, kMaster, kStep, kKinds };
  static std::byte* shared(std::size_t bytes) {
    return static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  bool low(std::size_t parameter) const { return parameter + case_.num_low >= case_.sizes.size(); }
  Memories arenas() const { return {{arena_, arena_bytes_}}; }
  std::byte* data(std::uint32_t parameter, Kind kind) const {
    return record_->at(record_->arrays()[parameter * kKinds + kind].place, arenas());
  }
  void fill(std::uint32_t parameter, Kind kind, unsigned seed) {
    std::mt19937 random(seed * 100 + parameter);
    std::normal_distribution<float> normal;
    std::vector<float> values(case_.sizes[parameter]);
    for (auto& v : values) v = normal(random);
    const auto& array = record_->arrays()[parameter * kKinds + kind];
    cast(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()), array.dtype, data(parameter, kind), values.size());
  }

  const Case case_;
  std::size_t bytes_ = 0, arena_bytes_ = 0;
  std::byte *memory_ = nullptr, *arena_ = nullptr;
  std::optional<StepRecord> record_;
};

// Runs `child` in a forked process. Returns true if the process was killed, false if it came to its end.
bool killed(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

// Kills this process at the n-th moment, counted from 0.
OnMoment killing_at(int n) {
  return [n](Moment, std::uint64_t) mutable {
    if (n-- == 0) kill(getpid(), SIGKILL);
  };
}

const Case kCases[] = {
    {"adamw", Item::Kernel::kAdam},
    {"unscaled", Item::Kernel::kAdam, {.grad_scale = 8}},
    {"low precision gradients", Item::Kernel::kAdam, {.decoupled = false}, {}, {513, 1024}, 2, DType::kBFloat16},
    {"sgd", Item::Kernel::kSgd, {}, {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true}},
    {"copies", Item::Kernel::kCopy, {}, {}, {700, 1, 1536, 600}, 0},
};

TEST(ProtectedUpdate, IsTheKernelsUpdate) {
  for (const Case& c : kCases) {
    Shards plain(c), in_parts(c);
    plain.make_step(1);
    in_parts.make_step(1, 1, [](Moment, std::uint64_t) {});  // with a callback, each chunk is updated in parts
    EXPECT_EQ(plain.content(), in_parts.content()) << c.name;
    EXPECT_EQ(plain.record().header().finished, 1u);
  }
}

TEST(ProtectedUpdate, ACopyHasTheBitsOfItsSource) {
  StepRecord::Spec spec;
  spec.units = {{"mesh/unit-0", 0}};
  const Piece piece{0, 5, 5, 1};
  spec.arrays = {{"exp_avg", 0, 0, DType::kFloat32, piece, {}, {}}, {"new:exp_avg", 0, 0, DType::kFloat32, piece, {}, {}}};
  std::vector<std::byte> memory(StepRecord::bytes_for(spec).value());
  const auto record = StepRecord::make(memory, spec);
  const std::array<std::uint32_t, 5> bits{0x80000000, 1, 0x7fc12345, 0xff800000, 0x3f800000};  // -0, a subnormal, a NaN, -inf, 1
  std::memcpy(record.at(record.arrays()[1].place, {}), bits.data(), sizeof bits);
  ProtectedUpdate update(record, {{}});
  ASSERT_TRUE(update.begin(1).value());
  Item item{};
  item.kernel = Item::Kernel::kCopy;
  ASSERT_TRUE(update.add(item, {{record.at(record.arrays()[0].place, {}), record.at(record.arrays()[1].place, {})}, 5}, nullptr));
  update.record();
  update.run(2);
  EXPECT_EQ(std::memcmp(record.at(record.arrays()[0].place, {}), bits.data(), sizeof bits), 0);
}

TEST(ProtectedUpdate, KilledAtAnyMomentItIsFinishedWithTheSameBits) {
  for (const Case& c : kCases) {
    Shards expected(c);
    expected.make_step(1);
    expected.make_step(2);
    bool goes_on = true;
    int n = 0;
    for (; goes_on; ++n) {
      Shards shards(c);
      shards.make_step(1);
      goes_on = killed([&] { shards.make_step(2, 1, killing_at(n)); });
      ASSERT_EQ(shards.record().header().recorded, 2u);
      ASSERT_EQ(shards.record().header().finished, goes_on ? 1u : 2u);
      ASSERT_TRUE(shards.record().check_items());
      shards.update().run(1);
      ASSERT_EQ(shards.content(), expected.content()) << c.name << ", killed at moment " << n;
    }
    EXPECT_GT(n, 20) << c.name;
  }
}

TEST(ProtectedUpdate, ASuccessorThatIsKilledHasASuccessor) {
  const Case& c = kCases[1];
  Shards expected(c);
  expected.make_step(1);
  for (int first = 0; first < 24; first += 3) {
    bool goes_on = true;
    for (int n = 0; goes_on; ++n) {
      Shards shards(c);
      ASSERT_TRUE(killed([&] { shards.make_step(1, 1, killing_at(first)); }));
      goes_on = killed([&] { shards.update().run(1, killing_at(n)); });
      shards.update().run(1);
      ASSERT_EQ(shards.content(), expected.content()) << first << ", " << n;
    }
  }
}

TEST(ProtectedUpdate, KilledBeforeItsRunItChangesNothing) {
  const Case& c = kCases[0];
  Shards shards(c);
  shards.make_step(1);
  const auto before = shards.content();
  const auto& h = shards.record().header();
  ASSERT_TRUE(killed([&] {
    auto u = shards.update();
    u.begin(2).value();
    kill(getpid(), SIGKILL);
  }));
  EXPECT_EQ(h.recorded, 1u);
  ASSERT_TRUE(killed([&] {
    auto u = shards.update();
    shards.record_step(u, 2);
    kill(getpid(), SIGKILL);
  }));
  EXPECT_EQ(h.recorded, 2u);
  EXPECT_EQ(h.begun, 1u);
  EXPECT_EQ(shards.content(), before);
  // Recorded means final: the step is not recorded again, only run.
  auto u = shards.update();
  EXPECT_FALSE(u.begin(2).value());
  u.run(1);
  EXPECT_FALSE(u.begin(4).has_value());
  Shards expected(c);
  expected.make_step(1);
  expected.make_step(2);
  EXPECT_EQ(shards.content(), expected.content());
}

TEST(ProtectedUpdate, AnArrayOutsideOfTheNodesMemoryIsRefused) {
  Shards shards(kCases[0]);
  auto u = shards.update();
  ASSERT_TRUE(u.begin(1).value());
  std::vector<float> elsewhere(8);
  const Shard shard{{reinterpret_cast<std::byte*>(elsewhere.data())}, 8};
  EXPECT_EQ(u.add({}, shard, nullptr).error().code(), Code::kInternal);
}

TEST(ProtectedUpdate, KilledAtRandomItHasMadeWholeStepsOnly) {
  // Two threads, and several steps: the parent kills while the child trains.
  const Case c{"random", Item::Kernel::kAdam, {}, {}, {300'001, 100'003}, 1};
  constexpr int kSteps = 4, kKills = 24;
  std::vector<std::vector<std::byte>> expected;
  {
    Shards shards(c);
    expected.push_back(shards.content());
    for (int k = 1; k <= kSteps; ++k) {
      shards.make_step(static_cast<std::uint64_t>(k), 2);
      expected.push_back(shards.content());
    }
  }
  std::mt19937 random(7);
  int torn = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    Shards shards(c);
    auto& h = shards.record().header();
    const pid_t pid = fork();
    if (pid == 0) {
      for (int k = 1; k <= kSteps; ++k) shards.make_step(static_cast<std::uint64_t>(k), 2);
      while (true) pause();
    }
    // Kills within an update: after it has begun, and a random number of looks later.
    const auto target = 1 + random() % kSteps;
    while (h.begun.load() < target) sched_yield();
    for (auto looks = random() % 3000; looks > 0; --looks) h.begun.load();
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    torn += h.begun != h.finished;
    if (h.begun == h.recorded) shards.update().run(1);  // else: recorded, but not begun; as if another rank had not recorded it
    ASSERT_EQ(shards.content(), expected[h.begun.load()]) << "kill " << kill_number << " in step " << h.begun.load();
  }
  EXPECT_GT(torn, 0);
}

}  // namespace
}  // namespace shoal::fsdp
