#include "kvcache/seq_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "core/checked.h"
#include "core/hash.h"

namespace deepmint::kvcache {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are stored as they lie in memory");

constexpr std::array<char, 8> kMagic = {'D', 'M', 'S', 'E', 'Q', 'S', 'T', '\0'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlignment = 64;

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t block_tokens;
  uint64_t total_bytes;
  uint64_t model_fingerprint;
  uint64_t seed;
  uint32_t n_tokens;
  uint32_t prompt_tokens;
  uint32_t computed;
  uint32_t choice;
  uint32_t n_parts;
  uint32_t reserved;
};
static_assert(sizeof(Header) == 64);

struct PartRecord {
  std::array<char, 32> name;  // zero-padded
  uint32_t family;
  uint32_t reserved;
  uint64_t element_bytes;
  uint64_t count;
  uint64_t offset;  // from the start of the state; a multiple of 64
};
static_assert(sizeof(PartRecord) == 64);

struct Checksum {
  uint64_t low, high;
};

size_t align_up(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
void put(std::vector<std::byte>& out, size_t offset, const T& value) {
  std::memcpy(out.data() + offset, &value, sizeof value);
}
template <class T>
T get(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

tl::unexpected<Error> damaged(size_t offset, std::string message) {
  return fail(ErrorCode::kInvalidFile, std::move(message),
              fmt::format("sequence state, byte {}", offset));
}
tl::unexpected<Error> foreign(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), "sequence state");
}

}  // namespace

size_t blocks_for(int32_t positions) {
  return (static_cast<size_t>(positions) + kBlockTokens - 1) / kBlockTokens;
}

std::vector<std::byte> encode_seq_state(const SeqState& state, const StateArena& arena,
                                        std::span<const BlockId> blocks, SlotId slot) {
  const size_t n_blocks = blocks_for(state.computed);
  DEEPMINT_CHECK(blocks.size() >= n_blocks);
  DEEPMINT_CHECK(state.computed >= 0 && static_cast<size_t>(state.computed) <= state.tokens.size());
  const auto parts = arena.parts();
  DEEPMINT_CHECK(slot != kNoSlot || state.computed == 0 || bytes_per_slot(parts) == 0);
  const size_t tokens_at = sizeof(Header) + parts.size() * sizeof(PartRecord);
  size_t end = align_up(tokens_at + state.tokens.size() * sizeof(TokenId));
  std::vector<PartRecord> records;
  for (const PartSpec& part : parts) {
    PartRecord record{};
    std::copy(part.name.begin(), part.name.end(), record.name.begin());
    record.family = static_cast<uint32_t>(part.family);
    record.element_bytes = part.bytes;
    record.count = part.family == PartFamily::kGlobal ? n_blocks : 1;
    record.offset = end;
    end += record.count * part.bytes;
    records.push_back(record);
  }
  const size_t total = end + sizeof(Checksum);

  std::vector<std::byte> out(total);
  put(out, 0,
      Header{.magic = kMagic,
             .version = kVersion,
             .block_tokens = kBlockTokens,
             .total_bytes = total,
             .model_fingerprint = state.model_fingerprint,
             .seed = state.seed,
             .n_tokens = static_cast<uint32_t>(state.tokens.size()),
             .prompt_tokens = static_cast<uint32_t>(state.prompt_tokens),
             .computed = static_cast<uint32_t>(state.computed),
             .choice = static_cast<uint32_t>(state.choice),
             .n_parts = static_cast<uint32_t>(parts.size()),
             .reserved = 0});
  for (size_t p = 0; p < records.size(); ++p) {
    const PartRecord& record = records[p];
    put(out, sizeof(Header) + p * sizeof(PartRecord), record);
    if (parts[p].family == PartFamily::kPrivate && slot == kNoSlot) continue;  // zeros
    for (size_t i = 0; i < record.count; ++i) {
      const size_t index = parts[p].family == PartFamily::kGlobal ? static_cast<size_t>(blocks[i])
                                                                  : static_cast<size_t>(slot);
      std::memcpy(out.data() + record.offset + i * parts[p].bytes, arena.element(p, index).data(),
                  parts[p].bytes);
    }
  }
  std::memcpy(out.data() + tokens_at, state.tokens.data(), state.tokens.size() * sizeof(TokenId));
  const Hash128 hash = xxh3_128(std::span(out).first(end));
  put(out, end, Checksum{hash.low, hash.high});
  return out;
}

Result<SeqStateView> decode_seq_state(std::span<const std::byte> bytes,
                                      const SeqStateExpectation& expected) {
  constexpr size_t kSmallest = sizeof(Header) + sizeof(Checksum);
  if (bytes.size() < kSmallest)
    return damaged(0, fmt::format("expected at least {} bytes, found {}", kSmallest, bytes.size()));
  const auto header = get<Header>(bytes, 0);
  if (header.magic != kMagic)
    return damaged(0, "expected the magic bytes \"DMSEQST\", found others");
  if (header.version != kVersion)
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected version {}, found {}", kVersion, header.version),
                "sequence state, byte 8");
  if (header.total_bytes != bytes.size())
    return damaged(16, fmt::format("expected {} bytes as the header says, found {}",
                                   header.total_bytes, bytes.size()));
  const size_t end = bytes.size() - sizeof(Checksum);
  const auto stored = get<Checksum>(bytes, end);
  if (xxh3_128(bytes.first(end)) != Hash128{stored.low, stored.high})
    return damaged(end, "expected the checksum of the content, found another");

  // Whole and unchanged. From here on: is it for this engine, and does it agree with itself?
  if (header.model_fingerprint != expected.model_fingerprint)
    return foreign(fmt::format("expected a state of model {:016x}, found one of {:016x}",
                               expected.model_fingerprint, header.model_fingerprint));
  if (header.block_tokens != kBlockTokens)
    return foreign(
        fmt::format("expected blocks of {} tokens, found {}", kBlockTokens, header.block_tokens));
  if (header.n_parts != expected.parts.size())
    return foreign(
        fmt::format("expected {} state parts, found {}", expected.parts.size(), header.n_parts));
  if (header.n_tokens > static_cast<uint64_t>(expected.context_tokens))
    return foreign(fmt::format("expected at most {} tokens, found {}", expected.context_tokens,
                               header.n_tokens));
  if (header.prompt_tokens == 0 || header.prompt_tokens > header.n_tokens)
    return damaged(44, fmt::format("expected 1 to {} prompt tokens, found {}", header.n_tokens,
                                   header.prompt_tokens));
  if (header.computed > header.n_tokens)
    return damaged(48, fmt::format("expected at most {} computed positions, found {}",
                                   header.n_tokens, header.computed));
  if (header.choice > 0x7fffffff) return damaged(52, "expected a choice index below 2^31");
  if (header.reserved != 0)
    return damaged(60, fmt::format("expected 0, found {}", header.reserved));

  const size_t tokens_at = sizeof(Header) + expected.parts.size() * sizeof(PartRecord);
  const size_t tokens_end = tokens_at + size_t{header.n_tokens} * sizeof(TokenId);
  if (tokens_end > end)
    return damaged(40, fmt::format("expected room for {} tokens, found {} bytes", header.n_tokens,
                                   bytes.size()));

  SeqStateView view;
  const size_t n_blocks = blocks_for(static_cast<int32_t>(header.computed));
  size_t next = align_up(tokens_end);
  for (size_t p = 0; p < expected.parts.size(); ++p) {
    const PartSpec& part = expected.parts[p];
    const size_t at = sizeof(Header) + p * sizeof(PartRecord);
    const auto record = get<PartRecord>(bytes, at);
    std::array<char, 32> name{};
    std::copy(part.name.begin(), part.name.end(), name.begin());
    if (record.name != name || record.family != static_cast<uint32_t>(part.family) ||
        record.element_bytes != part.bytes)
      return foreign(fmt::format("expected part {} to be \"{}\" of {} bytes, found another layout",
                                 p, part.name, part.bytes));
    const uint64_t count = part.family == PartFamily::kGlobal ? n_blocks : 1;
    if (record.count != count || record.reserved != 0)
      return damaged(at + 48, fmt::format("expected {} elements, found {}", count, record.count));
    const auto size = checked_mul(record.count, record.element_bytes);
    const auto part_end = size ? checked_add(next, *size) : std::nullopt;
    if (record.offset != next || !part_end || *part_end > end)
      return damaged(at + 56,
                     fmt::format("expected {} bytes at offset {}, found offset {} in {} bytes",
                                 size.value_or(0), next, record.offset, bytes.size()));
    view.parts.push_back(bytes.subspan(next, *size));
    next = *part_end;
  }
  if (next != end)
    return damaged(
        next, fmt::format("expected {} bytes, found {}", next + sizeof(Checksum), bytes.size()));

  SeqState& state = view.state;
  state.model_fingerprint = header.model_fingerprint;
  state.prompt_tokens = static_cast<int32_t>(header.prompt_tokens);
  state.computed = static_cast<int32_t>(header.computed);
  state.seed = header.seed;
  state.choice = static_cast<int32_t>(header.choice);
  state.tokens.resize(header.n_tokens);
  std::memcpy(state.tokens.data(), bytes.data() + tokens_at, tokens_end - tokens_at);
  for (size_t i = 0; i < state.tokens.size(); ++i)
    if (state.tokens[i] < 0 || state.tokens[i] >= expected.vocab_size)
      return damaged(tokens_at + i * sizeof(TokenId),
                     fmt::format("expected a token id in [0, {}), found {}", expected.vocab_size,
                                 state.tokens[i]));
  return view;
}

void restore_parts(const SeqStateView& view, StateArena& arena, std::span<const BlockId> blocks,
                   SlotId slot) {
  const auto parts = arena.parts();
  DEEPMINT_CHECK(view.parts.size() == parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    const size_t count = view.parts[p].size() / parts[p].bytes;
    DEEPMINT_CHECK(parts[p].family == PartFamily::kPrivate || blocks.size() >= count);
    for (size_t i = 0; i < count; ++i) {
      const size_t index = parts[p].family == PartFamily::kGlobal ? static_cast<size_t>(blocks[i])
                                                                  : static_cast<size_t>(slot);
      const auto to = arena.element(p, index);
      std::memcpy(to.data(), view.parts[p].data() + i * parts[p].bytes, parts[p].bytes);
    }
  }
}

}  // namespace deepmint::kvcache
