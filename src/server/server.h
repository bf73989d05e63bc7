// The HTTP server: one model behind the API, from listening socket to streamed reply.
//
//   ServedModel served{.id = "SmolLM2-135M-Instruct", .engine = engine.get(), .tokenizer =
//   loaded.tokenizer, ...}; DEEPMINT_TRY(server, HttpServer::start(config, served));
//   fmt::print("listening on {}\n", server->url());
//   ...                                   // until SIGTERM
//   server->stop(std::chrono::seconds(30));
//   engine->drain(std::chrono::seconds(0));
//
// Threads: start() makes its own ("dm-io-0" …, "dm-work-0" …). All methods may be called from any
// thread that is not one of them. Signals are the caller's business.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "grammar/compiled.h"
#include "recipe/chat_prompt.h"
#include "server/config.h"
#include "tokenizer/tokenizer.h"

namespace deepmint {

class GrammarMasks;  // engine/grammar_masks.h

// What is served. `engine` must outlive the server; everything else is kept alive by it.
struct ServedModel {
  std::string id = {};                    // the name that requests use
  std::vector<std::string> aliases = {};  // other names that are accepted for it
  Engine* engine = nullptr;
  std::shared_ptr<const Tokenizer> tokenizer = {};
  Result<recipe::ChatTemplate> chat = {};  // an error: the chat endpoint answers with it
  std::vector<TokenId> end_ids = {};       // ids that end a reply
  SamplingParams default_sampling = {};    // for fields that a request leaves out
  int32_t default_max_tokens = -1;         // -1 = what is left of the context
  int64_t created = 0;                     // unix seconds, usually of the file; 0 = now
  uint64_t fingerprint = 0;                // ModelInfo::fingerprint
  std::string build = {};                  // the program's version
  // Of every request, whatever its service_tier says; none: the request says.
  std::optional<RequestClass> request_class = {};
  // What a reply is held to whose request asks for no response_format and whose tools ask for no
  // guarantee. A model that thinks first is held to it from the end of the thinking on.
  std::optional<grammar::Spec> default_format = {};
  // Grammars for constrained replies; null: serve() makes them of the tokenizer.
  std::shared_ptr<GrammarMasks> grammars = {};
};

class HttpServer {
 public:
  // Everything that can be wrong before there is a model: checks the settings, reads the key file,
  // binds and listens. Connections wait until serve(), which is called once and answers from the
  // moment it returns. Errors: kInvalidArgument (a setting, with its name in `where`), kNotFound or
  // kInvalidFile (the key file), kUnavailable (cannot listen: address in use, no permission).
  static Result<std::unique_ptr<HttpServer>> bind(const ServerConfig& config);
  Status serve(ServedModel model);
  // Both at once.
  static Result<std::unique_ptr<HttpServer>> start(const ServerConfig& config, ServedModel model);
  ~HttpServer();  // stop(0) when it was not called

  uint16_t port() const;    // the bound port, also when 0 was asked for
  std::string url() const;  // "http://127.0.0.1:8080"

  // Graceful end: refuses new connections and requests, reports not ready, lets running requests
  // finish, cancels what is left at the deadline and closes everything. Returns when no thread of
  // the server runs. Later calls return at once.
  void stop(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepmint
