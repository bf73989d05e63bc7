// Runs codec cases: one JSON object per line on stdin, one answer per line on stdout
// (src/recipe/codec_cli.h has the format).
#include <iostream>
#include <string>

#include "recipe/codec_cli.h"

int main() {
  std::ios::sync_with_stdio(false);
  const deepmint::recipe::CodecSettings settings;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    std::cout << deepmint::recipe::run_codec_case(line, settings) << '\n';
  }
  return 0;
}
