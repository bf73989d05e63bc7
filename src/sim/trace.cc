#include "sim/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "core/json.h"

namespace deepmint::sim {
namespace {

constexpr double kMaxTokens = 1 << 30;

Result<int64_t> whole_number(const json::Value& line, std::string_view key, double least,
                             double most) {
  const json::Value* v = line.find(key);
  const auto number = v == nullptr ? std::nullopt : v->to_double();
  if (!number || !(*number >= least && *number <= most))
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected a number \"{}\" from {} to {}, found {}", key, least, most,
                            v == nullptr ? "nothing" : json::dump(*v).substr(0, 40)));
  return static_cast<int64_t>(std::llround(*number));
}

Result<TraceRequest> parse_line(std::string_view text) {
  DEEPMINT_TRY(line, json::parse(text));
  TraceRequest r;
  DEEPMINT_TRY(time, whole_number(line, "timestamp", 0, 1e15));
  DEEPMINT_TRY(input, whole_number(line, "input_length", 1, kMaxTokens));
  DEEPMINT_TRY(output, whole_number(line, "output_length", 0, kMaxTokens));
  const json::Value* ids = line.find("hash_ids");
  if (ids == nullptr || !ids->is_array())
    return fail(ErrorCode::kInvalidFile, "expected an array \"hash_ids\", found none");
  for (const json::Value& id : ids->items()) {
    const auto number = id.to_uint64();
    if (!number)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected whole numbers in \"hash_ids\", found {}",
                              json::dump(id).substr(0, 40)));
    r.blocks.push_back(*number);
  }
  r.timestamp_ms = time;
  r.input_tokens = static_cast<int32_t>(input);
  r.output_tokens = static_cast<int32_t>(output);
  const auto need = static_cast<size_t>((input + kTraceBlockTokens - 1) / kTraceBlockTokens);
  if (r.blocks.size() != need)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected {} hash ids for {} tokens in blocks of {}, found {}", need,
                            input, kTraceBlockTokens, r.blocks.size()));
  return r;
}

}  // namespace

int64_t TraceRequest::tokens_in(size_t n) const {
  return std::min<int64_t>(input_tokens, static_cast<int64_t>(n) * kTraceBlockTokens);
}

Result<std::vector<TraceRequest>> read_trace(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in)
    return fail(ErrorCode::kNotFound, "expected a trace file, cannot open it", path.string());
  std::vector<TraceRequest> trace;
  std::string text;
  for (size_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto request = parse_line(text);
    const std::string where = fmt::format("{}:{}", path.string(), number);
    if (!request) return tl::unexpected(std::move(request).error().at(where));
    if (!trace.empty() && request->timestamp_ms < trace.back().timestamp_ms)
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("expected a time of at least {}, that of the line before, found {}",
                              trace.back().timestamp_ms, request->timestamp_ms),
                  where);
    trace.push_back(std::move(*request));
  }
  if (in.bad()) return fail(ErrorCode::kInvalidFile, "reading failed", path.string());
  if (trace.empty())
    return fail(ErrorCode::kInvalidFile, "expected requests, found none", path.string());
  return trace;
}

Status write_trace(const std::vector<TraceRequest>& trace, const std::filesystem::path& path) {
  std::ofstream out(path);
  for (const TraceRequest& r : trace)
    out << fmt::format(
        "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
        r.timestamp_ms, r.input_tokens, r.output_tokens, fmt::join(r.blocks, ", "));
  out.close();
  if (!out) return fail(ErrorCode::kUnavailable, "writing failed", path.string());
  return {};
}

std::vector<TraceRequest> generate_trace(const TrafficOptions& options) {
  std::mt19937_64 rng(options.seed);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint64_t>(n)); };
  uint64_t next_id = 0;
  const auto grow = [&](std::vector<uint64_t>& blocks, int n) {
    for (int i = 0; i < n; ++i) blocks.push_back(next_id++);
  };
  std::vector<std::vector<uint64_t>> systems(static_cast<size_t>(options.system_prompts));
  for (auto& s : systems) grow(s, 1 + below(options.system_blocks));
  const auto begin = [&] { return systems[static_cast<size_t>(below(options.system_prompts))]; };
  std::vector<std::vector<uint64_t>> sessions(static_cast<size_t>(options.running_sessions));

  std::vector<TraceRequest> trace;
  int64_t now = 0;
  for (int i = 0; i < options.requests; ++i) {
    now += below(static_cast<int>(2 * options.mean_gap_ms) + 1);
    std::vector<uint64_t> single;
    const bool once = below(10) == 0;
    auto& session = once ? single : sessions[static_cast<size_t>(below(options.running_sessions))];
    if (session.empty() || static_cast<int>(session.size()) >= options.longest_blocks ||
        below(25) == 0)
      session = begin();
    grow(session, 1 + below(options.turn_blocks));
    TraceRequest r;
    r.timestamp_ms = now;
    r.blocks = session;
    // The last block is of this request alone unless it happens to be full.
    const int last = below(4) == 0 ? kTraceBlockTokens : 1 + below(kTraceBlockTokens);
    if (last < kTraceBlockTokens) r.blocks.back() = next_id++;
    r.input_tokens = static_cast<int32_t>(r.blocks.size() - 1) * kTraceBlockTokens + last;
    r.output_tokens = 1 + below(600);
    trace.push_back(std::move(r));
  }
  return trace;
}

}  // namespace deepmint::sim
