#include "cli/open_model.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "cli/command_line.h"
#include "cli/terminal.h"
#include "core/log.h"
#include "core/mapped_file.h"
#include "core/thread_pool.h"
#include "engine/gguf_tokenizer.h"
#include "format/gguf.h"

namespace deepmint::cli {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;

std::string served_name(const std::string& model) {
  std::filesystem::path path = model;
  if (!path.has_filename()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

int64_t modified_at(const std::string& model) {
  struct stat info = {};
  return ::stat(model.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_mtime) : 0;
}

// The threads of the pool wait for each other many times in a step: when two of them share a CPU, a
// step takes tens of times as long.
int32_t usable_threads(int32_t wanted) {
  const int32_t cpus = logical_cpus();
  if (wanted <= cpus) return wanted;
  log().warn("{} threads were asked for, {} CPUs are there: taking {}", wanted, cpus, cpus);
  return cpus;
}

}  // namespace

Result<OpenModel> open_model(const std::string& path, const Config& config, int32_t requests) {
  const auto start = std::chrono::steady_clock::now();
  EngineConfig engine_config = config.engine;
  engine_config.max_running = std::min(engine_config.max_running, requests);
  DEEPMINT_CHECK_OK(check_engine_config(engine_config));
  OpenModel open;
  open.path = path;
  std::filesystem::path named = path;
  if (!named.has_filename()) named = named.parent_path();  // "folder/"
  Progress progress("loading " + named.filename().string());
  LoadOptions options;
  options.threads = usable_threads(config.cpu.threads);
  if (config.cpu.arithmetic)
    options.arithmetic =
        *config.cpu.arithmetic == "fast" ? ArithmeticChoice::kFast : ArithmeticChoice::kReference;
  if (config.cpu.experts)
    options.experts =
        *config.cpu.experts == "mapped" ? ExpertChoice::kMapped : ExpertChoice::kResident;
  options.on_memory = [](const std::string& statement) { remark(statement); };
  auto loaded = load_model(path, options, [&](double fraction) { progress.update(fraction); });
  progress.clear();
  if (!loaded) return tl::unexpected(std::move(loaded).error());
  open.loaded = std::move(*loaded);
  DEEPMINT_TRY(engine, make_engine(open.loaded, engine_config));
  open.engine = std::move(engine);
  open.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return open;
}

SamplingParams OpenModel::sampling(const SamplingConfig& config) const {
  SamplingParams params = loaded.default_sampling;
  config.apply(params);
  return params;
}

Result<const Tokenizer*> OpenModel::need_tokenizer(std::string_view purpose) const {
  if (loaded.tokenizer != nullptr) return loaded.tokenizer.get();
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("expected a tokenizer for {}, found none; --ids takes token ids", purpose), path);
}

Result<recipe::ChatTemplate> OpenModel::chat_template(
    const std::optional<std::string>& file) const {
  DEEPMINT_TRY(tokenizer, need_tokenizer("a chat prompt"));
  std::string text = loaded.chat_template;
  if (file) {
    DEEPMINT_TRY(mapped, MappedFile::open(*file));
    if (mapped.bytes().size() > kMaxTemplateBytes)
      return fail(ErrorCode::kTooLarge,
                  fmt::format("expected a chat template of at most {} bytes, found {}",
                              kMaxTemplateBytes, mapped.bytes().size()),
                  *file);
    text.assign(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  }
  auto chat = recipe::load_chat_template(text, loaded.model->info().architecture, *tokenizer);
  if (chat) return chat;
  Error error = std::move(chat).error().at(file.value_or(path));
  if (!file) error.message += "; --chat-template FILE takes another template";
  return tl::unexpected(std::move(error));
}

ServedModel serve_model(const OpenModel& open, const SamplingConfig& sampling,
                        const std::optional<std::string>& name, Result<recipe::ChatTemplate> chat) {
  ServedModel served;
  served.id = name.value_or(served_name(open.path));
  served.engine = open.engine.get();
  served.tokenizer = open.loaded.tokenizer;
  served.chat = std::move(chat);
  if (served.id != "default") served.aliases = {"default"};
  served.end_ids = open.loaded.end_ids;
  served.default_sampling = open.sampling(sampling);
  served.default_max_tokens = sampling.max_tokens;
  served.created = modified_at(open.path);
  served.fingerprint = open.loaded.model->info().fingerprint;
  served.build = program_version();
  return served;
}

Result<std::shared_ptr<const Tokenizer>> open_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const fs::path file = fs::path(path) / "tokenizer.json";
    if (!name_exists(file))
      return fail(ErrorCode::kNotFound, "expected a tokenizer (tokenizer.json), found none", path);
    return Tokenizer::from_file(file);
  }
  if (path.ends_with(".json")) return Tokenizer::from_file(path);
  DEEPMINT_TRY(file, GgufFile::open(path));
  auto spec = tokenizer_spec_from_gguf(file);
  if (!spec) return tl::unexpected(std::move(spec).error().at(path));
  return Tokenizer::create(std::move(*spec));
}

}  // namespace deepmint::cli
