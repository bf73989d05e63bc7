// From the MODEL argument to a running engine, with progress on a terminal. Shared by the commands
// that answer something.
//
//   DEEPMINT_TRY(open, open_model(path, config));
//   open.engine->submit(...)
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/config.h"
#include "deepmint/engine.h"
#include "engine/load.h"
#include "recipe/chat_prompt.h"
#include "server/server.h"

namespace deepmint::cli {

struct OpenModel {
  LoadedModel loaded;
  std::unique_ptr<Engine> engine;
  std::string path;
  double load_s = 0;  // from the file to an engine that takes requests

  SamplingParams sampling(
      const SamplingConfig& config) const;  // the model's defaults under the settings

  // The tokenizer, or kInvalidArgument: the model has none and `purpose` ("a text prompt") needs
  // one.
  Result<const Tokenizer*> need_tokenizer(std::string_view purpose) const;
  // The model's own prompt format, or the template in `file` (--chat-template).
  Result<recipe::ChatTemplate> chat_template(const std::optional<std::string>& file) const;
};

// requests: how many the command will run at one time; nothing is set aside for more.
Result<OpenModel> open_model(const std::string& path, const Config& config, int32_t requests);

// What the API needs of it. `name`: what requests call the model, --name; without it, the file's
// name without its extension or the folder's; "default" always works.
ServedModel serve_model(const OpenModel& open, const SamplingConfig& sampling,
                        const std::optional<std::string>& name, Result<recipe::ChatTemplate> chat);

// The tokenizer alone, without weights; `path` may also be a tokenizer.json.
Result<std::shared_ptr<const Tokenizer>> open_tokenizer(const std::string& path);

}  // namespace deepmint::cli
