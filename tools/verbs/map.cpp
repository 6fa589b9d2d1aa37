// SPDX-License-Identifier: Apache-2.0
// `shmbroker map PID`: all shared memory of one process, also that of other programs, and its other holders. It needs
// no broker.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/host/smaps.hpp"
#include "tools/host_view.hpp"
#include "tools/printable.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

using host::FieldKind;
using host::Inventory;
using host::Object;
using host::Sheet;
using host::Value;

struct MapOptions {
  ListingOptions listing;
  pid_t pid = 0;
};

Sheet map_fields() {
  Sheet sheet = object_fields();
  for (host::Field& field : sheet.fields) {
    if (field.name == "peers") field.help = "the other processes that hold it, PID:PROGRAM";
    field.by_default = field.name == "where" || field.name == "object" || field.name == "kind" ||
                       field.name == "size" || field.name == "peers";
  }
  const std::vector<host::Field> own = {
      {"mapped", "MAPPED", "of the process's address space", FieldKind::size, true},
      {"rss", "RSS", "of its mappings, in memory and in its page tables: Rss of smaps", FieldKind::size, true},
      {"share", "SHARE", "of what is resident, divided by its users: Pss of smaps", FieldKind::size, false},
      {"swapped", "SWAPPED", "of its mappings, in swap", FieldKind::size, false},
      {"descriptors", "FDS", "of the process, that lead to it", FieldKind::number, true}};
  sheet.fields.insert(sheet.fields.end(), own.begin(), own.end());
  return sheet;
}

struct Held {
  std::size_t object = 0;
  host::Part part;
  std::uint32_t descriptors = 0;
  std::vector<std::string> peers;
};

std::vector<Held> parts_held(const Inventory& inventory, pid_t pid,
                             const std::map<std::pair<std::uint64_t, std::uint64_t>, host::Part>& parts,
                             std::uint64_t segments_device) {
  std::vector<Held> out;
  for (std::size_t i = 0; i < inventory.objects.size(); ++i) {
    const Object& it = inventory.objects[i];
    Held held{.object = i};
    bool is_held = false;
    for (const host::Holder& holder : it.holders) {
      const host::Process& process = inventory.processes[holder.process];
      if (process.pid != pid) {
        held.peers.push_back(std::to_string(process.pid) + ":" + process.program);
        continue;
      }
      is_held = true;
      held.descriptors = holder.descriptors;
      held.part.mapped = holder.mapped;
    }
    if (!is_held) continue;
    const std::uint64_t device = it.key.sysv ? segments_device : it.key.space;
    if (const auto part = parts.find({device, it.key.id}); part != parts.end()) held.part = part->second;
    out.push_back(std::move(held));
  }
  return out;
}

// Facts about this process that the sentences about the whole host leave out.
std::string missed_text(const host::Process& process, const Inventory& inventory) {
  std::string out;
  for (const std::string& sentence : process.missed)
    if (std::ranges::find(inventory.blind, sentence) == inventory.blind.end())
      out += wrapped("not seen: " + printable(sentence), "  ", look_of(STDOUT_FILENO).columns) + "\n";
  return out;
}

int run_once(const MapOptions& options) {
  auto inventory = look_at_host(kStaleAfter);
  if (!inventory) return fail(inventory.error());
  const host::Process* process = inventory->find(options.pid);
  if (process == nullptr) {
    complain("there is no process " + std::to_string(options.pid));
    return kExitNotFound;
  }
  auto proc = host::Proc::open("/proc");
  auto parts = proc ? host::parts_of(*proc, options.pid) : std::unexpected(proc.error());
  if (!parts || !process->seen) {
    const int why = parts ? EACCES : parts.error().value;
    if (why == ENOENT || why == ESRCH) {
      complain("process " + std::to_string(options.pid) + " has ended");
      return kExitNotFound;
    }
    complain("process " + std::to_string(options.pid) + " of " + user_text(process->uid) +
             " may not be looked into: " + errno_text(why) + "; run as that user or as root");
    return kExitRefused;
  }
  const auto held = parts_held(*inventory, options.pid, *parts, inventory->kernel_device);
  std::vector<std::size_t> chosen;
  for (const Held& it : held) chosen.push_back(it.object);
  look_at_pages(*inventory, chosen, options.listing);
  Sheet sheet = object_sheet(*inventory, chosen);
  const std::size_t peers = *sheet.find("peers");
  sheet.fields = map_fields().fields;
  host::Part sum;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const host::Part& part = held[i].part;
    const std::vector<Value> own = {part.mapped, part.resident, part.proportional, part.swapped,
                                    std::uint64_t{held[i].descriptors}};
    sheet.rows[i][peers] = held[i].peers;
    sheet.rows[i].insert(sheet.rows[i].end(), own.begin(), own.end());
    sum.mapped += part.mapped;
    sum.resident += part.resident;
    sum.proportional += part.proportional;
    sum.swapped += part.swapped;
  }
  auto rows = arranged(options.listing, sheet, "mapped,where,object");
  if (!rows) return fail_in_lines(rows.error());
  std::string text;
  if (options.listing.common.json) {
    Json json = host_document("map", *inventory);
    json["process"] = {{"pid", process->pid}};
    put_text(json["process"], "program", process->program);
    json["process"]["uid"] = process->uid;
    json["process"]["not_seen"] = process->missed;
    json["totals"] = {
        {"mapped", sum.mapped}, {"rss", sum.resident}, {"share", sum.proportional}, {"swapped", sum.swapped}};
    json["objects"] = Json::array();
    for (const std::size_t row : *rows) {
      Json object = object_json(*inventory, inventory->objects[held[row].object]);
      object["mapped"] = held[row].part.mapped;
      object["rss"] = held[row].part.resident;
      object["share"] = held[row].part.proportional;
      object["swapped"] = held[row].part.swapped;
      object["descriptors"] = held[row].descriptors;
      json["objects"].push_back(std::move(object));
    }
    text = dump(json);
  } else if (options.listing.ids_only) {
    for (const std::size_t row : *rows) text += printable(object_id(inventory->objects[held[row].object])) + "\n";
  } else {
    auto table = sheet_table(options.listing, sheet, *rows);
    if (!table) return fail_in_lines(table.error());
    text = std::to_string(process->pid) + " " + printable(process->program) + " of " + user_text(process->uid) + ": " +
           count_text(held.size(), "object") + ", " + size_text(options.listing.common, sum.mapped) + " mapped, " +
           size_text(options.listing.common, sum.resident) + " resident\n" + *table +
           missed_text(*process, *inventory) + blind_text(*inventory);
  }
  if (!print(text)) return kExitError;
  // A process that was not seen may hide peers. Only what was missed of this process counts.
  return process->missed.empty() ? kExitOk : kExitUnseen;
}

}  // namespace

Command add_map(CLI::App& app) {
  auto options = std::make_shared<MapOptions>();
  CLI::App* verb =
      app.add_subcommand("map", "List the shared memory of a process, and its other holders; needs no broker");
  verb->add_option("PID", options->pid, "The process")->required()->check([](const std::string& text) {
    pid_t pid = 0;
    const char* end = text.data() + text.size();
    const auto [stop, bad] = std::from_chars(text.data(), end, pid);
    return bad == std::errc() && stop == end && pid > 0 ? "" : shmb::quoted(text) + " is no process id";
  });
  add_listing(*verb, options->listing, map_fields().names());
  return {verb, [options] { return repeat(options->listing, [&] { return run_once(*options); }); }};
}

}  // namespace shmb::tools
