#include "fsdp/layout/layout.h"

#include <tuple>

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

Parameter of(const std::string& name, std::vector<std::int64_t> shape, DType dtype = DType::kFloat32) {
  return {name, std::move(shape), dtype, true};
}

TEST(Rows, MatchTorchChunk) {
  // torch.chunk(torch.arange(n), w): sizes of the pieces, 0 for missing ones.
  const auto sizes = [](std::int64_t rows, int world) {
    std::vector<std::int64_t> out;
    for (int r = 0; r < world; ++r) out.push_back(rows_of(rows, world, Rank{r}).count());
    return out;
  };
  EXPECT_EQ(sizes(10, 4), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(sizes(5, 4), (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(sizes(2, 8), (std::vector<std::int64_t>{1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sizes(0, 3), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(sizes(7, 1), (std::vector<std::int64_t>{7}));
}

TEST(Rows, CoverEveryRowOnceAtAnyWorldSize) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (int world = 1; world <= 8; ++world) {
      std::int64_t next = 0;
      for (int r = 0; r < world; ++r) {
        const Rows own = rows_of(rows, world, Rank{r});
        if (own.count() > 0) {
          EXPECT_EQ(own.begin, next);
        }
        next = own.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(Layout, ParametersAreContiguousAndAligned) {
  const auto l = Layout::make({of("a", {3, 5}), of("b", {7}, DType::kBFloat16), of("c", {0, 4}), of("d", {2})}).value();
  EXPECT_EQ(l.placed()[0].bytes, 60u);
  EXPECT_EQ(l.placed()[1].offset_bytes, 64u);
  EXPECT_EQ(l.placed()[1].bytes, 14u);
  EXPECT_EQ(l.placed()[2].bytes, 0u);
  EXPECT_EQ(l.placed()[3].offset_bytes, 128u);
  EXPECT_EQ(l.bytes(), 192u);
  EXPECT_EQ(l.numel(), 15 + 7 + 0 + 2);
  EXPECT_EQ(l.own_offset(0, 2, 1), 2u * 20);
  EXPECT_EQ(Layout::owned_bytes(l.placed()[0], 2, 1), 20u);
  EXPECT_EQ(l.owned_rows(2, 0), 2 + 4 + 0 + 1);
}

TEST(Layout, RanksOwnEveryByteOnce) {
  const auto l = Layout::make({of("a", {13, 3}), of("b", {1, 9}), of("c", {4})}).value();
  for (int world = 1; world <= 8; ++world) {
    std::size_t sum = 0;
    for (int r = 0; r < world; ++r) sum += l.owned_bytes(world, r);
    EXPECT_EQ(sum, static_cast<std::size_t>(l.numel()) * 4);
  }
}

TEST(Piece, MatchesTorchChunkOnAnyDim) {
  const auto l = Layout::make({{"a", {3, 5, 2}, DType::kFloat32, true, 1}}).value();
  const auto is = [&](int shards, int shard, Piece want) {
    const Piece got = piece_of(l.placed()[0], shards, shard);
    EXPECT_EQ(std::tie(got.begin, got.length, got.stride, got.runs), std::tie(want.begin, want.length, want.stride, want.runs)) << shard;
  };
  is(2, 0, {0, 6, 10, 3});  // three columns of five
  is(2, 1, {6, 4, 10, 3});
  is(4, 2, {8, 2, 10, 3});
  is(4, 3, {});
  is(1, 0, {0, 30, 30, 1});
}

TEST(Layout, ParametersNotInPlaceHaveShardRegionsAfterTheWholes) {
  const auto l = Layout::make({of("in place", {4, 4}),
                               {"cast", {5, 4}, DType::kFloat32, true, 0, DType::kBFloat16},
                               {"columns", {4, 6}, DType::kFloat32, true, 1},
                               {"elsewhere", {4, 4}, DType::kFloat32, true, 0, {}, {}, true}})
                     .value();
  EXPECT_TRUE(l.placed()[0].in_place);
  EXPECT_FALSE(l.placed()[1].in_place);
  EXPECT_FALSE(l.placed()[2].in_place);
  EXPECT_EQ(l.placed()[1].bytes, 40u);  // 20 elements of bf16
  EXPECT_EQ(l.placed()[1].reduce_dtype(), DType::kBFloat16);
  EXPECT_EQ(l.bytes(), 64u + 64 + 128);
  EXPECT_EQ(l.slot_bytes(), 64u + 64 + 128 + 64);
  // A shard has up to 3 rows of 16 bytes of "cast", and 3 of 6 columns of "columns".
  EXPECT_EQ(l.own_offset(1, 2, 0), 256u);
  EXPECT_EQ(l.own_offset(2, 2, 0), 256u + 64);
  EXPECT_EQ(l.own_offset(1, 2, 1), 256u + 64 + 64);
  EXPECT_EQ(l.arena_bytes({4, 2}), 2u * 4096);
}

TEST(Layout, UnshardableParametersAreNamed) {
  EXPECT_FALSE(Layout::make({{"w", {2, 2}, DType::kFloat32, true, 2}}));
  EXPECT_NE(Layout::make({of("scale", {})}).error().message().find("scale"), std::string::npos);
  EXPECT_FALSE(Layout::make({of("huge", {1 << 30, 1 << 30})}));
  EXPECT_FALSE(parse_dtype("complex64"));
  EXPECT_EQ(parse_dtype("bfloat16").value(), DType::kBFloat16);
}

TEST(Layout, DifferentModelsHaveDifferentFingerprints) {
  const auto print = [](std::vector<Parameter> p) { return Layout::make(std::move(p))->fingerprint(); };
  EXPECT_EQ(print({of("a", {3, 5})}), print({of("a", {3, 5})}));
  EXPECT_NE(print({of("a", {3, 5})}), print({of("a", {5, 3})}));
  EXPECT_NE(print({of("a", {3, 5})}), print({of("b", {3, 5})}));
  EXPECT_NE(print({of("a", {3})}), print({of("a", {3}, DType::kFloat16)}));
}

}  // namespace
}  // namespace shoal::fsdp
