// The private state of a sequence at one length, packed: what a prefix-cache hit needs beside the
// global rows to go on as if nothing had happened (spec model.md 10.1 and 10.4). Rings are stored
// as their window alone, without the slack that drafts need.
//
//   const auto bytes = take_snapshot(layout, fingerprint, state, sequence, length);
//   DEEPMINT_CHECK_OK(restore_snapshot(layout, fingerprint, bytes, state, other_sequence));
//
// Bytes (little-endian, docs/formats/v41_snapshot.md):
//
//   0   magic "DMV41SNP"   8   version 1    12  length in tokens    16  model fingerprint
//   24  bytes in all       32  layers       36  window rows         40  bytes of a window row
//   44  carry sources      48  reserved, 0 (16 bytes)
//   64  for each layer: window rows of positions [length - rows, length), ascending
//       for each ratio-2 source, when length is odd: kv and gate of position length - 1
//       the ids of the last n positions, oldest first, n = min(length, 24)
//       XXH3-128 of everything before
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "deepmint/result.h"
#include "model/deepseek_v41/state.h"

namespace deepmint::v41 {

// `length` positions have run; none is pending. The last window must be in the rings: no more than
// kDraftSlack positions beyond `length` may have been written since.
std::vector<std::byte> take_snapshot(const StateLayout& layout, uint64_t fingerprint,
                                     std::span<const PartMemory> state, const SequenceRef& sequence,
                                     int32_t length);

// Writes the private parts of `sequence`; global rows are not touched. Returns the length. Errors:
// kInvalidFile (damaged, or of another layout), kInvalidArgument (of another model); nothing is
// written then.
Result<int32_t> restore_snapshot(const StateLayout& layout, uint64_t fingerprint,
                                 std::span<const std::byte> bytes,
                                 std::span<const PartMemory> state, const SequenceRef& sequence);

// Bytes of a snapshot at this length.
size_t snapshot_bytes(const StateLayout& layout, int32_t length);

}  // namespace deepmint::v41
