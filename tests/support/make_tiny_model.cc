// make_tiny_model OUT [name=value …]: writes the small random models of tiny_model.h from a script.
//
//   make_tiny_model tiny.gguf                                    F32 Llama with a byte-level
//   tokenizer make_tiny_model q.gguf architecture=qwen3 weights=Q4_1 context=256 make_tiny_model
//   folder layout=hf weights=BF16                config.json, model.safetensors, tokenizer.json
//
// Names: layout (gguf, hf), architecture, weights, embedding, layers, context, unused_tokens, seed.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "core/dtype.h"
#include "support/tiny_model.h"

namespace {

using namespace deepmint;
using namespace deepmint::testing;

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "make_tiny_model: %s\n", message.c_str());
  std::exit(2);
}

template <class T>
T number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    refuse("expected a number, found " + text);
  return value;
}

DType type_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::kQ6_K); ++i)
    if (info(static_cast<DType>(i)).name == name) return static_cast<DType>(i);
  refuse("unknown type " + name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) refuse("usage: make_tiny_model OUT [name=value …]");
  // The type first: block types of 256 values need a wider model.
  TinyModel model;
  for (int i = 2; i < argc; ++i)
    if (std::string(argv[i]).starts_with("weights="))
      model = tiny_model_for(type_named(std::string(argv[i]).substr(8)));
  bool folder = false;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) refuse("expected name=value, found " + argument);
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    if (name == "layout") {
      folder = value == "hf";
    } else if (name == "architecture") {
      model.architecture = value;
    } else if (name == "weights") {
      continue;
    } else if (name == "embedding") {
      model.embedding = type_named(value);
    } else if (name == "layers") {
      model.n_layers = number<uint32_t>(value);
    } else if (name == "context") {
      model.context = number<uint32_t>(value);
    } else if (name == "unused_tokens") {
      model.unused_tokens = number<uint32_t>(value);
    } else if (name == "seed") {
      model.seed = number<uint64_t>(value);
    } else {
      refuse("unknown name " + name);
    }
  }
  try {
    if (folder) {
      write_tiny_hf(model, argv[1]);
    } else {
      tiny_gguf(model).write(argv[1]);
    }
  } catch (const std::exception& e) {
    refuse(e.what());
  }
  return 0;
}
