// SPDX-License-Identifier: Apache-2.0
// See kept_mappings.hpp.
#include "client/region/kept_mappings.hpp"

#include <algorithm>

#include "client/session/session.hpp"

namespace shmb::client {

Region::Handle KeptMappings::take(shmbw_region_ref region, std::uint32_t rights) {
  const auto at = std::ranges::find_if(kept_, [&](const Region::Handle& kept) {
    return kept->ref().id == region.id && kept->ref().generation == region.generation && kept->rights() == rights;
  });
  if (at == kept_.end()) return nullptr;
  Region::Handle found = std::move(*at);
  bytes_ -= found->facts().bytes;
  kept_.erase(at);
  return found;
}

bool KeptMappings::knows(std::uint64_t id) const { return std::ranges::find(remembered_, id) != remembered_.end(); }

void KeptMappings::remember(std::uint64_t id) {
  if (remembered_.size() < kRemembered) return remembered_.push_back(id);
  remembered_[next_remembered_] = id;
  next_remembered_ = (next_remembered_ + 1) % kRemembered;
}

void KeptMappings::give(Region::Handle handle) {
  if (handle.use_count() > 1) return;
  Session& session = handle->session();
  give_up_asked(session);
  const shmbw_region_ref ref = handle->ref();
  const std::uint64_t bytes = handle->facts().bytes;
  if ((handle->rights() & SHMBW_RIGHT_MAP_WRITE) != 0) return;
  const bool there = std::ranges::any_of(kept_, [&](const Region::Handle& kept) { return kept->ref().id == ref.id; });
  if (bytes > kMostBytes || there) return;
  if (!knows(ref.id)) {
    hand_out(*handle);
    return remember(ref.id);
  }
  while (kept_.size() >= kMost || bytes_ + bytes > kMostBytes) release(0);
  kept_.push_back(std::move(handle));
  bytes_ += bytes;
  if (std::ranges::find(told_, ref.id) != told_.end()) return;
  told_.push_back(ref.id);
  (void)post_kept(session, ref, true);
}

void KeptMappings::hand_out(const Region& region) {
  if (std::erase(told_, region.ref().id) != 0) (void)post_kept(region.session(), region.ref(), false);
}

void KeptMappings::release(std::size_t place) {
  const auto at = kept_.begin() + static_cast<std::ptrdiff_t>(place);
  bytes_ -= (*at)->facts().bytes;
  hand_out(**at);
  kept_.erase(at);
}

void KeptMappings::give_up_asked(Session& session) {
  if (session.asked_back() == asked_seen_) [[likely]]
    return;
  std::vector<std::uint64_t> asked;
  if (!session.take_asked_back(asked_seen_, asked)) return give_up_all();
  for (const std::uint64_t id : asked) {
    std::ranges::replace(remembered_, id, std::uint64_t{0});  // one in use is released when it comes back
    for (std::size_t i = kept_.size(); i-- > 0;)
      if (kept_[i]->ref().id == id) release(i);
  }
}

void KeptMappings::give_up_all() {
  while (!kept_.empty()) release(kept_.size() - 1);
  remembered_.clear();
  next_remembered_ = 0;
}

}  // namespace shmb::client
