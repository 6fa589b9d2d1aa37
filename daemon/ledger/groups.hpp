// SPDX-License-Identifier: Apache-2.0
// The registry of groups: by id, by owner and name, by token. It also knows the shelves with recycled memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "daemon/kit/secret.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/group.hpp"
#include "daemon/ledger/host.hpp"

namespace shmb::daemon {

struct Regions;
struct Watches;

// Looks up by owner and name without making a string.
struct GroupNameLess {
  using is_transparent = void;
  using View = std::pair<std::uint32_t, std::string_view>;
  template <class A, class B>
  bool operator()(const A& a, const B& b) const {
    return View(a.first, a.second) < View(b.first, b.second);
  }
};

struct Groups {
  Groups(Host& around, Accounts& users, Watches& watched, Regions& memory, const Secret& hash_key)
      : host(around),
        accounts(users),
        watches(watched),
        regions(memory),
        all(&around.nodes),
        by_name(&around.nodes),
        by_token(16, SecretHash(hash_key), SecretSame(), &around.nodes) {}
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  Host& host;
  Accounts& accounts;
  Watches& watches;
  Regions& regions;
  std::pmr::map<std::uint64_t, Group> all;
  std::pmr::map<std::pair<std::uint32_t, std::string>, Group*, GroupNameLess> by_name;
  std::pmr::unordered_map<Secret, Group*, SecretHash, SecretSame> by_token;
  List<Shelf, OfLedger> filled_shelves;  // a refusal searches these, not all groups
  std::uint64_t bytes_cached = 0;        // on all shelves
  std::uint64_t last_id = 0;
  // Higher rooms set these, for the rest that ends with a group: its worlds end; its pools whose keep is over
  // at `now` are closed. Returns when the next of these keeps ends, kNever for none.
  std::function<void(Group& group)> end_worlds = [](Group&) {};
  std::function<std::int64_t(Group& group, std::int64_t now, bool all)> end_pools = [](Group&, std::int64_t, bool) {
    return kNever;
  };
  std::function<void()> on_recycled = [] {};  // a shelf has got a region
};

}  // namespace shmb::daemon
