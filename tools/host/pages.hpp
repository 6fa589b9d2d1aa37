// SPDX-License-Identifier: Apache-2.0
// What stands behind an object's touched bytes: which are in memory, and which cgroup they are charged to. Each page is
// charged to the cgroup of the process that touched it first, which need not be the creator's or the owner's.
//
// The kernel tells the charged cgroup by page frame (/proc/kpagecgroup), to root alone. A frame is found by a mapping
// of our own, so a look opens the object: a gc that runs at that instant takes it for held. No page is touched that is
// not in memory already: nothing is charged to us and nothing comes back from swap.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/host/scan.hpp"

namespace shmb::host {

class PageBooks {
 public:
  explicit PageBooks(const Inventory& inventory, std::string root = {});
  // Sets resident where it can be told (else why_not_resident), and with `charged` cgroups or why_no_cgroup.
  void look(Object& object, bool charged);

 private:
  struct Charge {
    std::vector<std::string> cgroups;
    std::string reason;
  };
  void find_resident(Object& object) const;
  Charge charge_of(const Object& object);
  Sys<Fd> open(const Object& object) const;
  std::string cgroup_name(std::uint64_t inode);

  const Inventory& inventory_;
  std::string root_;
  bool swaps_ = false;  // some memory of this host is in swap
  Sys<Fd> charges_, frames_;
  std::map<std::uint64_t, std::string> names_;  // of cgroups, by inode; read at the first question
  bool names_read_ = false;
};

}  // namespace shmb::host
