// The expressions and shapes (schema_shape.h) of one schema document.
//
//   SchemaSpace space(document, regexes, options);
//   DEEPMINT_TRY(shape, space.shape(space.node(document.root())));
//
// Internal to json_schema.cc. Shapes stay where they are once computed. Every operation is exact
// or an error that names the place; the work for one document is bounded.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/number_range.h"
#include "grammar/schema_document.h"
#include "grammar/schema_shape.h"

namespace deepmint::grammar {

class SchemaSpace {
 public:
  SchemaSpace(SchemaDocument& document, RegexSet& regexes, const JsonSchemaOptions& options);

  ExprId node(NodeId n);
  ExprId constant(const json::Value& value);
  ExprId complement(ExprId e);
  ExprId all_of(const std::vector<ExprId>& parts);
  ExprId both(ExprId a, ExprId b) { return all_of({a, b}); }
  ExprId any_of(const std::vector<ExprId>& parts);
  ExprId one_of(std::vector<ExprId> parts);

  Result<const Shape*> shape(ExprId e);
  // True only where the set is certainly empty; looks a few levels down.
  bool surely_empty(ExprId e, int depth = 3);
  // The values of a finite set, each as an expression that holds it alone; nullopt when the set is
  // not seen to be finite or has more than `limit` of them.
  Result<std::optional<std::vector<ExprId>>> values(ExprId e, size_t limit);

  std::string pointer(ExprId e) const;  // of the subschema that it came from
  tl::unexpected<Error> failure(ErrorCode code, std::string message) const;  // at the current node

  RegexSet& regexes() { return regexes_; }
  NumberLanguages& numbers() { return numbers_; }
  bool empty(RegexId r) { return regexes_.empty(r); }
  // What the value of `key` must be.
  ExprId member(const ObjectShape& object, std::string_view key);
  // Keys of the class that are not named in `object`.
  RegexId unnamed(const ObjectShape& object, RegexId keys);

 private:
  enum class Kind : uint8_t { kTop, kBottom, kNode, kConstant, kNot, kAll, kAny, kOne };
  struct Expr {
    Kind kind;
    NodeId node{};
    const json::Value* value = nullptr;
    std::vector<ExprId> parts = {};
    NodeId origin{};
  };
  enum class State : uint8_t { kNew, kRunning, kDone };
  class AtNode;  // sets the current node while it lives
  class KeywordReader;
  friend class KeywordReader;

  ExprId intern(Expr e);
  const Expr& expr(ExprId e) const { return exprs_[static_cast<size_t>(e)]; }
  Status spend(size_t steps);

  Result<Shape> compute(ExprId e);
  Result<Shape> of_node(NodeId n);  // schema_keywords.cc
  Result<Shape> of_constant(const json::Value& value);
  Result<Shape> of_constants(std::span<const json::Value> values);
  Result<Shape> of_one(const std::vector<ExprId>& parts);

  Shape everything();
  Shape nothing();
  ObjectShape any_object();
  bool is_any(const ArrayShape& a) const;
  bool is_any(const ObjectShape& o) const;

  Result<Shape> intersect(const Shape& a, const Shape& b);
  Result<Shape> unite(const std::vector<const Shape*>& shapes);
  Result<Shape> complement(const Shape& a);

  template <class T, class Parts>  // of alternatives; parts(x): what one of them costs to meet
  Result<std::vector<T>> meets(const std::vector<T>& a, const std::vector<T>& b, Parts parts,
                               std::string_view what);
  Result<std::vector<ArrayShape>> intersect(const std::vector<ArrayShape>& a,
                                            const std::vector<ArrayShape>& b);
  Result<std::vector<ObjectShape>> intersect(const std::vector<ObjectShape>& a,
                                             const std::vector<ObjectShape>& b);
  std::optional<ArrayShape> intersect(const ArrayShape& a, const ArrayShape& b);
  std::optional<ObjectShape> intersect(const ObjectShape& a, const ObjectShape& b);
  Result<std::vector<ArrayShape>> complement(const ArrayShape& a);
  Result<std::vector<ObjectShape>> complement(const ObjectShape& a);
  template <class T>
  Result<std::vector<T>> outside(std::vector<T> in, const std::vector<T>& all);
  template <class T>
  void simplify(std::vector<T>& alternatives);
  bool surely_empty(const ArrayShape& a, int depth);
  bool surely_empty(const ObjectShape& o, int depth);

  SchemaDocument& document_;
  RegexSet& regexes_;
  NumberLanguages numbers_;
  JsonSchemaOptions options_;
  RegexId any_string_{};
  std::vector<Expr> exprs_;
  std::vector<State> states_;
  std::vector<std::unique_ptr<Shape>> shapes_;
  std::unordered_map<std::string, ExprId> index_;
  std::unordered_map<uint32_t, int> not_shown_empty_;  // expression -> depth that was looked at
  NodeId current_{};
  size_t work_ = 0;
  int depth_ = 0;
  bool tracks_evaluated_ = false;  // some subschema has unevaluatedItems or unevaluatedProperties
  friend Result<Symbol> add_json_schema(GrammarBuilder&, const json::Value&,
                                        const JsonSchemaOptions&);
};

}  // namespace deepmint::grammar
