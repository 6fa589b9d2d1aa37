// SPDX-License-Identifier: Apache-2.0
// See table.hpp.
#include "tools/table.hpp"

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>

#include "tools/printable.hpp"

namespace shmb::tools {
namespace {

constexpr std::string_view kGap = "  ";
// No name contains it, and every terminal shows it.
constexpr char kCut = '~';
// A name of this many characters can still be distinguished. Before names get shorter, columns are left out.
constexpr std::size_t kLegible = 16;
constexpr std::size_t kShortest = 5;

std::string padded(const std::string& cell, std::size_t width, Align align) {
  const std::string room(width - std::min(width, columns(cell)), ' ');
  return align == Align::right ? room + cell : cell + room;
}

void trim_right(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

// Keeps beginning and end, because similar names often differ only in their last part. The result is one column shorter
// where a character of two columns would be split.
std::string cut_to(const std::string& text, std::size_t width) {
  const std::size_t length = columns(text);
  if (length <= width) return text;
  const std::size_t tail = (width - 1) / 3;
  return text.substr(0, host::bytes_within(text, width - 1 - tail)) + kCut +
         text.substr(host::bytes_over(text, length - tail));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

Cell size_cell(const Common& common, std::uint64_t bytes) {
  return {size_text(common, bytes), static_cast<double>(bytes)};
}

Cell age_cell(std::int64_t boottime) { return {age_text(boottime), -static_cast<double>(boottime)}; }

std::vector<Cell> Table::cleaned(std::vector<Cell> cells) const {
  cells.resize(columns_.size(), Cell(""));
  for (Cell& cell : cells) cell.text = cell.text.empty() ? "-" : printable(cell.text);
  return cells;
}

void Table::add(std::vector<Cell> cells, std::string id) {
  rows_.push_back({cleaned(std::move(cells)), printable(id), {}});
}

bool Table::sort_by(std::string_view title) {
  const auto column = std::ranges::find(columns_, lower(title), [](const Column& each) { return lower(each.title); });
  if (column == columns_.end()) return false;
  const auto at = static_cast<std::size_t>(column - columns_.begin());
  std::ranges::stable_sort(rows_, [at](const Row& a, const Row& b) {
    const Cell &left = a.cells[at], &right = b.cells[at];
    if (left.number && right.number) return *left.number > *right.number;
    if (left.number.has_value() != right.number.has_value()) return left.number.has_value();
    return left.text < right.text;
  });
  return true;
}

std::string Table::ids() const {
  std::string out;
  for (const Row& row : rows_) out += row.id + "\n";
  return out;
}

std::string Table::titles() const {
  std::string out;
  for (const Column& column : columns_) out += (out.empty() ? "" : ", ") + lower(column.title);
  return out;
}

Table::Layout Table::layout(std::size_t room) const {
  std::vector<std::size_t> natural;
  for (const Column& column : columns_) natural.push_back(columns(column.title));
  const auto measure = [&](const std::vector<Cell>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) natural[i] = std::max(natural[i], columns(cells[i].text));
  };
  for (const Row& row : rows_) {
    measure(row.cells);
    std::ranges::for_each(row.below, measure);
  }
  Layout layout{natural, {}};
  if (room == 0) return layout;

  std::vector<std::size_t> going;  // in the order in which they are left out
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (columns_[i].leaves != 0) going.push_back(i);
  std::ranges::stable_sort(going, {}, [&](std::size_t i) { return columns_[i].leaves; });

  const auto total = [&] {
    const auto shown = std::ranges::count_if(layout.widths, [](std::size_t width) { return width != 0; });
    return std::accumulate(layout.widths.begin(), layout.widths.end(), std::size_t{0}) +
           kGap.size() * static_cast<std::size_t>(std::max<std::ptrdiff_t>(shown - 1, 0));
  };
  // Takes from the widest column that may be cut, until all fits or none is wider than `least`.
  const auto fits = [&](std::size_t least) {
    while (total() > room) {
      std::size_t widest = columns_.size();
      for (std::size_t i = 0; i < columns_.size(); ++i)
        if (columns_[i].cut && layout.widths[i] > least &&
            (widest == columns_.size() || layout.widths[i] > layout.widths[widest]))
          widest = i;
      if (widest == columns_.size()) return false;
      --layout.widths[widest];
    }
    return true;
  };
  for (std::size_t left_out = 0;; ++left_out) {
    for (std::size_t i = 0; i < columns_.size(); ++i) layout.widths[i] = natural[i];
    for (std::size_t i = 0; i < left_out; ++i) layout.widths[going[i]] = 0;
    layout.left_out.assign(going.begin(), going.begin() + static_cast<std::ptrdiff_t>(left_out));
    if (fits(kLegible)) break;
    if (left_out == going.size()) {
      (void)fits(kShortest);
      break;
    }
  }
  std::ranges::sort(layout.left_out);
  return layout;
}

std::string Table::text(const Look& look) const {
  const Layout layout = this->layout(look.columns);
  const auto line_of = [&](const std::function<const std::string&(std::size_t)>& cell) {
    std::string line;
    bool begun = false;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (layout.widths[i] == 0) continue;
      line += (begun ? std::string(kGap) : "") +
              padded(cut_to(cell(i), layout.widths[i]), layout.widths[i], columns_[i].align);
      begun = true;
    }
    trim_right(line);
    // Numbers alone may be wider than the narrowest terminals.
    return (look.columns == 0 ? line : cut_to(line, std::max(look.columns, kShortest)));
  };
  const std::string head = line_of([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  std::string out = look.colour ? "\x1b[1m" + head + "\x1b[0m\n" : head + "\n";
  const auto add = [&](const std::vector<Cell>& cells) {
    out += line_of([&](std::size_t i) -> const std::string& { return cells[i].text; }) + "\n";
  };
  for (const Row& row : rows_) {
    add(row.cells);
    std::ranges::for_each(row.below, add);
  }
  if (layout.left_out.empty()) return out;
  std::string gone;
  for (std::size_t i : layout.left_out) gone += (gone.empty() ? "" : ", ") + columns_[i].title;
  return out + cut_to("(no room for " + gone + ")", std::max(look.columns, kShortest)) + "\n";
}

std::string wrapped(const std::string& text, const std::string& margin, std::size_t room) {
  constexpr std::size_t kLeast = 24;  // in less room, breaking lines does not help
  if (room < margin.size() + kLeast) return text;
  std::string out;
  std::size_t used = margin.size();
  bool begun = false;
  for (std::size_t at = 0; at < text.size(); begun = true) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    if (begun && used + 1 + columns(word) > room) {
      out += "\n" + margin + word;
      used = margin.size() + columns(word);
    } else {
      out += (begun ? " " : "") + word;
      used += columns(word) + (begun ? 1 : 0);
    }
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
