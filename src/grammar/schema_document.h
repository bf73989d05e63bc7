// A JSON Schema document as a graph: every subschema with its place, its draft and the base URI
// that its references start from. References are resolved inside the document only.
//
//   DEEPMINT_TRY(document, SchemaDocument::make(schema));
//   DEEPMINT_TRY(target, document.resolve(document.root(), "#/$defs/node"));
//   document.pointer(target);   // "#/$defs/node"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/json.h"
#include "deepmint/result.h"

namespace deepmint::grammar {

enum class Draft : uint8_t { k4 = 4, k6 = 6, k7 = 7, k2019 = 19, k2020 = 20 };

enum class NodeId : uint32_t {};  // one subschema

class SchemaDocument {
 public:
  // `schema` must outlive the document. Errors: a $schema that is not known.
  static Result<SchemaDocument> make(const json::Value& schema);

  NodeId root() const { return NodeId{0}; }
  const json::Value& value(NodeId n) const { return *nodes_[index(n)].value; }
  std::string pointer(NodeId n) const { return nodes_[index(n)].pointer; }
  Draft draft(NodeId n) const { return resources_[nodes_[index(n)].resource].draft; }

  // A value below `parent`, "/key" or "/key/0" further down. The same value gives the same node.
  NodeId child(NodeId parent, const json::Value& value, std::string_view key);
  NodeId child(NodeId parent, const json::Value& value, std::string_view key,
               std::string_view below);

  // What $ref names, from where `from` stands. kUnsupported when it leads outside the document,
  // kNotFound when nothing is there, kInvalidArgument when two subschemas have that identifier.
  Result<NodeId> resolve(NodeId from, std::string_view reference);
  // What $dynamicRef or $recursiveRef names, where that does not depend on how the reference was
  // reached; kUnsupported where it does.
  Result<NodeId> resolve_dynamic(NodeId from, std::string_view reference);
  Result<NodeId> resolve_recursive(NodeId from);

 private:
  struct Node {
    const json::Value* value;
    std::string pointer;
    uint32_t resource;
  };
  struct Resource {  // the root, and every subschema with an identifier of its own
    std::string base;
    Draft draft;
    NodeId root;
  };
  static size_t index(NodeId n) { return static_cast<size_t>(n); }

  Status index_schema(const json::Value& value, const std::string& pointer, uint32_t resource,
                      int depth);
  NodeId add(const json::Value& value, std::string pointer, uint32_t resource);
  Result<NodeId> at_pointer(uint32_t resource, std::string_view pointer,
                            std::string_view reference);

  std::vector<Node> nodes_;
  std::vector<Resource> resources_;
  std::unordered_map<const json::Value*, NodeId> by_value_;
  std::unordered_map<std::string, uint32_t> by_uri_;    // resources
  std::unordered_set<std::string> repeated_uris_;       // of resources and places, had by several
  std::unordered_map<std::string, NodeId> anchors_;     // "base#name"
  std::unordered_map<std::string, int> dynamic_names_;  // how many resources have it
  std::unordered_map<std::string, bool> dynamic_;       // "base#name" is a $dynamicAnchor
  int recursive_anchors_ = 0;
};

std::string pointer_escape(std::string_view key);

}  // namespace deepmint::grammar
