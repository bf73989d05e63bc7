// A finished reply as one JSON object, and as one line for a terminal.
#pragma once

#include <string>

#include "cli/open_model.h"
#include "cli/reply.h"

namespace deepmint::cli {

std::string reply_json(const Reply& reply, const OpenModel& open);  // one line, no newline
std::string reply_statistics(
    const Reply& reply,
    const OpenModel& open);  // "[12 + 40 tokens · 81.3 tok/s · first after 0.09 s · seed 7]"

}  // namespace deepmint::cli
