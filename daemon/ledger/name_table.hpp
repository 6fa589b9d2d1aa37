// SPDX-License-Identifier: Apache-2.0
// Names of regions within one group. A name holds its region until the group has ended and the keep is over, or until
// the name is taken away. A name is never an authority: a session that may not address the group gets the answer for a
// name that does not exist.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <string>
#include <string_view>

#include "daemon/kit/account.hpp"
#include "daemon/ledger/region.hpp"

namespace shmb::daemon {

struct NameEntry {
  std::string_view text;  // of the table's key
  Region* region = nullptr;
  Charge charge;
};

class NameTable {
 public:
  explicit NameTable(std::pmr::memory_resource* pool) : entries_(pool) {}
  Region* find(std::string_view name) const;
  // The name must be free.
  void add(std::string_view name, Region& region, Charge charge);
  // Gives the name to another region. The old region loses it, and is returned.
  Region* replace(std::string_view name, Region& successor);
  void remove(Region& region);
  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

 private:
  std::pmr::map<std::pmr::string, NameEntry, std::less<>> entries_;
};

// The key under which a subscription for a name waits, also while neither the group nor the name exists:
// "1000:train/weights", "@12/weights" for an unnamed group.
std::string name_key(std::uint32_t owner_uid, std::string_view group, std::string_view name);
// The same of a pool: a region may have that name too.
std::string pool_name_key(std::uint32_t owner_uid, std::string_view group, std::string_view name);

}  // namespace shmb::daemon
