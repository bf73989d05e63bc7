// From a path that the user named to something that can answer: weights, tokenizer, chat template,
// defaults.
//
//   DEEPMINT_TRY(loaded, load_model("model.gguf", {.threads = 2}, progress));
//   auto engine = make_engine(loaded, {});
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/limits.h"
#include "core/thread_pool.h"
#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

// Of DeepSeek-V4.1 models: both are whole implementations of the specification (design: arithmetic
// on the CPU). `reference` sums in double and equals the published oracle; it is slow. Dense models
// have one arithmetic, which is neither.
enum class ArithmeticChoice : uint8_t { kAuto, kReference, kFast };

// Where routed experts live: read into memory at load, or fetched from the mapped file as routing
// asks for them. Auto: resident when they fit.
enum class ExpertChoice : uint8_t { kAuto, kMapped, kResident };

struct LoadOptions {
  int32_t threads = 0;  // 0 = physical cores
  ArithmeticChoice arithmetic = ArithmeticChoice::kAuto;
  ExpertChoice experts = ExpertChoice::kAuto;
  uint64_t available_bytes = 0;  // memory that weights may take; 0 = what is free now
  // One line, before weights are read, of models whose weights stay in mapped files: what will be
  // in memory and what on disk.
  std::function<void(const std::string&)> on_memory = {};
};

using LoadProgress = std::function<void(double fraction)>;  // 0 … 1, from the loading thread

struct LoadedModel {
  std::shared_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the folder has none and works on token ids
  std::string chat_template;                   // Jinja text from the metadata; may be empty
  std::vector<TokenId> end_ids;                // ids that end a reply
  SamplingParams
      default_sampling;  // the model's own generation metadata, else the product's defaults
  std::vector<TokenId>
      never_ids;  // ids that a reply must never hold (image and noise placeholders)
  std::shared_ptr<ThreadPool> pool;  // what the model computes on; null: the engine makes its own
  int32_t threads = 1;
};

// MODEL is a .gguf file or a folder in Hugging Face layout. Errors name the file and what is wrong
// with it.
Result<LoadedModel> load_model(const std::filesystem::path& path, const LoadOptions& options,
                               const LoadProgress& progress = {});

// What load_model() would refuse in a checkpoint, found without reading its weights. OK for
// architectures of which only load_model() knows.
Status check_model(const std::filesystem::path& path);

// Every setting has its limits in visit(); check_engine_config() looks at them and at what two
// settings ask of each other, without a model.
struct EngineConfig {
  int32_t context_tokens =
      0;  // 0 = the model's, capped so that the state of one sequence fits the budget
  int64_t kv_bytes = 0;        // 0 = half of the free memory
  int32_t max_running = 64;    // sequences stepped together
  int32_t max_waiting = 1024;  // queue bound; beyond it submit() refuses
  int32_t step_tokens = 512;   // rows per step: decode rows first, prefill chunks fill the rest
  int64_t step_attention = 4 << 20;  // of prefill rows: the sum of the positions that they look at
  bool prefix_cache = true;     // keep state of prompts and outputs for requests that begin alike
  int64_t snapshot_bytes = -1;  // for window state at prefixes; -1 = an eighth of the budget
  int64_t park_bytes = -1;      // for states of preempted requests; -1 = an eighth of the budget
  int32_t max_queue_ms = 0;     // a request that has waited longer ends with an error; 0 = no limit
  int32_t interactive_first_token_ms = 0;  // refuse what would get its first token later; 0 = never
  int32_t agent_first_token_ms = 0;
  bool plan_ahead = false;           // plan a step while the one before runs
  std::string record_schedule = {};  // a file to write every request and step to (ScheduleLog)
  template <class V>
  void visit(V& v) {
    v("engine.context_tokens", context_tokens,
      "largest prompt + output of one request; 0 = the model's, as far as memory allows");
    v("engine.kv_bytes", kv_bytes,
      "bytes set aside for sequence state; 0 = half of the free memory");
    v("engine.max_running", max_running, "sequences stepped together",
      Limits{.min = 1, .max = 4096});
    v("engine.max_waiting", max_waiting,
      "requests that may wait; more are refused with a retry time",
      Limits{.min = 1, .max = 1'000'000});
    v("engine.step_tokens", step_tokens,
      "rows per step; decode rows come first, prompt chunks fill the rest; at least max_running",
      Limits{.min = 1, .max = 65'536});
    v("engine.step_attention", step_attention,
      "prompt rows of a step look at no more positions than this in all: a long prompt does not "
      "hold up replies",
      Limits{.min = 1});
    v("engine.prefix_cache", prefix_cache,
      "keep the state of prompts and replies for requests that begin alike; the same answers");
    v("engine.snapshot_bytes", snapshot_bytes,
      "of kv_bytes: for window state where prefixes end, in models that have such; -1 = an eighth",
      Limits{.min = -1});
    v("engine.park_bytes", park_bytes,
      "of kv_bytes: for requests that step aside for a better class; -1 = an eighth, 0 = none does",
      Limits{.min = -1});
    v("engine.max_queue_ms", max_queue_ms,
      "a request that waited so long without being started ends with an error; 0 = no limit");
    v("engine.interactive_first_token_ms", interactive_first_token_ms,
      "interactive requests whose first token would come later than this are refused with a retry "
      "time; 0 = never");
    v("engine.agent_first_token_ms", agent_first_token_ms, "the same for agent requests");
    v("engine.plan_ahead", plan_ahead,
      "plan a step and deliver the events of the last one on a thread of their own while the model "
      "runs; the same answers");
    v("engine.record_schedule", record_schedule,
      "file to write every request (its prompt too) and step to, so that they can be done again; "
      "empty = none");
  }
};

// kInvalidArgument naming the setting. make_engine() calls it too.
Status check_engine_config(const EngineConfig& config);

Result<std::unique_ptr<Engine>> make_engine(const LoadedModel& loaded, const EngineConfig& config,
                                            const Clock& clock = Clock::steady());

}  // namespace deepmint
