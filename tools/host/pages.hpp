// SPDX-License-Identifier: Apache-2.0
// Facts about an object's touched bytes: which are in memory, and to which cgroup they are charged. Each page is
// charged to the cgroup of the process that touched it first, which need not be the creator's or the owner's.
//
// The kernel gives the charged cgroup by page frame (/proc/kpagecgroup), to root only. A frame is found by a mapping of
// this process, so a look opens the object: a gc that runs at that instant takes it for held. Only pages that are in
// memory already are touched. So nothing is charged to this process, and nothing comes back from swap.
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
  // Sets resident if it can be known (else why_not_resident), and with `charged` also cgroups or why_no_cgroup.
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
  std::map<std::uint64_t, std::string> names_;  // of cgroups, by inode; read at first use
  bool names_read_ = false;
};

}  // namespace shmb::host
