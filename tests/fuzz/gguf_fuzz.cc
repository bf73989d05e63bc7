// GGUF reader and its report on arbitrary bytes.
#include "format/gguf.h"

#include "memory_file.h"
#include "promises.h"

using namespace deepmint;

namespace {

void look_up(const GgufFile& file, std::string_view key) {
  (void)file.string(key);
  (void)file.integer(key);
  (void)file.number(key);
  (void)file.boolean(key);
  (void)file.strings(key);
  (void)file.integers(key);
  (void)file.numbers(key);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::filesystem::path& path = fuzz::memory_file({data, size});
  const auto file = GgufFile::open(path);
  if (!file) {
    fuzz::check_error(file.error());
  } else {
    uint64_t sum = 0;
    for (const TensorView& t : file->tensors()) {
      fuzz::check_tensor(t, file->file().bytes());
      fuzz::require(file->tensor(t.name) == &t);
      sum += t.bytes.size();
    }
    fuzz::require(sum <= size);  // nothing overlaps
    for (const auto& [key, value] : file->metadata()) {
      fuzz::require(file->find(key) == &value);
      look_up(*file, key);
    }
    look_up(*file, "absent");
  }
  if (const auto report = inspect_model(path)) {
    fuzz::check_report(*report);
    fuzz::require(file.has_value() || !report->whole());
  } else {
    fuzz::check_error(report.error());
  }
  return 0;
}
