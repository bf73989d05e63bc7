#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/mapped_file.h"
#include "core/names.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/pattern.h"
#include "tokenizer/token_table.h"

namespace deepmint {
namespace {

constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;
// Ids that no entry names; more would mean a file that is mostly made of them.
constexpr size_t kMaxHoles = 1'000'000;

tl::unexpected<Error> wrong(std::string_view field, std::string_view expected,
                            const json::Value* found) {
  return fail(ErrorCode::kInvalidFile,
              fmt::format("expected {}, found {}", expected,
                          found == nullptr ? "nothing" : json::to_string(found->kind())),
              std::string(field));
}

tl::unexpected<Error> unsupported(std::string_view field, std::string_view what) {
  return fail(ErrorCode::kUnsupported, fmt::format("{} is not supported", what),
              std::string(field));
}

bool is_null(const json::Value* v) { return v == nullptr || v->is_null(); }

// A view into the document.
Result<std::string_view> string_at(const json::Value& object, std::string_view key,
                                   std::string_view field) {
  const json::Value* v = object.find(key);
  if (v == nullptr || !v->is_string())
    return wrong(fmt::format("{}.{}", field, key), "a string", v);
  return std::string_view(v->as_string());
}

Result<bool> bool_or(const json::Value& object, std::string_view key, bool fallback,
                     std::string_view field) {
  const json::Value* v = object.find(key);
  if (is_null(v)) return fallback;
  if (!v->is_bool()) return wrong(fmt::format("{}.{}", field, key), "true or false", v);
  return v->as_bool();
}

Result<TokenId> id_of(const json::Value* v, std::string_view field) {
  const auto id = v == nullptr ? std::nullopt : v->to_int64();
  if (!id) return wrong(field, "a token id", v);
  if (*id < 0 || *id > kMaxId)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("expected a token id of 0 to {}, found {}", kMaxId, *id),
                std::string(field));
  return static_cast<TokenId>(*id);
}

std::string quote_for_regex(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// normalizer: null, NFC, or a sequence of these.
Status read_normalizer(const json::Value* v, TokenizerSpec& spec, std::string_view field,
                       int depth = 0) {
  if (is_null(v)) return {};
  DEEPMINT_TRY(type, string_at(*v, "type", field));
  if (type == "NFC") {
    spec.normalizer = Normalizer::kNfc;
    return {};
  }
  if (type == "Sequence" && depth < 8) {
    const json::Value* list = v->find("normalizers");
    if (list == nullptr || !list->is_array())
      return wrong(fmt::format("{}.normalizers", field), "an array", list);
    for (const json::Value& item : list->items())
      DEEPMINT_CHECK_OK(read_normalizer(&item, spec, field, depth + 1));
    return {};
  }
  return unsupported(field, fmt::format("normalizer {}", quote_name(type)));
}

struct PreTokenizerReader {
  std::vector<std::string> patterns;
  bool byte_level = false;
  bool keeps_matches_only = false;  // a Split that drops what lies between matches

  Status read(const json::Value* v, std::string_view field, int depth = 0) {
    if (is_null(v)) return {};
    DEEPMINT_TRY(type, string_at(*v, "type", field));
    if (byte_level) return unsupported(field, fmt::format("{} after ByteLevel", quote_name(type)));
    if (type == "Sequence" && depth < 8) {
      const json::Value* list = v->find("pretokenizers");
      if (list == nullptr || !list->is_array())
        return wrong(fmt::format("{}.pretokenizers", field), "an array", list);
      for (size_t i = 0; i < list->items().size(); ++i)
        DEEPMINT_CHECK_OK(
            read(&list->items()[i], fmt::format("{}.pretokenizers[{}]", field, i), depth + 1));
      return {};
    }
    if (type == "ByteLevel") return read_byte_level(*v, field);
    if (type == "Split") return read_split(*v, field);
    if (type == "Digits") {
      DEEPMINT_TRY(individual, bool_or(*v, "individual_digits", false, field));
      patterns.emplace_back(individual ? "\\p{N}" : "\\p{N}+");
      return {};
    }
    return unsupported(field, fmt::format("pre-tokenizer {}", quote_name(type)));
  }

  Status read_byte_level(const json::Value& v, std::string_view field) {
    DEEPMINT_TRY(add_prefix_space, bool_or(v, "add_prefix_space", true, field));
    DEEPMINT_TRY(use_regex, bool_or(v, "use_regex", true, field));
    if (add_prefix_space) return unsupported(field, "add_prefix_space true");
    if (use_regex) patterns.emplace_back(known_patterns(PreTokenizer::kGpt2).front());
    byte_level = true;
    return {};
  }

  Status read_split(const json::Value& v, std::string_view field) {
    const json::Value* pattern = v.find("pattern");
    const json::Value* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
    const json::Value* literal = pattern == nullptr ? nullptr : pattern->find("String");
    if (regex != nullptr && regex->is_string()) {
      patterns.push_back(regex->as_string());
    } else if (literal != nullptr && literal->is_string()) {
      patterns.push_back(quote_for_regex(literal->as_string()));
    } else {
      return wrong(fmt::format("{}.pattern", field), "{\"Regex\": …} or {\"String\": …}", pattern);
    }
    DEEPMINT_TRY(behavior, string_at(v, "behavior", field));
    DEEPMINT_TRY(invert, bool_or(v, "invert", false, field));
    if (behavior == "Isolated") return {};  // gaps and matches are pieces either way
    if (behavior == "Removed" && invert) {
      keeps_matches_only = true;
      return {};
    }
    return unsupported(
        field, fmt::format("Split behavior {}{}", quote_name(behavior), invert ? " inverted" : ""));
  }

  Status finish(const json::Value* v, TokenizerSpec& spec) {
    if (!byte_level) {
      const json::Value* type = is_null(v) ? nullptr : v->find("type");
      return fail(
          ErrorCode::kUnsupported,
          fmt::format(
              "expected a byte-level pre-tokenizer (ByteLevel last), found {}",
              type == nullptr || !type->is_string() ? "none" : quote_name(type->as_string())),
          "pre_tokenizer");
    }
    spec.pre = recognize_patterns(patterns);
    // These leave nothing between matches, so that dropping the gaps changes nothing.
    const bool covers = spec.pre == PreTokenizer::kGpt2 || spec.pre == PreTokenizer::kLlama3 ||
                        spec.pre == PreTokenizer::kQwen2;
    if (keeps_matches_only && !covers)
      return unsupported("pre_tokenizer", "Split behavior \"Removed\" inverted, for this pattern");
    if (!spec.pre) spec.patterns = std::move(patterns);
    return {};
  }
};

Status read_added(const json::Value& root, TokenizerSpec& spec) {
  const json::Value* list = root.find("added_tokens");
  if (is_null(list)) return {};
  if (!list->is_array()) return wrong("added_tokens", "an array", list);
  for (size_t i = 0; i < list->items().size(); ++i) {
    const json::Value& v = list->items()[i];
    const std::string field = fmt::format("added_tokens[{}]", i);
    TokenizerSpec::Added added;
    DEEPMINT_TRY(id, id_of(v.find("id"), field + ".id"));
    DEEPMINT_TRY(text, string_at(v, "content", field));
    added.id = id;
    added.text = text;
    for (const auto& [key, flag] : {std::pair{"special", &added.special},
                                    {"normalized", &added.normalized},
                                    {"lstrip", &added.lstrip},
                                    {"rstrip", &added.rstrip},
                                    {"single_word", &added.single_word}}) {
      DEEPMINT_TRY(value, bool_or(v, key, false, field));
      *flag = value;
    }
    if (added.text.empty())
      return fail(ErrorCode::kInvalidFile, "expected text, found an empty string",
                  field + ".content");
    spec.added.push_back(std::move(added));
  }
  return {};
}

// vocab: {"token": id}. Fills spec.vocab with the tokens as they are spelled in the file.
Status read_vocab(const json::Value& model, TokenizerSpec& spec) {
  const json::Value* vocab = model.find("vocab");
  if (vocab == nullptr || !vocab->is_object()) return wrong("model.vocab", "an object", vocab);
  TokenId largest = -1;
  std::vector<TokenId> ids;
  ids.reserve(vocab->members().size());
  for (const auto& [token, value] : vocab->members()) {
    DEEPMINT_TRY(id, id_of(&value, "model.vocab"));
    ids.push_back(id);
    largest = std::max(largest, id);
  }
  for (const auto& added : spec.added) largest = std::max(largest, added.id);
  const auto size = static_cast<size_t>(largest) + 1;
  if (size > ids.size() + spec.added.size() + kMaxHoles)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("{} tokens, but the largest id is {}", ids.size(), largest),
                "model.vocab");
  spec.vocab.resize(size);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string& slot = spec.vocab[static_cast<size_t>(ids[i])];
    const std::string& token = vocab->members()[i].key;
    if (token.empty())
      return fail(ErrorCode::kInvalidFile, fmt::format("the token of id {} is empty", ids[i]),
                  "model.vocab");
    if (!slot.empty())
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("id {} belongs to both {} and {}", ids[i], quote_name(slot),
                              quote_name(token)),
                  "model.vocab");
    slot = token;
  }
  return {};
}

// merges: ["a b", …] or [["a", "b"], …].
Status read_merges(const json::Value& model, const TokenTable& spelled, TokenizerSpec& spec) {
  const json::Value* merges = model.find("merges");
  if (merges == nullptr || !merges->is_array()) return wrong("model.merges", "an array", merges);
  spec.merges.reserve(merges->items().size());
  for (size_t rank = 0; rank < merges->items().size(); ++rank) {
    const json::Value& v = merges->items()[rank];
    std::string_view left, right;
    if (v.is_string()) {
      const std::string_view text = v.as_string();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return fail(
            ErrorCode::kInvalidFile,
            fmt::format("expected two tokens with one space between, found {}", quote_name(text)),
            fmt::format("model.merges[{}]", rank));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (v.is_array() && v.items().size() == 2 && v.items()[0].is_string() &&
               v.items()[1].is_string()) {
      left = v.items()[0].as_string();
      right = v.items()[1].as_string();
    } else {
      return wrong(fmt::format("model.merges[{}]", rank), "\"left right\" or [\"left\", \"right\"]",
                   &v);
    }
    const TokenId left_id = spelled.find(left), right_id = spelled.find(right);
    if (left_id < 0 || right_id < 0)
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("{} is not in the vocabulary", quote_name(left_id < 0 ? left : right)),
          fmt::format("model.merges[{}]", rank));
    spec.merges.emplace_back(left_id, right_id);
  }
  return {};
}

Status read_model(const json::Value& root, TokenizerSpec& spec) {
  const json::Value* model = root.find("model");
  if (model == nullptr || !model->is_object()) return wrong("model", "an object", model);
  const json::Value* type = model->find("type");
  // Files of the first years have no type; then it is told by the fields.
  const std::string_view name = type != nullptr && type->is_string()
                                    ? std::string_view(type->as_string())
                                : model->find("merges") != nullptr ? "BPE"
                                                                   : "none";
  if (name != "BPE") return unsupported("model.type", quote_name(name));
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const json::Value* v = model->find(key);
        !is_null(v) && !(v->is_string() && v->as_string().empty()))
      return unsupported(fmt::format("model.{}", key), "a value other than null");
  if (const json::Value* v = model->find("dropout"); !is_null(v) && v->to_double() != 0.0)
    return unsupported("model.dropout", "a value other than null");
  DEEPMINT_TRY(ignore_merges, bool_or(*model, "ignore_merges", false, "model"));
  DEEPMINT_TRY(byte_fallback, bool_or(*model, "byte_fallback", false, "model"));
  DEEPMINT_TRY(fuse_unk, bool_or(*model, "fuse_unk", false, "model"));
  spec.ignore_merges = ignore_merges;
  spec.fuse_unk = fuse_unk;
  DEEPMINT_CHECK_OK(read_vocab(*model, spec));

  TokenTable spelled(spec.vocab.size());
  for (size_t id = 0; id < spec.vocab.size(); ++id)
    if (!spec.vocab[id].empty()) spelled.insert(spec.vocab[id], static_cast<TokenId>(id));
  DEEPMINT_CHECK_OK(read_merges(*model, spelled, spec));
  if (const json::Value* unk = model->find("unk_token"); !is_null(unk)) {
    if (!unk->is_string()) return wrong("model.unk_token", "a string", unk);
    if (const TokenId id = spelled.find(unk->as_string()); id >= 0) spec.unk = id;
  }

  // From spelling to bytes, now that nothing is looked up by spelling any more.
  std::vector<bool> is_added(spec.vocab.size(), false);
  for (const auto& added : spec.added) is_added[static_cast<size_t>(added.id)] = true;
  std::string bytes;
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    std::string& token = spec.vocab[id];
    if (is_added[id]) continue;
    if (const auto byte = byte_fallback ? byte_level::fallback_byte(token) : std::nullopt) {
      spec.byte_fallback.emplace_back(*byte, static_cast<TokenId>(id));
      token.assign(1, static_cast<char>(*byte));
    } else if (byte_level::decode(token, bytes)) {
      token = bytes;
    } else {
      spec.decode_only.push_back(static_cast<TokenId>(id));
    }
  }
  for (const auto& added : spec.added) spec.vocab[static_cast<size_t>(added.id)] = added.text;
  return {};
}

// A template that puts a special token before or after the text says that the model wants it there.
void read_post_processor(const json::Value* v, TokenizerSpec& spec, int depth = 0) {
  if (is_null(v)) return;
  const json::Value* type = v->find("type");
  if (type == nullptr || !type->is_string()) return;
  if (type->as_string() == "Sequence" && depth < 8) {
    if (const json::Value* list = v->find("processors"); list != nullptr && list->is_array())
      for (const json::Value& item : list->items()) read_post_processor(&item, spec, depth + 1);
    return;
  }
  const json::Value* single = v->find("single");
  if (type->as_string() != "TemplateProcessing" || single == nullptr || !single->is_array() ||
      single->items().empty())
    return;
  const auto special = [&](const json::Value& item) -> std::optional<TokenId> {
    const json::Value* token = item.find("SpecialToken");
    const json::Value* name = token == nullptr ? nullptr : token->find("id");
    if (name == nullptr || !name->is_string()) return std::nullopt;
    for (const auto& added : spec.added)
      if (added.text == name->as_string()) return added.id;
    return std::nullopt;
  };
  if (const auto id = special(single->items().front())) {
    spec.add_bos = true;
    spec.bos = id;
  }
  if (single->items().size() < 2) return;
  if (const auto id = special(single->items().back())) {
    spec.add_eos = true;
    spec.eos = id;
  }
}

std::optional<TokenId> find_token(const TokenizerSpec& spec, std::string_view text) {
  for (const auto& added : spec.added)
    if (added.text == text) return added.id;
  for (size_t id = 0; id < spec.vocab.size(); ++id)
    if (spec.vocab[id] == text) return static_cast<TokenId>(id);
  return std::nullopt;
}

void add_end_id(TokenizerSpec& spec, TokenId id) {
  if (std::find(spec.end_ids.begin(), spec.end_ids.end(), id) == spec.end_ids.end())
    spec.end_ids.push_back(id);
}

Result<json::Value> read_json(const std::filesystem::path& path) {
  DEEPMINT_TRY(file, MappedFile::open(path));
  const auto bytes = file.bytes();
  auto parsed = json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (parsed) return parsed;
  Error error = std::move(parsed).error();
  error.code = ErrorCode::kInvalidFile;
  return tl::unexpected<Error>(std::move(error).at(path.string()));
}

Result<TokenizerSpec> spec_from_value(const json::Value& root) {
  if (!root.is_object()) return wrong("tokenizer.json", "an object", &root);
  TokenizerSpec spec;
  DEEPMINT_CHECK_OK(read_normalizer(root.find("normalizer"), spec, "normalizer"));
  PreTokenizerReader pre;
  DEEPMINT_CHECK_OK(pre.read(root.find("pre_tokenizer"), "pre_tokenizer"));
  DEEPMINT_CHECK_OK(read_added(root, spec));
  DEEPMINT_CHECK_OK(read_model(root, spec));
  DEEPMINT_CHECK_OK(pre.finish(root.find("pre_tokenizer"), spec));
  read_post_processor(root.find("post_processor"), spec);
  return spec;
}

}  // namespace

Result<TokenizerSpec> tokenizer_spec_from_json(std::string_view text) {
  auto root = json::parse(text);
  if (!root) {
    Error error = std::move(root).error();
    error.code = ErrorCode::kInvalidFile;
    return tl::unexpected<Error>(std::move(error));
  }
  return spec_from_value(*root);
}

Status apply_tokenizer_config(const json::Value& config, TokenizerSpec& spec) {
  const auto token = [&](std::string_view key, std::optional<TokenId>& id) -> Status {
    const json::Value* v = config.find(key);
    if (is_null(v)) return {};
    if (v->is_object()) v = v->find("content");
    if (v == nullptr || !v->is_string()) return wrong(key, "a string or an object with content", v);
    if (const auto found = find_token(spec, v->as_string())) id = found;
    return {};
  };
  DEEPMINT_CHECK_OK(token("bos_token", spec.bos));
  DEEPMINT_CHECK_OK(token("eos_token", spec.eos));
  DEEPMINT_CHECK_OK(token("pad_token", spec.pad));
  DEEPMINT_TRY(add_bos, bool_or(config, "add_bos_token", spec.add_bos, "tokenizer_config.json"));
  DEEPMINT_TRY(add_eos, bool_or(config, "add_eos_token", spec.add_eos, "tokenizer_config.json"));
  spec.add_bos = add_bos && spec.bos;
  spec.add_eos = add_eos && spec.eos;
  return {};
}

Status apply_generation_config(const json::Value& config, TokenizerSpec& spec) {
  const json::Value* eos = config.find("eos_token_id");
  if (is_null(eos)) return {};
  const auto add = [&](const json::Value& v) -> Status {
    DEEPMINT_TRY(id, id_of(&v, "eos_token_id"));
    if (static_cast<size_t>(id) >= spec.vocab.size())
      return fail(ErrorCode::kInvalidFile,
                  fmt::format("token id {} is outside the vocabulary of {}", id, spec.vocab.size()),
                  "eos_token_id");
    add_end_id(spec, id);
    return {};
  };
  if (!eos->is_array()) return add(*eos);
  for (const json::Value& item : eos->items()) DEEPMINT_CHECK_OK(add(item));
  return {};
}

void add_known_end_ids(TokenizerSpec& spec) {
  constexpr std::array<std::string_view, 8> kEnds = {
      "<|im_end|>",    "<|eot_id|>", "<|eom_id|>",    "<|end_of_text|>",
      "<|endoftext|>", "<|end|>",    "<end_of_turn>", "<｜end▁of▁sentence｜>"};
  if (spec.eos) add_end_id(spec, *spec.eos);
  for (const auto& added : spec.added)
    if (std::find(kEnds.begin(), kEnds.end(), added.text) != kEnds.end())
      add_end_id(spec, added.id);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_file(const std::filesystem::path& path) {
  const auto at_path = [](Error error, const std::filesystem::path& p) {
    return tl::unexpected<Error>(std::move(error).at(p.string()));
  };
  DEEPMINT_TRY(root, read_json(path));
  auto spec = spec_from_value(root);
  if (!spec) return at_path(std::move(spec).error(), path);
  root = json::Value();  // a document of a large vocabulary is several times its text
  for (const auto& [name, apply] : {std::pair{"tokenizer_config.json", &apply_tokenizer_config},
                                    {"generation_config.json", &apply_generation_config}}) {
    const std::filesystem::path beside = path.parent_path() / name;
    if (!name_exists(beside)) continue;
    DEEPMINT_TRY(config, read_json(beside));
    if (auto status = apply(config, *spec); !status)
      return at_path(std::move(status).error(), beside);
  }
  add_known_end_ids(*spec);
  auto made = create(std::move(*spec));
  if (!made) return at_path(std::move(made).error(), path);
  return made;
}

}  // namespace deepmint
