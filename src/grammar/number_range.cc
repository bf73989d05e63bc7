#include "grammar/number_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace deepmint::grammar {

Result<Decimal> Decimal::parse(std::string_view spelling) {
  const auto too_long = [&] {
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected a number of at most {} digits when written out, found {}",
                            kMaxDigits, spelling.substr(0, 40)));
  };
  Decimal out;
  size_t at = 0;
  if (!spelling.empty() && spelling[0] == '-') {
    out.negative = true;
    at = 1;
  }
  if (spelling.size() > static_cast<size_t>(kMaxDigits)) return too_long();
  bool fraction = false;
  for (; at < spelling.size() && spelling[at] != 'e' && spelling[at] != 'E'; ++at) {
    if (spelling[at] == '.') {
      fraction = true;
      continue;
    }
    out.digits.push_back(spelling[at]);
    if (!fraction) ++out.point;
  }
  const size_t first = out.digits.find_first_not_of('0');
  if (first == std::string::npos) return Decimal{};
  out.digits.erase(0, first);
  out.point -= static_cast<int64_t>(first);
  out.digits.erase(out.digits.find_last_not_of('0') + 1);
  if (at < spelling.size()) {
    ++at;
    if (at < spelling.size() && spelling[at] == '+') ++at;
    int64_t exponent = 0;
    const auto [end, error] =
        std::from_chars(spelling.data() + at, spelling.data() + spelling.size(), exponent);
    if (error != std::errc() || exponent > kMaxDigits || exponent < -kMaxDigits) return too_long();
    out.point += exponent;
  }
  if (out.point > kMaxDigits || static_cast<int64_t>(out.digits.size()) - out.point > kMaxDigits)
    return too_long();
  return out;
}

std::string Decimal::integer_part() const {
  if (point <= 0) return "0";
  std::string out = digits.substr(0, static_cast<size_t>(point));
  out.resize(static_cast<size_t>(point), '0');
  return out;
}

std::string Decimal::fraction_part() const {
  if (is_integer()) return {};
  if (point >= 0) return digits.substr(static_cast<size_t>(point));
  return std::string(static_cast<size_t>(-point), '0') + digits;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_zero() || b.is_zero()) {
    const int sa = a.is_zero() ? 0 : a.negative ? -1 : 1;
    const int sb = b.is_zero() ? 0 : b.negative ? -1 : 1;
    return (sa > sb) - (sa < sb);
  }
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.point != b.point) return a.point < b.point ? -sign : sign;
  const int order = a.digits.compare(b.digits);  // no zeros at the end: a prefix is smaller
  return order < 0 ? -sign : order > 0 ? sign : 0;
}

NumberLanguages::NumberLanguages(RegexSet& set) : set_(set) {
  digit_ = set.bytes(ByteSet::range('0', '9'));
  digits_ = set.star(digit_);
  nonzero_ = set.bytes(ByteSet::range('1', '9'));
  minus_ = set.literal("-");
  dot_ = set.literal(".");
  fraction_ = set.optional(set.concat(dot_, set.repeat(digit_, 1, kUnbounded)));
  zero_fraction_ = set.optional(set.concat(dot_, set.repeat(set.literal("0"), 1, kUnbounded)));
  zero_ = set.concat(set.literal("0"), zero_fraction_);
  const RegexId integer = set.alternate(set.literal("0"), set.concat(nonzero_, digits_));
  magnitude_ = set.concat(integer, fraction_);
  positive_ = set.alternate(set.concat(std::array{nonzero_, digits_, fraction_}),
                            set.concat(std::array{set.literal("0."), digits_, nonzero_, digits_}));
  plain_ = set.concat(set.optional(minus_), magnitude_);
}

NumberSet NumberLanguages::bare_integers() const {
  return {set_.concat(set_.optional(minus_),
                      set_.alternate(set_.literal("0"), set_.concat(nonzero_, digits_))),
          0, 0};
}

NumberSet NumberLanguages::integers() const {
  return {set_.concat(bare_integers().plain, zero_fraction_),
          kPositiveIntegerForm | kNegativeIntegerForm | kZeroForm, kAllExponents};
}

namespace {

ByteSet digits_above(char d) {
  return d == '9' ? ByteSet() : ByteSet::range(static_cast<uint8_t>(d) + 1u, '9');
}
ByteSet digits_below(char d) {
  return d == '0' ? ByteSet() : ByteSet::range('0', static_cast<uint8_t>(d) - 1u);
}

}  // namespace

// Spellings of |x| >= limit (or >), limit > 0, built from the last digit to the first.
RegexId NumberLanguages::magnitude_at_least(const Decimal& limit, bool strict) const {
  const std::string whole = limit.integer_part(), part = limit.fraction_part();
  const RegexId more = set_.concat(std::array{digits_, nonzero_, digits_});  // some digit not 0
  RegexId tail =
      part.empty() ? (strict ? set_.concat(dot_, more) : fraction_) : (strict ? more : digits_);
  if (!part.empty()) {
    for (size_t at = part.size(); at-- > 0;) {
      const RegexId above = set_.concat(set_.bytes(digits_above(part[at])), digits_);
      tail = set_.alternate(set_.concat(set_.literal(part.substr(at, 1)), tail), above);
    }
    tail = set_.concat(dot_, tail);
  }
  for (size_t at = whole.size(); at-- > 0;) {
    const uint32_t left = static_cast<uint32_t>(whole.size() - at - 1);
    const RegexId above = set_.concat(std::array{set_.bytes(digits_above(whole[at])),
                                                 set_.repeat(digit_, left, left), fraction_});
    tail = set_.alternate(set_.concat(set_.literal(whole.substr(at, 1)), tail), above);
  }
  const RegexId longer = set_.concat(std::array{
      nonzero_, set_.repeat(digit_, static_cast<uint32_t>(whole.size()), kUnbounded), fraction_});
  return set_.alternate(tail, longer);
}

RegexId NumberLanguages::magnitude_at_most(const Decimal& limit, bool strict) const {
  const std::string whole = limit.integer_part(), part = limit.fraction_part();
  RegexId tail;
  if (part.empty()) {
    tail = strict ? set_.none() : zero_fraction_;
  } else {
    const RegexId zeros = set_.star(set_.literal("0"));
    tail = strict ? set_.none() : zeros;
    for (size_t at = part.size(); at-- > 0;) {
      const RegexId below = set_.concat(set_.bytes(digits_below(part[at])), digits_);
      tail = set_.alternate(set_.concat(set_.literal(part.substr(at, 1)), tail), below);
      // A fraction that ends early is smaller, since the limit's own has no zero at its end.
      if (at > 0) tail = set_.alternate(tail, set_.epsilon());
    }
    tail = set_.optional(set_.concat(dot_, tail));
  }
  for (size_t at = whole.size(); at-- > 0;) {
    const uint32_t left = static_cast<uint32_t>(whole.size() - at - 1);
    ByteSet smaller = digits_below(whole[at]);
    if (at == 0 && whole.size() > 1) smaller = smaller & ByteSet::range('1', '9');
    const RegexId below =
        set_.concat(std::array{set_.bytes(smaller), set_.repeat(digit_, left, left), fraction_});
    tail = set_.alternate(set_.concat(set_.literal(whole.substr(at, 1)), tail), below);
  }
  if (whole.size() == 1) return tail;
  const RegexId shorter = set_.alternate(
      set_.concat(set_.literal("0"), fraction_),
      set_.concat(std::array{
          nonzero_, set_.repeat(digit_, 0, static_cast<uint32_t>(whole.size()) - 2), fraction_}));
  return set_.alternate(tail, shorter);
}

NumberSet NumberLanguages::at_least(const Decimal& limit, bool strict) const {
  NumberSet out;
  static const Decimal kOne{false, "1", 1}, kMinusOne{true, "1", 1};
  const bool holds_zero = limit.negative || (limit.is_zero() && !strict);
  if (limit.is_zero()) {
    out.plain = strict ? positive_ : set_.alternate(magnitude_, set_.concat(minus_, zero_));
  } else if (!limit.negative) {
    out.plain = magnitude_at_least(limit, strict);
  } else {
    out.plain = set_.alternate(magnitude_, set_.concat(minus_, magnitude_at_most(limit, strict)));
  }
  const int to_one = compare(limit, kOne);
  if (to_one < 0 || (to_one == 0 && !strict)) out.inside |= kPositiveIntegerForm;
  if (limit.negative || limit.is_zero()) out.inside |= kPositiveForm;
  if (holds_zero) out.inside |= kZeroForm;
  out.touched = out.inside | kPositiveIntegerForm | kPositiveForm;
  if (limit.negative) out.touched |= kNegativeForm;
  const int to_minus_one = compare(limit, kMinusOne);
  if (to_minus_one < 0 || (to_minus_one == 0 && !strict)) out.touched |= kNegativeIntegerForm;
  return out;
}

NumberSet NumberLanguages::at_most(const Decimal& limit, bool strict) const {
  // x <= l is not (x > l).
  return complement(at_least(limit, !strict));
}

NumberSet NumberLanguages::equal_to(const Decimal& value) const {
  if (value.is_zero()) return {set_.concat(set_.optional(minus_), zero_), kZeroForm, kZeroForm};
  const std::string part = value.fraction_part();
  RegexId out = set_.literal((value.negative ? "-" : "") + value.integer_part());
  out = part.empty()
            ? set_.concat(out, zero_fraction_)
            : set_.concat(std::array{out, set_.literal("." + part), set_.star(set_.literal("0"))});
  const uint8_t form = value.negative ? kNegativeForm : kPositiveForm;
  const uint8_t integer_form = value.negative ? kNegativeIntegerForm : kPositiveIntegerForm;
  return {out, 0, static_cast<uint8_t>(form | (value.is_integer() ? integer_form : 0))};
}

Result<NumberSet> NumberLanguages::multiples_of(const Decimal& step) const {
  // step = m * 10^zeros / 10^places with the smallest such m.
  const std::string part = step.fraction_part();
  std::string m = step.integer_part() + part;
  m.erase(0, std::min(m.find_first_not_of('0'), m.size() - 1));
  const size_t zeros = part.empty() ? m.size() - 1 - m.find_last_not_of('0') : 0;
  m.erase(m.size() - zeros);
  uint32_t modulus = 0;
  const auto [end, error] = std::from_chars(m.data(), m.data() + m.size(), modulus);
  if (error != std::errc() || modulus > kMaxStep || part.size() > kMaxPlaces || zeros > kMaxPlaces)
    return fail(ErrorCode::kTooLarge,
                fmt::format("expected a step of at most {} times a power of ten from 1e-{} to "
                            "1e{}, found one of {} digits",
                            kMaxStep, kMaxPlaces, kMaxPlaces, step.digits.size()));
  NumberSet out;
  RegexId magnitude = set_.decimal_multiple(modulus, static_cast<uint32_t>(part.size()));
  if (zeros > 0) {
    magnitude = set_.intersect(magnitude, set_.repeat(digit_, 1, kUnbounded));
    magnitude = set_.alternate(
        set_.concat(std::array{magnitude, set_.literal(std::string(zeros, '0')), zero_fraction_}),
        zero_);
  }
  out.plain = set_.intersect(plain_, set_.concat(set_.optional(minus_), magnitude));
  out.inside = kZeroForm;
  // Every integer is a multiple when 1 is: m divides 10^places.
  uint64_t scale = 1;
  for (size_t at = 0; at < part.size(); ++at) scale *= 10;
  if (zeros == 0 && scale % modulus == 0) out.inside |= kPositiveIntegerForm | kNegativeIntegerForm;
  out.touched = kAllExponents;
  return out;
}

NumberSet NumberLanguages::intersect(const NumberSet& a, const NumberSet& b) const {
  return {set_.intersect(a.plain, b.plain), static_cast<uint8_t>(a.inside & b.inside),
          static_cast<uint8_t>(a.touched & b.touched)};
}
NumberSet NumberLanguages::unite(const NumberSet& a, const NumberSet& b) const {
  return {set_.alternate(a.plain, b.plain), static_cast<uint8_t>(a.inside | b.inside),
          static_cast<uint8_t>(a.touched | b.touched)};
}
NumberSet NumberLanguages::complement(const NumberSet& a) const {
  if (a.plain == set_.none() && a.touched == 0) return all();
  if (a.plain == plain_)
    return {set_.none(), static_cast<uint8_t>(kAllExponents & ~a.touched),
            static_cast<uint8_t>(kAllExponents & ~a.inside)};
  return {set_.intersect(plain_, set_.complement(a.plain)),
          static_cast<uint8_t>(kAllExponents & ~a.touched),
          static_cast<uint8_t>(kAllExponents & ~a.inside)};
}

RegexId NumberLanguages::spellings(const NumberSet& a) const {
  const RegexId mark = set_.bytes(ByteSet::one('e') | ByteSet::one('E'));
  const RegexId any_exponent =
      set_.concat(std::array{mark, set_.optional(set_.bytes(ByteSet::one('+') | ByteSet::one('-'))),
                             set_.repeat(digit_, 1, kUnbounded)});
  // Where the value matters, exponents stay within what readers that use doubles tell apart from
  // infinity and from zero: 308 at most.
  const RegexId small = set_.alternate(
      std::array{set_.repeat(digit_, 1, 2),
                 set_.concat(set_.bytes(ByteSet::range('1', '2')), set_.repeat(digit_, 2, 2)),
                 set_.concat(set_.literal("30"), set_.bytes(ByteSet::range('0', '8')))});
  const RegexId some_exponent = set_.concat(
      std::array{mark, set_.optional(set_.bytes(ByteSet::one('+') | ByteSet::one('-'))), small});
  const RegexId up_exponent =
      set_.concat(std::array{mark, set_.optional(set_.literal("+")), small});
  const RegexId integer_form =
      set_.concat(std::array{nonzero_, digits_, zero_fraction_, up_exponent});
  std::vector<RegexId> parts{a.plain};
  if (a.inside == kAllExponents && a.plain == plain_)
    return set_.concat(plain_, set_.optional(any_exponent));
  if (a.inside & kPositiveForm)
    parts.push_back(set_.concat(positive_, some_exponent));
  else if (a.inside & kPositiveIntegerForm)
    parts.push_back(integer_form);
  if (a.inside & kNegativeForm)
    parts.push_back(set_.concat(std::array{minus_, positive_, some_exponent}));
  else if (a.inside & kNegativeIntegerForm)
    parts.push_back(set_.concat(minus_, integer_form));
  if (a.inside & kZeroForm)
    parts.push_back(set_.concat(std::array{set_.optional(minus_), zero_, some_exponent}));
  return set_.alternate(parts);
}

}  // namespace deepmint::grammar
