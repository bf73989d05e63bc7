#include "format/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "core/json.h"
#include "format/expected_tensors.h"
#include "format/gguf.h"
#include "format/names.h"
#include "format/safetensors.h"

namespace deepmint {
namespace {

namespace fs = std::filesystem;
using Dimensions = InspectReport::Dimensions;

// Configuration and tokenizer files: several times the tokenizer.json of the largest published
// vocabularies (about 35 MB).
constexpr json::ParseLimits kJsonLimits = {.max_bytes = 128'000'000, .max_values = 8'000'000};

bool is_checked_architecture(std::string_view name) {
  return name == "llama" || name == "qwen2" || name == "qwen3";
}

void add_problem(InspectReport& report, Error error) {
  report.problems.push_back(error.str());
  if (!report.problem) report.problem = std::move(error);
}
void add_problem(InspectReport& report, std::string message, std::string where) {
  add_problem(report, Error{ErrorCode::kInvalidFile, std::move(message), std::move(where)});
}

// The value of a result, or nullopt after noting its error.
template <class T>
std::optional<T> noted(InspectReport& report, Result<T> result) {
  if (result) return std::move(*result);
  add_problem(report, std::move(result).error());
  return std::nullopt;
}

void take_tensors(InspectReport& report, const std::vector<TensorView>& tensors) {
  std::map<DType, InspectReport::TypeTotal> totals;
  report.tensors.reserve(tensors.size());
  for (const TensorView& t : tensors) {
    report.tensors.push_back({t.name, t.dtype, t.shape, t.bytes.size(), t.file_index});
    InspectReport::TypeTotal& total = totals[t.dtype];
    total.dtype = t.dtype;
    ++total.tensors;
    total.elements += t.elements();
    total.bytes += t.bytes.size();
    report.total_elements += t.elements();
    report.total_bytes += t.bytes.size();
  }
  report.total_tensors = tensors.size();
  for (const auto& [type, total] : totals) report.totals.push_back(total);
  std::sort(report.totals.begin(), report.totals.end(), [](const auto& a, const auto& b) {
    return std::pair(b.bytes, a.dtype) < std::pair(a.bytes, b.dtype);
  });
}

// Where a checkpoint states the dimensions, in the order of the fields in dense_shape.
constexpr std::array<std::string_view, 7> kGgufKeys = {"block_count",
                                                       "embedding_length",
                                                       "attention.head_count",
                                                       "attention.head_count_kv",
                                                       "attention.key_length",
                                                       "feed_forward_length",
                                                       "vocab_size"};
constexpr std::array<std::string_view, 7> kConfigKeys = {
    "num_hidden_layers", "hidden_size",       "num_attention_heads", "num_key_value_heads",
    "head_dim",          "intermediate_size", "vocab_size"};

// The dimensions that fix the shape of every tensor, or nullopt after noting what is missing or
// absurd. where(key) names the place of one of `keys`.
template <class Where>
std::optional<DenseShape> dense_shape(InspectReport& report,
                                      const std::array<std::string_view, 7>& keys,
                                      const Where& where) {
  const Dimensions& d = report.dimensions;
  DenseShape shape;
  const std::array<std::pair<std::optional<int64_t>, int64_t*>, 7> fields = {
      {{d.layers, &shape.layers},
       {d.hidden, &shape.hidden},
       {d.heads, &shape.heads},
       {d.kv_heads, &shape.kv_heads},
       {d.head_dim, &shape.key_dim},
       {d.ffn, &shape.ffn},
       {d.vocab, &shape.vocab}}};
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [value, target] = fields[i];
    if (!value || *value < 1 || *value > kMaxDenseDimension) {
      add_problem(report,
                  fmt::format("expected an integer from 1 to {}, found {}", kMaxDenseDimension,
                              value ? std::to_string(*value) : "nothing"),
                  where(keys[i]));
      return std::nullopt;
    }
    *target = *value;
  }
  shape.value_dim = shape.key_dim;
  shape.rope_dims =
      std::clamp(d.rope_dimensions.value_or(shape.key_dim), int64_t{0}, kMaxDenseDimension);
  // Bounds the work below: every layer has more than one tensor.
  if (static_cast<uint64_t>(shape.layers) > report.total_tensors) {
    add_problem(report,
                fmt::format("expected the tensors of {} layers, found {} tensors in all",
                            shape.layers, report.total_tensors),
                where(keys[0]));
    return std::nullopt;
  }
  return shape;
}

void check_tensors(InspectReport& report, const std::vector<ExpectedTensor>& expected,
                   const std::vector<TensorView>& tensors) {
  report.checked_tensors = true;
  const TensorDifferences differences = compare_tensors(expected, tensors, report.architecture);
  for (const std::string& line : differences.lines)
    add_problem(report, Error{ErrorCode::kInvalidFile, line, report.path.string()});
  if (differences.count > differences.lines.size())
    report.problems.push_back(
        fmt::format("… and {} more", differences.count - differences.lines.size()));
}

// --- GGUF ---

// Dimensions are optional for the report, but a key that is there must have the right type.
std::optional<int64_t> gguf_integer(InspectReport& report, const GgufFile& file,
                                    const std::string& key) {
  return file.find(key) ? noted(report, file.integer(key)) : std::nullopt;
}
std::optional<double> gguf_number(InspectReport& report, const GgufFile& file,
                                  const std::string& key) {
  return file.find(key) ? noted(report, file.number(key)) : std::nullopt;
}
std::string gguf_string(InspectReport& report, const GgufFile& file, const std::string& key) {
  return file.find(key) ? std::string(noted(report, file.string(key)).value_or("")) : std::string();
}

size_t gguf_array_size(const GgufFile& file, std::string_view key) {
  const GgufFile::Value* value = file.find(key);
  const auto* array = value ? std::get_if<GgufFile::Array>(&value->data) : nullptr;
  return array ? std::visit([](const auto& items) { return items.size(); }, *array) : 0;
}

void gguf_tokenizer(InspectReport& report, const GgufFile& file) {
  if (!file.find("tokenizer.ggml.model") && !file.find("tokenizer.ggml.tokens")) return;
  InspectReport::Tokenizer tokenizer;
  tokenizer.kind = gguf_string(report, file, "tokenizer.ggml.model");
  tokenizer.pre = gguf_string(report, file, "tokenizer.ggml.pre");
  tokenizer.merges = gguf_array_size(file, "tokenizer.ggml.merges");
  tokenizer.chat_template = file.find("tokenizer.chat_template") != nullptr;
  std::vector<std::string_view> tokens;
  if (auto found = noted(report, file.strings("tokenizer.ggml.tokens"))) tokens = std::move(*found);
  tokenizer.vocab = tokens.size();
  if (file.find("tokenizer.ggml.token_type"))
    if (const auto types = noted(report, file.integers("tokenizer.ggml.token_type")))
      tokenizer.added = static_cast<uint64_t>(std::count_if(
          types->begin(), types->end(), [](int64_t type) { return type == 3 || type == 4; }));

  constexpr std::string_view kPrefix = "tokenizer.ggml.", kSuffix = "_token_id";
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kPrefix) || !key.ends_with(kSuffix) ||
        key.size() <= kPrefix.size() + kSuffix.size())
      continue;
    std::string_view role =
        key.substr(kPrefix.size(), key.size() - kPrefix.size() - kSuffix.size());
    if (role == "unknown") role = "unk";
    if (role == "padding") role = "pad";
    if (role == "seperator") role = "sep";  // as the format spells it
    const auto id = noted(report, file.integer(key));
    if (!id) continue;
    const bool known = *id >= 0 && static_cast<uint64_t>(*id) < tokens.size();
    if (!known)
      add_problem(report, fmt::format("expected a token id below {}, found {}", tokens.size(), *id),
                  fmt::format("{}: metadata {}", report.path.string(), quote_name(key)));
    tokenizer.special.push_back(
        {std::string(role), *id, known ? std::string(tokens[static_cast<size_t>(*id)]) : ""});
  }
  report.tokenizer = std::move(tokenizer);
}

void inspect_gguf(InspectReport& report) {
  report.format = "GGUF";
  std::error_code ignored;
  report.files.push_back({report.path.filename().string(), fs::file_size(report.path, ignored)});
  auto opened = GgufFile::open(report.path);
  if (!opened) return add_problem(report, std::move(opened).error());
  const GgufFile& file = *opened;
  report.format = fmt::format("GGUF v{}", file.version());
  report.files[0].bytes = file.file().size();
  take_tensors(report, file.tensors());
  report.architecture = noted(report, file.string("general.architecture")).value_or("");
  if (const std::string name = gguf_string(report, file, "general.name"); !name.empty())
    report.name = name;

  const auto key = [&](std::string_view name) {
    return fmt::format("{}.{}", report.architecture, name);
  };
  const auto integer = [&](std::string_view name) { return gguf_integer(report, file, key(name)); };
  Dimensions& d = report.dimensions;
  d.layers = integer("block_count");
  d.hidden = integer("embedding_length");
  d.heads = integer("attention.head_count");
  d.kv_heads = integer("attention.head_count_kv");
  if (!d.kv_heads) d.kv_heads = d.heads;
  d.head_dim = integer("attention.key_length");
  if (!d.head_dim && d.hidden && d.heads.value_or(0) > 0) d.head_dim = *d.hidden / *d.heads;
  d.ffn = integer("feed_forward_length");
  d.context = integer("context_length");
  d.vocab = integer("vocab_size");
  d.rope_base = gguf_number(report, file, key("rope.freq_base"));
  d.rope_dimensions = integer("rope.dimension_count");
  d.norm_epsilon = gguf_number(report, file, key("attention.layer_norm_rms_epsilon"));
  const TensorView* embedding = file.tensor("token_embd.weight");
  if (embedding != nullptr) d.tied = file.tensor("output.weight") == nullptr;
  if (const std::string type = gguf_string(report, file, key("rope.scaling.type"));
      !type.empty() && type != "none") {
    d.rope_scaling = type;
    if (const auto factor = gguf_number(report, file, key("rope.scaling.factor")))
      d.rope_scaling += fmt::format(" ×{}", *factor);
    if (const auto from = integer("rope.scaling.original_context_length"))
      d.rope_scaling += fmt::format(" from {}", *from);
  } else if (file.tensor("rope_freqs.weight") != nullptr) {
    d.rope_scaling = "factors in rope_freqs.weight";
  }

  gguf_tokenizer(report, file);
  if (!d.vocab && report.tokenizer && report.tokenizer->vocab > 0)
    d.vocab = static_cast<int64_t>(report.tokenizer->vocab);
  if (!d.vocab && embedding != nullptr && embedding->shape.size() == 2)
    d.vocab = static_cast<int64_t>(embedding->shape[0]);

  // Mixtures of experts use the same names for other tensors.
  if (!is_checked_architecture(report.architecture) || integer("expert_count").value_or(0) > 0)
    return;
  if (report.problem) return;
  auto shape = dense_shape(report, kGgufKeys, [&](std::string_view name) {
    return fmt::format("{}: metadata {}", report.path.string(), quote_name(key(name)));
  });
  if (!shape) return;
  if (const auto value_dim = integer("attention.value_length");
      value_dim && *value_dim >= 1 && *value_dim <= kMaxDenseDimension)
    shape->value_dim = *value_dim;
  shape->qkv_bias = report.architecture == "qwen2" || file.tensor("blk.0.attn_q.bias") != nullptr;
  shape->qk_norm = report.architecture == "qwen3";
  check_tensors(report, expected_gguf_tensors(*shape), file.tensors());
}

// --- Hugging Face folders ---

// One JSON file; nullopt when it is absent or damaged (then noted).
std::optional<json::Value> read_json(InspectReport& report, const fs::path& path) {
  if (!name_exists(path)) return std::nullopt;
  const auto file = noted(report, MappedFile::open(path));
  if (!file) return std::nullopt;
  auto value =
      json::parse({reinterpret_cast<const char*>(file->bytes().data()), file->size()}, kJsonLimits);
  if (!value) {
    value.error().code = ErrorCode::kInvalidFile;
    add_problem(report, std::move(value).error().at(path.string()));
    return std::nullopt;
  }
  if (!value->is_object()) {
    add_problem(
        report,
        fmt::format("expected a JSON object, found a JSON {}", json::to_string(value->kind())),
        path.string());
    return std::nullopt;
  }
  return std::move(*value);
}

// Reads typed members of one JSON object; a member of the wrong type is a problem, null counts as
// absent.
class Members {
 public:
  Members(InspectReport& report, const json::Value* object, std::string where)
      : report_(report), object_(object), where_(std::move(where)) {}

  const json::Value* find(std::string_view key) const {
    const json::Value* value = object_ ? object_->find(key) : nullptr;
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::optional<int64_t> integer(std::string_view key) const {
    return typed(key, "an integer", [](const json::Value& v) { return v.to_int64(); });
  }
  std::optional<double> number(std::string_view key) const {
    return typed(key, "a number", [](const json::Value& v) { return v.to_double(); });
  }
  std::optional<bool> boolean(std::string_view key) const {
    return typed(key, "true or false", [](const json::Value& v) {
      return v.is_bool() ? std::optional(v.as_bool()) : std::nullopt;
    });
  }
  std::optional<std::string> string(std::string_view key) const {
    return typed(key, "a string", [](const json::Value& v) {
      return v.is_string() ? std::optional(v.as_string()) : std::nullopt;
    });
  }

 private:
  template <class Convert>
  auto typed(std::string_view key, std::string_view expected, const Convert& convert) const
      -> decltype(convert(std::declval<const json::Value&>())) {
    const json::Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    auto out = convert(*value);
    if (!out)
      add_problem(report_,
                  fmt::format("expected {}, found {}", expected,
                              value->is_number()
                                  ? value->number_text()
                                  : fmt::format("a JSON {}", json::to_string(value->kind()))),
                  fmt::format("{}: {}", where_, quote_name(key)));
    return out;
  }

  InspectReport& report_;
  const json::Value* object_;
  std::string where_;
};

void hf_dimensions(InspectReport& report, const Members& config) {
  Dimensions& d = report.dimensions;
  d.layers = config.integer("num_hidden_layers");
  d.hidden = config.integer("hidden_size");
  d.heads = config.integer("num_attention_heads");
  d.kv_heads = config.integer("num_key_value_heads");
  if (!d.kv_heads) d.kv_heads = d.heads;
  d.head_dim = config.integer("head_dim");
  if (!d.head_dim && d.hidden && d.heads.value_or(0) > 0) d.head_dim = *d.hidden / *d.heads;
  d.ffn = config.integer("intermediate_size");
  d.vocab = config.integer("vocab_size");
  d.context = config.integer("max_position_embeddings");
  d.norm_epsilon = config.number("rms_norm_eps");
  d.tied = config.boolean("tie_word_embeddings");
  d.rope_base = config.number("rope_theta");
  // Newer files keep the base together with the scaling.
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const json::Value* value = config.find(name);
    if (value == nullptr || !value->is_object()) continue;
    const Members rope(report, value,
                       fmt::format("{}: {}", (report.path / "config.json").string(), name));
    if (!d.rope_base) d.rope_base = rope.number("rope_theta");
    std::optional<std::string> type =
        rope.find("rope_type") ? rope.string("rope_type") : rope.string("type");
    if (!type || *type == "default") continue;
    d.rope_scaling = *type;
    if (const auto factor = rope.number("factor")) d.rope_scaling += fmt::format(" ×{}", *factor);
    if (const auto from = rope.integer("original_max_position_embeddings"))
      d.rope_scaling += fmt::format(" from {}", *from);
  }
}

// "Split + ByteLevel" of a pre_tokenizer, whose Sequence holds others.
std::string pre_tokenizer_types(const json::Value* pre) {
  if (pre == nullptr || !pre->is_object()) return "";
  const json::Value *type = pre->find("type"), *parts = pre->find("pretokenizers");
  if (parts == nullptr || !parts->is_array())
    return type && type->is_string() ? type->as_string() : "";
  std::string out;
  for (const json::Value& part : parts->items()) {
    const json::Value* part_type = part.find("type");
    if (part_type == nullptr || !part_type->is_string()) continue;
    out += (out.empty() ? "" : " + ") + part_type->as_string();
  }
  return out;
}

void hf_tokenizer(InspectReport& report, const fs::path& folder) {
  const auto file = read_json(report, folder / "tokenizer.json");
  if (!file) return;
  InspectReport::Tokenizer tokenizer;
  std::map<std::string_view, int64_t> added;
  if (const json::Value* list = file->find("added_tokens"); list != nullptr && list->is_array()) {
    for (const json::Value& item : list->items()) {
      const json::Value *content = item.find("content"), *id = item.find("id");
      if (content && content->is_string() && id && id->to_int64())
        added.emplace(content->as_string(), *id->to_int64());
    }
  }
  tokenizer.added = added.size();
  const json::Value* vocab = nullptr;
  if (const json::Value* model = file->find("model")) {
    if (const json::Value* type = model->find("type"); type && type->is_string())
      tokenizer.kind = type->as_string();
    if (const json::Value* merges = model->find("merges"); merges && merges->is_array())
      tokenizer.merges = merges->items().size();
    vocab = model->find("vocab");
    if (vocab != nullptr && vocab->is_object()) {
      tokenizer.vocab = vocab->members().size();
      std::vector<std::string_view> names;
      names.reserve(added.size());
      for (const auto& [name, id] : added) names.push_back(name);
      std::vector<bool> in_vocab(names.size());
      for (const json::Member& member : vocab->members())
        if (const auto it = std::lower_bound(names.begin(), names.end(), member.key);
            it != names.end() && *it == member.key)
          in_vocab[static_cast<size_t>(it - names.begin())] = true;
      tokenizer.vocab += static_cast<uint64_t>(std::count(in_vocab.begin(), in_vocab.end(), false));
    }
  }
  tokenizer.pre = pre_tokenizer_types(file->find("pre_tokenizer"));

  tokenizer.chat_template = name_exists(folder / "chat_template.jinja");
  if (const auto config = read_json(report, folder / "tokenizer_config.json")) {
    tokenizer.chat_template |=
        config->find("chat_template") != nullptr && !config->find("chat_template")->is_null();
    for (const char* role : {"bos", "eos", "pad", "unk"}) {
      const json::Value* token = config->find(std::string(role) + "_token");
      if (token != nullptr && token->is_object()) token = token->find("content");
      if (token == nullptr || !token->is_string()) continue;
      const std::string& text = token->as_string();
      std::optional<int64_t> id;
      if (const auto it = added.find(text); it != added.end()) id = it->second;
      if (!id && vocab != nullptr && vocab->find(text) != nullptr)
        id = vocab->find(text)->to_int64();
      if (id) tokenizer.special.push_back({role, *id, text});
    }
  }
  report.tokenizer = std::move(tokenizer);
}

// "LlamaForCausalLM" to the family whose tensors we know; empty for others.
std::string_view family_of_class(std::string_view class_name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFamilies = {
      {{"LlamaForCausalLM", "llama"},
       {"Qwen2ForCausalLM", "qwen2"},
       {"Qwen3ForCausalLM", "qwen3"}}};
  for (const auto& [name, family] : kFamilies)
    if (name == class_name) return family;
  return "";
}

// A folder, or one file of safetensors without anything beside it.
void inspect_safetensors(InspectReport& report, bool is_folder) {
  report.format = "safetensors";
  std::optional<json::Value> config;
  if (is_folder) {
    config = read_json(report, report.path / "config.json");
    if (!config && !report.problem)
      add_problem(report, Error{ErrorCode::kNotFound, "expected a config.json, found none",
                                report.path.string()});
  }
  const Members members(report, config ? &*config : nullptr,
                        (report.path / "config.json").string());
  if (config) {
    if (const json::Value* classes = members.find("architectures");
        classes != nullptr && classes->is_array() && !classes->items().empty() &&
        classes->items()[0].is_string())
      report.architecture = classes->items()[0].as_string();
    else
      report.architecture = members.string("model_type").value_or("");
    // Models of several modalities keep the dimensions of the text model in an object of its own.
    const json::Value* text =
        members.find("num_hidden_layers") ? nullptr : members.find("text_config");
    if (text != nullptr && text->is_object())
      hf_dimensions(
          report, Members(report, text, (report.path / "config.json").string() + ": text_config"));
    else
      hf_dimensions(report, members);
    hf_tokenizer(report, report.path);
  }

  auto opened = SafetensorsModel::open(report.path);
  if (!opened) return add_problem(report, std::move(opened).error());
  for (const MappedFile& file : opened->files())
    report.files.push_back({file.path().filename().string(), file.size()});
  take_tensors(report, opened->tensors());

  const std::string_view family = family_of_class(report.architecture);
  if (family.empty() || report.problem) return;
  report.dimensions.tied =
      report.dimensions.tied.value_or(false);  // the default of these three families
  auto shape = dense_shape(report, kConfigKeys, [&](std::string_view name) {
    return fmt::format("{}: {}", (report.path / "config.json").string(), quote_name(name));
  });
  if (!shape) return;
  shape->qkv_bias = family == "qwen2";
  shape->qk_norm = family == "qwen3";
  shape->head_required = !*report.dimensions.tied;
  check_tensors(report, expected_hf_tensors(*shape), opened->tensors());
}

}  // namespace

Result<InspectReport> inspect_model(const std::filesystem::path& path) {
  InspectReport report;
  report.path = path;
  report.name = (path.filename().empty() ? path.parent_path() : path).filename().string();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return fail(ErrorCode::kNotFound, "expected a model file or folder, found nothing",
                path.string());
  if (fs::is_directory(status)) {
    bool is_model = false;
    for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
      is_model |= name_exists(path / name);
    if (!is_model)
      return fail(ErrorCode::kInvalidFile,
                  "expected config.json and model.safetensors in the folder, found neither",
                  path.string());
    inspect_safetensors(report, true);
    return report;
  }
  if (path.extension() == ".safetensors" ||
      path.filename().string().ends_with(".safetensors.index.json")) {
    inspect_safetensors(report, false);
    return report;
  }
  DEEPMINT_TRY(file, MappedFile::open(path));
  const bool has_magic = file.size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
  if (!has_magic && path.extension() != ".gguf")
    return fail(ErrorCode::kInvalidFile,
                "expected a .gguf file, a .safetensors file or a folder with config.json, found "
                "another kind of file",
                path.string());
  inspect_gguf(report);
  return report;
}

}  // namespace deepmint
