#include "recipe/tag_lexer.h"

#include <algorithm>
#include <array>

namespace deepmint::recipe {
namespace {

constexpr std::string_view kFullBar = "｜", kDoubleBar = "‖";

// Reads on from `at`; every step answers kYes (done, `at` moved), kNo or kMore (the text ends
// inside).
class Reader {
 public:
  explicit Reader(std::string_view s) : s_(s) {}
  size_t at = 0;

  bool end() const { return at >= s_.size(); }
  char peek() const { return s_[at]; }
  std::string_view rest() const { return s_.substr(at); }
  std::string_view from(size_t begin) const { return s_.substr(begin, at - begin); }

  Tag::Status literal(std::string_view text) {
    const std::string_view r = rest();
    if (r.starts_with(text)) {
      at += text.size();
      return Tag::Status::kYes;
    }
    return text.starts_with(r) ? Tag::Status::kMore : Tag::Status::kNo;
  }
  void spaces() {
    while (!end() && (peek() == ' ' || peek() == '\t')) ++at;
  }
  // One or two bars of any kind; `genuine` becomes false for anything but one full-width bar.
  Tag::Status bars(bool& genuine) {
    int n = 0;
    for (; n < 2; ++n) {
      const std::string_view r = rest();
      if (r.starts_with(kFullBar)) {
        at += kFullBar.size();
      } else if (r.starts_with("|")) {
        genuine = false;
        ++at;
      } else if (r.starts_with(kDoubleBar)) {
        genuine = false;
        at += kDoubleBar.size();
      } else if (r.empty() || kFullBar.starts_with(r) || kDoubleBar.starts_with(r)) {
        return Tag::Status::kMore;
      } else {
        break;
      }
    }
    if (n == 2) genuine = false;
    return n == 0 ? Tag::Status::kNo : Tag::Status::kYes;
  }

 private:
  std::string_view s_;
};

constexpr std::array<std::string_view, 4> kBlockNames = {"calls", "tool_calls", "function_calls",
                                                         "tool_use"};

bool is_word(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }

Tag::Status name_of(Reader& r, Tag& tag) {
  const size_t begin = r.at;
  while (!r.end() && is_word(r.peek())) ++r.at;
  const std::string_view word = r.from(begin);
  if (r.end()) {
    const auto can_be = [&](std::string_view name) { return name.starts_with(word); };
    const bool any = can_be("invoke") || can_be("parameter") ||
                     std::any_of(kBlockNames.begin(), kBlockNames.end(), can_be);
    return any ? Tag::Status::kMore : Tag::Status::kNo;
  }
  if (word == "invoke") {
    tag.kind = Tag::Kind::kInvoke;
  } else if (word == "parameter") {
    tag.kind = Tag::Kind::kParameter;
  } else if (std::find(kBlockNames.begin(), kBlockNames.end(), word) != kBlockNames.end()) {
    tag.kind = Tag::Kind::kBlock;
  } else {
    return Tag::Status::kNo;
  }
  return Tag::Status::kYes;
}

// A quote ends an attribute when another attribute or the end of the tag follows; names may hold
// quotes themselves.
bool ends_attribute(std::string_view after) {
  size_t i = 0;
  while (i < after.size() && (after[i] == ' ' || after[i] == '\t')) ++i;
  if (i == after.size()) return true;  // undecided: the caller asks for more
  if (after[i] == '>' || after[i] == '\n' || after[i] == '/') return true;
  if (i == 0) return false;
  const size_t word = i;
  while (i < after.size() && is_word(after[i])) ++i;
  return i == after.size() || (i > word && after[i] == '=');
}

bool has_marker(std::string_view s) {
  return s.find(kDsmlByte) != std::string_view::npos ||
         s.find(kThinkCloseByte) != std::string_view::npos;
}

Tag::Status attributes(Reader& r, Tag& tag, bool from_ids, bool& named) {
  while (true) {
    r.spaces();
    if (r.end()) return Tag::Status::kMore;
    if (r.peek() == '>') {
      ++r.at;
      return Tag::Status::kYes;
    }
    if (r.peek() == '\n')
      return named ? Tag::Status::kYes : Tag::Status::kNo;  // the bracket was forgotten
    const size_t key_begin = r.at;
    while (!r.end() && is_word(r.peek())) ++r.at;
    const std::string_view key = r.from(key_begin);
    if (r.end()) return Tag::Status::kMore;
    if (key.empty() || r.peek() != '=') return Tag::Status::kNo;
    ++r.at;
    if (r.end()) return Tag::Status::kMore;
    if (r.peek() != '"') return Tag::Status::kNo;
    ++r.at;
    const size_t value_begin = r.at;
    while (true) {
      const size_t quote = r.rest().find('"');
      // A marker token inside a name or an attribute: not a tag, whatever follows.
      if (from_ids && has_marker(r.rest().substr(0, quote))) return Tag::Status::kNo;
      if (quote == std::string_view::npos) return Tag::Status::kMore;
      r.at += quote;
      if (ends_attribute(r.rest().substr(1))) break;
      ++r.at;
    }
    const std::string_view value = r.from(value_begin);
    ++r.at;
    if (key == "name") {
      tag.name = value;
      named = true;
    } else if (key == "string") {
      tag.type = value == "false"  ? Tag::Type::kJson
                 : value == "true" ? Tag::Type::kString
                                   : Tag::Type::kMissing;
    }
  }
}

Tag::Status lex(Reader& r, Tag& tag, bool from_ids) {
  ++r.at;  // the bracket
  if (r.end()) return Tag::Status::kMore;
  if (r.peek() == '/') {
    tag.close = true;
    ++r.at;
  }
  r.spaces();
  if (r.end()) return Tag::Status::kMore;
  tag.genuine = true;
  if (r.peek() == kDsmlByte) {
    ++r.at;
  } else {
    if (from_ids) tag.genuine = false;
    if (const Tag::Status s = r.bars(tag.genuine); s != Tag::Status::kYes) return s;
    if (!r.end() && r.peek() == ' ') tag.genuine = false;
    r.spaces();
    if (r.end()) return Tag::Status::kMore;
    if (const Tag::Status s = r.literal("DSML"); s != Tag::Status::kYes) return s;
    r.spaces();
    if (r.end()) return Tag::Status::kMore;
    if (const Tag::Status s = r.bars(tag.genuine); s != Tag::Status::kYes) return s;
  }
  r.spaces();
  if (r.end()) return Tag::Status::kMore;
  if (const Tag::Status s = name_of(r, tag); s != Tag::Status::kYes) return s;
  if (tag.close || tag.kind == Tag::Kind::kBlock) {
    r.spaces();
    if (r.end()) return Tag::Status::kMore;
    if (r.peek() != '>') return Tag::Status::kNo;
    ++r.at;
    return Tag::Status::kYes;
  }
  bool named = false;
  const Tag::Status s = attributes(r, tag, from_ids, named);
  return s == Tag::Status::kYes && !named ? Tag::Status::kNo : s;
}

}  // namespace

Tag lex_tag(std::string_view s, bool from_ids, bool at_end) {
  Tag tag;
  Reader r(s.substr(0, kMaxTagBytes));
  tag.status = lex(r, tag, from_ids);
  tag.length = r.at;
  if (tag.status == Tag::Status::kMore && (at_end || s.size() >= kMaxTagBytes))
    tag.status = Tag::Status::kNo;
  return tag;
}

}  // namespace deepmint::recipe
