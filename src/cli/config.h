// Every setting of the program with its default and its meaning, in one list. The configuration
// file, the environment, the flags, --help and docs/knobs.md are all made from this list
// (settings.h), so none of them can lag behind.
//
//   Config config;
//   Settings settings(config);                 // binds names to fields
//   DEEPMINT_CHECK_OK(settings.load({.file = "deepmint.toml", .flags = {{"cpu.threads", "2"}}}));
//   load_model(path, {.threads = config.cpu.threads});
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/limits.h"
#include "deepmint/sampling.h"
#include "engine/load.h"
#include "server/config.h"

namespace deepmint::cli {

struct CpuConfig {
  int32_t threads = 0;
  std::optional<std::string> isa, arithmetic, experts;
  template <class V>
  void visit(V& v) {
    v("cpu.threads", threads,
      "threads for the model's arithmetic, at most one for each CPU; 0 = physical cores",
      Limits{.min = 0, .max = 1024});
    v("cpu.isa", isa,
      "instruction set, to reproduce another machine's bits; auto = the best one here",
      Limits{.choices = {"x86-64", "avx2", "avx512", "avx512vnni", "avx512bf16"}});
    v("cpu.arithmetic", arithmetic,
      "of DeepSeek-V4.1 models: reference sums in double and equals the published oracle, slowly; "
      "auto = fast, in float32, within the gate of the specification",
      Limits{.choices = {"reference", "fast"}});
    v("cpu.experts", experts,
      "of DeepSeek-V4.1 models: routed experts read into memory, or mapped and read as they are "
      "needed; auto = resident when they fit",
      Limits{.choices = {"mapped", "resident"}});
  }
};

// What a request uses where it does not say. `auto` takes the model's own generation metadata, else
// the value named.
struct SamplingConfig {
  std::optional<float> temperature, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  int32_t max_tokens = -1;
  template <class V>
  void visit(V& v) {
    v("sampling.temperature", temperature,
      "0 = always the likeliest token, and less than 1e-20 counts as 0; auto = the model's own, "
      "else 1",
      Limits{.min = 0, .max = kMaxTemperature});
    v("sampling.top_p", top_p,
      "keep the likeliest tokens up to this mass; auto = the model's own, else 1 (off)",
      Limits{.min = 0, .max = 1, .above_min = true});
    v("sampling.top_k", top_k,
      "keep this many of the likeliest tokens; 0 = all; auto = the model's own, else 0",
      Limits{.min = 0});
    v("sampling.min_p", min_p,
      "drop tokens below this share of the likeliest one; auto = the model's own, else 0 (off)",
      Limits{.min = 0, .max = 1});
    v("sampling.repetition_penalty", repetition_penalty,
      "divides the score of tokens already in prompt or reply; auto = the model's own, else 1 "
      "(off)",
      Limits{.min = kMinRepetitionPenalty, .max = kMaxRepetitionPenalty});
    v("sampling.frequency_penalty", frequency_penalty,
      "taken off a token's score for each time it is in the reply; auto = the model's own, else 0",
      Limits{.min = -kMaxPenalty, .max = kMaxPenalty});
    v("sampling.presence_penalty", presence_penalty,
      "taken off a token's score once it is in the reply; auto = the model's own, else 0",
      Limits{.min = -kMaxPenalty, .max = kMaxPenalty});
    v("sampling.seed", seed,
      "makes a reply repeatable; auto = a new one for each request, reported with the reply");
    v("sampling.max_tokens", max_tokens,
      "longest reply in tokens; -1 = what is left of the context", Limits{.min = -1});
  }
  // Puts the values that are set over `params`.
  void apply(SamplingParams& params) const;
};

struct LogConfig {
  std::optional<std::string> level;
  template <class V>
  void visit(V& v) {
    v("log.level", level,
      "what to log on standard error; auto = info for serve, warn for the other commands",
      Limits{.choices = {"trace", "debug", "info", "warn", "error", "off"}});
  }
};

struct Config {
  CpuConfig cpu;
  EngineConfig engine;
  SamplingConfig sampling;
  ServerConfig server;
  LogConfig log;
  template <class V>
  void visit(V& v) {
    cpu.visit(v);
    engine.visit(v);
    sampling.visit(v);
    server.visit(v);
    log.visit(v);
  }
};

}  // namespace deepmint::cli
