// Recorded traffic without its text: when requests came, how long they are, which blocks of their
// prompts they share. The format is that of the published Mooncake traces: one JSON object a line,
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, …]}
//
// where an id stands for a block of kTraceBlockTokens prompt tokens and everything before it (the
// last one may be shorter).
//
//   DEEPMINT_TRY(trace, sim::read_trace("conversation_trace.jsonl"));
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "deepmint/result.h"

namespace deepmint::sim {

inline constexpr int kTraceBlockTokens = 512;

struct TraceRequest {
  int64_t timestamp_ms = 0;
  int32_t input_tokens = 0, output_tokens = 0;
  std::vector<uint64_t> blocks;
  // Prompt tokens in its first n blocks.
  int64_t tokens_in(size_t n) const;
};

// In the order of the file, which must be that of time. Errors name the line.
Result<std::vector<TraceRequest>> read_trace(const std::filesystem::path& path);
Status write_trace(const std::vector<TraceRequest>& trace, const std::filesystem::path& path);

// Traffic like that of chats and agents over a few shared system prompts: sessions that grow turn
// by turn and end, others that come once. The same options give the same trace everywhere.
struct TrafficOptions {
  int requests = 2000;
  int system_prompts = 4;
  int running_sessions = 40;  // at any time
  int system_blocks = 6;      // of a system prompt, at most
  int turn_blocks = 5;        // that a turn adds, at most
  int64_t mean_gap_ms = 300;  // between requests
  int longest_blocks = 120;   // a session that reaches it ends
  uint64_t seed = 1;
};
std::vector<TraceRequest> generate_trace(const TrafficOptions& options);

}  // namespace deepmint::sim
