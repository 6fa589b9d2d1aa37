// SPDX-License-Identifier: Apache-2.0
// A table for people: as wide as its cells, no frames, numbers to the right, so that it can be read, pasted and cut
// with awk. Cells are made printable here, once.
#pragma once

#include <string>
#include <vector>

namespace shmb::tools {

enum class Align { left, right };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // As many cells as columns; an empty one shows as "-".
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string text(bool colour) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// "label  value" lines with the labels in one column.
std::string label_lines(const std::vector<std::pair<std::string, std::string>>& lines);

}  // namespace shmb::tools
