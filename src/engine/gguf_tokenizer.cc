#include "engine/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "core/names.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/token_table.h"
#include "tokenizer/tokenizer_json.h"

namespace deepmint {
namespace {

// tokenizer.ggml.token_type
enum class TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// What a name in tokenizer.ggml.pre stands for. The metadata holds neither the normaliser nor
// ignore_merges, so they come from the published tokenizer of the family.
struct Family {
  std::string_view name;
  PreTokenizer pre;
  Normalizer normalizer = Normalizer::kNone;
  bool ignore_merges = false;
  bool add_bos = false;
};
constexpr std::array kFamilies = {
    Family{"gpt-2", PreTokenizer::kGpt2},
    Family{"gpt2", PreTokenizer::kGpt2},
    Family{"llama3", PreTokenizer::kLlama3, Normalizer::kNone, true, true},
    Family{"llama-v3", PreTokenizer::kLlama3, Normalizer::kNone, true, true},
    Family{"llama-bpe", PreTokenizer::kLlama3, Normalizer::kNone, true, true},
    Family{"qwen2", PreTokenizer::kQwen2, Normalizer::kNfc},
    Family{"deepseek-r1-qwen", PreTokenizer::kQwen2, Normalizer::kNfc},
    Family{"smollm", PreTokenizer::kSmolLm},
    Family{"starcoder", PreTokenizer::kSmolLm},
    Family{"deepseek-v3", PreTokenizer::kDeepSeekV3},
};

Result<Family> family_of(const GgufFile& file) {
  DEEPMINT_TRY(model, file.string("tokenizer.ggml.model"));
  if (model != "gpt2")
    return fail(ErrorCode::kUnsupported,
                fmt::format("tokenizer model {} is not supported, only byte-level BPE (\"gpt2\")",
                            quote_name(model)),
                "tokenizer.ggml.model");
  DEEPMINT_TRY(pre, file.string("tokenizer.ggml.pre"));
  for (const Family& family : kFamilies)
    if (family.name == pre) return family;
  return fail(ErrorCode::kUnsupported,
              fmt::format("pre-tokenizer {} is not known", quote_name(pre)), "tokenizer.ggml.pre");
}

Result<std::optional<TokenId>> optional_id(const GgufFile& file, std::string_view key,
                                           size_t vocab) {
  if (file.find(key) == nullptr) return std::optional<TokenId>();
  DEEPMINT_TRY(id, file.integer(key));
  // Converters write the largest 32-bit number for "none".
  if (id == 0xFFFFFFFF || id == -1) return std::optional<TokenId>();
  if (id < 0 || static_cast<uint64_t>(id) >= vocab)
    return fail(ErrorCode::kInvalidFile,
                fmt::format("token id {} is outside the vocabulary of {}", id, vocab),
                std::string(key));
  return std::optional(static_cast<TokenId>(id));
}

Status read_merges(const GgufFile& file, const std::vector<std::string_view>& tokens,
                   TokenizerSpec& spec) {
  DEEPMINT_TRY(merges, file.strings("tokenizer.ggml.merges"));
  TokenTable spelled(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id)
    spelled.insert(tokens[id], static_cast<TokenId>(id));
  spec.merges.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view text = merges[rank];
    const size_t space = text.find(' ', 1);
    const std::string_view left = text.substr(0, space), right = space == std::string_view::npos
                                                                     ? std::string_view{}
                                                                     : text.substr(space + 1);
    const TokenId left_id = spelled.find(left), right_id = spelled.find(right);
    if (left_id < 0 || right_id < 0)
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("expected two tokens of the vocabulary with a space between, found {}",
                      quote_name(text)),
          fmt::format("tokenizer.ggml.merges[{}]", rank));
    spec.merges.emplace_back(left_id, right_id);
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> tokenizer_spec_from_gguf(const GgufFile& file) {
  DEEPMINT_TRY(family, family_of(file));
  TokenizerSpec spec;
  spec.pre = family.pre;
  spec.normalizer = family.normalizer;
  spec.ignore_merges = family.ignore_merges;

  DEEPMINT_TRY(tokens, file.strings("tokenizer.ggml.tokens"));
  std::vector<int64_t> types;
  if (file.find("tokenizer.ggml.token_type") != nullptr) {
    DEEPMINT_TRY(found, file.integers("tokenizer.ggml.token_type"));
    types = std::move(found);
    if (types.size() != tokens.size())
      return fail(
          ErrorCode::kInvalidFile,
          fmt::format("expected {} entries, one per token, found {}", tokens.size(), types.size()),
          "tokenizer.ggml.token_type");
  }
  spec.vocab.reserve(tokens.size());
  std::string bytes;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const auto type = types.empty() ? TokenType::kNormal : static_cast<TokenType>(types[i]);
    const std::string_view token = tokens[i];
    switch (type) {
      case TokenType::kControl:
      case TokenType::kUserDefined:
      case TokenType::kUnknown:
        if (token.empty())
          return fail(ErrorCode::kInvalidFile, "a control token has no text",
                      fmt::format("tokenizer.ggml.tokens[{}]", i));
        spec.added.push_back({id, std::string(token), type != TokenType::kUserDefined});
        spec.vocab.emplace_back(token);
        continue;
      case TokenType::kUnused:
        spec.decode_only.push_back(id);
        spec.vocab.emplace_back(token);
        continue;
      case TokenType::kByte:
        if (const auto byte = byte_level::fallback_byte(token)) {
          spec.byte_fallback.emplace_back(*byte, id);
          spec.vocab.emplace_back(1, static_cast<char>(*byte));
          continue;
        }
        break;
      case TokenType::kNormal:
        break;
      default:
        return fail(ErrorCode::kInvalidFile,
                    fmt::format("expected a token type of 1 to 6, found {}", types[i]),
                    fmt::format("tokenizer.ggml.token_type[{}]", i));
    }
    if (byte_level::decode(token, bytes)) {
      spec.vocab.push_back(bytes);
    } else {
      spec.decode_only.push_back(id);
      spec.vocab.emplace_back(token);
    }
  }
  DEEPMINT_CHECK_OK(read_merges(file, tokens, spec));

  for (const auto& [key, slot] : {std::pair{"tokenizer.ggml.bos_token_id", &spec.bos},
                                  {"tokenizer.ggml.eos_token_id", &spec.eos},
                                  {"tokenizer.ggml.padding_token_id", &spec.pad}}) {
    DEEPMINT_TRY(id, optional_id(file, key, tokens.size()));
    *slot = id;
  }
  DEEPMINT_TRY(add_bos, file.boolean_or("tokenizer.ggml.add_bos_token", family.add_bos));
  DEEPMINT_TRY(add_eos, file.boolean_or("tokenizer.ggml.add_eos_token", false));
  spec.add_bos = add_bos && spec.bos;
  spec.add_eos = add_eos && spec.eos;
  add_known_end_ids(spec);
  for (std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    DEEPMINT_TRY(id, optional_id(file, key, tokens.size()));
    if (id && std::find(spec.end_ids.begin(), spec.end_ids.end(), *id) == spec.end_ids.end())
      spec.end_ids.push_back(*id);
  }
  return spec;
}

}  // namespace deepmint
