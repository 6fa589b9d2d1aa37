// SPDX-License-Identifier: Apache-2.0
// `shmbroker list --all`: all shared memory of the host, whoever made it, with sums that add up to the kernel's own.
#include "tools/host_all.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"
#include "tools/table.hpp"

namespace shmb::tools {
namespace {

using host::Inventory;
using host::MountUse;
using host::Object;

// Memory behind objects that are not on a mount: the kernel's own tmpfs.
std::uint64_t unmounted(const Inventory& inventory) {
  std::uint64_t sum = 0;
  for (const Object& it : inventory.objects)
    if (it.touched_known && (it.key.sysv || it.key.space == inventory.kernel_device)) sum += it.touched;
  return sum;
}

std::uint64_t mounted(const Inventory& inventory) {
  std::uint64_t sum = 0;
  for (const MountUse& use : inventory.mounts)
    if (use.mount.type == "tmpfs" && use.use_known) sum += use.used;
  return sum;
}

std::string mount_lines(const Common& common, const Inventory& inventory) {
  Table table({{"FILE SYSTEM"}, {"TYPE"}, {"SIZE", Align::right}, {"USED", Align::right}, {"LISTED", Align::right}});
  for (const MountUse& use : inventory.mounts) {
    if (!use.use_known || (use.used == 0 && !use.mount.shared_memory)) continue;
    table.add({use.mount.reach, use.mount.type, use.size == 0 ? "" : size_text(common, use.size),
               size_text(common, use.used), size_text(common, use.listed)});
  }
  return table.empty() ? "" : table.text(look_of(STDOUT_FILENO));
}

std::string head(const Common& common, const Inventory& inventory) {
  const std::uint64_t files = mounted(inventory), others = unmounted(inventory);
  std::string text = size_text(common, inventory.shmem) +
                     " of shared memory by the kernel's count (Shmem): " + size_text(common, files) + " on tmpfs, " +
                     size_text(common, others) + " in memfds, SysV and anonymous memory";
  if (inventory.shmem > files + others)
    text += ", " + size_text(common, inventory.shmem - files - others) + " not seen";
  return wrapped(text, "  ", look_of(STDOUT_FILENO).columns) + "\n";
}

// Each process that holds shared memory, with what it holds below it.
std::string tree(const Common& common, const Inventory& inventory, const std::vector<std::size_t>& shown) {
  struct Node {
    std::uint64_t bytes = 0;
    std::vector<const Object*> objects;
  };
  std::map<std::size_t, Node> nodes;
  std::vector<const Object*> alone;
  for (const std::size_t index : shown) {
    const Object& it = inventory.objects[index];
    if (it.holders.empty()) alone.push_back(&it);
    for (const host::Holder& holder : it.holders) {
      Node& node = nodes[holder.process];
      node.bytes += it.touched;
      node.objects.push_back(&it);
    }
  }
  std::vector<std::pair<std::size_t, const Node*>> ordered;
  for (const auto& [process, node] : nodes) ordered.emplace_back(process, &node);
  std::ranges::stable_sort(ordered, std::greater(), [](const auto& it) { return it.second->bytes; });
  std::string text;
  const auto branch = [&](const std::string& title, const std::vector<const Object*>& objects) {
    text += title + "\n";
    for (const Object* it : objects)
      text += (it == objects.back() ? "`- " : "|- ") + printable(object_id(*it)) + "  " +
              size_text(common, it->touched) + "  " + host::verdict_text(it->verdict) + "\n";
  };
  for (const auto& [process, node] : ordered) {
    const host::Process& it = inventory.processes[process];
    branch(std::to_string(it.pid) + " " + printable(it.program) + "  " + user_text(it.uid) + "  " +
               size_text(common, node->bytes),
           node->objects);
  }
  if (!alone.empty()) branch("nobody", alone);
  return text;
}

Json mounts_json(const Inventory& inventory) {
  Json out = Json::array();
  for (const MountUse& use : inventory.mounts) {
    Json row{{"path", nullptr}};
    if (!use.mount.reach.empty()) put_text(row, "path", use.mount.reach);
    row["type"] = use.mount.type;
    row["device"] = use.mount.device;
    row["size"] = use.use_known ? Json(use.size) : Json(nullptr);
    row["used"] = use.use_known ? Json(use.used) : Json(nullptr);
    row["listed"] = use.listed;
    row["shared_memory"] = use.mount.shared_memory;
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

int list_host(const ListingOptions& options, bool as_tree) {
  auto inventory = look_at_host(kStaleAfter);
  if (!inventory) return fail(inventory.error());
  std::vector<std::size_t> chosen(inventory->objects.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = i;
  look_at_pages(*inventory, chosen, options);
  const host::Sheet sheet = object_sheet(*inventory, chosen);
  auto rows = arranged(options, sheet, "where,object");
  if (!rows) return fail_in_lines(rows.error());
  std::string text;
  if (options.common.json) {
    Json json = host_document("list.all", *inventory);
    json["totals"] = {
        {"shmem", inventory->shmem}, {"mounted", mounted(*inventory)}, {"unmounted", unmounted(*inventory)}};
    json["mounts"] = mounts_json(*inventory);
    json["objects"] = Json::array();
    for (const std::size_t row : *rows) json["objects"].push_back(object_json(*inventory, inventory->objects[row]));
    text = dump(json);
  } else if (options.ids_only) {
    for (const std::size_t row : *rows) text += printable(object_id(inventory->objects[row])) + "\n";
  } else {
    text = head(options.common, *inventory);
    if (as_tree) {
      text += tree(options.common, *inventory, *rows);
    } else {
      auto table = sheet_table(options, sheet, *rows);
      if (!table) return fail_in_lines(table.error());
      text += mount_lines(options.common, *inventory) + (table->empty() ? "" : "\n" + *table);
    }
    text += blind_text(*inventory);
  }
  if (!print(text)) return kExitError;
  return inventory->saw_all() ? kExitOk : kExitUnseen;
}

}  // namespace shmb::tools
