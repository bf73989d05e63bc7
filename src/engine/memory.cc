#include "engine/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "kvcache/seq_state.h"

namespace deepmint {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// First number in a file, or nullopt: absent, or "max".
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

uint64_t available_by_kernel() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kib = 0; file >> key >> kib; std::getline(file, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// What the control groups of this process leave, from its own up to the root.
uint64_t available_by_control_group() {
  uint64_t left = kNoLimit;
  const auto tighten = [&left](const std::optional<uint64_t>& limit,
                               const std::optional<uint64_t>& used) {
    if (limit && used) left = std::min(left, *limit > *used ? *limit - *used : 0);
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool v2 = line.starts_with("0::");
    if (!v2 && line.find(":memory:") == std::string::npos) continue;
    std::string group = line.substr(line.rfind(':') + 1);
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (;; group = group.substr(0, group.rfind('/'))) {
      if (v2) {
        tighten(number_in(root + group + "/memory.max"),
                number_in(root + group + "/memory.current"));
      } else {
        tighten(number_in(root + group + "/memory.limit_in_bytes"),
                number_in(root + group + "/memory.usage_in_bytes"));
      }
      if (group.find('/') == std::string::npos || group == "/") break;
    }
    // In a container the path may be the host's: its limits are then at the root of the mount.
    if (v2) tighten(number_in(root + "/memory.max"), number_in(root + "/memory.current"));
  }
  return left;
}

tl::unexpected<Error> misfit(const char* setting, std::string expected, uint64_t found) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("expected {}, found {}", expected, found),
              setting);
}

}  // namespace

Status check_engine_config(const EngineConfig& config) {
  DEEPMINT_CHECK_OK(check_limits(config));
  if (config.step_tokens < config.max_running)
    return misfit("engine.step_tokens",
                  fmt::format("at least engine.max_running, {}", config.max_running),
                  static_cast<uint64_t>(config.step_tokens));
  return {};
}

uint64_t available_memory() {
  return std::min(available_by_kernel(), available_by_control_group());
}

Result<StatePlan> plan_state(const EngineConfig& config, std::span<const kvcache::PartSpec> parts,
                             int32_t model_context, uint64_t available_bytes) {
  DEEPMINT_CHECK_OK(check_engine_config(config));
  if (config.context_tokens > model_context)
    return misfit("engine.context_tokens",
                  fmt::format("at most {}, what the model was made for", model_context),
                  static_cast<uint64_t>(config.context_tokens));

  const uint64_t block = kvcache::bytes_per_block(parts), slot = kvcache::bytes_per_slot(parts);
  const uint64_t budget =
      config.kv_bytes > 0 ? static_cast<uint64_t>(config.kv_bytes) : available_bytes / 2;
  if (budget > available_bytes)
    return misfit("engine.kv_bytes",
                  fmt::format("at most the free memory, {} bytes", available_bytes), budget);

  StatePlan plan;
  // Private state is counted once per sequence and may take up to half of the budget.
  uint64_t running = static_cast<uint64_t>(config.max_running);
  if (slot > 0) running = std::max<uint64_t>(1, std::min(running, budget / 2 / slot));
  plan.max_running = static_cast<int32_t>(running);
  plan.n_slots = slot > 0 ? running : 0;
  const uint64_t private_bytes = plan.n_slots * slot;
  // What is set aside of it by itself never costs the context that one sequence may have.
  const int32_t wanted = config.context_tokens > 0 ? config.context_tokens : model_context;
  const uint64_t per_sequence = kvcache::blocks_for(wanted);
  const uint64_t least = private_bytes + per_sequence * block;
  const uint64_t by_itself = budget > least ? std::min(budget / 8, (budget - least) / 2) : 0;
  plan.park_bytes = config.park_bytes >= 0 ? static_cast<uint64_t>(config.park_bytes) : by_itself;
  uint64_t snapshots = 0;
  if (slot > 0 && config.prefix_cache)
    snapshots =
        config.snapshot_bytes >= 0 ? static_cast<uint64_t>(config.snapshot_bytes) : by_itself;
  // Beyond what can run at once, room for prefixes that come again; a snapshot per block at most.
  const uint64_t most = running * per_sequence * (config.prefix_cache ? 4 : 1);
  plan.n_snapshots = slot > 0 ? std::min(snapshots / slot, most) : 0;
  const uint64_t aside = private_bytes + plan.n_snapshots * slot + plan.park_bytes;
  if (budget < aside + block)
    return misfit("engine.kv_bytes",
                  fmt::format("at least {} bytes, the state of one sequence of {} tokens",
                              aside + block, kBlockTokens),
                  budget);
  const uint64_t affordable = block > 0 ? (budget - aside) / block : running * per_sequence;
  if (config.context_tokens > 0 && affordable < per_sequence)
    return misfit("engine.kv_bytes",
                  fmt::format("at least {} bytes for a context of {} tokens",
                              aside + per_sequence * block, wanted),
                  budget);
  plan.n_blocks = std::min(affordable, most);
  plan.context_tokens = static_cast<int32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(wanted), plan.n_blocks * kBlockTokens));
  plan.bytes = plan.n_blocks * block + private_bytes + plan.n_snapshots * slot;
  return plan;
}

}  // namespace deepmint
