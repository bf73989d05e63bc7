#include "engine/load_v41.h"

#include <fmt/format.h>

#include "core/log.h"
#include "core/mapped_file.h"
#include "engine/memory.h"
#include "model/deepseek_v41/model.h"
#include "model/deepseek_v41/verify.h"
#include "tokenizer/engram_map.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;

v41::ExpertPlacement placement(ExpertChoice choice) {
  switch (choice) {
    case ExpertChoice::kMapped:
      return v41::ExpertPlacement::kMapped;
    case ExpertChoice::kResident:
      return v41::ExpertPlacement::kResident;
    case ExpertChoice::kAuto:
      break;
  }
  return v41::ExpertPlacement::kAuto;
}

}  // namespace

Status load_v41_folder(const fs::path& folder, const LoadOptions& options,
                       const LoadProgress& progress, LoadedModel& loaded) {
  v41::V41Options model_options;
  model_options.pool = loaded.pool;
  model_options.experts = placement(options.experts);
  model_options.available_bytes =
      options.available_bytes > 0 ? options.available_bytes : available_memory();
  model_options.progress = progress;
  model_options.on_plan = [&](const v41::MemoryPlan& plan) {
    const std::string statement = plan.statement();
    log().info("{}: {}", folder.string(), statement);
    if (options.on_memory) options.on_memory(statement);
  };
  if (const fs::path path = folder / "tokenizer.json"; name_exists(path)) {
    DEEPMINT_TRY(tokenizer, Tokenizer::from_file(path));
    loaded.tokenizer = std::move(tokenizer);
    loaded.end_ids = loaded.tokenizer->spec().end_ids;
    DEEPMINT_TRY(config, v41::read_config(folder));
    if (!config.engram_layers.empty() && !config.engram_modulo_map)
      model_options.engram_map = make_engram_map(*loaded.tokenizer).ids;
  }
  auto arithmetic = options.arithmetic == ArithmeticChoice::kReference
                        ? v41::make_reference_arithmetic()
                        : v41::make_fast_arithmetic(loaded.pool.get());
  DEEPMINT_TRY(model, v41::V41Model::load(folder, std::move(arithmetic), std::move(model_options)));
  // Placeholders of other kinds of rows: never text, so never sampled.
  const v41::Config& c = model->config();
  for (const int64_t id : {c.image_token, c.noise_token})
    if (id >= 0 && id < c.vocab) loaded.never_ids.push_back(static_cast<TokenId>(id));
  if (c.eos >= 0 && loaded.end_ids.empty()) loaded.end_ids.push_back(static_cast<TokenId>(c.eos));
  loaded.model = std::move(model);
  return {};
}

Status check_v41_folder(const fs::path& folder) {
  DEEPMINT_CHECK_OK(v41::verify_checkpoint(folder));
  DEEPMINT_TRY(config, v41::read_config(folder));
  std::vector<int32_t> map;
  if (const fs::path path = folder / "tokenizer.json"; name_exists(path)) {
    DEEPMINT_TRY(tokenizer, Tokenizer::from_file(path));
    if (!config.engram_modulo_map) map = make_engram_map(*tokenizer).ids;
  }
  return v41::check_engram_map(config, map, (folder / "config.json").string());
}

}  // namespace deepmint
