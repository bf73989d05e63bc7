#include "server/metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace deepmint {
namespace {

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out.push_back('\\');
    if (c == '\n')
      out += "\\n";
    else
      out.push_back(c);
  }
  return out;
}

class Exposition {
 public:
  explicit Exposition(std::string_view model) : model_(label_value(model)) {}
  void family(std::string_view name, std::string_view type, std::string_view help) {
    fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name,
                   type);
  }
  void sample(std::string_view name, double value, std::string_view labels = {}) {
    fmt::format_to(std::back_inserter(out_), "{}{{model_name=\"{}\"{}{}}} {}\n", name, model_,
                   labels.empty() ? "" : ",", labels, value);
  }
  void one(std::string_view name, std::string_view type, std::string_view help, double value) {
    family(name, type, help);
    sample(name, value);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string model_, out_;
};

double value(const std::atomic<int64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

}  // namespace

std::string prometheus_text(const Metrics& metrics, const EngineStats& engine,
                            const http::TransportStats& transport, std::string_view model_name) {
  Exposition e(model_name);
  e.one("vllm:num_requests_running", "gauge", "Requests in the running batch.",
        static_cast<double>(engine.running));
  e.one("vllm:num_requests_waiting", "gauge", "Requests waiting to be admitted.",
        static_cast<double>(engine.waiting));
  const double used = engine.blocks_total > 0 ? 1.0 - static_cast<double>(engine.blocks_free) /
                                                          static_cast<double>(engine.blocks_total)
                                              : 0.0;
  e.one("vllm:kv_cache_usage_perc", "gauge", "Share of cache blocks in use, 0 to 1.", used);
  e.one("vllm:prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
        value(metrics.prompt_tokens));
  e.one("vllm:generation_tokens_total", "counter", "Tokens generated.",
        value(metrics.output_tokens));
  e.family("vllm:request_success_total", "counter", "Finished choices by reason.");
  e.sample("vllm:request_success_total", value(metrics.finished_stop), "finished_reason=\"stop\"");
  e.sample("vllm:request_success_total", value(metrics.finished_length),
           "finished_reason=\"length\"");
  e.sample("vllm:request_success_total", value(metrics.finished_cancelled),
           "finished_reason=\"abort\"");
  e.sample("vllm:request_success_total", value(metrics.finished_error),
           "finished_reason=\"error\"");
  e.one("deepmint:cached_prompt_tokens_total", "counter", "Prompt tokens whose state was reused.",
        value(metrics.cached_tokens));
  e.family(
      "deepmint:prompt_cache_misses_total", "counter",
      "Finished choices by why no more of their prompt was cached; none: all that can be was.");
  for (size_t reason = 0; reason < kCacheMisses; ++reason)
    e.sample("deepmint:prompt_cache_misses_total", value(metrics.cache_misses[reason]),
             fmt::format("reason=\"{}\"", to_string(static_cast<CacheMiss>(reason))));
  e.one("deepmint:requests_total", "counter", "Chat completions admitted.",
        value(metrics.requests));
  e.one("deepmint:engine_steps_total", "counter", "Engine steps.",
        static_cast<double>(engine.steps));
  e.one("deepmint:engine_step_seconds_total", "counter", "Time that engine steps worked.",
        static_cast<double>(engine.step_ns) * 1e-9);
  e.one("deepmint:engine_step_gap_seconds_total", "counter",
        "Time between and inside steps without work for the model's threads, with requests there.",
        static_cast<double>(engine.step_gap_ns) * 1e-9);
  e.one("deepmint:engine_refused_total", "counter", "Requests that the engine refused.",
        static_cast<double>(engine.refused));
  e.one("deepmint:replayed_prompt_tokens_total", "counter",
        "Of the cached prompt tokens: run again to rebuild window state.",
        static_cast<double>(engine.replayed_tokens));
  e.one("deepmint:cache_evictions_total", "counter", "Cached blocks that gave way to others.",
        static_cast<double>(engine.cache_evictions));
  e.one("deepmint:preempted_total", "counter", "Requests that stepped aside for a better class.",
        static_cast<double>(engine.preempted));
  e.family("deepmint:state_bytes", "gauge", "Memory for sequence state, by use.");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.bytes_running), "use=\"running\"");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.bytes_cached), "use=\"cached\"");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.bytes_snapshots),
           "use=\"snapshots\"");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.parked_bytes), "use=\"parked\"");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.bytes_free), "use=\"free\"");
  e.sample("deepmint:state_bytes", static_cast<double>(engine.bytes_books), "use=\"books\"");
  e.family("deepmint:http_responses_total", "counter", "HTTP responses by class of status.");
  for (size_t kind = 1; kind < metrics.responses.size(); ++kind)
    e.sample("deepmint:http_responses_total", value(metrics.responses[kind]),
             fmt::format("status=\"{}xx\"", kind));
  e.one("deepmint:http_connections", "gauge", "Open connections.", value(transport.connections));
  e.one("deepmint:http_connections_total", "counter", "Connections accepted.",
        value(transport.accepted));
  e.one("deepmint:http_connections_refused_total", "counter", "Connections over the limit.",
        value(transport.refused));
  e.one("deepmint:http_clients_gone_total", "counter",
        "Requests whose client left before the answer.", value(transport.clients_gone));
  e.one("deepmint:http_stalled_readers_total", "counter", "Of those: readers that were too slow.",
        value(transport.stalled));
  return e.take();
}

}  // namespace deepmint
