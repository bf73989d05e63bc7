// The smallest vocabulary that can write any text, for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/vocabulary.h"

namespace deepmint::grammar::testing {

inline constexpr TokenId kByteStop = 256;

// Token b is byte b, 256 ends the text, the ids from 257 to width - 1 are special.
inline std::shared_ptr<const Vocabulary> byte_vocabulary(int width = 257) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(std::string(1, static_cast<char>(b)));
  return Vocabulary::make(bytes, width, {kByteStop}).value();
}

}  // namespace deepmint::grammar::testing
