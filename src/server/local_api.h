// The API without a network: requests of this process, answered by the code that answers HTTP. Same
// checks, same errors, same bits.
//
//   DEEPMINT_TRY(api, LocalApi::create(config, served));
//   api->post("/v1/chat/completions", body, [](LocalApi::Answer answer) { use(answer); });
//   while (api->running() > 0) { wait_readable(api->fd()); api->step(); }
//
// Everything is called from one thread, which plays the part of a server's io thread: it turns
// tokens into text in step(), so it must not stay away for long. Parsing and tokenising happen on
// the workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/result.h"
#include "server/config.h"
#include "server/server.h"

namespace deepmint {

class LocalApi {
 public:
  struct Answer {
    int status = 200;
    std::string body = {};  // one JSON object on one line
  };
  using Done = std::function<void(Answer answer)>;

  // Of `config` the limits of bodies and the number of workers count. Errors: kUnsupported (the
  // model has no tokenizer), kUnavailable (threads or memory have run out).
  static Result<std::unique_ptr<LocalApi>> create(const ServerConfig& config, ServedModel model);
  ~LocalApi();  // cancels what runs; its `done` is not called

  // The paths that post() has an answer for, without the short forms.
  static std::vector<std::string_view> paths();
  static bool has_path(std::string_view path);  // short forms, too

  // A body of a request that does not stream. `done` is called by a later step(), once.
  void post(std::string_view path, std::string body, Done done);

  int fd() const;  // readable when step() has something to do
  void step();
  int64_t running() const;      // posted and not done
  bool engine_is_idle() const;  // nothing runs there or waits, cancelled requests included
  int64_t body_bytes() const;   // of bodies that nobody has parsed yet

 private:
  struct Impl;
  explicit LocalApi(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepmint
