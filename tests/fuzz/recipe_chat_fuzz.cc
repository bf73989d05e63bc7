// Any bytes as a Chat Completions request (recipe_request.h).
#include "recipe_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return deepmint::fuzz::fuzz_request(deepmint::recipe::Protocol::kChat, data, size);
}
