#include "runtime/shm/ring.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCapacity = 4096;

std::size_t size_of(std::uint64_t i) { return i * 37 % (Ring::max_record(kCapacity) + 1); }

void fill(std::span<std::byte> record, std::uint64_t i) {
  for (std::size_t k = 0; k < record.size(); ++k) record[k] = static_cast<std::byte>(i + k);
}

bool is_filled(std::span<const std::byte> record, std::uint64_t i) {
  if (record.size() != size_of(i)) return false;
  for (std::size_t k = 0; k < record.size(); ++k) {
    if (record[k] != static_cast<std::byte>(i + k)) return false;
  }
  return true;
}

class RingTest : public testing::Test {
 protected:
  bool write(std::size_t bytes, std::uint64_t i = 0) {
    const auto record = writer_.reserve(bytes).value();
    if (!record) return false;
    fill(*record, i);
    last_ = writer_.commit();
    return true;
  }
  // Reads the next record and returns its size, or -1.
  int read() {
    const auto record = reader_.peek().value();
    if (!record) return -1;
    const int bytes = static_cast<int>(record->size());
    last_ = reader_.pop();
    return bytes;
  }
  // The positions in the shared memory.
  std::atomic<std::uint64_t>& written() { return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data()); }
  std::atomic<std::uint64_t>& restarted() { return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data() + 8); }
  std::atomic<std::uint64_t>& has_read() { return *reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_.data() + 64); }

  Fd fd_ = make_memory("ring", Ring::bytes(kCapacity)).value();
  Mapping mapping_ = map(fd_, Ring::bytes(kCapacity), Access::kReadWrite).value();
  RingWriter writer_{mapping_.data(), kCapacity};
  RingReader reader_{mapping_.data(), kCapacity};
  Spin spin_;
  Wake last_ = Wake::kNone;
};

// Writes `count` records of all sizes, with waits as in production.
void write_all(RingWriter& writer, std::uint64_t count) {
  Spin spin;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto record = writer.reserve(size_of(i)).value();
    while (!record) {
      ASSERT_EQ(writer.wait(size_of(i), 60s, spin), Waited::kReady);
      record = writer.reserve(size_of(i)).value();
    }
    fill(*record, i);
    writer.commit();
  }
}

bool read_all(RingReader& reader, std::uint64_t count) {
  Spin spin;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto record = reader.peek().value();
    while (!record) {
      if (reader.wait(60s, spin) != Waited::kReady) return false;
      record = reader.peek().value();
    }
    if (!is_filled(*record, i)) return false;
    reader.pop();
  }
  return true;
}

TEST_F(RingTest, RecordsOfEverySizeComeInOrder) {
  for (std::uint64_t i = 0; i < 3000; ++i) {
    ASSERT_TRUE(write(size_of(i), i));
    const auto record = reader_.peek().value();
    ASSERT_TRUE(record);
    ASSERT_TRUE(is_filled(*record, i));
    reader_.pop();
  }
  EXPECT_EQ(read(), -1);
}

TEST_F(RingTest, TheLargestRecordFitsWhereverTheRingIs) {
  for (std::size_t n = 0; n < kCapacity; n += 8) {
    ASSERT_TRUE(write(n / 4));
    ASSERT_EQ(read(), static_cast<int>(n / 4));
    ASSERT_TRUE(write(Ring::max_record(kCapacity)));
    ASSERT_EQ(read(), static_cast<int>(Ring::max_record(kCapacity)));
  }
}

TEST_F(RingTest, AFullRingTakesNothingMoreUntilItIsRead) {
  int count = 0;
  while (write(100)) ++count;
  EXPECT_EQ(count, static_cast<int>(kCapacity / 112));
  EXPECT_EQ(writer_.wait(100, 1ms, spin_), Waited::kTimeout);
  for (int i = 0; i < count; ++i) EXPECT_EQ(read(), 100);
  EXPECT_TRUE(write(100));
}

TEST_F(RingTest, AnUncommittedRecordIsInvisible) {
  fill(writer_.reserve(10).value().value(), 1);
  EXPECT_EQ(read(), -1);
  EXPECT_TRUE(write(20));
  EXPECT_EQ(read(), 20);
}

TEST_F(RingTest, LittleTrafficStaysOnFewPages) {
  constexpr std::size_t kLarge = 1 << 20;
  const Fd fd = make_memory("ring", Ring::bytes(kLarge)).value();
  const Mapping mapping = map(fd, Ring::bytes(kLarge), Access::kReadWrite).value();
  RingWriter writer(mapping.data(), kLarge);
  RingReader reader(mapping.data(), kLarge);
  for (int i = 0; i < 50'000; ++i) {
    fill(writer.reserve(100).value().value(), 1);
    writer.commit();
    ASSERT_TRUE(reader.peek().value());
    reader.pop();
  }
  struct stat info {};
  ASSERT_EQ(fstat(fd.get(), &info), 0);
  EXPECT_LE(info.st_blocks * 512, 24 << 10);
}

// If a number of records plus one fits into seven eighths of a ring, that number fits at any position.
TEST_F(RingTest, ThereIsRoomForSoManyRecordsWhereverTheyBegin) {
  constexpr std::size_t kLarge = 1 << 18, kMany = 10;
  const Fd fd = make_memory("ring", Ring::bytes(kLarge)).value();
  const Mapping mapping = map(fd, Ring::bytes(kLarge), Access::kReadWrite).value();
  RingWriter writer(mapping.data(), kLarge);
  RingReader reader(mapping.data(), kLarge);
  const auto write = [&](std::size_t bytes, std::uint64_t i) {
    const auto record = writer.reserve(bytes).value();
    if (!record) return false;
    fill(*record, i);
    writer.commit();
    return true;
  };
  const auto is_next = [&](std::size_t bytes, std::uint64_t i) {
    const auto record = reader.peek().value();
    const bool is = record && record->size() == bytes && (bytes == 0 || record->back() == static_cast<std::byte>(i + bytes - 1));
    if (record) reader.pop();
    return is;
  };
  constexpr std::size_t kLimit = kLarge / 8 * 7 / (kMany + 1) / 8 * 8 - 8;
  for (const std::size_t before : {std::size_t{8}, std::size_t{4096}, std::size_t{16'384}, kLimit}) {
    for (std::uint64_t rounds = 0; rounds < 40; ++rounds) {
      for (std::uint64_t i = 0; i < rounds; ++i) ASSERT_TRUE(write(before, i) && is_next(before, i));
      for (std::uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(write(kLimit, i)) << rounds << " records of " << before << " before " << i;
      for (std::uint64_t i = 0; i < 3 * kMany; ++i) ASSERT_TRUE(is_next(kLimit, i) && write(kLimit, kMany + i));
      for (std::uint64_t i = 0; i < kMany; ++i) ASSERT_TRUE(is_next(kLimit, 3 * kMany + i));
    }
  }
}

TEST_F(RingTest, ARestartThatIsNotCommittedDoesNotExist) {
  ASSERT_TRUE(write(kCapacity / 2 - 8));
  ASSERT_EQ(read(), kCapacity / 2 - 8);
  ASSERT_TRUE(write(8));
  ASSERT_EQ(read(), 8);
  writer_.reserve(kCapacity / 2 - 8).value().value();  // at the start of the ring
  ASSERT_TRUE(write(16));
  EXPECT_EQ(read(), 16);
  EXPECT_EQ(restarted(), 0u);
  ASSERT_TRUE(write(kCapacity / 2 - 8));
  EXPECT_EQ(restarted(), kCapacity);
  EXPECT_EQ(read(), kCapacity / 2 - 8);
}

TEST_F(RingTest, OneStepRingsTheBellOfASleeperOnce) {
  EXPECT_TRUE(reader_.arm());
  EXPECT_TRUE(write(1));
  EXPECT_EQ(last_, Wake::kBell);
  EXPECT_TRUE(write(1));
  EXPECT_EQ(last_, Wake::kNone);
  EXPECT_FALSE(reader_.arm());
  while (read() >= 0) {
  }
  EXPECT_TRUE(reader_.arm());
  reader_.disarm();
  EXPECT_TRUE(write(1));
  EXPECT_EQ(last_, Wake::kNone);

  EXPECT_FALSE(writer_.arm(100));
  while (write(100)) {
  }
  EXPECT_TRUE(writer_.arm(100));
  int rung = 0;
  while (read() >= 0) rung += last_ == Wake::kBell;
  EXPECT_EQ(rung, 1);
  EXPECT_TRUE(write(100));
}

TEST_F(RingTest, CloseEndsWaitsAfterTheLastRecord) {
  EXPECT_TRUE(write(5));
  std::thread other([this] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(Ring(mapping_.data(), kCapacity).close(), Wake::kNone);
  });
  EXPECT_EQ(reader_.wait(60s, spin_), Waited::kReady);
  EXPECT_EQ(read(), 5);
  EXPECT_EQ(reader_.wait(60s, spin_), Waited::kClosed);
  other.join();
  EXPECT_TRUE(reader_.closed());
}

TEST_F(RingTest, TwoThreadsMissNoStepOfEachOther) {
  constexpr std::uint64_t kCount = 20'000;
  std::thread other([this] { write_all(writer_, kCount); });
  EXPECT_TRUE(read_all(reader_, kCount));
  other.join();
}

TEST_F(RingTest, SleepersMissNoStepEither) {
  RingReader& there = reader_;
  const Fd back_fd = make_memory("ring", Ring::bytes(kCapacity)).value();
  const Mapping back_memory = map(back_fd, Ring::bytes(kCapacity), Access::kReadWrite).value();
  RingWriter back(back_memory.data(), kCapacity);
  RingReader here(back_memory.data(), kCapacity);
  Spin::Options never;
  never.max_credit = 0;
  never.probe_every = 1 << 30;
  constexpr int kRounds = 3000;
  const auto next = [](RingReader& reader, Spin& spin) {
    ASSERT_EQ(reader.wait(60s, spin), Waited::kReady);
    ASSERT_TRUE(reader.peek().value());
    reader.pop();
  };
  std::thread other([&] {
    Spin spin(never);
    for (int i = 0; i < kRounds; ++i) {
      next(there, spin);
      back.reserve(8).value().value();
      back.commit();
    }
  });
  Spin spin(never);
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(write(8));
    next(here, spin);
  }
  other.join();
}

TEST_F(RingTest, TwoProcessesShareIt) {
  constexpr std::uint64_t kCount = 20'000;
  const pid_t child = fork();
  if (child == 0) _exit(read_all(reader_, kCount) ? 0 : 1);
  write_all(writer_, kCount);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(RingTest, CommittedRecordsOfAKilledWriterAreRead) {
  const pid_t child = fork();
  if (child == 0) {
    fill(writer_.reserve(8).value().value(), 1);
    writer_.commit();
    fill(writer_.reserve(1000).value().value(), 1);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read(), 8);
  EXPECT_EQ(reader_.wait(1ms, spin_), Waited::kTimeout);
  reader_.close();  // by the observer of the death
  EXPECT_EQ(reader_.wait(60s, spin_), Waited::kClosed);
}

TEST_F(RingTest, PositionsAndLengthsThatCannotBeAreRefused) {
  const auto refused = [](const auto& result) { return !result && result.error().reason() == "BrokenRing"; };
  ASSERT_TRUE(write(100));
  auto* const length = reinterpret_cast<std::uint64_t*>(mapping_.data() + Ring::kHeaderBytes);
  for (const std::uint64_t bad : {std::uint64_t{101 + 8}, std::uint64_t{kCapacity}, ~std::uint64_t{0}, std::uint64_t{0xffffffff}}) {
    *length = bad;
    EXPECT_TRUE(refused(reader_.peek())) << bad;
  }
  for (const std::uint64_t bad : {std::uint64_t{1}, std::uint64_t{kCapacity + 8}, ~std::uint64_t{7}}) {
    written() = bad;
    EXPECT_TRUE(refused(RingReader(mapping_.data(), kCapacity).peek())) << bad;
  }
  written() = kCapacity + 112;
  for (const std::uint64_t bad : {std::uint64_t{8}, std::uint64_t{2 * kCapacity}, ~std::uint64_t{7}}) {
    restarted() = bad;
    EXPECT_TRUE(refused(RingReader(mapping_.data(), kCapacity).peek())) << bad;
  }
  while (write(100)) {
  }
  has_read() = 1 << 20;
  EXPECT_TRUE(refused(writer_.reserve(100)));
}

// With arbitrary contents of the memory, no access goes beyond it (checked by sanitizers), and every loop ends.
TEST(RingGarbage, StaysWithinTheRing) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    struct alignas(64) Memory {
      std::byte bytes[Ring::bytes(kCapacity)];
    };
    const auto memory = std::make_unique<Memory>();
    for (std::size_t i = 0; i < sizeof memory->bytes; i += 8) {
      std::uint64_t word = random();
      if (i >= Ring::kHeaderBytes && word % 2 == 0) word = random() % 64;  // valid lengths
      if (i >= Ring::kHeaderBytes && word % 9 == 0) word = 0xffffffff;
      if (i < 128) word = random() % (kCapacity / 8 + 2) * 8;
      if (i == 8 && word % 16 == 0) word = kCapacity;
      std::memcpy(memory->bytes + i, &word, 8);
    }
    RingReader reader(memory->bytes, kCapacity);
    int records = 0;
    for (auto r = reader.peek(); r && *r; r = reader.peek()) {
      if (!(*r)->empty()) (void)static_cast<int>((*r)->back());
      reader.pop();
      ASSERT_LT(++records, 1000);
    }
    RingWriter writer(memory->bytes, kCapacity);
    for (int i = 0; i < 1000; ++i) {
      const auto r = writer.reserve(random() % Ring::max_record(kCapacity));
      if (!r || !*r) break;
      std::memset((*r)->data(), 1, (*r)->size());
      writer.commit();
    }
  }
}

class SpinTest : public ::testing::Test {
 protected:
  int runs(int sleeps, bool comes) {
    int count = 0;
    for (int i = 0; i < sleeps; ++i) {
      if (!spin_.should_spin()) continue;
      ++count;
      int looks = 0;
      EXPECT_EQ(spin_.run([&] { return ++looks > options().polls_per_check && comes; }), comes);
    }
    return count;
  }
  static Spin::Options options() {
    Spin::Options out;
    out.alone = 1h;  // no offers of the core
    out.limit = 20ms;
    return out;
  }
  Spin spin_{options()};
};

TEST_F(SpinTest, BecomesRareWhenNothingComesAndCommonWhenItDoes) {
  EXPECT_EQ(runs(4, false), 4);  // uses up the credit
  EXPECT_EQ(runs(80, false), 10);
  EXPECT_EQ(runs(1000, true), 993);
  EXPECT_EQ(runs(4, false), 4);
  EXPECT_EQ(runs(80, false), 10);
}

// The core is lost for 2 ms at each of the first `times` offers.
int offers_taken = 0;
Spin::Options taken(int times) {
  offers_taken = times;
  Spin::Options out;
  out.alone = 0ns;
  out.limit = 1h;
  out.backoff = 1'000'000;
  out.yield_to_others = [] {
    if (offers_taken-- > 0) usleep(2000);
  };
  return out;
}

TEST(Spin, YieldsTheCoreToOtherThreads) {
  Spin spin(taken(100));
  ASSERT_TRUE(spin.should_spin());
  int looks = 0;
  EXPECT_FALSE(spin.run([&] { return ++looks < 0; }));
  EXPECT_EQ(offers_taken, 98);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(spin.should_spin());

  // The same if the awaited data is there after the loss, and if each run finds something after one offer.
  const auto options = taken(100);
  Spin late(options);
  looks = 0;
  EXPECT_TRUE(late.run([&] { return ++looks > options.polls_per_check + options.polls_per_offer; }));
  EXPECT_FALSE(late.should_spin());
  Spin brief(taken(100));
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(brief.should_spin());
    looks = 0;
    EXPECT_TRUE(brief.run([&] { return ++looks > options.polls_per_check; }));
  }
  EXPECT_FALSE(brief.should_spin());
}

TEST(Spin, LooksForAsLongAsMayBeWaited) {
  Spin::Options options;
  options.limit = 1h;
  Spin spin(options);
  int looks = 0;
  EXPECT_FALSE(spin.run([&] { return ++looks < 0; }, 0ns));
  EXPECT_EQ(looks, options.polls_per_check + 1);
}

// One long absence does not end the spin, and time spent in look() itself is not a loss.
TEST(Spin, GoesOnAfterAPauseOfTheMachineItself) {
  auto options = taken(1);
  options.limit = 20ms;
  Spin spin(options);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_FALSE(spin.run([] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 22ms);

  options.limit = 1h;
  Spin works(options);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(works.should_spin());
    int looks = 0;
    EXPECT_TRUE(works.run([&] {
      if (++looks <= options.polls_per_check) return false;
      usleep(2000);
      return true;
    }));
  }
}

}  // namespace
}  // namespace shoal::runtime
