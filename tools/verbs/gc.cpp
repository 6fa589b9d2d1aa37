// SPDX-License-Identifier: Apache-2.0
// `shmbroker gc`: frees lost shared memory. It prints a plan and does nothing more without --yes. With --yes it asks
// the kernel about each object at the moment of its removal (host/removal.hpp), so nothing in use is removed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/gc_group.hpp"
#include "tools/host/removal.hpp"
#include "tools/host_view.hpp"
#include "tools/printable.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

using host::Inventory;
using host::Object;
using host::Outcome;
using host::Verdict;

struct GcOptions {
  ListingOptions listing;
  std::vector<std::string> objects;
  bool yes = false, dry_run = false, stale = false, sole_tenant = false, without_lease = false;
  std::int64_t stale_after = kStaleAfter;
  std::string group;
};

bool can_go(const Object& it) {
  return it.kind == host::Kind::file || it.kind == host::Kind::semaphore || it.kind == host::Kind::hugetlb ||
         it.kind == host::Kind::sysv;
}

// For objects that were not named: only what the options allow. With --without-lease an unseen object may be tried too,
// where its pattern or its creator says that it is lost. Without such evidence it has to be named.
bool is_proposed(const GcOptions& options, const Object& it) {
  if (!can_go(it)) return false;
  if (it.verdict == Verdict::orphan) return true;
  if (it.verdict == Verdict::stale) return options.stale || options.sole_tenant;
  return options.sole_tenant && it.verdict == Verdict::idle && it.kind != host::Kind::sysv && it.place == "/dev/shm";
}

Result<std::vector<std::size_t>> plan_of(const GcOptions& options, const Inventory& inventory) {
  std::vector<std::size_t> chosen;
  if (options.objects.empty()) {
    for (std::size_t i = 0; i < inventory.objects.size(); ++i)
      if (is_proposed(options, inventory.objects[i])) chosen.push_back(i);
  }
  for (const std::string& word : options.objects) {
    const auto found = named(inventory, word);
    if (found.empty())
      return error(Status::not_found,
                   "no shared memory is called " + shmb::quoted(word) + "; shmbroker list --all -o id shows all names");
    if (found.size() > 1 && !is_glob(word)) {
      std::string ids;
      for (const std::size_t index : found) ids += (ids.empty() ? "" : ", ") + object_id(inventory.objects[index]);
      return error(Status::invalid, shmb::quoted(word) + " means " + std::to_string(found.size()) +
                                        " objects, and nothing is removed: name one of " + ids);
    }
    for (const std::size_t index : found)
      if (std::ranges::find(chosen, index) == chosen.end()) chosen.push_back(index);
  }
  auto rows = arranged(options.listing, object_sheet(inventory, chosen), "touched,where,object");
  if (!rows) return rows;
  for (std::size_t& row : *rows) row = chosen[row];
  return rows;
}

std::uint64_t bytes_of(const Inventory& inventory, const std::vector<std::size_t>& plan) {
  std::uint64_t sum = 0;
  for (const std::size_t index : plan) sum += inventory.objects[index].touched;
  return sum;
}

std::string reason_of(const Object& it) { return it.evidence.empty() ? "" : it.evidence.back(); }

std::string outcome_text(Outcome outcome) {
  constexpr const char* names[] = {"removed", "held", "changed", "refused"};
  return names[static_cast<std::size_t>(outcome)];
}

// Objects that the plan leaves alone although they have no holder, and the option that would include them.
std::string left_alone(const GcOptions& options, const Inventory& inventory, const std::vector<std::size_t>& plan) {
  struct Kind {
    Verdict verdict;
    const char* how;
  };
  std::string out;
  for (const Kind kind :
       {Kind{Verdict::stale, "--stale includes them"}, Kind{Verdict::idle, "name those that you know"},
        Kind{Verdict::unseen, host::leases_are_off() ? "sysctl fs.leases-enable=1, or name them with --without-lease"
                                                     : "run as root on the host"}}) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < inventory.objects.size(); ++i) {
      const Object& it = inventory.objects[i];
      if (!can_go(it) || it.verdict != kind.verdict || std::ranges::find(plan, i) != plan.end()) continue;
      ++count;
      bytes += it.touched;
    }
    if (count != 0)
      out += "left alone: " + count_text(count, "object") + " " + host::verdict_text(kind.verdict) + " (" +
             size_text(options.listing.common, bytes) + "); " + kind.how + "\n";
  }
  return out;
}

std::string recovered_text(const std::vector<host::Recovered>& recovered) {
  std::string out;
  for (const host::Recovered& it : recovered)
    out += it.reason.empty() ? "a killed gc had set " + printable(it.path) + " aside: it has its name back\n"
                             : "a killed gc left " + printable(it.path) + ": " + it.reason + "\n";
  return out;
}

int show_plan(const GcOptions& options, const Inventory& inventory, const std::vector<std::size_t>& plan) {
  std::string text;
  if (options.listing.common.json) {
    Json json = host_document("gc", inventory);
    json["removed"] = false;
    json["plan"] = Json::array();
    for (const std::size_t index : plan) json["plan"].push_back(object_json(inventory, inventory.objects[index]));
    json["touched"] = bytes_of(inventory, plan);
    text = dump(json);
  } else if (options.listing.ids_only) {
    for (const std::size_t index : plan) text += printable(object_id(inventory.objects[index])) + "\n";
  } else if (plan.empty()) {
    text = "nothing to free\n" + left_alone(options, inventory, plan) + blind_text(inventory);
  } else {
    text = "plan: free " + size_text(options.listing.common, bytes_of(inventory, plan)) + " in " +
           count_text(plan.size(), "object") + "\n";
    for (const std::size_t index : plan) {
      const Object& it = inventory.objects[index];
      text += wrapped("  " + printable(object_id(it)) + "  " + size_text(options.listing.common, it.touched) + "  " +
                          printable(reason_of(it)),
                      "    ", look_of(STDOUT_FILENO).columns) +
              "\n";
    }
    text += "Nothing was removed: add --yes. Each object is asked about again when it goes.\n" +
            left_alone(options, inventory, plan) + blind_text(inventory);
  }
  if (!print(text)) return kExitError;
  if (!plan.empty()) return kExitFindings;
  return inventory.saw_all() ? kExitOk : kExitUnseen;
}

int carry_out(const GcOptions& options, const Inventory& inventory, const std::vector<std::size_t>& plan,
              const std::vector<host::Recovered>& recovered) {
  host::RemovalOptions how;
  how.without_lease = options.without_lease;
  const auto removals = host::remove(inventory, plan, how);
  std::uint64_t freed = 0;
  std::size_t removed = 0;
  std::string text;
  Json json = host_document("gc", inventory);
  json["recovered"] = Json::array();
  for (const host::Recovered& it : recovered) {
    Json row = Json::object();
    put_text(row, "path", it.path);
    row["reason"] = it.reason.empty() ? Json(nullptr) : Json(it.reason);
    json["recovered"].push_back(std::move(row));
  }
  json["removed"] = true;
  json["plan"] = Json::array();
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const Object& it = inventory.objects[plan[i]];
    const host::Removal& removal = removals[i];
    Json row = object_json(inventory, it);
    row["outcome"] = outcome_text(removal.outcome);
    row["reason"] = removal.reason.empty() ? Json(nullptr) : Json(removal.reason);
    row["freed"] = removal.outcome == Outcome::removed ? removal.freed : 0;
    json["plan"].push_back(std::move(row));
    text += printable(object_id(it)) + ": " + outcome_text(removal.outcome);
    if (removal.outcome == Outcome::removed) {
      ++removed;
      freed += removal.freed;
      text += ", " + size_text(options.listing.common, removal.freed) + ", " + printable(reason_of(it)) + "\n";
    } else {
      text += ": " + printable(removal.reason) + "\n";
    }
  }
  json["freed"] = freed;
  text += "freed " + size_text(options.listing.common, freed) + " in " + count_text(removed, "object");
  if (removed != plan.size()) text += "; " + std::to_string(plan.size() - removed) + " left alone";
  text += "\n" + blind_text(inventory);
  if (!print(options.listing.common.json ? dump(json) : text)) return kExitError;
  return removed == plan.size() ? kExitOk : kExitRefused;
}

int run_gc(const GcOptions& options) {
  auto inventory = look_at_host(options.stale_after);
  if (!inventory) return fail(inventory.error());
  std::vector<host::Recovered> recovered;
  if (!inventory->folders_aside.empty() && options.yes && !options.dry_run) {
    recovered = host::recover(*inventory);
    if (!options.listing.common.json && !recovered.empty() && !print(recovered_text(recovered))) return kExitError;
    if (!recovered.empty()) inventory = look_at_host(options.stale_after);
    if (!inventory) return fail(inventory.error());
  }
  if (host::leases_are_off())
    inventory->notes.emplace_back(
        "fs.leases-enable is 0: the kernel cannot be asked whether a file is in use, and gc removes none without "
        "--without-lease");
  auto plan = plan_of(options, *inventory);
  if (!plan) return fail_in_lines(plan.error());
  if (!options.yes || options.dry_run) return show_plan(options, *inventory, *plan);
  if (plan->empty()) return show_plan(options, *inventory, *plan);
  return carry_out(options, *inventory, *plan, recovered);
}

}  // namespace

Command add_gc(CLI::App& app) {
  auto options = std::make_shared<GcOptions>();
  CLI::App* verb = app.add_subcommand("gc", "Plan the removal of lost shared memory of the host; --yes removes it");
  verb->add_option("OBJECT", options->objects, "These alone, also idle ones: /dev/shm/NAME, sysv:ID, or a glob");
  CLI::Option* yes = verb->add_flag("--yes", options->yes, "Remove what the plan says");
  verb->add_flag("--dry-run", options->dry_run, "Only the plan: the default")->excludes(yes);
  verb->add_flag("--stale", options->stale, "Also known leftovers whose creator is unknown");
  verb->add_flag("--sole-tenant", options->sole_tenant,
                 "Also all files on /dev/shm without a holder: for the start of a container");
  verb->add_flag("--without-lease", options->without_lease,
                 "Where the kernel gives no lease, trust /proc: an object in use may go");
  add_duration(*verb, "--stale-after", options->stale_after, "When a known leftover is stale (default 1h)");
  verb->add_flag("--json", options->listing.common.json, "For programs; the first key names the schema");
  verb->add_flag("-b,--bytes", options->listing.common.exact, "Sizes in bytes");
  verb->add_option("-S,--sort", options->listing.order, "By these fields; -FIELD turns the order round")
      ->type_name("LIST");
  verb->add_option("-f,--filter", options->listing.filter, "Only objects that pass (shmbroker(1))")
      ->type_name("FILTER");
  verb->add_flag("-q,--quiet", options->listing.ids_only, "Of the plan, ids only");
  verb->add_option("--group", options->group, "Only what this group of a broker keeps: NAME, UID:NAME or @ID")
      ->type_name("GROUP");
  verb->add_option("--socket", options->listing.common.socket, "With --group: the broker's socket")
      ->type_name("PATH")
      ->needs("--group");
  for (const char* other :
       {"--stale", "--sole-tenant", "--without-lease", "--stale-after", "--sort", "--filter", "OBJECT"})
    verb->get_option(other)->excludes("--group");
  return {verb, [options] {
            if (options->group.empty()) return run_gc(*options);
            return clean_group({options->listing.common, options->group, options->yes, options->listing.ids_only});
          }};
}

}  // namespace shmb::tools
