#include "grammar/unicode_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "core/utf8.h"

namespace deepmint::grammar {

namespace {

std::string every_code_point() {
  std::string text;
  for (uint32_t cp = 0; cp <= 0x10ffff; ++cp)
    if (cp < 0xd800 || cp > 0xdfff) utf8::append(text, cp);
  return text;
}

// Runs of `\p{name}` in the text of all code points.
std::shared_ptr<const std::vector<CodePointRange>> scan(const std::string& name) {
  const std::string pattern = "\\p{" + name + "}+";
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_NO_UTF_CHECK, &error, &offset, nullptr);
  if (code == nullptr) return nullptr;
  static const std::string every = every_code_point();
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  auto out = std::make_shared<std::vector<CodePointRange>>();
  for (size_t from = 0;;) {
    const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(every.data()), every.size(), from,
                               PCRE2_NO_UTF_CHECK, data, nullptr);
    if (rc < 0) break;
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    size_t last = ends[1] - 1;
    while ((static_cast<uint8_t>(every[last]) & 0xc0) == 0x80) --last;
    from = ends[0];
    const uint32_t first = utf8::next(every, from);
    out->push_back({first, utf8::next(every, last)});
    from = ends[1];
  }
  pcre2_match_data_free(data);
  pcre2_code_free(code);
  return out;
}

}  // namespace

std::shared_ptr<const std::vector<CodePointRange>> unicode_property(std::string_view name) {
  if (name.empty() || name.size() > 60) return nullptr;
  for (const char c : name)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
          c == ':' || c == '&'))
      return nullptr;
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const std::vector<CodePointRange>>, std::less<>>
      known;
  const std::lock_guard held(mutex);
  if (const auto it = known.find(name); it != known.end()) return it->second;
  auto ranges = scan(std::string(name));
  if (ranges != nullptr) known.emplace(std::string(name), ranges);  // unknown names are not kept
  return ranges;
}

void normalize(std::vector<CodePointRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& x, const CodePointRange& y) { return x.first < y.first; });
  size_t kept = 0;
  for (const CodePointRange r : ranges) {
    if (kept > 0 && r.first <= ranges[kept - 1].last + 1)
      ranges[kept - 1].last = std::max(ranges[kept - 1].last, r.last);
    else
      ranges[kept++] = r;
  }
  ranges.resize(kept);
}

std::vector<CodePointRange> invert(std::vector<CodePointRange> ranges) {
  normalize(ranges);
  std::vector<CodePointRange> out;
  uint32_t next = 0;
  for (const CodePointRange& r : ranges) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= 0x10ffff) out.push_back({next, 0x10ffff});
  return out;
}

}  // namespace deepmint::grammar
