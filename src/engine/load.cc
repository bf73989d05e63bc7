#include "engine/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>

#include "core/json.h"
#include "core/mapped_file.h"
#include "engine/gguf_tokenizer.h"
#include "engine/load_v41.h"
#include "format/gguf.h"
#include "model/deepseek_v41/config.h"
#include "model/dense/load.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;
using TokenizerResult = Result<std::shared_ptr<const Tokenizer>>;

constexpr int32_t kMaxThreads = 1024;
constexpr size_t kMaxJsonBytes = size_t{64} << 20;

// Runs on a second thread beside the packing of the weights: for a small model the vocabulary takes
// as long as the weights do.
template <class Build>
std::future<TokenizerResult> beside(Build build) {
  return std::async(std::launch::async, [build = std::move(build)]() -> TokenizerResult {
    try {
      return build();
    } catch (const std::exception& e) {
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("the tokenizer could not be built: {}", e.what()));
    }
  });
}

Status check_vocabulary(const LoadedModel& loaded, const fs::path& path) {
  if (loaded.tokenizer == nullptr) return {};
  const int64_t model = loaded.model->info().vocab_size, words = loaded.tokenizer->vocab_size();
  if (words <= model) return {};
  return fail(
      ErrorCode::kInvalidFile,
      fmt::format("expected a tokenizer of at most {} ids, the model's, found {}", model, words),
      path.string());
}

// A default that the model's own metadata gives must be one that a caller could have given.
Status check_defaults(const LoadedModel& loaded, const fs::path& path) {
  auto ok = loaded.default_sampling.validate(loaded.model->info().vocab_size);
  if (ok) return ok;
  Error error = std::move(ok).error();
  error.code = ErrorCode::kInvalidFile;
  return tl::unexpected(std::move(error).at("generation defaults").at(path.string()));
}

void add_unique(std::vector<TokenId>& ids, TokenId id) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

// ---------------------------------------------------------------- GGUF

// general.sampling.*: what the file's author recommends.
Result<SamplingParams> gguf_defaults(const GgufFile& file) {
  SamplingParams p;
  DEEPMINT_TRY(temperature,
               file.number_or("general.sampling.temp", static_cast<double>(p.temperature)));
  DEEPMINT_TRY(top_k, file.integer_or("general.sampling.top_k", p.top_k));
  DEEPMINT_TRY(top_p, file.number_or("general.sampling.top_p", p.top_p));
  DEEPMINT_TRY(min_p, file.number_or("general.sampling.min_p", static_cast<double>(p.min_p)));
  DEEPMINT_TRY(repeat, file.number_or("general.sampling.penalty_repeat",
                                      static_cast<double>(p.repetition_penalty)));
  p.temperature = static_cast<float>(temperature);
  p.top_k =
      static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, std::numeric_limits<int32_t>::max()));
  p.top_p = top_p;
  p.min_p = static_cast<float>(min_p);
  p.repetition_penalty = static_cast<float>(repeat);
  return p;
}

Result<LoadedModel> load_gguf(const fs::path& path, LoadedModel loaded,
                              const LoadProgress& progress) {
  DEEPMINT_TRY(opened, GgufFile::open(path));
  const auto file = std::make_shared<const GgufFile>(std::move(opened));
  const auto at_path = [&](Error error) {
    return tl::unexpected(std::move(error).at(path.string()));
  };
  const auto architecture = file->string("general.architecture");
  if (!architecture) return at_path(architecture.error());
  if (!is_dense_architecture(*architecture))
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("expected architecture llama, qwen2 or qwen3, found \"{}\"", *architecture),
        path.string());

  std::future<TokenizerResult> tokenizer;
  if (file->find("tokenizer.ggml.model") != nullptr)
    tokenizer = beside([file]() -> TokenizerResult {
      DEEPMINT_TRY(spec, tokenizer_spec_from_gguf(*file));
      return Tokenizer::create(std::move(spec));
    });
  auto model = load_dense_gguf(file, {.pool = loaded.pool, .progress = progress});
  if (tokenizer.valid()) {
    auto built = tokenizer.get();
    if (!built) return at_path(built.error());
    loaded.tokenizer = std::move(*built);
    loaded.end_ids = loaded.tokenizer->spec().end_ids;
  }
  if (!model) return tl::unexpected(std::move(model).error());
  loaded.model = std::move(*model);
  const auto chat_template = file->string_or("tokenizer.chat_template", "");
  if (!chat_template) return at_path(chat_template.error());
  loaded.chat_template = *chat_template;
  auto defaults = gguf_defaults(*file);
  if (!defaults) return at_path(defaults.error());
  loaded.default_sampling = std::move(*defaults);
  return loaded;
}

// ---------------------------------------------------------------- Hugging Face folder

Result<json::Value> read_json(const fs::path& path) {
  const auto at_path = [&](Error error) {
    if (error.code == ErrorCode::kInvalidArgument) error.code = ErrorCode::kInvalidFile;
    return tl::unexpected(std::move(error).at(path.string()));
  };
  auto file = MappedFile::open(path);
  if (!file) return tl::unexpected(std::move(file).error());
  const auto bytes = file->bytes();
  auto value = json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           {.max_bytes = kMaxJsonBytes});
  if (!value) return at_path(std::move(value).error());
  if (!value->is_object())
    return at_path({ErrorCode::kInvalidFile,
                    fmt::format("expected an object, found {}", json::to_string(value->kind())),
                    {}});
  return value;
}

tl::unexpected<Error> wrong_type(const fs::path& path, std::string_view key,
                                 std::string_view expected, const json::Value& found) {
  return fail(ErrorCode::kInvalidFile,
              fmt::format("expected {}, found {}", expected, json::to_string(found.kind())),
              fmt::format("{}: \"{}\"", path.string(), key));
}

// The number at `key` when it is there and not null.
Status number_at(const json::Value& object, std::string_view key, const fs::path& path,
                 const auto& assign) {
  const json::Value* v = object.find(key);
  if (v == nullptr || v->is_null()) return {};
  const auto number = v->to_double();
  if (!number) return wrong_type(path, key, "a number", *v);
  assign(*number);
  return {};
}

// "eos_token_id": one id or a list.
Status end_ids_at(const json::Value& object, const fs::path& path, std::vector<TokenId>& ids) {
  const json::Value* v = object.find("eos_token_id");
  if (v == nullptr || v->is_null()) return {};
  const auto add = [&](const json::Value& one) -> Status {
    const auto id = one.to_int64();
    if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max())
      return wrong_type(path, "eos_token_id", "a token id or a list of them", one);
    add_unique(ids, static_cast<TokenId>(*id));
    return {};
  };
  if (!v->is_array()) return add(*v);
  for (const json::Value& one : v->items()) DEEPMINT_CHECK_OK(add(one));
  return {};
}

Status hf_defaults(const json::Value& generation, const fs::path& path, SamplingParams& p) {
  const auto to_float = [](float& field) {
    return [&field](double v) { field = static_cast<float>(v); };
  };
  DEEPMINT_CHECK_OK(number_at(generation, "temperature", path, to_float(p.temperature)));
  DEEPMINT_CHECK_OK(number_at(generation, "top_p", path, [&](double v) { p.top_p = v; }));
  DEEPMINT_CHECK_OK(number_at(generation, "min_p", path, to_float(p.min_p)));
  DEEPMINT_CHECK_OK(
      number_at(generation, "repetition_penalty", path, to_float(p.repetition_penalty)));
  DEEPMINT_CHECK_OK(number_at(generation, "top_k", path, [&](double v) {
    p.top_k = std::isfinite(v) ? static_cast<int32_t>(std::clamp(v, 0.0, 2147483647.0)) : 0;
  }));
  if (const json::Value* sample = generation.find("do_sample");
      sample != nullptr && sample->is_bool() && !sample->as_bool())
    p.temperature = 0;
  return {};
}

// "chat_template" of tokenizer_config.json is a text, or a list of named texts of which "default"
// is meant.
Result<std::string> chat_template_of(const json::Value& config, const fs::path& path) {
  const json::Value* v = config.find("chat_template");
  if (v == nullptr || v->is_null()) return std::string();
  if (v->is_string()) return v->as_string();
  if (!v->is_array()) return wrong_type(path, "chat_template", "a string or a list", *v);
  for (const json::Value& one : v->items()) {
    const json::Value *name = one.find("name"), *text = one.find("template");
    if (name != nullptr && name->is_string() && name->as_string() == "default" && text != nullptr &&
        text->is_string())
      return text->as_string();
  }
  return std::string();
}

// What only DeepSeek-V4.1 models have a choice of.
Status check_dense_options(const LoadOptions& options) {
  const auto refuse = [](const char* setting, const char* what) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("expected a DeepSeek-V4.1 model for a choice of {}, found a dense one", what),
        setting);
  };
  if (options.arithmetic != ArithmeticChoice::kAuto) return refuse("cpu.arithmetic", "arithmetic");
  if (options.experts != ExpertChoice::kAuto) return refuse("cpu.experts", "expert placement");
  return {};
}

// Defaults and the chat template beside the weights.
Status read_sidecars(const fs::path& folder, LoadedModel& loaded) {
  if (const fs::path path = folder / "generation_config.json"; name_exists(path)) {
    DEEPMINT_TRY(generation, read_json(path));
    DEEPMINT_CHECK_OK(end_ids_at(generation, path, loaded.end_ids));
    DEEPMINT_CHECK_OK(hf_defaults(generation, path, loaded.default_sampling));
  }
  if (const fs::path path = folder / "chat_template.jinja"; name_exists(path)) {
    DEEPMINT_TRY(file, MappedFile::open(path));
    loaded.chat_template.assign(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
  } else if (const fs::path settings = folder / "tokenizer_config.json"; name_exists(settings)) {
    DEEPMINT_TRY(tokenizer_config, read_json(settings));
    DEEPMINT_TRY(text, chat_template_of(tokenizer_config, settings));
    loaded.chat_template = std::move(text);
  }
  return {};
}

Result<LoadedModel> load_dense_folder(const fs::path& folder, const json::Value& config,
                                      LoadedModel loaded, const LoadProgress& progress) {
  const fs::path config_path = folder / "config.json";
  const json::Value* architectures = config.find("architectures");
  if (architectures == nullptr || !architectures->is_array() || architectures->items().empty() ||
      !architectures->items()[0].is_string())
    return fail(ErrorCode::kInvalidFile, "expected \"architectures\" to name one, found none",
                config_path.string());
  const std::string& architecture = architectures->items()[0].as_string();
  if (!is_dense_hf_architecture(architecture))
    return fail(ErrorCode::kUnsupported,
                fmt::format("expected architecture LlamaForCausalLM, Qwen2ForCausalLM, "
                            "Qwen3ForCausalLM or DeepseekV41ForCausalLM, found \"{}\"",
                            architecture),
                config_path.string());

  std::future<TokenizerResult> tokenizer;
  if (const fs::path path = folder / "tokenizer.json"; name_exists(path))
    tokenizer = beside([path] { return Tokenizer::from_file(path); });
  auto model = load_dense_hf(folder, {.pool = loaded.pool, .progress = progress});
  if (tokenizer.valid()) {
    auto built = tokenizer.get();
    if (!built) return tl::unexpected(std::move(built).error());
    loaded.tokenizer = std::move(*built);
    loaded.end_ids = loaded.tokenizer->spec().end_ids;
  }
  if (!model) return tl::unexpected(std::move(model).error());
  loaded.model = std::move(*model);
  DEEPMINT_CHECK_OK(end_ids_at(config, config_path, loaded.end_ids));
  DEEPMINT_CHECK_OK(read_sidecars(folder, loaded));
  return loaded;
}

Result<LoadedModel> load_folder(const fs::path& folder, LoadedModel loaded,
                                const LoadOptions& options, const LoadProgress& progress) {
  const fs::path config_path = folder / "config.json";
  if (!name_exists(config_path))
    return fail(ErrorCode::kNotFound, "expected config.json in the model's folder, found none",
                folder.string());
  DEEPMINT_TRY(config, read_json(config_path));
  if (!v41::is_v41_config(config)) {
    DEEPMINT_CHECK_OK(check_dense_options(options));
    return load_dense_folder(folder, config, std::move(loaded), progress);
  }
  DEEPMINT_CHECK_OK(load_v41_folder(folder, options, progress, loaded));
  DEEPMINT_CHECK_OK(end_ids_at(config, config_path, loaded.end_ids));
  DEEPMINT_CHECK_OK(read_sidecars(folder, loaded));
  return loaded;
}

Result<LoadedModel> load_checked(const fs::path& path, const LoadOptions& options,
                                 const LoadProgress& progress) {
  if (options.threads < 0 || options.threads > kMaxThreads)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("expected 0 to {} threads, found {}", kMaxThreads, options.threads),
                "threads");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return fail(ErrorCode::kNotFound,
                "expected a .gguf file or a model folder, found nothing there", path.string());
  LoadedModel loaded;
  loaded.threads = options.threads > 0 ? options.threads : physical_cores();
  loaded.pool = std::make_shared<ThreadPool>(loaded.threads);
  if (!fs::is_directory(status)) DEEPMINT_CHECK_OK(check_dense_options(options));
  DEEPMINT_TRY(whole, fs::is_directory(status)
                          ? load_folder(path, std::move(loaded), options, progress)
                          : load_gguf(path, std::move(loaded), progress));
  DEEPMINT_CHECK_OK(check_vocabulary(whole, path));
  DEEPMINT_CHECK_OK(check_defaults(whole, path));
  for (const TokenId id : whole.end_ids)
    if (id >= whole.model->info().vocab_size)
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("expected end ids below {}, found {}", whole.model->info().vocab_size, id),
          path.string());
  return whole;
}

Status check_gguf(const fs::path& path) {
  DEEPMINT_TRY(file, GgufFile::open(path));
  const auto architecture = file.string("general.architecture");
  if (!architecture || !is_dense_architecture(*architecture)) return {};
  DEEPMINT_CHECK_OK(check_dense_gguf(file));
  if (file.find("tokenizer.ggml.model") == nullptr) return {};
  auto spec = tokenizer_spec_from_gguf(file);
  auto built = spec ? Tokenizer::create(std::move(*spec)) : tl::unexpected(spec.error());
  if (!built) return tl::unexpected(std::move(built).error().at(path.string()));
  return {};
}

Status check_folder(const fs::path& folder) {
  DEEPMINT_TRY(config, read_json(folder / "config.json"));
  if (v41::is_v41_config(config)) return check_v41_folder(folder);
  const json::Value* names = config.find("architectures");
  if (names == nullptr || !names->is_array() || names->items().empty() ||
      !names->items()[0].is_string() || !is_dense_hf_architecture(names->items()[0].as_string()))
    return {};
  DEEPMINT_CHECK_OK(check_dense_hf(folder));
  if (const fs::path path = folder / "tokenizer.json"; name_exists(path))
    DEEPMINT_CHECK_OK(Tokenizer::from_file(path));
  return {};
}

}  // namespace

Status check_model(const std::filesystem::path& path) {
  try {
    std::error_code ignored;
    return fs::is_directory(path, ignored) ? check_folder(path) : check_gguf(path);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "the system refused memory for the check",
                path.string());
  }
}

Result<LoadedModel> load_model(const std::filesystem::path& path, const LoadOptions& options,
                               const LoadProgress& progress) {
  try {
    return load_checked(path, options, progress);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kResourceExhausted, "the system refused memory for the model",
                path.string());
  } catch (const std::exception& e) {  // threads that could not start, a path that is not text
    return fail(ErrorCode::kUnavailable, fmt::format("the model could not be loaded: {}", e.what()),
                path.string());
  }
}

}  // namespace deepmint
