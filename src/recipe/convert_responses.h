// The Responses converter, in three files: convert_responses.cc reads the request and its settings,
// convert_responses_tools.cc its tools, convert_responses_items.cc turns input items into messages.
// Internal to the recipe module.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "recipe/convert_common.h"

namespace deepmint::recipe {

class ResponsesConverter : ConvertBase {
 public:
  explicit ResponsesConverter(const ConvertOptions& o) : ConvertBase(o) {
    r_.protocol = Protocol::kResponses;
  }
  Result<ConversationRequest> run(const json::Value& body);

 private:
  static constexpr size_t kNotLoaded = static_cast<size_t>(-1);
  struct RawTool {
    std::string_view type, name;
    std::optional<std::string_view> description;
    std::optional<bool> strict;
    const json::Value* parameters = nullptr;
    const json::Value* format = nullptr;
    std::optional<std::string_view> execution = {};  // tool_search
    size_t load = kNotLoaded;                        // index of the search that found it
    std::string path;                                // "tools[0]"
    std::vector<RawTool> inner;                      // namespace
  };
  struct Call {
    ToolCall call;
    std::optional<Message> result;
  };

  // ---- the request and its settings
  Status read_input(const Fields& f);
  Status check_item(const json::Value& item) const;
  static Status check_execution(const Fields& f);
  Status check_part(const json::Value& part, bool message) const;
  Status read_settings(const Fields& f);
  Status read_format(const Fields& f);
  Status read_choice(const Fields& f);
  Status allowed_tools(const Fields& c);
  Status check_json_word() const;
  void write_echo(const Fields& f, const std::optional<std::string_view>& instructions);

  // ---- tools
  Result<RawTool> read_function(const Fields& f, std::string path) const;
  Result<RawTool> read_custom(const Fields& f, std::string path) const;
  Result<std::vector<RawTool>> parse_tools(const json::Array& tools, std::string_view where) const;
  Status read_tools(const json::Array& tools, std::string_view where);
  static bool is_web_search(std::string_view type);
  Result<Declared> declare(const RawTool& t) const;
  Status assign_tools();
  std::string_view separator() const;
  static std::optional<std::string> resolve_name(const std::vector<Declared>& tools,
                                                 std::string_view name);
  Status add_namespace(const RawTool& t, std::vector<Declared>& tools, std::set<std::string>& taken,
                       std::set<std::string>& seen);
  void drop_repeated_tools();
  bool is_search(const RawTool& t) const;  // a search that the client runs
  Status load_found_tools(const json::Array& tools, const std::string& at, std::string& result);
  void show_found_tools();
  std::string tool_echo(const RawTool& t) const;

  // ---- items
  Status add_instructions(const std::optional<std::string_view>& instructions);
  Status add_items();
  static std::string_view type_of(const json::Value& item);
  static std::string_view text_of(const json::Value& item, std::string_view key);
  tl::unexpected<Error> missing_output() const;
  Status interrupt();
  Status add_item(const json::Value& item, const std::string& at);
  Status check_call_id(std::string_view id, const std::string& at) const;
  Status add_call(const json::Value& item, std::string_view type, const std::string& at);
  Status add_output(const json::Value& item, const std::string& at);
  Status close_group();
  Message& trailing_assistant();
  Status add_reasoning(const json::Value& item);
  Status add_message(const json::Value& item, const std::string& at);
  Status add_content(const json::Value& v, const std::string& at, std::string_view list,
                     bool assistant, Message& m);
  Result<ImageSource> image_of(const json::Value& part, const std::string& at,
                               const std::string& here) const;
  Result<std::string> file_of(const json::Value& part);

  bool has_text_input_ = false, parallel_off_ = false;
  std::string_view text_input_;
  const json::Array* items_ = nullptr;
  std::vector<json::Value> previous_;
  std::optional<float> temperature_, top_p_;
  std::optional<uint32_t> max_tokens_;
  std::optional<std::string_view> effort_, summary_, verbosity_;
  std::string format_echo_ = "{\"type\":\"text\"}", choice_echo_;
  ResponseFormat format_;
  std::vector<RawTool> raw_tools_;
  Choice choice_;
  std::optional<std::set<std::string>> allowed_;
  // The group of calls that waits for outputs.
  std::vector<Call> pending_;
  std::unordered_map<std::string, size_t> pending_at_;  // by call id
  std::unordered_set<std::string> closed_;              // call ids of the groups before
  size_t n_open_ = 0;                                   // without a result so far
  size_t never_answered_ = 0;                           // without an output in the whole request
  std::vector<std::pair<const json::Value*, std::string>> held_;
  std::set<std::string> answered_;
  // Tools that searches found: the message that makes them known, and their names.
  struct Load {
    size_t message = 0;
    std::vector<std::string> names = {};
  };
  std::vector<Load> loads_;
  size_t shown_loads_ = 0;  // of those, the ones whose message is there
};

}  // namespace deepmint::recipe
