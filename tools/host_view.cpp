// SPDX-License-Identifier: Apache-2.0
// See host_view.hpp.
#include "tools/host_view.hpp"

#include <fnmatch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <ctime>
#include <numeric>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/host/verdict.hpp"
#include "tools/printable.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

using host::Field;
using host::FieldKind;
using host::Inventory;
using host::Object;
using host::Sheet;
using host::Value;

std::vector<std::string> holder_pids(const Inventory& inventory, const Object& object) {
  std::vector<std::string> out;
  for (const host::Holder& holder : object.holders)
    out.push_back(std::to_string(inventory.processes[holder.process].pid));
  return out;
}

std::vector<std::string> holder_programs(const Inventory& inventory, const Object& object) {
  std::vector<std::string> out;
  for (const host::Holder& holder : object.holders) {
    const std::string& program = inventory.processes[holder.process].program;
    if (std::ranges::find(out, program) == out.end()) out.push_back(program);
  }
  return out;
}

std::string held_by(const Inventory& inventory, const Object& object) {
  if (object.kind == host::Kind::sysv && object.holders.empty()) return std::to_string(object.attached) + " attached";
  if (object.holders.empty()) return "nobody";
  const host::Process& first = inventory.processes[object.holders.front().process];
  const std::string name = std::to_string(first.pid) + " " + first.program;
  return object.holders.size() == 1 ? name : name + " +" + std::to_string(object.holders.size() - 1);
}

// The name that people know: a region's group and name instead of its whole label.
std::string shown_name(const Object& object) {
  if (object.kind != host::Kind::region) return object.name;
  const auto label = names::parse_memfd_name(object.name);
  return label ? label->group + "/" + label->region : object.name;
}

std::string group_of(const Object& object) {
  if (object.kind != host::Kind::region) return "";
  const auto label = names::parse_memfd_name(object.name);
  return label ? label->group : "";
}

Value text_value(std::string text) { return text.empty() ? Value() : Value(std::move(text)); }

std::vector<Value> row_of(const Inventory& inventory, const Object& it) {
  const std::int64_t age = std::max<std::int64_t>(0, inventory.now - it.changed);
  return {it.place,
          shown_name(it),
          host::kind_text(it.kind),
          it.size,
          it.touched_known ? Value(it.touched) : Value(),
          user_text(it.uid),
          it.changed == 0 ? Value() : Value(static_cast<std::uint64_t>(age)),
          text_value(it.creator_text),
          held_by(inventory, it),
          std::uint64_t{it.kind == host::Kind::sysv ? std::max<std::uint64_t>(it.attached, it.holders.size())
                                                    : it.holders.size()},
          holder_pids(inventory, it),
          holder_programs(inventory, it),
          text_value(it.program),
          host::verdict_text(it.verdict),
          text_value(group_of(it)),
          std::uint64_t{it.links},
          object_id(it)};
}

std::string cell(const Common& common, const Field& field, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    std::string out;
    for (const std::string& text : *list) out += (out.empty() ? "" : ",") + text;
    return out;
  }
  const auto* number = std::get_if<std::uint64_t>(&value);
  if (number == nullptr) return "";
  if (field.kind == FieldKind::size) return size_text(common, *number);
  if (field.kind == FieldKind::age)
    return *number == 0 ? "0s" : format_duration(static_cast<std::int64_t>(*number) * kNsPerSecond);
  return std::to_string(*number);
}

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    out += digits;
  }
  return out;
}

std::string utc(std::int64_t seconds) {
  std::tm parts{};
  const std::time_t time = seconds;
  ::gmtime_r(&time, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &parts)};
}

}  // namespace

Sheet object_fields() {
  return {
      {{"where", "WHERE", "the mount, SysV, memfd, broker or anonymous", FieldKind::text, true},
       {"object", "OBJECT", "its name; of a region its group and name", FieldKind::text, true},
       {"kind", "KIND", "file, semaphore, hugetlb, sysv, region, memfd, deleted, anonymous", FieldKind::text, true, 3},
       {"size", "SIZE", "as it was asked for", FieldKind::size, true, 4},
       {"touched", "TOUCHED", "with memory or swap behind it", FieldKind::size, true},
       {"user", "USER", "its owner", FieldKind::text, true, 2},
       {"age", "AGE", "since its last change that the kernel notes", FieldKind::age, true, 1},
       {"creator", "CREATOR", "who made it, where name or kernel tell", FieldKind::text, false},
       {"heldby", "HELD BY", "the first holder and how many more", FieldKind::text, true, 5},
       {"holders", "HOLDERS", "how many processes hold it", FieldKind::number, false},
       {"pids", "PIDS", "the processes that hold it", FieldKind::list, false},
       {"programs", "PROGRAMS", "the names of those", FieldKind::list, false},
       {"made-by", "MADE BY", "the program whose names look like this", FieldKind::text, false},
       {"verdict", "VERDICT", "held, orphan, stale, idle, unseen", FieldKind::text, true},
       {"group", "GROUP", "of a region: its group", FieldKind::text, false},
       {"links", "LINKS", "of a file: how many names it has", FieldKind::number, false},
       {"id", "ID", "what --why and gc call it", FieldKind::text, false}},
      {}};
}

Sheet object_sheet(const Inventory& inventory, const std::vector<std::size_t>& chosen) {
  Sheet sheet = object_fields();
  for (const std::size_t index : chosen) sheet.rows.push_back(row_of(inventory, inventory.objects[index]));
  return sheet;
}

void add_listing(CLI::App& verb, ListingOptions& options, const std::string& fields) {
  verb.add_flag("--json", options.common.json, "For programs; the first key names the schema");
  verb.add_flag("-b,--bytes", options.common.exact, "Sizes in bytes");
  verb.add_option("-o,--columns", options.columns, "Which columns, or +MORE: " + fields)->type_name("LIST");
  verb.add_option("-S,--sort", options.order, "By these fields; -FIELD turns the order round")->type_name("LIST");
  verb.add_option("-f,--filter", options.filter, "Rows that pass: 'size>1G user=mara !held nccl-*' (shmbroker(1))")
      ->type_name("FILTER");
  verb.add_flag("-q,--quiet", options.ids_only, "Ids only");
  add_duration(verb, "-w,--watch", options.every, "Again and again, with this much time between");
}

Result<std::vector<std::size_t>> arranged(const ListingOptions& options, const Sheet& sheet,
                                          const char* default_order) {
  auto filter = host::Filter::parse(options.filter, sheet);
  if (!filter) return std::unexpected(filter.error());
  // The row's place travels along as a last value while rows are ordered.
  Sheet ordered{sheet.fields, {}};
  for (std::size_t i = 0; i < sheet.rows.size(); ++i) {
    if (!filter->passes(sheet.rows[i])) continue;
    ordered.rows.push_back(sheet.rows[i]);
    ordered.rows.back().push_back(std::uint64_t{i});
  }
  if (auto sorted = ordered.sort(options.order.empty() ? default_order : options.order); !sorted)
    return std::unexpected(sorted.error());
  std::vector<std::size_t> out;
  for (const auto& row : ordered.rows) out.push_back(std::get<std::uint64_t>(row.back()));
  return out;
}

Result<std::string> sheet_table(const ListingOptions& options, const Sheet& sheet,
                                const std::vector<std::size_t>& rows) {
  auto columns = sheet.columns(options.columns);
  if (!columns) return std::unexpected(columns.error());
  std::vector<Table::Column> titles;
  for (const std::size_t column : *columns) {
    const Field& field = sheet.fields[column];
    const bool is_text = field.kind == FieldKind::text || field.kind == FieldKind::list;
    titles.push_back({field.title, is_text ? Align::left : Align::right, is_text, field.leaves});
  }
  Table table(std::move(titles));
  for (const std::size_t row : rows) {
    std::vector<Cell> cells;
    for (const std::size_t column : *columns)
      cells.emplace_back(cell(options.common, sheet.fields[column], sheet.rows[row][column]));
    table.add(std::move(cells));
  }
  return table.empty() ? "" : table.text(look_of(STDOUT_FILENO));
}

std::string object_id(const Object& object) {
  switch (object.kind) {
    case host::Kind::sysv:
      return "sysv:" + std::to_string(object.key.id);
    case host::Kind::memfd:
    case host::Kind::anonymous:
    case host::Kind::region:
      return (object.kind == host::Kind::anonymous ? "anonymous:" : "memfd:") + std::to_string(object.key.id);
    default:
      return object.place + "/" + object.name;
  }
}

std::vector<std::size_t> named(const Inventory& inventory, const std::string& word) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < inventory.objects.size(); ++i) {
    const Object& it = inventory.objects[i];
    const std::string id = object_id(it), name = shown_name(it);
    if (word == id || word == name || ::fnmatch(word.c_str(), id.c_str(), 0) == 0 ||
        ::fnmatch(word.c_str(), name.c_str(), 0) == 0)
      out.push_back(i);
  }
  return out;
}

Json object_json(const Inventory& inventory, const Object& it) {
  Json json{{"id", object_id(it)}, {"kind", host::kind_text(it.kind)}, {"where", it.place}, {"name", it.name}};
  if (!is_utf8(it.name)) json["name_hex"] = hex(it.name);
  if (it.names.size() > 1) json["names"] = it.names;
  json["device"] = it.key.sysv ? Json(nullptr) : Json(it.key.space);
  json["inode"] = it.key.sysv ? Json(nullptr) : Json(it.key.id);
  json["shmid"] = it.key.sysv ? Json(it.key.id) : Json(nullptr);
  json["bytes"] = it.size;
  json["bytes_at_least"] = it.size_is_least;
  json["touched"] = it.touched_known ? Json(it.touched) : Json(nullptr);
  json["uid"] = it.uid;
  json["mode"] = it.mode;
  json["links"] = it.links;
  json["changed"] = it.changed == 0 ? Json(nullptr) : Json(utc(it.changed));
  json["creator_pid"] = it.creator == 0 ? Json(nullptr) : Json(it.creator);
  json["attached"] = it.key.sysv ? Json(it.attached) : Json(nullptr);
  json["group"] = group_of(it).empty() ? Json(nullptr) : Json(group_of(it));
  json["made_by"] = it.program.empty() ? Json(nullptr) : Json(it.program);
  json["verdict"] = host::verdict_text(it.verdict);
  json["evidence"] = it.evidence;
  json["holders"] = Json::array();
  for (const host::Holder& holder : it.holders) {
    const host::Process& process = inventory.processes[holder.process];
    json["holders"].push_back({{"pid", process.pid},
                               {"program", process.program},
                               {"uid", process.uid},
                               {"mapped", holder.mapped},
                               {"descriptors", holder.descriptors}});
  }
  return json;
}

Json host_document(const std::string& verb, const Inventory& inventory) {
  Json json = document(verb);
  json["time"] = utc(inventory.now);
  json["processes"] = inventory.processes.size();
  json["saw_all"] = inventory.saw_all();
  json["not_seen"] = inventory.blind;
  return json;
}

std::string blind_text(const Inventory& inventory) {
  std::string out;
  for (const std::string& sentence : inventory.blind) out += "not seen: " + printable(sentence) + "\n";
  return out;
}

int repeat(const ListingOptions& options, const std::function<int()>& once) {
  for (;;) {
    if (options.every != 0 && is_terminal(STDOUT_FILENO)) (void)print("\x1b[H\x1b[2J");
    const int code = once();
    if (options.every == 0 || (code != 0 && code < 6)) return code;
    sys::rest(options.every);
    if (!is_terminal(STDOUT_FILENO) && !print("\n")) return code;
  }
}

Result<Inventory> look_at_host(std::int64_t stale_after_ns) {
  std::signal(SIGIO, SIG_IGN);
  auto patterns = host::Patterns::load();
  if (!patterns) return std::unexpected(patterns.error());
  auto inventory = host::scan({});
  if (!inventory) return inventory;
  host::JudgeOptions options;
  options.stale_after = stale_after_ns / kNsPerSecond;
  host::judge(*inventory, *patterns, options);
  return inventory;
}

}  // namespace shmb::tools
