#include "server/testing/test_model.h"

#include <cstdio>
#include <cstdlib>

namespace deepmint::testing {

std::shared_ptr<const Tokenizer> test_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    TokenizerSpec spec;
    for (int byte = 0; byte < 256; ++byte)
      spec.vocab.push_back(std::string(1, static_cast<char>(byte)));
    for (const char* text : {"<|im_start|>", "<|im_end|>", "Hello", " world", "\n\n", "END\nnew"})
      spec.vocab.push_back(text);
    for (const TokenId id : {kImStart, kImEnd}) {
      TokenizerSpec::Added added;
      added.id = id;
      added.text = spec.vocab[static_cast<size_t>(id)];
      added.special = true;
      spec.added.push_back(added);
    }
    spec.pre = PreTokenizer::kGpt2;
    spec.eos = kImEnd;
    spec.end_ids = {kImEnd};
    auto made = Tokenizer::create(std::move(spec));
    if (!made) {
      std::fprintf(stderr, "test tokenizer: %s\n", made.error().str().c_str());
      std::abort();
    }
    return *made;
  }();
  return tokenizer;
}

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
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

}  // namespace deepmint::testing
