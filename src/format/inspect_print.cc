// The two outputs of inspect: text for people, JSON for programs.
#include <fmt/format.h>

#include <algorithm>

#include "core/json.h"
#include "core/utf8.h"
#include "format/expected_tensors.h"
#include "format/inspect.h"
#include "format/names.h"

namespace deepmint {
namespace {

std::string grouped(uint64_t n) {  // 1,234,567
  std::string digits = std::to_string(n);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string bytes_text(uint64_t n) {
  constexpr std::string_view kUnits[] = {"kB", "MB", "GB", "TB"};
  if (n < 1000) return fmt::format("{} bytes", n);
  double value = static_cast<double>(n) / 1000;
  size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

class Text {
 public:
  void line(std::string_view label, std::string_view value) {
    if (!value.empty()) out_ += fmt::format("  {:<14}{}\n", label, value);
  }
  void line(std::string_view label, std::optional<int64_t> value) {
    if (value) line(label, std::to_string(*value));
  }
  void raw(std::string_view text) { out_ += text; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

void write_dimensions(Text& text, const InspectReport::Dimensions& d) {
  text.line("layers", d.layers);
  text.line("hidden", d.hidden);
  if (d.heads) {
    std::string heads = std::to_string(*d.heads);
    if (d.kv_heads) heads += fmt::format(", {} for keys and values", *d.kv_heads);
    if (d.head_dim) heads += fmt::format(", of {}", *d.head_dim);
    text.line("heads", heads);
  }
  text.line("feed-forward", d.ffn);
  text.line("vocabulary", d.vocab);
  text.line("context", d.context);
  std::string rope;
  const auto add = [&](const std::string& part) { rope += (rope.empty() ? "" : ", ") + part; };
  if (d.rope_base) add(fmt::format("base {}", *d.rope_base));
  if (d.rope_dimensions) add(fmt::format("{} dimensions", *d.rope_dimensions));
  if (!d.rope_scaling.empty()) add("scaling " + printable(d.rope_scaling));
  text.line("rope", rope);
  if (d.norm_epsilon) text.line("norm epsilon", fmt::format("{:.7g}", *d.norm_epsilon));
  if (d.tied) text.line("head", *d.tied ? "tied to the embedding" : "its own tensor");
}

void write_tokenizer(Text& text, const std::optional<InspectReport::Tokenizer>& tokenizer) {
  if (!tokenizer) return text.line("tokenizer", "none");
  std::string line = printable(tokenizer->kind.empty() ? "of unknown kind" : tokenizer->kind);
  if (!tokenizer->pre.empty()) line += ", pre-tokenizer " + printable(tokenizer->pre);
  line += fmt::format(", {} tokens ({} added), {} merges", tokenizer->vocab, tokenizer->added,
                      tokenizer->merges);
  text.line("tokenizer", line);
  std::string special;
  for (const InspectReport::SpecialId& s : tokenizer->special) {
    special += fmt::format("{}{} {}", special.empty() ? "" : ", ", printable(s.role), s.id);
    if (!s.text.empty()) special += " " + quote_name(s.text);
  }
  text.line("special", special);
  text.line("chat template", tokenizer->chat_template ? "yes" : "no");
}

}  // namespace

std::string InspectReport::verdict() const {
  if (problem) {
    std::string out = "not whole: " + problem->str();
    if (problems.size() > 1) out += fmt::format(" (the first of {} problems)", problems.size());
    return printable(out);
  }
  if (checked_tensors)
    return printable(fmt::format("whole: the {} tensors are those of {}, each with its shape",
                                 total_tensors, architecture));
  return printable(
      architecture.empty()
          ? "whole as a file; without a configuration the tensors cannot be compared with a model"
          : fmt::format("whole as a file; which tensors {} needs is not known here", architecture));
}

std::string to_text(const InspectReport& report) {
  Text text;
  text.raw(printable(report.path.string()) + "\n");
  text.line("format", report.format);
  text.line("architecture", printable(report.architecture));
  text.line("name", printable(report.name));
  write_dimensions(text, report.dimensions);
  write_tokenizer(text, report.tokenizer);
  uint64_t file_bytes = 0;
  for (const InspectReport::File& file : report.files) file_bytes += file.bytes;
  if (!report.files.empty())
    text.line("files", fmt::format("{}, {} bytes", report.files.size(), grouped(file_bytes)));

  if (!report.tensors.empty()) {
    size_t name_width = 6;
    for (const InspectReport::Tensor& t : report.tensors)
      name_width = std::max(name_width, std::min<size_t>(t.name.size(), 60));
    text.raw(fmt::format("\n  {:<{}}  {:<7}  {:<18}  {:>15}\n", "tensor", name_width, "type",
                         "shape", "bytes"));
    for (const InspectReport::Tensor& t : report.tensors)
      text.raw(fmt::format("  {:<{}}  {:<7}  {:<18}  {:>15}\n", printable(t.name), name_width,
                           info(t.dtype).name, shape_text(t.shape), grouped(t.bytes)));
    text.raw(fmt::format("\n  {:<8}{:>10}{:>20}{:>20}\n", "type", "tensors", "elements", "bytes"));
    for (const InspectReport::TypeTotal& total : report.totals)
      text.raw(fmt::format("  {:<8}{:>10}{:>20}{:>20}\n", info(total.dtype).name,
                           grouped(total.tensors), grouped(total.elements), grouped(total.bytes)));
    text.raw(fmt::format("  {:<8}{:>10}{:>20}{:>20}   {}\n", "all", grouped(report.total_tensors),
                         grouped(report.total_elements), grouped(report.total_bytes),
                         bytes_text(report.total_bytes)));
  }
  text.raw("\n");
  if (report.problems.size() > 1)
    for (const std::string& problem : report.problems) text.raw("  " + printable(problem) + "\n");
  text.raw(report.verdict() + "\n");
  return text.take();
}

std::string to_json(const InspectReport& report) {
  json::Writer w;
  const auto text = [&](std::string_view key, std::string_view value) {
    w.key(key).value(utf8::sanitize(value));
  };
  w.begin_object();
  text("path", report.path.string());
  text("format", report.format);
  text("architecture", report.architecture);
  text("name", report.name);

  const InspectReport::Dimensions& d = report.dimensions;
  const auto optional = [&](std::string_view key, const auto& value) {
    if (value) w.key(key).value(*value);
  };
  w.key("dimensions").begin_object();
  optional("layers", d.layers);
  optional("hidden", d.hidden);
  optional("heads", d.heads);
  optional("kv_heads", d.kv_heads);
  optional("head_dim", d.head_dim);
  optional("ffn", d.ffn);
  optional("vocab", d.vocab);
  optional("context", d.context);
  optional("rope_base", d.rope_base);
  optional("rope_dimensions", d.rope_dimensions);
  if (!d.rope_scaling.empty()) text("rope_scaling", d.rope_scaling);
  optional("norm_epsilon", d.norm_epsilon);
  optional("tied", d.tied);
  w.end_object();

  w.key("tokenizer");
  if (const auto& t = report.tokenizer) {
    w.begin_object();
    text("kind", t->kind);
    text("pre", t->pre);
    w.key("vocab").value(t->vocab).key("merges").value(t->merges).key("added").value(t->added);
    w.key("special").begin_array();
    for (const InspectReport::SpecialId& s : t->special) {
      w.begin_object();
      text("role", s.role);
      w.key("id").value(s.id);
      text("text", s.text);
      w.end_object();
    }
    w.end_array().key("chat_template").value(t->chat_template).end_object();
  } else {
    w.null();
  }

  w.key("files").begin_array();
  for (const InspectReport::File& file : report.files) {
    w.begin_object();
    text("name", file.name);
    w.key("bytes").value(file.bytes).end_object();
  }
  w.end_array().key("tensors").begin_array();
  for (const InspectReport::Tensor& t : report.tensors) {
    w.begin_object();
    text("name", t.name);
    w.key("type").value(info(t.dtype).name).key("shape").begin_array();
    for (const uint64_t dim : t.shape) w.value(dim);
    w.end_array().key("bytes").value(t.bytes).key("file").value(t.file_index).end_object();
  }
  w.end_array().key("totals").begin_object().key("types").begin_array();
  for (const InspectReport::TypeTotal& total : report.totals) {
    w.begin_object().key("type").value(info(total.dtype).name).key("tensors").value(total.tensors);
    w.key("elements").value(total.elements).key("bytes").value(total.bytes).end_object();
  }
  w.end_array()
      .key("tensors")
      .value(report.total_tensors)
      .key("elements")
      .value(report.total_elements);
  w.key("bytes").value(report.total_bytes).end_object();
  w.key("whole").value(report.whole()).key("checked_tensors").value(report.checked_tensors);
  text("verdict", report.verdict());
  w.key("problems").begin_array();
  for (const std::string& problem : report.problems) w.value(utf8::sanitize(problem));
  w.end_array().end_object();
  return w.take();
}

}  // namespace deepmint
