// One request, many schedules, one answer. A Subject is a model in a few thread counts; a Case says
// how the engine is driven; check() runs the request alone and whole on one thread, then as the
// case says, and compares tokens, log-probabilities and alternatives bit by bit.
//
//   Harness harness(subject, seed);
//   for (int i = 0; i < 300; ++i)
//     if (const auto failure = harness.check(harness.case_at(i))) FAIL() << *failure;
//
// Cases come from covering arrays, one after another: within each, every pair of values of any two
// dimensions occurs. What a case leaves open (which step, which companion) is drawn from its own
// seed, so a failure is repeated by the harness's seed and the index of the case alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_core.h"
#include "engine/load.h"
#include "one_answer/tapped_model.h"

namespace deepmint::one_answer {

struct Subject {
  std::string name;
  std::vector<LoadedModel> loaded = {};  // [0] computes on one thread, the others on more
  std::vector<TokenId> text = {};        // prompts are its beginnings
  std::vector<int> prompt_lengths = {};
  std::vector<int> company = {1, 2, 4, 16, 64};  // requests in the engine, ours among them
  std::vector<int> chunks = {1, 7, 64, 127, 128, 129, 2048};  // prompt rows per step
  std::vector<int> tails = {};  // rows that bounded decoder tails keep; none: a model without
  int max_tokens = 20;
  int companion_prompt = 80;  // longest
};

enum class Cache : uint8_t { kCold, kOneBlock, kHalf, kAnyBlock, kAll, kEvicted };
enum class Sampling : uint8_t { kGreedy, kSeeded, kPenalties, kThreeChoices };

struct Case {
  int index = 0;
  int company = 1, chunk = 2048, prompt = 1;
  Cache cache = Cache::kCold;
  Sampling sampling = Sampling::kGreedy;
  int restores = 0;  // times that the request is saved and goes on in another engine
  // Our decoder tail, bounded; unset: exact. Never together with restores: the engine exports no
  // request with a bounded tail, since the saved form does not name the approximation.
  std::optional<int32_t> tail = {};
  bool preempt = false, async = false, abort_neighbours = false, spread = false;
  size_t threads = 0;  // index into Subject::loaded
  uint64_t seed = 0;
  std::string describe() const;
};

struct Answer {
  struct Token {
    TokenId id = 0;
    int32_t position = 0;
    float logprob = 0;
    std::vector<TopLogprob> top;
  };
  std::vector<Token> tokens;
  FinishReason reason = FinishReason::kLength;
  int32_t skipped_tokens = 0;  // Usage::tail_skipped_tokens
};

// What the cases of one harness have exercised, so that a test can say that it was not for nothing.
struct Seen {
  int64_t cached_tokens = 0, restores = 0, preemptions = 0, aborted = 0, planned_ahead = 0;
  int64_t skipped_tokens = 0;      // of our prompts, by tails shorter than the exact one
  int64_t snapshots_restored = 0;  // of window state
  int64_t bounded_neighbours = 0;  // that asked for an approximation beside our exact requests
};

class Harness {
 public:
  // fault: a wrong model, for negative controls; only in company, so the reference is right.
  Harness(Subject subject, uint64_t seed, Fault fault = Fault::kNone);
  ~Harness();

  Case case_at(int index);
  // Empty: the same answer. Else what differs, where first, how to repeat it, and files with the
  // schedules of its engines (bench/schedule_replay).
  std::optional<std::string> check(const Case& c);
  // The schedules of a case, one per engine, with the model each ran on.
  struct Recorded {
    std::vector<std::string> lines;
    LoadedModel loaded;
  };
  std::vector<Recorded> record(const Case& c);
  const Seen& seen() const { return seen_; }

 private:
  class Run;
  std::vector<GenerationRequest> requests_of(const Case& c) const;
  const std::vector<Answer>& reference(const Case& c);
  std::string first_difference(const Case& c, size_t choice, const std::vector<Answer>& expected);

  Subject subject_;
  uint64_t seed_;
  const bool keeps_schedules_;  // of failing cases: not where they are meant to fail
  std::vector<std::shared_ptr<TappedModel>> tapped_;
  std::map<int, std::vector<std::vector<int>>> arrays_;  // by round
  std::map<std::tuple<int, Sampling, std::optional<int32_t>>, std::vector<Answer>> references_;
  Seen seen_;
};

// Compares bit by bit; empty when equal.
std::string difference(const Answer& found, const Answer& expected);

}  // namespace deepmint::one_answer
