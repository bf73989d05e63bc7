// Does again what a ScheduleLog wrote down: the same requests and cancellations at the same points,
// the same times, on the same model; and compares plans, tokens, log-probabilities and ends line by
// line.
//
//   DEEPMINT_TRY(lines, read_schedule("schedule.jsonl"));
//   DEEPMINT_TRY(done, replay_schedule(lines, loaded));    // done.tokens, or the first difference
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/load.h"

namespace deepmint {

struct ReplayedSchedule {
  int64_t requests = 0, steps = 0, tokens = 0;
};

// A last line without its end, of a program that was killed, is left out.
Result<std::vector<std::string>> read_schedule(const std::filesystem::path& path);

// lines: with or without their line ends. Threads are those that the model was loaded with. Errors:
// kInvalidFile (not a schedule, or another version), kInvalidArgument (of another model or
// instruction-set class), kInternal (something came out differently: which line, what was recorded
// and what was found). A request that ended because its receiver or its mask failed is such a
// difference.
Result<ReplayedSchedule> replay_schedule(std::span<const std::string> lines,
                                         const LoadedModel& loaded, Tap* tap = nullptr);

}  // namespace deepmint
