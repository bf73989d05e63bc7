// tokenizer.json from arbitrary bytes: an error of one line, or a tokenizer that keeps its promises
// on some text.
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "promises.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

using namespace deepmint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  auto spec = tokenizer_spec_from_json(json);
  if (!spec) {
    fuzz::check_error(spec.error());
    return 0;
  }
  const auto tokenizer = Tokenizer::create(std::move(*spec));
  if (!tokenizer) {
    fuzz::check_error(tokenizer.error());
    return 0;
  }
  std::string text =
      "the a  b\n\n'll 1234 \xE4\xB8\xAD\xE6\x96\x87 e\xCC\x81 \xF0\x9F\x98\x80 \xFF\xC3";
  for (const auto& added : (*tokenizer)->spec().added)
    if (text.size() < 4000) text += added.text.substr(0, 100);
  for (const std::string& token : (*tokenizer)->spec().vocab)
    if (text.size() < 8000) text += token.substr(0, 100);
  for (TokenId id : (*tokenizer)->encode_text(text)) {
    fuzz::require(id >= 0 && id < (*tokenizer)->vocab_size());
    fuzz::require(!(*tokenizer)->is_special(id) || (*tokenizer)->token_bytes(id).size() == 1 ||
                  (*tokenizer)->spec().unk == id);
  }
  const std::vector<TokenId> ids = (*tokenizer)->encode_control(text);
  Detokenizer detokenizer(**tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (TokenId id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.finish();
  fuzz::require(streamed == utf8::sanitize((*tokenizer)->decode(ids)));
  return 0;
}
