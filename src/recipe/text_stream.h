// Token ids → reply text with stop strings: what a chat endpoint or a terminal shows. Holds back
// bytes of unfinished characters and text that may still become a stop string.
//
//   TextStream t(tokenizer, {"\n\n"});
//   auto piece = t.push(id);        // piece.text is new, final text; piece.stopped: a stop string
//   was completed → cancel the request auto rest = t.finish();
//
// The pieces joined depend on the ids alone. Special tokens give no text. `tokenizer` must outlive
// the stream.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/stop_filter.h"
#include "tokenizer/tokenizer.h"

namespace deepmint::recipe {

class TextStream {
 public:
  // Empty stop strings are ignored. `shown`: special tokens that give their text all the same,
  // because what reads the text looks for them (family_parser.h).
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings,
             std::vector<TokenId> shown = {});

  struct Piece {
    std::string_view text;  // valid until the next call
    bool stopped = false;   // a stop string is complete; its text and all that follows is dropped
  };
  Piece push(TokenId id);
  Piece finish();
  const std::string& matched_stop() const {
    return filter_.matched();
  }  // the stop string that ended it, or empty

  // Where the stream stands, in bytes of reply text: decoded so far (held back or not), and let
  // through. A token whose text begins at or after emitted_bytes() of a stopped stream is part of
  // what was dropped.
  size_t decoded_bytes() const { return decoded_; }
  size_t emitted_bytes() const { return filter_.passed_bytes(); }

 private:
  const Tokenizer* tokenizer_;
  const std::vector<TokenId> shown_;
  Detokenizer detokenizer_;
  StopFilter filter_;
  size_t decoded_ = 0;
  std::string tail_;
};

}  // namespace deepmint::recipe
