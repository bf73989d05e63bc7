#include "recipe/prompt_text.h"

#include <fmt/format.h>

#include <string>

namespace deepmint::recipe {

// The texts are data: a changed byte is a different prompt for the model.
// tests/spec/recipe/constants.json holds the same strings.
namespace {

// The formats differ in the names of the tags only.
constexpr std::string_view kToolsHead = R"dm(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜{block}>" block like the following:

<｜DSML｜{block}>
<｜DSML｜{invoke} name="$TOOL_NAME">
<｜DSML｜{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜{parameter}>
...
</｜DSML｜{invoke}>
<｜DSML｜{invoke} name="$TOOL_NAME2">
...
</｜DSML｜{invoke}>
</｜DSML｜{block}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)dm";
constexpr std::string_view kToolsTail = R"dm(

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)dm";

std::string tools_head(std::string_view block, std::string_view invoke,
                       std::string_view parameter) {
  return fmt::format(kToolsHead, fmt::arg("block", block), fmt::arg("invoke", invoke),
                     fmt::arg("parameter", parameter));
}

}  // namespace

const VersionText& version_text(ModelVersion version) {
  static const std::string kHead4 = tools_head("tool_calls", "invoke", "parameter");
  static const std::string kHead41 = tools_head(" calls", " invoke", " parameter");
  static const VersionText kV4Text{
      .block = "tool_calls",
      .invoke = "invoke",
      .parameter = "parameter",
      .tools_head = kHead4,
      .tools_tail = kToolsTail,
      .effort_low = "",
      .effort_high = R"dm(Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

)dm",
      .effort_max =
          R"dm(Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

)dm",
  };
  static const VersionText kV41Text{
      .block = " calls",
      .invoke = " invoke",
      .parameter = " parameter",
      .tools_head = kHead41,
      .tools_tail = kToolsTail,
      .effort_low =
          R"dm(Reasoning Effort: 50 (range 1-100, the higher the value, the more thorough the reasoning)

)dm",
      .effort_high =
          R"dm(Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)

)dm",
      .effort_max =
          R"dm(Reasoning Effort: 100 (range 1-100, the higher the value, the more thorough the reasoning)

)dm",
  };
  return version == ModelVersion::kV4 ? kV4Text : kV41Text;
}

std::string_view apply_patch_description() {
  return R"dm(Use the `apply_patch` tool to edit files.
Your patch language is a stripped‑down, file‑oriented diff format designed to be easy to parse and safe to apply. You can think of it as a high‑level envelope:

*** Begin Patch
[ one or more file sections ]
*** End Patch

Within that envelope, you get a sequence of file operations.
You MUST include a header to specify the action you are taking.
Each operation starts with one of three headers:

*** Add File: <path> - create a new file. Every following line is a + line (the initial contents).
*** Delete File: <path> - remove an existing file. Nothing follows.
*** Update File: <path> - patch an existing file in place (optionally with a rename).

May be immediately followed by *** Move to: <new path> if you want to rename the file.
Then one or more “hunks”, each introduced by @@ (optionally followed by a hunk header).
Within a hunk each line starts with:

For instructions on [context_before] and [context_after]:
- By default, show 3 lines of code immediately above and 3 lines immediately below each change. If a change is within 3 lines of a previous change, do NOT duplicate the first change’s [context_after] lines in the second change’s [context_before] lines.
- If 3 lines of context is insufficient to uniquely identify the snippet of code within the file, use the @@ operator to indicate the class or function to which the snippet belongs. For instance, we might have:
@@ class BaseClass
[3 lines of pre-context]
- [old_code]
+ [new_code]
[3 lines of post-context]

- If a code block is repeated so many times in a class or function such that even a single `@@` statement and 3 lines of context cannot uniquely identify the snippet of code, you can use multiple `@@` statements to jump to the right context. For instance:

@@ class BaseClass
@@ 	 def method():
[3 lines of pre-context]
- [old_code]
+ [new_code]
[3 lines of post-context]

The full grammar definition is below:
Patch := Begin { FileOp } End
Begin := "*** Begin Patch" NEWLINE
End := "*** End Patch" NEWLINE
FileOp := AddFile | DeleteFile | UpdateFile
AddFile := "*** Add File: " path NEWLINE { "+" line NEWLINE }
DeleteFile := "*** Delete File: " path NEWLINE
UpdateFile := "*** Update File: " path NEWLINE [ MoveTo ] { Hunk }
MoveTo := "*** Move to: " newPath NEWLINE
Hunk := "@@" [ header ] NEWLINE { HunkLine } [ "*** End of File" NEWLINE ]
HunkLine := (" " | "-" | "+") text NEWLINE

A full patch can combine several operations:

*** Begin Patch
*** Add File: hello.txt
+Hello world
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
-print("Hi")
+print("Hello, world!")
*** Delete File: obsolete.txt
*** End Patch

It is important to remember:

- You must include a header with your intended action (Add/Delete/Update)
- You must prefix new lines with `+` even when creating a new file
- File references can only be relative, NEVER ABSOLUTE.
)dm";
}

std::string_view apply_patch_parameters() {
  return R"dm({"type":"object","additionalProperties":false,"properties":{"input":{"type":"string","description":"The entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch envelope)."}},"required":["input"]})dm";
}

}  // namespace deepmint::recipe
