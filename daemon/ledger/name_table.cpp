// SPDX-License-Identifier: Apache-2.0
// The table keeps each text once, as its key; the entry and the region only point at it.
#include "daemon/ledger/name_table.hpp"

#include "proto/names.hpp"

namespace shmb::daemon {

Region* NameTable::find(std::string_view name) const {
  auto at = entries_.find(name);
  return at == entries_.end() ? nullptr : at->second.region;
}

void NameTable::add(std::string_view name, Region& region, Charge charge) {
  auto [at, fresh] = entries_.try_emplace(std::pmr::string(name, entries_.get_allocator()));
  if (!fresh) return;
  at->second = NameEntry{at->first, &region, std::move(charge)};
  region.name = &at->second;
  changed(region);
}

Region* NameTable::replace(std::string_view name, Region& successor) {
  auto at = entries_.find(name);
  if (at == entries_.end()) return nullptr;
  Region* old = at->second.region;
  old->name = nullptr;
  at->second.region = &successor;
  successor.name = &at->second;
  changed(*old);
  changed(successor);
  return old;
}

void NameTable::remove(Region& region) {
  if (!region.name) return;
  auto at = entries_.find(region.name->text);
  region.name = nullptr;
  changed(region);
  if (at != entries_.end()) entries_.erase(at);
}

std::string name_key(std::uint32_t owner_uid, std::string_view group, std::string_view name) {
  std::string key = names::is_group_id(group) ? std::string() : std::to_string(owner_uid) + ':';
  return key.append(group).append("/").append(name);
}

std::string pool_name_key(std::uint32_t owner_uid, std::string_view group, std::string_view name) {
  return name_key(owner_uid, group, name) + "/";
}

}  // namespace shmb::daemon
