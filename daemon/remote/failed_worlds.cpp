// SPDX-License-Identifier: Apache-2.0
// See failed_worlds.hpp. These notes are a courtesy, so they are bounded: the oldest makes room.
#include "daemon/remote/failed_worlds.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/ledger/session.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kKept = 60 * kSecondNs;  // the default time that a worker waits for the others
constexpr std::size_t kMostOfUid = 8, kMostNotes = 256;

// The kernel counts starts in ticks, and within one tick in pids.
bool began_before(const Session& session, const FailedWorlds::Note& failure) {
  static const std::int64_t tick = kSecondNs / std::max(1L, ::sysconf(_SC_CLK_TCK));
  const auto at = static_cast<std::uint64_t>(failure.at / tick);
  if (session.start_ticks != at) return session.start_ticks < at;
  return failure.last_pid == 0 || session.pid <= failure.last_pid;
}

std::uint64_t all_ranks(std::uint32_t world_size) {
  return world_size >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << world_size) - 1;
}

}  // namespace

void FailedWorlds::note(Note note) {
  while (!notes_.empty() && (notes_.front().at + kKept <= note.at || notes_.size() >= kMostNotes)) notes_.pop_front();
  std::erase_if(notes_, [&](const Note& one) { return one.uid == note.uid && one.port == note.port; });
  const auto of_uid = [&](const Note& one) { return one.uid == note.uid; };
  if (static_cast<std::size_t>(std::ranges::count_if(notes_, of_uid)) >= kMostOfUid)
    notes_.erase(std::ranges::find_if(notes_, of_uid));
  if (note.told != all_ranks(note.world_size)) notes_.push_back(std::move(note));
}

FailedWorlds::Late FailedWorlds::tell(const Session& late, const shmbw_world_join& wish, std::int64_t now) {
  const std::uint64_t rank = std::uint64_t{1} << wish.rank;
  const auto found = std::ranges::find_if(notes_, [&](const Note& one) {
    return one.uid == late.uid && one.port == wish.port && one.world_size == wish.world_size &&
           (one.told & rank) == 0 && one.at + kKept > now && late.start_ticks != 0;
  });
  if (found == notes_.end()) return {};
  const Late told = {found->cause, found->told, began_before(late, *found)};
  if (!told.certain) return told;
  found->told |= rank;
  if (found->told == all_ranks(found->world_size)) notes_.erase(found);
  return told;
}

}  // namespace shmb::daemon
