// SPDX-License-Identifier: Apache-2.0
// The pools that this session is in. A session joins a pool once, and its handles share the object here. It is found by
// id. The pool behind a name changes with the session's group, a removal or a new pool, and only the broker knows of
// all three.
//
// The broker refuses a second join as busy. Mostly the object is here then. It is not here yet while another thread
// opens the pool, and no longer while another thread leaves it. A late reply may have joined as well: it is undone by a
// leave. Each of these ends with moved(). A thread that was refused waits until `moves` has changed, and asks again. It
// reads `moves` before it asks, so it misses no move.
// The owner's mutex guards all of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/session/condition.hpp"

namespace shmb::client {

class Pool;  // shared without a look inside

class PoolPlaces {
 public:
  // Not whole: its maker still adds the memory.
  void note(std::uint64_t id, const std::shared_ptr<Pool>& pool, bool whole) {
    std::erase_if(joined_, [&](const Joined& joined) { return joined.id == id || joined.pool.expired(); });
    joined_.push_back({id, whole, pool});
    moved();
  }
  std::shared_ptr<Pool> find(std::uint64_t id) const {  // a whole one
    for (const Joined& joined : joined_)
      if (joined.id == id && joined.whole) return joined.pool.lock();
    return nullptr;
  }
  bool makes(std::uint64_t id) const {
    return std::ranges::any_of(
        joined_, [&](const Joined& joined) { return joined.id == id && !joined.whole && !joined.pool.expired(); });
  }
  // A place was taken or is given back: the broker has answered the leave, or will serve it before any later join.
  void moved() {
    ++moves;
    changed.notify_all();
  }

  std::uint64_t moves = 0;
  Condition changed;

 private:
  struct Joined {
    std::uint64_t id;
    bool whole;
    std::weak_ptr<Pool> pool;
  };
  std::vector<Joined> joined_;
};

}  // namespace shmb::client
