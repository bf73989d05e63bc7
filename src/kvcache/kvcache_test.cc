#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "core/hash.h"
#include "kvcache/seq_state.h"
#include "kvcache/slot_pool.h"
#include "kvcache/state_arena.h"

namespace deepmint::kvcache {
namespace {

// ---------------------------------------------------------------- slots

TEST(SlotPool, GivesEachSlotOnce) {
  SlotPool pool(3);
  std::set<SlotId> taken;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(taken.insert(pool.take()).second);
  EXPECT_EQ(pool.take(), kNoSlot);
  pool.release(SlotId{1});
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.take(), SlotId{1});
}

TEST(SlotPoolDeathTest, ASlotReleasedTwiceAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SlotPool pool(2);
  const SlotId slot = pool.take();
  pool.release(slot);
  EXPECT_DEATH(pool.release(slot), "used_");
  EXPECT_DEATH(pool.release(SlotId{7}), "used_");
}

// ---------------------------------------------------------------- arena

std::vector<PartSpec> layout() {
  return {{"kv", PartFamily::kGlobal, 128},
          {"ring", PartFamily::kPrivate, 192},
          {"index", PartFamily::kGlobal, 64}};
}

TEST(StateArena, ElementsAreDisjointAndAligned) {
  auto arena = StateArena::create(layout(), 5, 3).value();
  EXPECT_EQ(bytes_per_block(arena.parts()), 192u);
  EXPECT_EQ(bytes_per_slot(arena.parts()), 192u);
  EXPECT_EQ(arena.bytes(), 5 * 192u + 3 * 192u);
  unsigned char mark = 0;
  for (size_t p = 0; p < 3; ++p)
    for (size_t i = 0; i < arena.count(p); ++i) {
      const auto element = arena.element(p, i);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(element.data()) % 64, 0u);
      // All of them in one allocation.
      EXPECT_GE(element.data(), arena.base(0));
      EXPECT_LE(element.data() + element.size(), arena.base(0) + arena.bytes());
      std::memset(element.data(), ++mark, element.size());
    }
  mark = 0;
  for (size_t p = 0; p < 3; ++p)
    for (size_t i = 0; i < arena.count(p); ++i) {
      ++mark;
      for (const std::byte b : arena.element(p, i)) ASSERT_EQ(b, std::byte{mark});
    }
}

TEST(StateArena, RefusesWhatItCannotHold) {
  EXPECT_EQ(StateArena::create({{"", PartFamily::kGlobal, 64}}, 1, 1).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      StateArena::create({{std::string(32, 'x'), PartFamily::kGlobal, 64}}, 1, 1).error().code,
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(StateArena::create({{"kv", PartFamily::kGlobal, 65}}, 1, 1).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(StateArena::create({{"kv", PartFamily::kGlobal, size_t{1} << 62}}, 8, 1).error().code,
            ErrorCode::kTooLarge);
  EXPECT_EQ(StateArena::create({{"kv", PartFamily::kGlobal, size_t{1} << 60}}, 4, 1).error().code,
            ErrorCode::kResourceExhausted);
}

// ---------------------------------------------------------------- state to bytes

struct Fixture {
  StateArena arena = StateArena::create(layout(), 8, 4).value();
  SeqState state;
  std::vector<BlockId> blocks{BlockId{6}, BlockId{2}, BlockId{5}};
  SlotId slot{3};

  explicit Fixture(int32_t n_tokens = 150, int32_t computed = 149) {
    std::mt19937_64 rng(7);
    state.model_fingerprint = 0x1122334455667788;
    state.seed = 0xfedcba9876543210;
    state.choice = 2;
    state.prompt_tokens = std::max(1, n_tokens - 20);
    state.computed = computed;
    for (int32_t i = 0; i < n_tokens; ++i)
      state.tokens.push_back(static_cast<TokenId>(rng() % 1000));
    for (size_t p = 0; p < 3; ++p)
      for (size_t i = 0; i < arena.count(p); ++i)
        for (std::byte& b : arena.element(p, i)) b = static_cast<std::byte>(rng());
  }
  std::vector<std::byte> encode() const { return encode_seq_state(state, arena, blocks, slot); }
  SeqStateExpectation expected() const {
    return {state.model_fingerprint, 1000, 4096, arena.parts()};
  }
};

TEST(SeqState, RestoredElsewhereEqualsTheOriginal) {
  for (const auto& [n_tokens, computed] :
       {std::pair{150, 149}, {150, 150}, {64, 64}, {65, 64}, {1, 0}, {3, 1}, {192, 191}}) {
    const Fixture f(n_tokens, computed);
    const auto bytes = f.encode();
    const auto view = decode_seq_state(bytes, f.expected());
    ASSERT_TRUE(view.has_value()) << view.error().str();
    EXPECT_EQ(view->state.tokens, f.state.tokens);
    EXPECT_EQ(view->state.prompt_tokens, f.state.prompt_tokens);
    EXPECT_EQ(view->state.computed, f.state.computed);
    EXPECT_EQ(view->state.seed, f.state.seed);
    EXPECT_EQ(view->state.choice, f.state.choice);
    auto other = StateArena::create(layout(), 20, 2).value();
    const std::vector<BlockId> blocks = {BlockId{19}, BlockId{0}, BlockId{7}};
    restore_parts(*view, other, blocks, SlotId{1});
    for (size_t i = 0; i < blocks_for(computed); ++i)
      for (const size_t part : {0u, 2u}) {
        const auto from = f.arena.element(part, static_cast<size_t>(f.blocks[i]));
        const auto to = other.element(part, static_cast<size_t>(blocks[i]));
        EXPECT_TRUE(std::equal(from.begin(), from.end(), to.begin()));
      }
    const auto from = f.arena.element(1, 3);
    EXPECT_TRUE(std::equal(from.begin(), from.end(), other.element(1, 1).begin()));
    EXPECT_EQ(encode_seq_state(view->state, other, blocks, SlotId{1}),
              bytes);  // and back to the same bytes
  }
}

// A sequence that has computed nothing may hold no block and no slot.
TEST(SeqState, NothingComputedNeedsNoMemory) {
  const Fixture f(30, 0);
  const auto bytes = encode_seq_state(f.state, f.arena, {}, kNoSlot);
  const auto view = decode_seq_state(bytes, f.expected());
  ASSERT_TRUE(view.has_value()) << view.error().str();
  EXPECT_EQ(view->state.tokens, f.state.tokens);
  EXPECT_EQ(view->state.computed, 0);
  for (const auto part : view->parts)
    for (const std::byte b : part) ASSERT_EQ(b, std::byte{0});
  EXPECT_EQ(bytes.size(), f.encode().size());
}

TEST(SeqStateDeathTest, MemoryThatIsNotThereIsNotRead) {
  const Fixture f;
  EXPECT_DEATH(encode_seq_state(f.state, f.arena, f.blocks, kNoSlot), "");
  EXPECT_DEATH(encode_seq_state(f.state, f.arena, {}, f.slot), "");
  EXPECT_DEATH((void)f.arena.element(0, 8), "");
}

// The documented layout, field by field (docs/formats/seqstate.md).
TEST(SeqState, BytesAreWhereTheDocumentSays) {
  const Fixture f;
  const auto bytes = f.encode();
  const auto u32 = [&](size_t at) {
    uint32_t v;
    std::memcpy(&v, bytes.data() + at, 4);
    return v;
  };
  const auto u64 = [&](size_t at) {
    uint64_t v;
    std::memcpy(&v, bytes.data() + at, 8);
    return v;
  };
  EXPECT_EQ(std::memcmp(bytes.data(), "DMSEQST\0", 8), 0);
  EXPECT_EQ(u32(8), 1u);
  EXPECT_EQ(u32(12), 64u);
  EXPECT_EQ(u64(16), bytes.size());
  EXPECT_EQ(u64(24), f.state.model_fingerprint);
  EXPECT_EQ(u64(32), f.state.seed);
  EXPECT_EQ(u32(40), 150u);
  EXPECT_EQ(u32(44), 130u);
  EXPECT_EQ(u32(48), 149u);
  EXPECT_EQ(u32(52), 2u);
  EXPECT_EQ(u32(56), 3u);
  EXPECT_EQ(u32(60), 0u);
  EXPECT_EQ(std::memcmp(bytes.data() + 64 + 64, "ring\0", 5), 0);
  EXPECT_EQ(u32(64 + 64 + 32), 1u);
  EXPECT_EQ(u64(64 + 64 + 40), 192u);
  EXPECT_EQ(u64(64 + 64 + 48), 1u);
  EXPECT_EQ(u32(64 + 3 * 64), static_cast<uint32_t>(f.state.tokens[0]));
  const uint64_t kv_at = u64(64 + 56);
  EXPECT_EQ(kv_at % 64, 0u);
  EXPECT_EQ(std::memcmp(bytes.data() + kv_at, f.arena.element(0, 6).data(), 128), 0);
  const Hash128 hash = xxh3_128(std::span(bytes).first(bytes.size() - 16));
  EXPECT_EQ(u64(bytes.size() - 16), hash.low);
  EXPECT_EQ(u64(bytes.size() - 8), hash.high);
}

TEST(SeqState, EveryTruncationAndEveryFlippedByteIsFound) {
  const Fixture f;
  const auto bytes = f.encode();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto r = decode_seq_state(std::span(bytes).first(length), f.expected());
    ASSERT_FALSE(r.has_value()) << length;
    ASSERT_EQ(r.error().code, ErrorCode::kInvalidFile) << length;
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    auto bad = bytes;
    bad[at] ^= std::byte{0x10};
    const auto r = decode_seq_state(bad, f.expected());
    ASSERT_FALSE(r.has_value()) << at;
    ASSERT_FALSE(r.error().where.empty());
  }
  auto longer = bytes;
  longer.resize(bytes.size() + 64);
  EXPECT_FALSE(decode_seq_state(longer, f.expected()).has_value());
}

void seal(std::vector<std::byte>& bytes) {
  const Hash128 hash = xxh3_128(std::span(bytes).first(bytes.size() - 16));
  std::memcpy(bytes.data() + bytes.size() - 16, &hash.low, 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash.high, 8);
}

// A hostile writer makes a right checksum over wrong fields.
TEST(SeqState, HostileFieldsWithARightChecksum) {
  const Fixture f;
  const auto bytes = f.encode();
  auto arena = StateArena::create(layout(), 8, 4).value();
  const size_t header_end = 64 + 3 * 64;
  int accepted = 0;
  for (size_t at = 0; at < header_end; at += 4) {
    for (const uint32_t value : {0u, 1u, 2u, 63u, 64u, 65u, 127u, 128u, 0x7fffffffu, 0x80000000u,
                                 0xffffffc0u, 0xffffffffu}) {
      auto bad = bytes;
      std::memcpy(bad.data() + at, &value, 4);
      if (bad == bytes) continue;
      seal(bad);
      const auto r = decode_seq_state(bad, f.expected());
      if (!r) continue;
      // Only what means something else may pass: seed, choice, where the prompt ends, or one
      // position less in the same block.
      ++accepted;
      EXPECT_TRUE(at == 32 || at == 36 || at == 44 || at == 48 || at == 52)
          << "byte " << at << " = " << value;
      restore_parts(*r, arena, f.blocks, f.slot);
    }
  }
  EXPECT_GT(accepted, 0);
  auto bad = bytes;
  const TokenId outside = 1000;
  std::memcpy(bad.data() + header_end + 4 * 17, &outside, 4);
  seal(bad);
  EXPECT_NE(decode_seq_state(bad, f.expected()).error().message.find("1000"), std::string::npos);
}

TEST(SeqState, ForeignStatesAreRefusedByName) {
  const Fixture f;
  const auto bytes = f.encode();
  const auto message = [&](auto change) {
    SeqStateExpectation e = f.expected();
    change(e);
    const auto r = decode_seq_state(bytes, e);
    if (r) return std::string("accepted");
    EXPECT_EQ(r.error().code, ErrorCode::kInvalidArgument);
    return r.error().message;
  };
  EXPECT_NE(message([](auto& e) { e.model_fingerprint = 5; }).find("model"), std::string::npos);
  EXPECT_NE(message([](auto& e) { e.context_tokens = 149; }).find("149"), std::string::npos);
  std::vector<PartSpec> parts = layout();
  parts[0].bytes = 64;
  EXPECT_NE(message([&](auto& e) { e.parts = parts; }).find("\"kv\""), std::string::npos);
  parts = layout();
  parts[1].name = "rings";
  EXPECT_NE(message([&](auto& e) { e.parts = parts; }).find("\"rings\""), std::string::npos);
  parts.pop_back();
  EXPECT_NE(message([&](auto& e) { e.parts = parts; }).find("2 state parts"), std::string::npos);
  EXPECT_EQ(message([](auto&) {}), "accepted");
}

}  // namespace
}  // namespace deepmint::kvcache
