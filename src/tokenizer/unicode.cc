#include "tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <span>
#include <unordered_map>

namespace deepmint::unicode {
namespace {

constexpr uint32_t kLimit = 0x110000;

enum Category : uint8_t {
  Cc,
  Cf,
  Cn,
  Co,
  Cs,
  Ll,
  Lm,
  Lo,
  Lt,
  Lu,
  Mc,
  Me,
  Mn,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Pe,
  Pf,
  Pi,
  Po,
  Ps,
  Sc,
  Sk,
  Sm,
  So,
  Zl,
  Zp,
  Zs,
  kCategories
};
constexpr std::array<std::string_view, kCategories> kNames = {
    "Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
    "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};

struct CategoryRun {
  uint32_t first;
  Category category;
};

#include "tokenizer/unicode_tables.inc"

uint8_t class_of(Category category) {
  switch (kNames[category][0]) {
    case 'L':
      return kLetter;
    case 'M':
      return kMark;
    case 'N':
      return kNumber;
    case 'P':
      return kPunctuation;
    case 'S':
      return kSymbol;
    default:
      return 0;
  }
}

template <class F>
void for_each_run(std::span<const CategoryRun> runs, F&& f) {
  for (size_t i = 0; i < runs.size(); ++i)
    f(runs[i].first, (i + 1 < runs.size() ? runs[i + 1].first : kLimit) - 1, runs[i].category);
}

bool in_group(Category category, std::string_view name) {
  return kNames[category].substr(0, name.size()) == name;
}

std::vector<Range> select(std::span<const CategoryRun> runs, std::string_view name) {
  std::vector<Range> out;
  for_each_run(runs, [&](uint32_t first, uint32_t last, Category category) {
    if (!in_group(category, name)) return;
    if (!out.empty() && out.back().second + 1 == first)
      out.back().second = last;
    else
      out.emplace_back(first, last);
  });
  return out;
}

}  // namespace

std::vector<Range> space_ranges() {
  return {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
          {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
}

std::optional<std::vector<Range>> category_ranges(std::string_view name) {
  if (name.empty() || name.size() > 2) return std::nullopt;
  const bool known = std::any_of(kNames.begin(), kNames.end(), [&](std::string_view n) {
    return n.substr(0, name.size()) == name;
  });
  if (!known) return std::nullopt;
  return select(kCategoryRuns, name);
}

std::vector<Range> category_ranges_since_14(std::string_view name) {
  // Unassigned here only means "the same in 14.0".
  if (name.empty() || name[0] == 'C') return {};
  return select(kAddedSince14, name);
}

std::vector<Range> complement(const std::vector<Range>& set) {
  std::vector<Range> out;
  const auto add = [&](uint32_t first, uint32_t last) {  // surrogates are no characters of UTF-8
    if (first < 0xD800 && last >= 0xD800) {
      out.emplace_back(first, 0xD7FF);
      first = 0xE000;
    }
    if (first >= 0xD800 && first < 0xE000) first = 0xE000;
    if (first <= last) out.emplace_back(first, last);
  };
  uint32_t next = 0;
  for (const auto& [first, last] : set) {
    if (first > next) add(next, first - 1);
    next = last + 1;
  }
  if (next < kLimit) add(next, kLimit - 1);
  return out;
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

ClassTable::ClassTable() {
  std::vector<uint8_t> flat(kLimit, 0);
  for_each_run(kCategoryRuns, [&](uint32_t first, uint32_t last, Category category) {
    std::memset(flat.data() + first, class_of(category), last - first + 1);
  });
  for (const auto& [first, last] : space_ranges())
    for (uint32_t c = first; c <= last; ++c) flat[c] |= kSpace;
  for (const auto& [first, last] : {Range{0x4E00, 0x9FA5}, Range{0x3040, 0x30FF}})
    for (uint32_t c = first; c <= last; ++c) flat[c] |= kCjk;
  flat['\r'] |= kNewline;
  flat['\n'] |= kNewline;

  std::unordered_map<std::string_view, uint16_t> seen;
  constexpr size_t kBlock = size_t{1} << kShift;
  index_.reserve(kLimit / kBlock);
  for (size_t at = 0; at < kLimit; at += kBlock) {
    const std::string_view block(reinterpret_cast<const char*>(flat.data() + at), kBlock);
    const auto [entry, fresh] = seen.try_emplace(block, static_cast<uint16_t>(seen.size()));
    if (fresh) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_.push_back(entry->second);
  }
}

}  // namespace deepmint::unicode
