#include "server/testing/test_model.h"

#include <cstdio>
#include <cstdlib>
#include <span>

namespace deepmint::testing {

namespace {

// A token per byte, then `control` (special when `special`), then `words`.
TokenizerSpec byte_spec(std::initializer_list<const char*> control, bool special,
                        std::initializer_list<const char*> words) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte)
    spec.vocab.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text : control) {
    TokenizerSpec::Added added;
    added.id = static_cast<TokenId>(spec.vocab.size());
    added.text = text;
    added.special = special;
    spec.vocab.push_back(text);
    spec.added.push_back(added);
  }
  for (const char* text : words) spec.vocab.push_back(text);
  spec.pre = PreTokenizer::kGpt2;
  return spec;
}

std::shared_ptr<const Tokenizer> make(TokenizerSpec spec, TokenId end) {
  spec.eos = end;
  spec.end_ids = {end};
  auto made = Tokenizer::create(std::move(spec));
  if (!made) {
    std::fprintf(stderr, "test tokenizer: %s\n", made.error().str().c_str());
    std::abort();
  }
  return *made;
}

}  // namespace

std::shared_ptr<const Tokenizer> test_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer =
      make(byte_spec({"<|im_start|>", "<|im_end|>"}, /*special=*/true,
                     {"Hello", " world", "\n\n", "END\nnew"}),
           kImEnd);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> deepseek_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer =
      make(byte_spec({"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜System｜>",
                      "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>", "<think>",
                      "</think>", "｜DSML｜", "<｜image｜>"},
                     /*special=*/false, {}),
           kDeepSeekEnd);
  return tokenizer;
}

std::vector<TokenId> deepseek_ids(std::string_view text) {
  const Segment segment{Segment::Kind::kControl, std::string(text)};
  return deepseek_tokenizer()->encode({&segment, 1});
}

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

size_t admitted(TokenMask& mask, const std::vector<TokenId>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::span<const uint32_t> allowed = mask.allowed();
    const auto id = static_cast<size_t>(ids[i]);
    if (!allowed.empty() && (allowed[id / 32] >> (id % 32) & 1) == 0) return i;
    mask.accept(ids[i]);
  }
  return ids.size();
}

ServedModel test_model(Engine& engine) {
  ServedModel model;
  model.id = "test-model";
  model.aliases = {"test/alias"};
  model.engine = &engine;
  model.tokenizer = test_tokenizer();
  model.chat = recipe::ChatTemplate{};
  model.end_ids = {kImEnd};
  model.created = 1'700'000'000;
  model.fingerprint = 42;
  model.build = "test";
  return model;
}

ServedModel deepseek_model(Engine& engine) {
  ServedModel model = test_model(engine);
  model.tokenizer = deepseek_tokenizer();
  model.chat = recipe::load_chat_template("", "deepseek_v41", *model.tokenizer);
  model.end_ids = {kDeepSeekEnd};
  return model;
}

}  // namespace deepmint::testing
