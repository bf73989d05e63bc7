// safetensors reader on arbitrary bytes.
#include "format/safetensors.h"

#include "memory_file.h"
#include "promises.h"

using namespace deepmint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto model = SafetensorsModel::open(fuzz::memory_file({data, size}));
  if (!model) {
    fuzz::check_error(model.error());
    return 0;
  }
  uint64_t header = 0, sum = 0;
  for (int byte = 7; byte >= 0; --byte) header = header << 8 | data[byte];
  for (const TensorView& t : model->tensors()) {
    fuzz::check_tensor(t, model->files()[0].bytes());
    fuzz::require(model->tensor(t.name) == &t);
    sum += t.bytes.size();
  }
  fuzz::require(8 + header + sum == size);  // covered exactly once
  return 0;
}
