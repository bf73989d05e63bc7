// A-labels of internationalised host names (RFC 5890 to 5893): `xn--` and the Punycode of a label
// of Unicode characters that a host name may hold.
//
//   is_a_label("mnchen-3ya")            // xn--mnchen-3ya is münchen: true
//   can_become_a_label("mnchen-", 52)   // with at most so many characters more: true
//
// Lower case, as Punycode of a valid label is. Labels are judged one by one: the rule for
// right-to-left scripts is applied within a label, not across the name.
#pragma once

#include <cstddef>
#include <string_view>

namespace deepmint::grammar {

inline constexpr size_t kMaxEncodedLabel = 59;  // behind xn--: a label has at most 63 characters

bool is_a_label(std::string_view encoded);

// Whether at most `room` characters more make an A-label of it: always where 9 may come. With less
// room only labels count that are whole, or that letters around what stands complete, so that the
// answer never takes a search: of labels longer than 54 characters, xn-- included, some are lost.
// What is reached through true can always be completed.
bool can_become_a_label(std::string_view prefix, size_t room);
bool letters_complete(std::string_view prefix, size_t room);  // the part of it for little room

}  // namespace deepmint::grammar
