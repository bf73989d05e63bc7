// A served model without weights, for tests of what stands above the engine: every byte is a token,
// and some words and control tokens besides, so that a script of ids is readable and a character
// can be cut in two.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deepmint/engine.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::testing {

inline constexpr TokenId kImStart = 256, kImEnd = 257;
inline constexpr TokenId kHello = 258, kWorld = 259, kNewlines = 260,
                         kEndNew = 261;  // "Hello", " world", "\n\n", "END\nnew"

std::shared_ptr<const Tokenizer> test_tokenizer();
std::vector<TokenId> bytes_of(std::string_view text);  // one token per byte
// Bytes, and DeepSeek's control tokens from 256 on; its end of sentence ends a reply.
inline constexpr TokenId kDeepSeekEnd = 257;
std::shared_ptr<const Tokenizer> deepseek_tokenizer();
std::vector<TokenId> deepseek_ids(std::string_view text);  // control tokens where they stand
// How many of these ids, in order, a mask lets an engine sample.
size_t admitted(TokenMask& mask, const std::vector<TokenId>& ids);
ServedModel deepseek_model(Engine& engine);  // id "test-model"
ServedModel test_model(Engine& engine);      // id "test-model", ChatML, kImEnd ends a reply

}  // namespace deepmint::testing
