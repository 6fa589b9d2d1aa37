// SPDX-License-Identifier: Apache-2.0
// Rows of named fields, and the options that every listing has for them: -o picks the columns, -S sorts, -f filters. A
// listing states its fields once; help, completion and errors are made from that table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"

namespace shmb::host {

enum class FieldKind : std::uint8_t { text, list, size, number, age };  // age: seconds

struct Field {
  std::string name, title, help;
  FieldKind kind = FieldKind::text;
  bool by_default = false;  // a column without -o
  unsigned leaves = 0;      // on a narrow terminal: 1 is left out first, 0 never
};

// Empty: unknown. list: several texts; a filter matches if any of them does.
using Value = std::variant<std::monostate, std::string, std::vector<std::string>, std::uint64_t>;

struct Sheet {
  std::vector<Field> fields;
  std::vector<std::vector<Value>> rows;  // a value for each field

  // Index of a field; a sentence with all names where there is none.
  Result<std::size_t> find(std::string_view name) const;
  // "size,object" or, to add to the columns by default, "+pids,peers" or "+pids,+peers". Empty: the default.
  Result<std::vector<std::size_t>> columns(std::string_view list) const;
  // "size" or "-size": numbers are sorted from the largest on, texts from A to Z; "-" reverses that.
  Result<void> sort(std::string_view list);
  std::string names() const;  // "where, object, kind"
};

// A filter is words with blanks between; a row passes when all of them hold.
//   KEY=GLOB KEY!=GLOB     texts; * and ? as in the shell
//   KEY<N KEY<=N KEY>N KEY>=N KEY=N    sizes (1G), numbers, ages (2h, 3d)
//   WORD                   a row that has this word in one of its text fields as a whole: orphan, memfd
//   !TERM                  the opposite;  "..." around a value with blanks
class Filter {
 public:
  // An error says what is wrong, and shows the place below the text.
  static Result<Filter> parse(std::string_view text, const Sheet& sheet);
  bool passes(const std::vector<Value>& row) const;

 private:
  enum class Op : std::uint8_t { equal, unequal, less, less_equal, greater, greater_equal, word };
  struct Term {
    bool negated = false;
    Op op = Op::word;
    std::size_t field = 0;
    std::string text;
    std::uint64_t number = 0;
    bool is_number = false;
  };
  static bool holds(const Term& term, const std::vector<Value>& row);
  std::vector<Term> terms_;
};

}  // namespace shmb::host
