// SPDX-License-Identifier: Apache-2.0
// See table.hpp.
#include "tools/table.hpp"

#include <algorithm>

#include "tools/printable.hpp"

namespace shmb::tools {
namespace {

constexpr std::string_view kGap = "  ";

std::string padded(const std::string& cell, std::size_t width, Align align) {
  const std::string room(width - std::min(width, columns(cell)), ' ');
  return align == Align::right ? room + cell : cell + room;
}

void trim_right(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text(bool colour) const {
  std::vector<std::size_t> widths;
  for (const Column& column : columns_) widths.push_back(columns(column.title));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns(row[i]));

  std::string head, out;
  for (std::size_t i = 0; i < columns_.size(); ++i)
    head += (i ? std::string(kGap) : "") + padded(columns_[i].title, widths[i], columns_[i].align);
  trim_right(head);
  out += colour ? "\x1b[1m" + head + "\x1b[0m\n" : head + "\n";
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += (i ? std::string(kGap) : "") + padded(row[i], widths[i], columns_[i].align);
    trim_right(line);
    out += line + "\n";
  }
  return out;
}

std::string label_lines(const std::vector<std::pair<std::string, std::string>>& lines) {
  std::size_t width = 0;
  for (const auto& line : lines) width = std::max(width, columns(line.first));
  std::string out;
  for (const auto& [label, value] : lines) {
    std::string line = padded(printable(label), width, Align::left) + std::string(kGap) + printable(value);
    trim_right(line);
    out += line + "\n";
  }
  return out;
}

}  // namespace shmb::tools
