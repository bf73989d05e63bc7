// The segments of a model's reply as one string that does not show how its pieces were cut.
#pragma once

#include <string>
#include <string_view>

#include "recipe/output_parser.h"

namespace deepmint::fuzz {

struct JoinedSegments : recipe::OutputSink {
  void reasoning(std::string_view s) override { put('\1', s); }
  void text(std::string_view s) override { put('\2', s); }
  void tool_begin(std::string_view s) override {
    last = 0;
    put('\3', s);
  }
  void tool_arguments(std::string_view s) override { put('\4', s); }
  void tool_end(bool complete) override { put('\5', complete ? "1" : "0"); }
  void put(char kind, std::string_view s) {
    if (kind != last) out.push_back(kind);
    last = kind;
    out.append(s);
  }
  char last = 0;
  std::string out;
};

}  // namespace deepmint::fuzz
