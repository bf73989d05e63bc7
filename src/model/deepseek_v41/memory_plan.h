// What a checkpoint takes from memory and what it leaves on disk, decided before a weight is read.
//
// Three kinds of weights are used in three ways. Dense ones are read whole by every step: they must
// fit. Of the routed experts a token reads a few per layer: they are read in at load when they fit
// too ("resident"), else fetched from the mapped file as routing asks for them ("mapped"). Of the
// Engram tables a token reads a few kilobytes: they always stay mapped.
//
//   DEEPMINT_TRY(plan, plan_memory(footprint_of(files), ExpertPlacement::kAuto, available));
//   log().info("{}", plan.statement());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "deepmint/result.h"
#include "format/safetensors.h"

namespace deepmint::v41 {

enum class ExpertPlacement : uint8_t { kAuto, kMapped, kResident };

enum class TensorUse : uint8_t {
  kDense,
  kExpert,
  kEngramTable,
  kOther,  // vision encoder and draft layers: recognised, not loaded
};
TensorUse tensor_use(std::string_view name);

struct Footprint {  // bytes of the checkpoint by use
  uint64_t dense = 0, experts = 0, engram_tables = 0, other = 0;
};
Footprint footprint_of(const SafetensorsModel& files);

struct MemoryPlan {
  Footprint footprint;
  bool experts_resident = true;
  uint64_t resident_bytes() const {
    return footprint.dense + (experts_resident ? footprint.experts : 0);
  }
  uint64_t mapped_bytes() const {
    return footprint.engram_tables + (experts_resident ? 0 : footprint.experts);
  }
  std::string statement() const;  // one line
};

// Errors: kResourceExhausted: what must be resident does not fit `available_bytes`.
Result<MemoryPlan> plan_memory(const Footprint& footprint, ExpertPlacement experts,
                               uint64_t available_bytes);

}  // namespace deepmint::v41
