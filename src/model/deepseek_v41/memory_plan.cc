#include "model/deepseek_v41/memory_plan.h"

#include <fmt/format.h>

#include <array>

namespace deepmint::v41 {
namespace {

std::string gib(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (uint64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / (1 << 10));
  if (bytes < (uint64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} GiB", value / (1 << 30));
}

}  // namespace

TensorUse tensor_use(std::string_view name) {
  constexpr std::array<std::string_view, 4> kOthers = {"vision.", "aligner.", "image_", "mtp."};
  for (const std::string_view prefix : kOthers)
    if (name.starts_with(prefix)) return TensorUse::kOther;
  if (name.find(".ffn.experts.") != std::string_view::npos) return TensorUse::kExpert;
  if (name.find(".engram.embed.") != std::string_view::npos) return TensorUse::kEngramTable;
  return TensorUse::kDense;
}

Footprint footprint_of(const SafetensorsModel& files) {
  Footprint f;
  for (const TensorView& t : files.tensors()) {
    switch (tensor_use(t.name)) {
      case TensorUse::kDense:
        f.dense += t.bytes.size();
        break;
      case TensorUse::kExpert:
        f.experts += t.bytes.size();
        break;
      case TensorUse::kEngramTable:
        f.engram_tables += t.bytes.size();
        break;
      case TensorUse::kOther:
        f.other += t.bytes.size();
        break;
    }
  }
  return f;
}

std::string MemoryPlan::statement() const {
  std::string text =
      fmt::format("memory: {} resident (dense {}", gib(resident_bytes()), gib(footprint.dense));
  if (experts_resident) text += fmt::format(", experts {}", gib(footprint.experts));
  text += fmt::format("), {} read from disk on demand (Engram tables {}", gib(mapped_bytes()),
                      gib(footprint.engram_tables));
  if (!experts_resident) text += fmt::format(", experts {}", gib(footprint.experts));
  return text + ")";
}

Result<MemoryPlan> plan_memory(const Footprint& footprint, ExpertPlacement experts,
                               uint64_t available_bytes) {
  MemoryPlan plan{.footprint = footprint, .experts_resident = experts != ExpertPlacement::kMapped};
  // An eighth is left for sequence state and for the page cache of what stays mapped.
  if (experts == ExpertPlacement::kAuto)
    plan.experts_resident = plan.resident_bytes() <= available_bytes - available_bytes / 8;
  if (plan.resident_bytes() <= available_bytes) return plan;
  return fail(
      ErrorCode::kResourceExhausted,
      fmt::format("expected {} of free memory for the {}, found {}", gib(plan.resident_bytes()),
                  plan.experts_resident ? "weights (mapped experts need less)"
                                        : "weights that every step reads",
                  gib(available_bytes)),
      plan.experts_resident ? "cpu.experts" : "");
}

}  // namespace deepmint::v41
