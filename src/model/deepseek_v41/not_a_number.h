// Whether the bytes of a tensor are all numbers. A NaN in one scale spreads over every logit and
// shows nowhere else, so it is looked for where weights enter.
#pragma once

#include "deepmint/result.h"
#include "format/tensor.h"

namespace deepmint::v41 {

// E8M0, E4M3, BF16 and F32 tensors; others have no NaN. Infinities of BF16 and F32 count too.
// Errors: kInvalidFile naming the tensor and the place of the first one.
Status check_numbers(const TensorView& t);

}  // namespace deepmint::v41
