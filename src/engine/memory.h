// How the budget for sequence state becomes blocks, slots and a context length.
#pragma once

#include <cstdint>
#include <span>

#include "deepmint/result.h"
#include "engine/load.h"
#include "kvcache/state_arena.h"

namespace deepmint {

// Bytes that this process may still take: what the kernel calls available, and what the control
// group leaves.
uint64_t available_memory();

struct StatePlan {
  int32_t context_tokens = 0;  // largest prompt + output
  size_t n_blocks = 0, n_slots = 0, n_snapshots = 0;
  int32_t max_running = 0;
  uint64_t bytes = 0;       // of the arena: blocks, slots, snapshots
  uint64_t park_bytes = 0;  // beside it, when requests step aside; together within the budget
};

// Errors: kInvalidArgument naming the setting that does not fit, with the value that would.
Result<StatePlan> plan_state(const EngineConfig& config, std::span<const kvcache::PartSpec> parts,
                             int32_t model_context, uint64_t available_bytes);

}  // namespace deepmint
