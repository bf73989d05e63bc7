// Pieces that the three converters share. Internal to the recipe module.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/convert.h"
#include "recipe/fields.h"

namespace deepmint::recipe {

// What the model is told of a call whose result never came.
inline constexpr std::string_view kInterrupted = "[no result: the call was interrupted]";

// Collects the parts of one message: texts and images joined by an empty line.
class ContentBuilder {
 public:
  void text(std::string_view s);
  void image(ImageSource source);
  void move_into(Message& m);
  bool has_images() const { return !images_.empty(); }
  const std::string& str() const { return content_; }

 private:
  void separate();
  bool any_ = false;
  std::string content_;
  std::vector<size_t> marks_;
  std::vector<ImageSource> images_;
};

// State and checks of one conversion.
class ConvertBase {
 public:
  explicit ConvertBase(const ConvertOptions& o) : o_(o) {}

 protected:
  bool v01() const { return o_.compat == Compat::kRecipe01; }
  bool v02() const { return o_.compat == Compat::kRecipe02; }
  bool ours() const { return o_.compat == Compat::kOurs; }
  bool v4() const { return o_.version == ModelVersion::kV4; }
  bool no_images() const { return v4() && !v01(); }  // images become a text
  void warn(std::string line) { r_.warnings.push_back(std::move(line)); }

  Status check_model();                            // 0.2 with a list of names
  Status check_mark(std::string_view text) const;  // 0.1 refuses <｜image｜> in caller text

  // thinking and effort from `thinking.type` and an effort name.
  Status set_thinking(std::optional<std::string_view> type, std::optional<std::string_view> effort);
  // Ranges of temperature, top_p and max_tokens, and their resolved values. `max_tokens_name`: the
  // field's name in 0.1 errors.
  Status set_sampling(std::optional<float> temperature, std::optional<float> top_p,
                      std::optional<uint32_t> max_tokens, std::string_view max_tokens_name,
                      bool clamp_max_tokens);
  Status set_stop(std::vector<std::string> stop, std::string_view name);

  // Name and schema checks of declared tools, tool_choice, and the parsing options and constraint
  // that follow from them.
  struct Choice {
    ToolChoice choice = ToolChoice::kAuto;
    std::optional<std::string> name;  // a named tool
  };
  struct Declared {
    Tool tool;
    std::string name_path;       // "tools[0].function.name", for errors
    std::string path01;          // "tools.0.function", for 0.1 errors
    bool has_parameters = true;  // false: absent, becomes {}
  };
  Status check_tool_name(std::string_view name, std::string_view path,
                         std::string_view path01) const;
  Status set_tools(std::vector<Declared> tools, const Choice& choice);
  Status set_format(ResponseFormat format);
  // Constraint, parsing options, repair of reasoning. `reasoning_field`: what the client should
  // have passed back.
  Status finish(bool parallel_calls_off, std::string_view reasoning_field);

  bool mentions_json() const;  // JSON mode wants the word "json" in some message

  // An image by URL or data URL. `where` prefixes the errors.
  struct ImageErrors {
    std::string format;  // prefix of format errors, "" or "input[0]: "
    std::string link;    // prefix of the length error
    std::string path;    // recorded with the image
  };
  Result<ImageSource> image_from_url(std::string_view url, std::optional<std::string_view> detail,
                                     const ImageErrors& e) const;
  Result<std::string> text_document(std::string_view data_url_or_base64,
                                    std::string_view media_type, std::string_view title) const;

  // Restores reasoning and the sampled text of calls from the turn store.
  void restore_from_store(Message& m) const;

  const ConvertOptions& o_;
  ConversationRequest r_;
};

// "none", "auto" or "required".
std::optional<ToolChoice> tool_choice_of(std::string_view name);
bool base64_is_valid(std::string_view s);  // forgiving: white space skipped, padding optional
std::optional<std::string> base64_decode(std::string_view s);  // strict alphabet, forgiving padding

}  // namespace deepmint::recipe
