// SPDX-License-Identifier: Apache-2.0
// The books of the broker before this one, in the table of descriptors that keepers hold (daemon/keep/keeper.hpp).
//
// They are believed as far as they can be checked. Books that cannot be read, or that contradict themselves, are not
// used at all. The number of a region's memory counts only if there is a memory file of that size, with the seals of a
// region: a dead broker may have closed it by mistake, and a number may name another file now. The same holds for the
// socket of a session, which must be one of the same peer, and for its pidfd. Pools are checked in last_pools.hpp. What
// is not taken over is left to Leftovers, which closes it.
//
// Reading changes nothing but what a commit has left undone. So if this broker dies before it has books of its own, the
// next one finds the same.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "base/result.hpp"
#include "daemon/books/last_pools.hpp"
#include "daemon/books/reader.hpp"

namespace shmb::daemon::books {

class LastBooks {
 public:
  // `number`: of their memory file. It stays open where this fails. Else the object owns it. Status::broken: they are
  // of no use. Any other error may not come again.
  // Without `sessions` none of them goes on.
  static Result<LastBooks> open(int number, bool sessions = true);

  std::uint64_t epoch() const { return reader_.epoch(); }
  template <class Record, class Body>
  void each(Body body) const {
    reader_.each<Record>(body);
  }
  // Whether the region can be taken over: its memory is there, and it is none of a GPU.
  bool has_memory(const RegionRecord& region) const;
  // Whether the session can be taken over with its connection. It must number its packets, and may have nothing that a
  // next broker does not load.
  bool resumes(const SessionRecord& session) const { return resuming_.contains(session.id); }
  // Those that can be taken over.
  const std::vector<LastPool>& pools() const { return pools_.whole(); }
  // Of the memory of those regions and pools, of the sockets and pidfds of those sessions, and of the books, in order.
  const std::vector<int>& numbers() const { return numbers_; }
  // Why regions and pools cannot be taken over whose memory should be there.
  const std::vector<std::string>& losses() const { return losses_; }
  // The next start will not need them: their memory goes with this object.
  void done() { file_ = Fd::adopt(number_); }

 private:
  LastBooks(int number, std::vector<Mapping> memory, Reader reader)
      : number_(number), memory_(std::move(memory)), reader_(std::move(reader)) {}
  void check_memory();
  void check_sessions();

  int number_;
  std::vector<Mapping> memory_;  // what of the file has memory: the address space is not for all of it
  Reader reader_;
  std::vector<int> numbers_, regions_;  // regions_: of memory of regions
  LastPools pools_;
  std::vector<std::string> losses_;
  std::set<std::uint64_t> resuming_;
  Fd file_;
};

}  // namespace shmb::daemon::books
