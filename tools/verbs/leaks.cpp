// SPDX-License-Identifier: Apache-2.0
// `shmbroker leaks`: shared memory without holders, its size, and why it looks lost. It needs no broker and changes
// nothing.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/host_view.hpp"
#include "tools/printable.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

using host::Inventory;
using host::Object;
using host::Verdict;

constexpr std::size_t kFold = 3;  // so many of one pattern, user and verdict become one line

struct LeaksOptions {
  ListingOptions listing;
  std::vector<std::string> why;
  bool each = false;
  std::int64_t stale_after = kStaleAfter;
};

bool is_lost(const Object& it) { return it.verdict == Verdict::orphan || it.verdict == Verdict::stale; }

struct Totals {
  std::uint64_t bytes = 0, lost_bytes = 0;
  std::size_t objects = 0, lost = 0;
};
Totals totals_of(const Inventory& inventory) {
  Totals out;
  for (const Object& it : inventory.objects) {
    if (it.kind == host::Kind::region) continue;
    ++out.objects;
    out.bytes += it.touched;
    if (!is_lost(it)) continue;
    ++out.lost;
    out.lost_bytes += it.touched;
  }
  return out;
}

// Objects of one pattern, place, user and verdict.
struct Fold {
  std::vector<const Object*> objects;
};

std::vector<Fold> fold(const Inventory& inventory, const std::vector<std::size_t>& chosen) {
  std::map<std::tuple<std::string, std::string, std::uint32_t, Verdict, std::size_t>, std::size_t> places;
  std::vector<Fold> folds;
  for (const std::size_t index : chosen) {
    const Object& it = inventory.objects[index];
    const std::size_t alone = it.glob.empty() ? index + 1 : 0;
    const auto [place, added] = places.try_emplace({it.place, it.glob, it.uid, it.verdict, alone}, folds.size());
    if (added) folds.emplace_back();
    folds[place->second].objects.push_back(&it);
  }
  return folds;
}

std::string age_of(std::int64_t age, std::int64_t changed) {
  if (changed == 0) return "";
  return age <= 0 ? "0s" : format_duration(age * kNsPerSecond);
}

std::string holders_of(const Object& it) {
  if (it.kind == host::Kind::sysv) return std::to_string(it.attached) + " attached";
  return it.verdict == Verdict::unseen ? "unknown" : "nobody";
}

std::string folded_table(const LeaksOptions& options, const Inventory& inventory,
                         const std::vector<std::size_t>& chosen) {
  Table table({{"WHERE", Align::left, true, 3},
               {"OBJECT", Align::left, true},
               {"SIZE", Align::right},
               {"AGE", Align::right, false, 2},
               {"CREATOR", Align::left, true, 1},
               {"HELD BY", Align::left, false, 4},
               {"VERDICT"}});
  const auto add = [&](const Object& it, const std::string& name, std::uint64_t touched, std::int64_t changed,
                       const std::string& creator) {
    const std::int64_t age = inventory.now - changed;
    table.add({it.place, name, size_text(options.listing.common, touched), age_of(age, changed), creator,
               holders_of(it), host::verdict_text(it.verdict)});
  };
  for (const Fold& fold : fold(inventory, chosen)) {
    if (fold.objects.size() < kFold) {
      for (const Object* it : fold.objects) add(*it, it->name, it->touched, it->changed, it->creator_text);
      continue;
    }
    std::uint64_t touched = 0;
    std::int64_t oldest = fold.objects.front()->changed;
    for (const Object* it : fold.objects) {
      touched += it->touched;
      oldest = std::min(oldest, it->changed);
    }
    const Object& first = *fold.objects.front();
    // The number first: a narrow terminal cuts the middle and the end of names.
    add(first, std::to_string(fold.objects.size()) + " files " + first.glob, touched, oldest, user_text(first.uid));
  }
  return table.empty() ? "" : table.text(look_of(STDOUT_FILENO));
}

int explain(const LeaksOptions& options, const Inventory& inventory) {
  std::string text;
  Json json = host_document("leaks.why", inventory);
  json["objects"] = Json::array();
  for (const std::string& word : options.why) {
    const auto found = named(inventory, word);
    if (found.empty()) {
      complain("no shared memory is called " + shmb::quoted(word) + "; shmbroker list --all -o id shows all names");
      return kExitNotFound;
    }
    for (const std::size_t index : found) {
      const Object& it = inventory.objects[index];
      json["objects"].push_back(object_json(inventory, it));
      text += printable(object_id(it)) + ": " + host::verdict_text(it.verdict) + "\n";
      for (const std::string& sentence : it.evidence)
        text += wrapped("  " + printable(sentence), "    ", look_of(STDOUT_FILENO).columns) + "\n";
      for (const host::Holder& holder : it.holders) {
        const host::Process& process = inventory.processes[holder.process];
        text += "  held by " + std::to_string(process.pid) + " " + printable(process.program) + ": " +
                size_text(options.listing.common, holder.mapped) + " mapped, " +
                count_text(holder.descriptors, "descriptor") + "\n";
      }
    }
  }
  return print(options.listing.common.json ? dump(json) : text) ? kExitOk : kExitError;
}

std::string summary(const LeaksOptions& options, const Totals& totals) {
  const Common& common = options.listing.common;
  const std::string text =
      size_text(common, totals.bytes) + " in " + count_text(totals.objects, "object") +
      (totals.objects == 1 ? " is" : " are") + " not owned by shmbroker; " +
      (totals.lost == 0 ? "nothing looks lost"
                        : size_text(common, totals.lost_bytes) + " in " + count_text(totals.lost, "object") +
                              (totals.lost == 1 ? " looks" : " look") + " lost") +
      ".";
  return wrapped(text, "  ", look_of(STDOUT_FILENO).columns) + "\n";
}

int run_once(const LeaksOptions& options) {
  auto inventory = look_at_host(options.stale_after);
  if (!inventory) return fail(inventory.error());
  if (!options.why.empty()) return explain(options, *inventory);
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < inventory->objects.size(); ++i)
    if (inventory->objects[i].verdict != Verdict::held) chosen.push_back(i);
  look_at_pages(*inventory, chosen, options.listing);
  const host::Sheet sheet = object_sheet(*inventory, chosen);
  auto rows = arranged(options.listing, sheet, "touched,where,object");
  if (!rows) return fail_in_lines(rows.error());
  std::vector<std::size_t> shown;
  for (const std::size_t row : *rows) shown.push_back(chosen[row]);
  const Totals totals = totals_of(*inventory);
  std::string text;
  if (options.listing.common.json) {
    Json json = host_document("leaks", *inventory);
    json["totals"] = {{"objects", totals.objects},
                      {"touched", totals.bytes},
                      {"lost_objects", totals.lost},
                      {"lost_touched", totals.lost_bytes}};
    json["objects"] = Json::array();
    for (const std::size_t index : shown) json["objects"].push_back(object_json(*inventory, inventory->objects[index]));
    text = dump(json);
  } else if (options.listing.ids_only) {
    for (const std::size_t index : shown) text += printable(object_id(inventory->objects[index])) + "\n";
  } else {
    const bool plain = options.each || !options.listing.columns.empty();
    auto table = plain ? sheet_table(options.listing, sheet, *rows)
                       : Result<std::string>(folded_table(options, *inventory, shown));
    if (!table) return fail_in_lines(table.error());
    text = summary(options, totals) + (table->empty() ? "" : "\n" + *table);
    if (totals.lost != 0)
      text += "\nWhy: shmbroker leaks --why OBJECT\nFree " + size_text(options.listing.common, totals.lost_bytes) +
              ": shmbroker gc (shows a plan first)\n";
    text += blind_text(*inventory);
  }
  if (!print(text)) return kExitError;
  if (totals.lost != 0) return kExitFindings;
  return inventory->saw_all() ? kExitOk : kExitUnseen;
}

}  // namespace

Command add_leaks(CLI::App& app) {
  auto options = std::make_shared<LeaksOptions>();
  CLI::App* verb = app.add_subcommand("leaks", "List shared memory of the host that no process holds; needs no broker");
  verb->add_option("--why", options->why, "The evidence for this object's verdict")->type_name("OBJECT");
  verb->add_flag("--each", options->each, "A line for each object, also where many have one pattern");
  add_duration(*verb, "--stale-after", options->stale_after, "When a known leftover is stale (default 1h)");
  add_listing(*verb, options->listing, object_fields().names());
  return {verb, [options] { return repeat(options->listing, [&] { return run_once(*options); }); }};
}

}  // namespace shmb::tools
