// What every endpoint needs: the served model, settings, keys, counters, workers. One per server,
// shared by its requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/auth.h"
#include "server/config.h"
#include "server/metrics.h"
#include "server/server.h"
#include "server/worker_pool.h"

namespace deepmint {

// Whether the API can stand on this model: kInvalidArgument, kUnsupported.
Status check_served(const ServedModel& model);

struct ApiContext {
  // `model.engine` and `model.tokenizer` are set.
  ApiContext(const ServerConfig& config, ServedModel model, ApiKeys keys);

  const ServerConfig config;
  const ServedModel model;
  const ApiKeys keys;
  const std::string fingerprint;  // "fp_" + 16 digits of build, weights and instruction-set class
  const int64_t created;          // unix seconds
  const size_t longest_token_bytes;  // no prompt has fewer tokens than its bytes over this
  Metrics metrics;
  WorkerPool workers;
  std::atomic<bool> draining{false};

  bool knows_model(std::string_view name) const;
  std::string next_completion_id();  // "chatcmpl-" + 24 hexadecimal digits

 private:
  const uint64_t id_base_;
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace deepmint
