// Runs codec cases: one JSON object per line on stdin, one answer per line on stdout
// (src/recipe/codec_cli.h has the format). With an argument: a tokenizer.json for token ids.
#include <iostream>
#include <string>

#include "recipe/codec_cli.h"
#include "tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  deepmint::recipe::CodecSettings settings;
  if (argc > 1) {
    auto tokenizer = deepmint::Tokenizer::from_file(argv[1]);
    if (!tokenizer) {
      std::cerr << tokenizer.error().str() << '\n';
      return 2;
    }
    settings.tokens = deepmint::recipe::make_token_codec(*tokenizer);
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    std::cout << deepmint::recipe::run_codec_case(line, settings) << '\n';
  }
  return 0;
}
