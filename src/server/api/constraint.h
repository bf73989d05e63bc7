// The seam between the API and a grammar engine: what a reply must look like → the mask that makes
// it so. Endpoints describe the constraint (recipe/conversation.h, OutputConstraint) and know no
// more about it.
#pragma once

#include <memory>

#include "deepmint/engine.h"
#include "deepmint/result.h"
#include "recipe/conversation.h"
#include "server/server.h"

namespace deepmint {

// The mask of one choice of one request: masks keep state, so each choice gets its own. Null: any
// token may come. `model` tells how the constraint is spelled: its tokenizer, and in `chat` the
// markup of calls and of thinking (ChatTemplate::deepseek, else ReplyFormat). A constraint with
// `after_thinking` binds from the end of the thinking block on.
//
// Only what the client was promised (must_enforce) is enforced; the rest, which the prompt asks for
// in words, gives null. Errors name the request's field in `where`, and in it the place in the
// schema or expression: kInvalidArgument and kUnsupported as grammar::compile has them,
// kUnsupported for calls of a family whose markup is not known here and for tools with a grammar
// other than a regular expression. Compiles on the caller's thread.
Result<std::shared_ptr<TokenMask>> make_token_mask(const recipe::OutputConstraint& constraint,
                                                   const ServedModel& model);

// The mask of model.default_format, which is set.
Result<std::shared_ptr<TokenMask>> make_default_mask(const ServedModel& model, bool after_thinking);

}  // namespace deepmint
