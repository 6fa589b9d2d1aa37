// SPDX-License-Identifier: Apache-2.0
// The requests of ranks to each other through their supervisor: barrier, broadcast, all-gather, and a store of small
// values. The supervisor sees every death at once, so no rank waits for a dead one. A request that needs a dead rank
// gets peer_gone with that rank's number. Everything is bounded.
//
// A call of all ranks (barrier, broadcast, all-gather) is a round. The n-th calls of all ranks under one name belong
// together, so a rank may be ahead of the others by many rounds. A round ends when all ranks have called; then
// every caller gets its reply at once. A rank that has called and died counts with its value. If a rank is gone that
// has not called, the callers get peer_gone.
//
// A wait for a key ends when a rank sets it. No process knows which rank would. So a death ends all these waits with
// peer_gone, and so does the end of all other ranks. The store itself has no deadline: the rank counts its own time,
// and sends a cancellation when it gives up.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "spawn/ranks/link.hpp"

namespace shmb::spawn {

inline constexpr std::size_t kMostKey = 1 << 10;
inline constexpr std::size_t kMostValue = std::size_t{1} << 20;
inline constexpr std::size_t kMostStored = std::size_t{64} << 20;
inline constexpr std::size_t kEntryCost = 128;         // of a key or call besides its bytes
inline constexpr std::size_t kMostOutstanding = 1024;  // open calls of one rank that wait for others
inline constexpr std::size_t kMostOutstandingBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMostGathered = std::size_t{16} << 20;  // the values of all ranks together

class Store {
 public:
  // Status ok: the payload is the reply. Otherwise it is a sentence.
  using Answer = std::function<void(std::int32_t local, std::uint64_t tag, Status status, const std::string& payload)>;
  // `first`: the rank of local rank 0, as its peers know it.
  Store(std::int32_t ranks, std::int32_t first, Answer answer)
      : answer_(std::move(answer)), first_(first), gone_(static_cast<std::size_t>(ranks)), waiting_(gone_.size()) {}
  // A request, or the cancellation of one. Anything else is refused.
  void request(std::int32_t local, const Frame& frame);
  void gone(std::int32_t local, const std::string& how);

 private:
  struct Call {
    std::uint64_t tag = 0;
    std::int32_t root = -1;
    std::string value;
  };
  // A call that all ranks make: the n-th calls of all ranks under one name belong together. It has no entry for a rank
  // that has not called yet.
  using Round = std::map<std::size_t, std::list<Call>>;
  using Name = std::pair<Op, std::string>;
  struct Waiter {
    std::int32_t local;
    std::uint64_t tag;
    std::string key;
  };

  // The requests of one rank that wait. They are bounded, so that no rank can fill the supervisor's memory.
  struct Waiting {
    std::size_t calls = 0, bytes = 0;
  };

  bool admit(std::int32_t local, std::uint64_t tag, std::size_t bytes);
  void release(std::size_t local, std::size_t bytes);
  void take_first(const Name& name, Round& round, std::size_t local);
  void refuse(std::int32_t local, std::uint64_t tag, Status status, const std::string& sentence);
  void come(std::int32_t local, const Frame& frame);
  void look(const Name& name);
  void complete(const Name& name, Round& round);
  void cancel(std::int32_t local, std::uint64_t tag);
  void keep(std::int32_t local, std::uint64_t tag, const std::string& key, std::string value,
            const std::string& answer);
  std::string who(std::size_t local) const;

  Answer answer_;
  std::int32_t first_;
  std::vector<std::string> gone_;        // how; empty: alive
  std::vector<std::size_t> gone_first_;  // in the order of their ends
  std::map<Name, Round> rounds_;
  std::map<std::string, std::string> values_;
  std::size_t stored_ = 0;
  std::list<Waiter> waiters_;
  std::vector<Waiting> waiting_;
};

}  // namespace shmb::spawn
