// SPDX-License-Identifier: Apache-2.0
// See host_view.hpp.
#include "tools/host_view.hpp"

#include <fnmatch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <ctime>
#include <map>
#include <span>

#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "tools/exit_code.hpp"
#include "tools/host/pages.hpp"
#include "tools/host/verdict.hpp"
#include "tools/host/words.hpp"
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

std::vector<std::string> peers_of(const Inventory& inventory, const Object& object) {
  std::vector<std::string> out;
  for (const host::Holder& holder : object.holders) {
    const host::Process& process = inventory.processes[holder.process];
    out.push_back(std::to_string(process.pid) + ":" + process.program);
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

// The name that people use: a region's group and name instead of its whole label.
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

Value number_value(bool is_known, std::uint64_t number) {
  if (!is_known) return {};
  return number;
}

// A value for each field of object_fields(), in their order.
std::vector<Value> row_of(const Inventory& inventory, const Object& it) {
  const std::int64_t age = std::max<std::int64_t>(0, inventory.now - it.changed);
  const std::uint64_t holders = it.holders.size();
  std::vector<Value> row;
  row.reserve(20);
  row.emplace_back(it.place);
  row.emplace_back(shown_name(it));
  row.emplace_back(host::kind_text(it.kind));
  row.emplace_back(it.size);
  row.push_back(number_value(it.touched_known, it.touched));
  row.emplace_back(user_text(it.uid));
  row.push_back(number_value(it.changed != 0, static_cast<std::uint64_t>(age)));
  row.push_back(text_value(it.creator_text));
  row.emplace_back(held_by(inventory, it));
  row.emplace_back(it.kind == host::Kind::sysv ? std::max(it.attached, holders) : holders);
  row.emplace_back(holder_pids(inventory, it));
  row.emplace_back(holder_programs(inventory, it));
  row.push_back(text_value(it.program));
  row.emplace_back(host::verdict_text(it.verdict));
  row.push_back(text_value(group_of(it)));
  row.emplace_back(it.links);
  row.emplace_back(object_id(it));
  row.push_back(number_value(it.resident_known, it.resident));
  std::vector<std::string> cgroups = it.cgroups;
  if (cgroups.empty()) cgroups.emplace_back("unknown");
  row.emplace_back(std::move(cgroups));
  row.emplace_back(peers_of(inventory, it));
  return row;
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
       {"creator", "CREATOR", "its maker, where name or kernel tell", FieldKind::text, false},
       {"heldby", "HELD BY", "the first holder and how many more", FieldKind::text, true, 5},
       {"holders", "HOLDERS", "how many processes hold it", FieldKind::number, false},
       {"pids", "PIDS", "the processes that hold it", FieldKind::list, false},
       {"programs", "PROGRAMS", "the names of those", FieldKind::list, false},
       {"made-by", "MADE BY", "the program whose names look like this", FieldKind::text, false},
       {"verdict", "VERDICT", "held, orphan, stale, idle, unseen", FieldKind::text, true},
       {"group", "GROUP", "of a region: its group", FieldKind::text, false},
       {"links", "LINKS", "of a file: how many names it has", FieldKind::number, false},
       {"id", "ID", "what --why and gc call it", FieldKind::text, false},
       {"resident", "RESIDENT", "of what is touched, in memory and not in swap", FieldKind::size, false},
       {"cgroup", "CGROUP", "the cgroups that pay for its pages: the largest share first", FieldKind::list, false},
       {"peers", "PEERS", "the processes that hold it, PID:PROGRAM", FieldKind::list, false}},
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
  SHMB_TRY(filter, host::Filter::parse(options.filter, sheet));
  // A row's index is appended as a last value while rows are sorted.
  Sheet ordered{sheet.fields, {}};
  for (std::size_t i = 0; i < sheet.rows.size(); ++i) {
    if (!filter.passes(sheet.rows[i])) continue;
    ordered.rows.push_back(sheet.rows[i]);
    ordered.rows.back().push_back(std::uint64_t{i});
  }
  SHMB_TRY_VOID(ordered.sort(options.order.empty() ? default_order : options.order));
  std::vector<std::size_t> out;
  for (const auto& row : ordered.rows) out.push_back(std::get<std::uint64_t>(row.back()));
  return out;
}

int fail_in_lines(const Error& error) {
  std::string_view rest = error.sentence;
  std::string text = complaint(std::string(host::next_word(rest, '\n')));
  while (!rest.empty()) text += printable(host::next_word(rest, '\n')) + "\n";
  (void)sys::write_all(STDERR_FILENO, std::as_bytes(std::span(text)));
  return exit_code(error.status);
}

Result<std::string> sheet_table(const ListingOptions& options, const Sheet& sheet,
                                const std::vector<std::size_t>& rows) {
  SHMB_TRY(columns, sheet.columns(options.columns));
  std::vector<Table::Column> titles;
  for (const std::size_t column : columns) {
    const Field& field = sheet.fields[column];
    const bool is_text = field.kind == FieldKind::text || field.kind == FieldKind::list;
    titles.push_back({field.title, is_text ? Align::left : Align::right, is_text, field.leaves});
  }
  Table table(std::move(titles));
  for (const std::size_t row : rows) {
    std::vector<Cell> cells;
    for (const std::size_t column : columns)
      cells.emplace_back(cell(options.common, sheet.fields[column], sheet.rows[row][column]));
    table.add(std::move(cells));
  }
  return table.empty() ? "" : table.text(look_of(STDOUT_FILENO));
}

std::string object_id(const Object& object) {
  switch (object.kind) {
    case host::Kind::sysv:
      return "sysv:" + std::to_string(object.key.id) +
             (object.place == "SysV" ? "" : "@" + std::to_string(object.ipc_namespace));
    case host::Kind::memfd:
    case host::Kind::anonymous:
    case host::Kind::region:
      return (object.kind == host::Kind::anonymous ? "anonymous:" : "memfd:") + std::to_string(object.key.id);
    default:
      return object.place + "/" + object.name;
  }
}

std::vector<std::size_t> named(const Inventory& inventory, const std::string& word) {
  const auto all_that = [&](auto&& is_meant) {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < inventory.objects.size(); ++i)
      if (is_meant(inventory.objects[i])) out.push_back(i);
    return out;
  };
  const auto is_one_of_its_names = [&](const Object& it) {
    return word == shown_name(it) || std::ranges::any_of(it.names, [&](const std::string& name) {
             return word == name || word == it.place + "/" + name;
           });
  };
  if (auto by_id = all_that([&](const Object& it) { return word == object_id(it); }); !by_id.empty()) return by_id;
  if (auto by_name = all_that(is_one_of_its_names); !by_name.empty()) return by_name;
  if (word.find('\\') != std::string::npos)
    if (auto by_print = all_that([&](const Object& it) { return word == printable(object_id(it)); }); !by_print.empty())
      return by_print;
  return all_that([&](const Object& it) {
    return ::fnmatch(word.c_str(), object_id(it).c_str(), 0) == 0 ||
           ::fnmatch(word.c_str(), shown_name(it).c_str(), 0) == 0;
  });
}

bool is_glob(const std::string& word) { return word.find_first_of("*?[") != std::string::npos; }

void put_text(Json& json, const std::string& key, const std::string& text) {
  json[key] = text;
  if (!is_utf8(text)) json[key + "_hex"] = hex(text);
}

void look_at_pages(Inventory& inventory, const std::vector<std::size_t>& chosen, const ListingOptions& options) {
  const auto asks_for = [&](const char* field) {
    return (options.columns + " " + options.order + " " + options.filter).find(field) != std::string::npos;
  };
  const bool charged = asks_for("cgroup");
  if (!charged && !asks_for("resident")) return;
  host::PageBooks books(inventory);
  for (const std::size_t index : chosen) books.look(inventory.objects[index], charged);
  if (!charged) return;
  std::map<std::string, std::size_t> reasons;
  for (const std::size_t index : chosen)
    if (const Object& it = inventory.objects[index]; it.cgroups.empty()) ++reasons[it.why_no_cgroup];
  for (const auto& [reason, count] : reasons)
    inventory.notes.push_back("the cgroup of " + count_text(count, "object") + " is unknown: " + reason);
}

Json object_json(const Inventory& inventory, const Object& it) {
  Json json = Json::object();
  put_text(json, "id", object_id(it));
  json["kind"] = host::kind_text(it.kind);
  put_text(json, "where", it.place);
  put_text(json, "name", it.name);
  if (it.names.size() > 1) {
    json["names"] = it.names;
    if (!std::ranges::all_of(it.names, is_utf8)) {
      json["names_hex"] = Json::array();
      for (const std::string& name : it.names) json["names_hex"].push_back(hex(name));
    }
  }
  json["device"] = it.key.sysv ? Json(nullptr) : Json(it.key.space);
  json["inode"] = it.key.sysv ? Json(nullptr) : Json(it.key.id);
  json["shmid"] = it.key.sysv ? Json(it.key.id) : Json(nullptr);
  json["bytes"] = it.size;
  json["bytes_at_least"] = it.size_is_least;
  json["touched"] = it.touched_known ? Json(it.touched) : Json(nullptr);
  if (it.resident_known) json["resident"] = it.resident;
  if (!it.cgroups.empty()) json["cgroups"] = it.cgroups;
  if (!it.why_no_cgroup.empty()) json["cgroups_unknown"] = it.why_no_cgroup;
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
    Json row{{"pid", process.pid}};
    put_text(row, "program", process.program);
    row["uid"] = process.uid;
    row["mapped"] = holder.mapped;
    row["descriptors"] = holder.descriptors;
    json["holders"].push_back(std::move(row));
  }
  return json;
}

Json host_document(const std::string& verb, const Inventory& inventory) {
  Json json = document(verb);
  json["time"] = utc(inventory.now);
  json["processes"] = inventory.processes.size();
  json["saw_all"] = inventory.saw_all();
  json["not_seen"] = inventory.blind;
  if (!inventory.notes.empty()) json["notes"] = inventory.notes;
  return json;
}

std::string blind_text(const Inventory& inventory) {
  std::string out;
  const std::size_t room = look_of(STDOUT_FILENO).columns;
  for (const std::string& sentence : inventory.notes) out += wrapped(printable(sentence), "  ", room) + "\n";
  for (const std::string& sentence : inventory.blind)
    out += wrapped("not seen: " + printable(sentence), "  ", room) + "\n";
  return out;
}

int repeat(const ListingOptions& options, const std::function<int()>& once) {
  for (;;) {
    if (options.every != 0 && is_terminal(STDOUT_FILENO)) print_with_next("\x1b[H\x1b[2J");
    const int code = once();
    if (options.every == 0 || (code != 0 && code < 6)) return code;
    sys::rest(options.every);
    if (!is_terminal(STDOUT_FILENO) && !print("\n")) return code;
  }
}

Result<Inventory> look_at_host(std::int64_t stale_after_ns) {
  std::signal(SIGIO, SIG_IGN);
  std::vector<std::string> notes;
  SHMB_TRY(patterns, host::Patterns::load(notes));
  auto inventory = host::scan({});
  if (!inventory) return inventory;
  inventory->notes = std::move(notes);
  host::JudgeOptions options;
  options.stale_after = stale_after_ns / kNsPerSecond;
  host::judge(*inventory, patterns, options);
  return inventory;
}

}  // namespace shmb::tools
