// Token ids → reply text with stop strings: what a chat endpoint or a terminal shows. Holds back bytes of unfinished characters
// and text that may still become a stop string.
//
//   TextStream t(tokenizer, {"\n\n"});
//   auto piece = t.push(id);        // piece.text is new, final text; piece.stopped: a stop string was completed → cancel the request
//   auto rest = t.finish();
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace deepmint::recipe {

class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_strings);  // empty stop strings are ignored

  struct Piece {
    std::string_view text;   // valid until the next call
    bool stopped = false;    // a stop string is complete; its text and all that follows is dropped
  };
  Piece push(TokenId id);
  Piece finish();
  const std::string& matched_stop() const { return matched_; }  // the stop string that ended it, or empty

 private:
  Detokenizer detokenizer_;
  std::vector<std::string> stops_;
  size_t max_stop_ = 0;
  std::string held_, out_, matched_;
  bool stopped_ = false;
};

}  // namespace deepmint::recipe
