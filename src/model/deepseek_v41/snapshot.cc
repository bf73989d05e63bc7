#include "model/deepseek_v41/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "core/hash.h"

namespace deepmint::v41 {
namespace {

constexpr std::array<char, 8> kMagic = {'D', 'M', 'V', '4', '1', 'S', 'N', 'P'};
constexpr uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t length;
  uint64_t fingerprint;
  uint64_t total_bytes;
  uint32_t layers;
  uint32_t window_rows;
  uint32_t window_row_bytes;
  uint32_t carries;
  uint64_t reserved[2];
};
static_assert(sizeof(Header) == 64);

constexpr size_t kChecksumBytes = 16;

Header header_of(const StateLayout& layout, uint64_t fingerprint, int32_t length) {
  const size_t rows = static_cast<size_t>(std::min(length, layout.window()));
  const size_t carries = length % 2 != 0 ? layout.carry_sources().size() : 0;
  const size_t ids = static_cast<size_t>(std::min(length, StateLayout::kHistoryKept));
  const size_t body = static_cast<size_t>(layout.layers()) * rows * layout.window_row_bytes() +
                      carries * layout.carry_row_bytes() + ids * sizeof(int32_t);
  return {.magic = kMagic,
          .version = kVersion,
          .length = static_cast<uint32_t>(length),
          .fingerprint = fingerprint,
          .total_bytes = sizeof(Header) + body + kChecksumBytes,
          .layers = static_cast<uint32_t>(layout.layers()),
          .window_rows = static_cast<uint32_t>(rows),
          .window_row_bytes = static_cast<uint32_t>(layout.window_row_bytes()),
          .carries = static_cast<uint32_t>(carries),
          .reserved = {0, 0}};
}

// Calls piece(memory, bytes) for every piece of the body, in order.
template <class Piece>
void walk(const StateLayout& layout, const Header& h, std::span<const PartMemory> state,
          const SequenceRef& sequence, const Piece& piece) {
  const StepInput input{.rows = {}, .sequences = {}, .state = state};
  const auto length = static_cast<int64_t>(h.length);
  for (int layer = 0; layer < layout.layers(); ++layer)
    for (int64_t p = length - h.window_rows; p < length; ++p)
      piece(layout.window_row(input, sequence, layer, p), layout.window_row_bytes());
  if (h.carries > 0)
    for (const size_t source : layout.carry_sources())
      piece(reinterpret_cast<std::byte*>(layout.carry_row(input, sequence, source, length - 1)),
            layout.carry_row_bytes());
  int32_t* history = layout.history(input, sequence);
  for (int64_t p = std::max<int64_t>(0, length - StateLayout::kHistoryKept); p < length; ++p)
    piece(reinterpret_cast<std::byte*>(history + p % StateLayout::kHistory), sizeof(int32_t));
}

tl::unexpected<Error> damaged(std::string message) {
  return fail(ErrorCode::kInvalidFile, std::move(message), "window snapshot");
}

}  // namespace

size_t snapshot_bytes(const StateLayout& layout, int32_t length) {
  return header_of(layout, 0, length).total_bytes;
}

std::vector<std::byte> take_snapshot(const StateLayout& layout, uint64_t fingerprint,
                                     std::span<const PartMemory> state, const SequenceRef& sequence,
                                     int32_t length) {
  DEEPMINT_CHECK(length > 0);
  const Header header = header_of(layout, fingerprint, length);
  std::vector<std::byte> out(header.total_bytes);
  std::memcpy(out.data(), &header, sizeof(header));
  size_t at = sizeof(header);
  walk(layout, header, state, sequence, [&](const std::byte* memory, size_t bytes) {
    std::memcpy(out.data() + at, memory, bytes);
    at += bytes;
  });
  const Hash128 hash = xxh3_128(std::span(out).first(at));
  std::memcpy(out.data() + at, &hash.low, 8);
  std::memcpy(out.data() + at + 8, &hash.high, 8);
  return out;
}

Result<int32_t> restore_snapshot(const StateLayout& layout, uint64_t fingerprint,
                                 std::span<const std::byte> bytes,
                                 std::span<const PartMemory> state, const SequenceRef& sequence) {
  Header header{};
  if (bytes.size() < sizeof(header) + kChecksumBytes)
    return damaged(fmt::format("expected at least {} bytes, found {}",
                               sizeof(header) + kChecksumBytes, bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) return damaged("expected the magic bytes \"DMV41SNP\", found others");
  if (header.version != kVersion)
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected version {}, found {}", kVersion, header.version),
                "window snapshot");
  const size_t end = bytes.size() - kChecksumBytes;
  Hash128 stored{};
  std::memcpy(&stored.low, bytes.data() + end, 8);
  std::memcpy(&stored.high, bytes.data() + end + 8, 8);
  if (header.total_bytes != bytes.size() || xxh3_128(bytes.first(end)) != stored)
    return damaged("expected the length and checksum of the content, found others");
  if (header.fingerprint != fingerprint)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected a snapshot of model {:016x}, found one of {:016x}",
                            fingerprint, header.fingerprint),
                "window snapshot");
  if (header.length == 0 || header.length > INT32_MAX)
    return damaged(fmt::format("expected a length from 1, found {}", header.length));
  const Header expected = header_of(layout, fingerprint, static_cast<int32_t>(header.length));
  if (std::memcmp(&expected, &header, sizeof(header)) != 0)
    return damaged(fmt::format("expected {} bytes in this model's layout, found {} in another",
                               expected.total_bytes, header.total_bytes));
  size_t at = sizeof(header);
  walk(layout, header, state, sequence, [&](std::byte* memory, size_t size) {
    std::memcpy(memory, bytes.data() + at, size);
    at += size;
  });
  return static_cast<int32_t>(header.length);
}

}  // namespace deepmint::v41
