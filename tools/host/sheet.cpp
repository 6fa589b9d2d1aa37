// SPDX-License-Identifier: Apache-2.0
// See sheet.hpp.
#include "tools/host/sheet.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.hpp"
#include "tools/host/width.hpp"

namespace shmb::host {
namespace {

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> out;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    out.push_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return out;
}

bool is_numeric(FieldKind kind) { return kind != FieldKind::text && kind != FieldKind::list; }

// Unknown values come last in either order.
int compare(const Value& left, const Value& right) {
  if (left.index() != right.index()) return left.index() == 0 ? 1 : right.index() == 0 ? -1 : 0;
  if (const auto* number = std::get_if<std::uint64_t>(&left)) {
    const auto other = std::get<std::uint64_t>(right);
    return *number < other ? -1 : *number > other ? 1 : 0;
  }
  return left < right ? -1 : right < left ? 1 : 0;
}

bool matches(const std::string& glob, const std::string& text) { return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0; }

// "filter: WHY\n  TEXT\n     ^"
std::unexpected<Error> wrong(std::string_view text, std::size_t at, const std::string& why) {
  std::string shown(text);  // one column for each character, so that the mark stands below the right one
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  const auto before = static_cast<std::size_t>(
      std::ranges::count_if(text.substr(0, at), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
  const std::size_t indent = columns(std::string_view(shown).substr(0, at));
  return error(Status::invalid, "filter, at character " + std::to_string(before + 1) + ": " + why + "\n  " + shown +
                                    "\n  " + std::string(indent, ' ') + "^");
}

struct Word {
  std::size_t at = 0;
  std::string text;                                                // without quotes
  std::size_t operator_at = std::string::npos, operator_size = 0;  // in `text`
};

Result<std::vector<Word>> words_of(std::string_view text) {
  std::vector<Word> out;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == ' ' || text[i] == '\t') {
      ++i;
      continue;
    }
    Word word{.at = i};
    bool in_quotes = false;
    std::size_t quote = 0;
    for (; i < text.size() && (in_quotes || (text[i] != ' ' && text[i] != '\t')); ++i) {
      if (text[i] == '"') {
        in_quotes = !in_quotes;
        quote = i;
        continue;
      }
      const bool is_operator = std::string_view("=!<>").find(text[i]) != std::string_view::npos;
      if (is_operator && !in_quotes && word.operator_at == std::string::npos && !word.text.empty() &&
          word.text != "!") {
        word.operator_at = word.text.size();
        word.operator_size = i + 1 < text.size() && text[i + 1] == '=' && text[i] != '=' ? 2 : 1;
        word.text += text.substr(i, word.operator_size);
        i += word.operator_size - 1;
        continue;
      }
      word.text += text[i];
    }
    if (in_quotes) return wrong(text, quote, "this quote has no end");
    out.push_back(std::move(word));
  }
  return out;
}

}  // namespace

Result<std::size_t> Sheet::find(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end())
    return error(Status::invalid, "there is no field " + shmb::quoted(name) + "; there are: " + names());
  return static_cast<std::size_t>(found - fields.begin());
}

std::string Sheet::names() const {
  std::string out;
  for (const Field& field : fields) out += (out.empty() ? "" : ", ") + field.name;
  return out;
}

Result<std::vector<std::size_t>> Sheet::columns(std::string_view list) const {
  std::vector<std::size_t> out;
  const bool adds = list.starts_with('+');
  if (adds) list.remove_prefix(1);
  if (adds || list.empty())
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (fields[i].by_default) out.push_back(i);
  for (std::string_view name : split(list)) {
    if (adds && name.starts_with('+')) name.remove_prefix(1);
    SHMB_TRY(field, find(name));
    out.push_back(field);
  }
  return out;
}

Result<void> Sheet::sort(std::string_view list) {
  struct Order {
    std::size_t field;
    bool falling;
  };
  std::vector<Order> orders;
  for (std::string_view name : split(list)) {
    const bool turned = name.starts_with('-');
    if (turned) name.remove_prefix(1);
    SHMB_TRY(field, find(name));
    orders.push_back({field, is_numeric(fields[field].kind) != turned});
  }
  std::ranges::stable_sort(rows, [&](const auto& left, const auto& right) {
    for (const Order& order : orders) {
      const Value &a = left[order.field], &b = right[order.field];
      const int less = compare(a, b);
      if (less == 0) continue;
      if (a.index() == 0 || b.index() == 0) return b.index() == 0;
      return order.falling ? less > 0 : less < 0;
    }
    return false;
  });
  return {};
}

Result<Filter> Filter::parse(std::string_view text, const Sheet& sheet) {
  SHMB_TRY(words, words_of(text));
  Filter out;
  for (const Word& word : words) {
    Term term;
    std::string_view rest = word.text;
    std::size_t skipped = 0;
    if (rest.starts_with('!')) {
      term.negated = true;
      rest.remove_prefix(1);
      skipped = 1;
    }
    if (rest.empty()) return wrong(text, word.at, "a term is missing here");
    if (word.operator_at == std::string::npos) {
      term.text = rest;
      out.terms_.push_back(std::move(term));
      continue;
    }
    const std::string_view key = rest.substr(0, word.operator_at - skipped);
    const std::string_view op = std::string_view(word.text).substr(word.operator_at, word.operator_size);
    const std::string value = word.text.substr(word.operator_at + word.operator_size);
    auto field = sheet.find(key);
    if (!field) return wrong(text, word.at + skipped, field.error().sentence);
    term.field = *field;
    const FieldKind kind = sheet.fields[*field].kind;
    term.op = op == "="    ? Op::equal
              : op == "!=" ? Op::unequal
              : op == "<"  ? Op::less
              : op == "<=" ? Op::less_equal
              : op == ">"  ? Op::greater
              : op == ">=" ? Op::greater_equal
                           : Op::word;
    if (term.op == Op::word) return wrong(text, word.at + word.operator_at, "expected =, !=, <, <=, > or >=");
    if (value.empty()) return wrong(text, word.at + word.operator_at + word.operator_size, "a value is missing here");
    const std::size_t value_at = word.at + word.operator_at + word.operator_size;
    if (!is_numeric(kind)) {
      if (term.op != Op::equal && term.op != Op::unequal)
        return wrong(text, word.at + word.operator_at, shmb::quoted(key) + " is a text: use = or !=");
      term.text = value;
    } else if (kind == FieldKind::age) {
      auto parsed = parse_duration(value);
      if (!parsed || *parsed < 0)
        return wrong(text, value_at, parsed ? "an age is not negative" : parsed.error().sentence);
      term.number = static_cast<std::uint64_t>(*parsed) / 1'000'000'000;
      term.is_number = true;
    } else if (kind == FieldKind::size) {
      auto parsed = parse_size(value);
      if (!parsed) return wrong(text, value_at, parsed.error().sentence);
      term.number = *parsed;
      term.is_number = true;
    } else {
      const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), term.number);
      if (bad != std::errc() || end != value.data() + value.size())
        return wrong(text, value_at, shmb::quoted(value) + " is no number");
      term.is_number = true;
    }
    out.terms_.push_back(std::move(term));
  }
  return out;
}

bool Filter::holds(const Term& term, const std::vector<Value>& row) {
  if (term.op == Op::word)
    return std::ranges::any_of(row, [&](const Value& value) {
      if (const auto* text = std::get_if<std::string>(&value)) return *text == term.text;
      if (const auto* list = std::get_if<std::vector<std::string>>(&value))
        return std::ranges::find(*list, term.text) != list->end();
      return false;
    });
  const Value& value = row[term.field];
  if (term.is_number) {
    const auto* number = std::get_if<std::uint64_t>(&value);
    if (number == nullptr) return false;
    switch (term.op) {
      case Op::equal:
        return *number == term.number;
      case Op::unequal:
        return *number != term.number;
      case Op::less:
        return *number < term.number;
      case Op::less_equal:
        return *number <= term.number;
      case Op::greater:
        return *number > term.number;
      default:
        return *number >= term.number;
    }
  }
  bool found = false;
  if (const auto* text = std::get_if<std::string>(&value)) found = matches(term.text, *text);
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    found = std::ranges::any_of(*list, [&](const std::string& text) { return matches(term.text, text); });
  return found == (term.op == Op::equal);
}

bool Filter::passes(const std::vector<Value>& row) const {
  return std::ranges::all_of(terms_, [&](const Term& term) { return holds(term, row) != term.negated; });
}

}  // namespace shmb::host
