// Settings of the HTTP server, as one list: file, environment, flags, --help and docs/knobs.md are
// made from visit(). HttpServer::start checks every value and names the setting that is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/limits.h"

namespace deepmint {

struct ServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  int32_t io_threads = 1;
  int32_t worker_threads = 2;
  int32_t max_connections = 4096;
  int64_t max_body_bytes = int64_t{32} << 20;
  int64_t max_total_body_bytes = int64_t{256} << 20;
  int32_t max_header_bytes = 32 << 10;
  int64_t max_output_bytes = int64_t{4} << 20;
  int32_t header_timeout_ms = 10'000;
  int32_t body_timeout_ms = 30'000;
  int32_t idle_timeout_ms = 75'000;
  int32_t write_timeout_ms = 30'000;
  int32_t keep_alive_ms = 10'000;
  int32_t drain_timeout_ms = 30'000;
  std::string api_keys_file;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;

  template <class V>
  void visit(V& v) {
    constexpr double kDay = 24 * 3'600'000.0;
    v("server.host", host, "address or name to listen on; 0.0.0.0 or :: for every interface");
    v("server.port", port, "TCP port; 0 takes a free one and prints it");
    v("server.io_threads", io_threads, "threads that move bytes between sockets and requests",
      Limits{.min = 1, .max = 64});
    v("server.worker_threads", worker_threads, "threads that parse requests and tokenise prompts",
      Limits{.min = 1, .max = 256});
    v("server.max_connections", max_connections,
      "open connections; more are answered 503 and closed", Limits{.min = 1, .max = 1'000'000});
    v("server.max_body_bytes", max_body_bytes, "largest request body; beyond it 413",
      Limits{.min = 1, .max = 0x1p30});
    v("server.max_total_body_bytes", max_total_body_bytes,
      "request bodies held at one time, all connections together; beyond it 503; at least "
      "max_body_bytes",
      Limits{.min = 1, .max = 0x1p36});
    v("server.max_header_bytes", max_header_bytes,
      "largest request head; beyond it 431 (414 for the request line)",
      Limits{.min = 1024, .max = 1 << 20});
    v("server.max_output_bytes", max_output_bytes,
      "streamed bytes that may wait for one slow reader; beyond it its request is cancelled",
      Limits{.min = 16 << 10, .max = 0x1p30});
    v("server.header_timeout_ms", header_timeout_ms, "milliseconds for a request head to arrive",
      Limits{.min = 1, .max = kDay});
    v("server.body_timeout_ms", body_timeout_ms,
      "milliseconds for a request body to arrive, plus one second for each 16 KiB received",
      Limits{.min = 1, .max = kDay});
    v("server.idle_timeout_ms", idle_timeout_ms,
      "milliseconds that an unused connection is kept open", Limits{.min = 1, .max = kDay});
    v("server.write_timeout_ms", write_timeout_ms,
      "milliseconds without progress after which a stalled reader's request is cancelled",
      Limits{.min = 1, .max = kDay});
    v("server.keep_alive_ms", keep_alive_ms,
      "milliseconds of silence in a stream after which a comment line is sent",
      Limits{.min = 1, .max = kDay});
    v("server.drain_timeout_ms", drain_timeout_ms,
      "milliseconds that running requests get to finish when the server stops",
      Limits{.min = 0, .max = kDay});
    v("server.api_keys_file", api_keys_file,
      "file of SHA-256 digests of API keys, one hexadecimal line each; empty = no key needed");
    v("server.allowed_hosts", allowed_hosts,
      "further Host names that a server on a loopback address answers to (a proxy's public name)");
    v("server.allowed_origins", allowed_origins,
      "web origins (https://app.example.com) whose pages may call the API; * = all");
  }
};

}  // namespace deepmint
