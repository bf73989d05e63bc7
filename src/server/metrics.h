// Counters of the API and their Prometheus text. Increments are relaxed atomics; nothing here
// blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "deepmint/engine.h"
#include "server/http/transport.h"

namespace deepmint {

struct Metrics {
  std::atomic<int64_t> requests{0};  // chat completions that were admitted
  std::atomic<int64_t> prompt_tokens{0}, cached_tokens{0}, output_tokens{0};
  std::atomic<int64_t> finished_stop{0}, finished_length{0}, finished_cancelled{0},
      finished_error{0};
  std::array<std::atomic<int64_t>, kCacheMisses> cache_misses{};  // finished choices by CacheMiss
  std::array<std::atomic<int64_t>, 6> responses{};                // by first digit of the status

  void count_response(int status) {
    if (status >= 100 && status < 600)
      responses[static_cast<size_t>(status / 100)].fetch_add(1, std::memory_order_relaxed);
  }
};

// Text exposition format 0.0.4. Names that vLLM also has keep its spelling, so that existing
// dashboards work.
std::string prometheus_text(const Metrics& metrics, const EngineStats& engine,
                            const http::TransportStats& transport, std::string_view model_name);

}  // namespace deepmint
