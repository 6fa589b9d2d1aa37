// SPDX-License-Identifier: Apache-2.0
// A table for people: no frames, numbers to the right, so that it can be read, pasted and cut with awk. Cells are made
// printable here, once. On a terminal a table is at most as wide as the terminal. Names are cut first. Then the least
// important columns are left out, and a line below names them. Numbers are never cut. Elsewhere a table is as wide as
// its cells.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/tool.hpp"

namespace shmb::tools {

enum class Align { left, right };

struct Cell {
  Cell(std::string cell_text) : text(std::move(cell_text)) {}
  Cell(const char* cell_text) : text(cell_text) {}
  Cell(std::string cell_text, double value) : text(std::move(cell_text)), number(value) {}
  Cell(std::unsigned_integral auto count) : text(std::to_string(count)), number(static_cast<double>(count)) {}

  std::string text;              // an empty one shows as "-"
  std::optional<double> number;  // what it is sorted by; without one, its text
};
Cell size_cell(const Common& common, std::uint64_t bytes);
Cell age_cell(std::int64_t boottime);

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
    bool cut = false;     // may be cut: for names and reasons
    unsigned leaves = 0;  // 1 is left out first where room is short; 0 never
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell for each column. `id` is what `list -q` prints for the row.
  void add(std::vector<Cell> cells, std::string id = {});
  // A row that belongs to the one added before it and stays below it.
  void add_below(std::vector<Cell> cells) { rows_.back().below.push_back(cleaned(std::move(cells))); }
  bool empty() const { return rows_.empty(); }
  // Sorts by the column of this title, in any case: numbers from the largest on, texts from A to Z. False: no such
  // column.
  bool sort_by(std::string_view title);
  std::string text(const Look& look) const;
  std::string ids() const;     // a line each
  std::string titles() const;  // "group, region, size", as sort_by takes them

 private:
  struct Row {
    std::vector<Cell> cells;
    std::string id;
    std::vector<std::vector<Cell>> below;
  };
  std::vector<Cell> cleaned(std::vector<Cell> cells) const;
  struct Layout {
    std::vector<std::size_t> widths;  // 0: left out
    std::vector<std::size_t> left_out;
  };
  Layout layout(std::size_t room) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// `text` broken at blanks into lines of `room` columns. Later lines begin with `margin`. 0: one line of any length.
std::string wrapped(const std::string& text, const std::string& margin, std::size_t room);

// "label  value" lines with the labels in one column.
std::string label_lines(const std::vector<std::pair<std::string, std::string>>& lines);

}  // namespace shmb::tools
