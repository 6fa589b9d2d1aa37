// SPDX-License-Identifier: Apache-2.0
// See memory.hpp.
#include "spawn/remote/memory.hpp"

#include <algorithm>
#include <cstring>

#include "base/sys_process.hpp"

namespace shmb::remote {
namespace {

constexpr std::int64_t kTicketLife = 10'000'000'000;

// How long the broker may take on behalf of a call: not beyond its deadline. 0 and less: that has passed.
std::int64_t broker_time(std::int64_t deadline) {
  return deadline == 0 ? kBrokerTime : std::min(deadline - sys::now_monotonic(), kBrokerTime);
}

}  // namespace

Result<client::Region::Handle> Memory::region(std::uint64_t length, std::int64_t timeout) const {
  SHMB_TRY_VOID(life_.open());
  client::CreateItem item;
  item.length = length;
  item.group = place_.group;
  item.flags = SHMBW_CREATE_UNINITIALISED;
  return client::create_region(place_.session, item, timeout);
}

Result<client::Region::Handle> Memory::again(const client::Region& region) const {
  client::AttachItem item;
  item.target = client::Target::with_id(region.ref());
  item.rights = SHMBW_RIGHT_MAP_READ | (region.rights() & (SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE));
  return client::attach_region(place_.session, item);
}

// Where this worker's user may not address the region, by a ticket that is used at once.
Result<client::Region::Handle> Memory::lease(client::Region& region) const {
  if (region.session().is_local() || region.facts().epoch != place_.session->facts().epoch)
    return error(Status::invalid, "a region that is sent is of the world's broker: this one is " +
                                      std::string(region.session().is_local() ? "local" : "of another broker") +
                                      "; make it with the session of the worker, or of its broker");
  client::AttachItem item;
  item.target = client::Target::with_id(region.ref());
  item.rights = SHMBW_RIGHT_MAP_READ | (region.rights() & (SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE));
  item.flags = client::kAttachUnmapped;
  auto leased = client::attach_region(place_.session, item);
  if (leased) return leased;
  item.rights &= ~std::uint32_t{SHMBW_RIGHT_SHARE};
  auto ticket =
      region.make_ticket(item.rights, 1, kTicketLife, client::Deadline::after(0), SHMBW_TICKET_CREATE_WITH_SESSION);
  if (!ticket) return leased;
  item.target = client::Target::with_ticket(ticket->token);
  leased = client::attach_region(place_.session, item);
  if (!leased) (void)client::revoke_ticket(region.session(), ticket->token, client::Deadline::after(0));
  return leased;
}

Result<client::Region::Handle> Memory::in_region(std::string_view bytes, std::int64_t deadline) const {
  const std::int64_t timeout = broker_time(deadline);
  if (timeout <= 0)
    return error(Status::deadline, "the broker gave no memory for " + std::to_string(bytes.size()) +
                                       " bytes before the deadline of the call");
  auto made = region(bytes.size(), timeout);
  if (made) std::memcpy((*made)->data(), bytes.data(), bytes.size());
  return made;
}

SlotBytes Memory::in_slot(std::string_view bytes, std::int64_t deadline) const {
  const std::int64_t timeout = broker_time(deadline);
  if (timeout <= 0) return {};
  std::shared_ptr<Inbox> inbox;
  {
    const std::lock_guard lock(monitor_.mutex());
    inbox = monitor_.inbox();
  }
  SlotBytes room = inbox ? inbox->room_for(bytes.size(), timeout) : SlotBytes();
  if (room) std::memcpy(room.data(), bytes.data(), bytes.size());
  return room;
}

Result<Content> Memory::keep(const Payload& payload, bool stays, std::int64_t deadline) const {
  Content content;
  if (payload.data.size() > kInline) {
    if (!stays && payload.bytes == nullptr) content.slot = in_slot(payload.data, deadline);
    if (!content.slot) {
      SHMB_TRY(bytes, payload.bytes != nullptr ? again(*payload.bytes) : in_region(payload.data, deadline));
      content.bytes = std::move(bytes);
    }
    content.bytes_length = payload.data.size();
  } else {
    content.data = payload.data;
  }
  for (client::Region* region : payload.regions) {
    SHMB_TRY(same, again(*region));
    content.regions.push_back(std::move(same));
  }
  content.references = payload.references;
  return content;
}

}  // namespace shmb::remote
