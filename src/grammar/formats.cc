#include "grammar/formats.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "core/check.h"
#include "grammar/regex_parser.h"

namespace deepmint::grammar {

namespace {

// RFC 3339, appendix A. Year 0000 is left out: many readers have none.
std::string date_pattern() {
  const std::string leap_two = "(0[48]|[2468][048]|[13579][26])";  // 04 … 96
  const std::string leap =
      fmt::format("([0-9][0-9]{0}|([2468][048]|[13579][26]|0[48])00)", leap_two);
  return fmt::format(
      "(([0-9][0-9][0-9][1-9]|[0-9][0-9][1-9][0-9]|[0-9][1-9][0-9][0-9]|[1-9][0-9][0-9][0-9])-"
      "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
      "02-(0[1-9]|1[0-9]|2[0-8]))|{}-02-29)",
      leap);
}

// A leap second falls on 23:59:60 UTC. Offsets of whole quarters of an hour, which all zones have.
std::string time_pattern() {
  const std::string fraction = "(\\.[0-9]+)?";
  std::string leap = fmt::format("23:59:60{}[Zz]", fraction);
  for (int sign : {1, -1}) {
    for (int minutes = 0; minutes < 24 * 60; minutes += 15) {
      const int local = (23 * 60 + 59 + sign * minutes + 24 * 60) % (24 * 60);
      leap += fmt::format("|{:02}:{:02}:60{}{}{:02}:{:02}", local / 60, local % 60, fraction,
                          sign > 0 ? "\\+" : "-", minutes / 60, minutes % 60);
    }
  }
  return fmt::format(
      "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{}([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])|{})",
      fraction, leap);
}

// RFC 3339, appendix A: units in order, none left out between two that are there.
constexpr std::string_view kDuration =
    "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
    "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))?|"
    "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))";

constexpr std::string_view kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";

std::string ipv4_pattern() { return fmt::format("({0}(\\.{0}){{3}})", kOctet); }

std::string ipv6_pattern() {  // RFC 3986's IPv6address
  const std::string h16 = "[0-9A-Fa-f]{1,4}";
  const std::string ls32 = fmt::format("({0}:{0}|{1})", h16, ipv4_pattern());
  std::string out = fmt::format("(({}:){{6}}{}", h16, ls32);
  // n groups at most before "::", and 5 - n of them and ls32 after it.
  for (int before = 0; before <= 5; ++before) {
    const std::string head =
        before == 0 ? "" : fmt::format("(({0}:){{0,{1}}}{0})?", h16, before - 1);
    out += fmt::format("|{}::({}:){{{}}}{}", head, h16, 5 - before, ls32);
  }
  out += fmt::format("|(({0}:){{0,5}}{0})?::{0}|(({0}:){{0,6}}{0})?::)", h16);
  return out;
}

RegexId parse(RegexSet& set, std::string_view pattern) {
  Result<RegexId> out = parse_regex(set, pattern, {});
  DEEPMINT_CHECK(out.has_value() || set.exhausted());  // our own pattern
  return out ? *out : set.none();
}

RegexId email(RegexSet& set) {  // RFC 5321's Mailbox
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const RegexId local =
      parse(set, fmt::format("({0}(\\.{0})*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")", atom));
  const RegexId address =
      parse(set, fmt::format("\\[({}|IPv6:{})\\]", ipv4_pattern(), ipv6_pattern()));
  const RegexId short_local =
      set.intersect(local, set.repeat(set.bytes(ByteSet::range(0x20, 0x7e)), 1, 64));
  return set.concat(
      std::array{short_local, set.literal("@"), set.alternate(set.host_name(), address)});
}

// RFC 3986, and RFC 3987 for iri: `wide` adds the characters above ASCII.
std::string uri_pattern(bool reference, bool wide) {
  const std::string ucs =
      wide ? "\\x{A0}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}\\x{10000}-\\x{1FFFD}"
             "\\x{20000}-\\x{2FFFD}\\x{30000}-\\x{3FFFD}\\x{40000}-\\x{4FFFD}\\x{50000}-\\x{5FFFD}"
             "\\x{60000}-\\x{6FFFD}\\x{70000}-\\x{7FFFD}\\x{80000}-\\x{8FFFD}\\x{90000}-\\x{9FFFD}"
             "\\x{A0000}-\\x{AFFFD}\\x{B0000}-\\x{BFFFD}\\x{C0000}-\\x{CFFFD}\\x{D0000}-\\x{DFFFD}"
             "\\x{E1000}-\\x{EFFFD}"
           : "";
  const std::string priv =
      wide ? "\\x{E000}-\\x{F8FF}\\x{F0000}-\\x{FFFFD}\\x{100000}-\\x{10FFFD}" : "";
  const std::string percent = "%[0-9A-Fa-f]{2}";
  const std::string plain = "A-Za-z0-9._~!$&'()*+,;=" + ucs;
  const auto chars = [&](std::string_view more) {
    return fmt::format("([{}{}-]|{})", plain, more, percent);
  };
  const std::string pchar = chars(":@");
  const std::string segments = fmt::format("(/{}*)*", pchar);
  const std::string ip_literal =
      fmt::format("\\[({}|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]", ipv6_pattern());
  const std::string authority =
      fmt::format("({}*@)?({}|{}*)(:[0-9]*)?", chars(":"), ip_literal, chars(""));
  const std::string absolute = fmt::format("/({}+{})?", pchar, segments);
  const std::string hier =
      fmt::format("(//{}{}|{}|{}+{}|)", authority, segments, absolute, pchar, segments);
  const std::string query = fmt::format("(\\?([{}:@/?{}-]|{})*)?", plain, priv, percent);
  const std::string fragment = fmt::format("(#([{}:@/?-]|{})*)?", plain, percent);
  std::string whole = fmt::format("[A-Za-z][A-Za-z0-9+.-]*:{}{}{}", hier, query, fragment);
  if (!reference) return whole;
  const std::string relative =
      fmt::format("(//{}{}|{}|{}+{}|)", authority, segments, absolute, chars("@"), segments);
  return fmt::format("({}|{}{}{})", whole, relative, query, fragment);
}

std::string uri_template_pattern() {  // RFC 6570
  const std::string literal =
      "[\\x{21}\\x{23}\\x{24}\\x{26}-\\x{3B}\\x{3D}\\x{3F}-\\x{5B}\\x{5D}\\x{5F}\\x{61}-\\x{"
      "7A}\\x{7E}"
      "\\x{A0}-\\x{D7FF}\\x{F900}-\\x{FDCF}\\x{FDF0}-\\x{FFEF}\\x{10000}-\\x{1FFFD}\\x{E000}-\\x{"
      "F8FF}]";
  const std::string varchar = "([A-Za-z0-9_]|%[0-9A-Fa-f]{2})";
  const std::string spec = fmt::format("{0}(\\.?{0})*(:[1-9][0-9]{{0,3}}|\\*)?", varchar);
  return fmt::format("({}|%[0-9A-Fa-f]{{2}}|\\{{[+#./;?&]?{}(,{})*\\}})*", literal, spec, spec);
}

constexpr std::string_view kUuid =
    "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
constexpr std::string_view kJsonPointer = "(?s:(/([^~/]|~[01])*)*)";
constexpr std::string_view kRelativeJsonPointer = "(?s:(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*))";

using Make = RegexId (*)(RegexSet&);
struct Format {
  std::string_view name;
  Make make;  // nullptr: refused
};

constexpr std::array kFormats = {
    Format{"date-time",
           [](RegexSet& s) { return parse(s, date_pattern() + "[Tt]" + time_pattern()); }},
    Format{"date", [](RegexSet& s) { return parse(s, date_pattern()); }},
    Format{"time", [](RegexSet& s) { return parse(s, time_pattern()); }},
    Format{"duration", [](RegexSet& s) { return parse(s, kDuration); }},
    Format{"email", email},
    Format{"idn-email", nullptr},
    Format{"hostname", [](RegexSet& set) { return set.host_name(); }},
    Format{"idn-hostname", nullptr},
    Format{"ipv4", [](RegexSet& s) { return parse(s, ipv4_pattern()); }},
    Format{"ipv6", [](RegexSet& s) { return parse(s, ipv6_pattern()); }},
    Format{"uuid", [](RegexSet& s) { return parse(s, kUuid); }},
    Format{"uri", [](RegexSet& s) { return parse(s, uri_pattern(false, false)); }},
    Format{"uri-reference", [](RegexSet& s) { return parse(s, uri_pattern(true, false)); }},
    Format{"iri", [](RegexSet& s) { return parse(s, uri_pattern(false, true)); }},
    Format{"iri-reference", [](RegexSet& s) { return parse(s, uri_pattern(true, true)); }},
    Format{"uri-template", [](RegexSet& s) { return parse(s, uri_template_pattern()); }},
    Format{"json-pointer", [](RegexSet& s) { return parse(s, kJsonPointer); }},
    Format{"relative-json-pointer", [](RegexSet& s) { return parse(s, kRelativeJsonPointer); }},
    Format{"regex", nullptr},
};

const Format* find(std::string_view name) {
  for (const Format& f : kFormats)
    if (f.name == name) return &f;
  return nullptr;
}

}  // namespace

FormatKind format_kind(std::string_view name) {
  const Format* f = find(name);
  return f == nullptr         ? FormatKind::kAnnotation
         : f->make == nullptr ? FormatKind::kRefused
                              : FormatKind::kAsserted;
}

RegexId format_language(RegexSet& set, std::string_view name) { return find(name)->make(set); }

}  // namespace deepmint::grammar
