// SPDX-License-Identifier: Apache-2.0
// The C ABI's regions and tickets.
#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <vector>

#include "base/sys_memory.hpp"
#include "client/c_api/c_api.hpp"
#include "client/session/views.hpp"

namespace shmb::client::c_api {
namespace {

constexpr std::uint32_t kCreateFlags = (SHMBW_CREATE_KNOWN & ~std::uint32_t{SHMBW_CREATE_RECYCLED_ONLY}) |
                                       kCreateNoPopulate | kCreateSmallPages | kCreateUnmapped | kCreateOnNode;
constexpr std::uint32_t kAttachFlags = kAttachUnmapped | kAttachNoPopulate;

Result<CreateItem> create_item(std::uint64_t length, const shmb_create_options* options) {
  SHMB_TRY(wanted, read_options(options));
  if ((wanted.flags & ~kCreateFlags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of create");
  if ((wanted.rights & ~static_cast<std::uint32_t>(SHMB_RIGHT_ALL)) != 0)
    return shmb::error(Status::unknown_flags, "an unknown right");
  CreateItem item;
  item.length = length;
  item.name = text_or_empty(wanted.name);
  item.group = wanted.group;
  item.keep = wanted.keep_ns;
  item.flags = wanted.flags;
  item.rights = wanted.rights;
  item.node = wanted.numa_node;
  return item;
}

Result<void> attach(shmb_session* session, Result<Target> target, const shmb_attach_options* options,
                    shmb_region** region) {
  SHMB_TRY(known, session_of(session));
  SHMB_TRY(wanted, read_options(options));
  if (!target) return std::unexpected(target.error());
  if ((wanted.flags & ~kAttachFlags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of attach");
  if ((wanted.rights & ~static_cast<std::uint32_t>(SHMB_RIGHT_ALL)) != 0)
    return shmb::error(Status::unknown_flags, "an unknown right");
  if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
  AttachItem item{std::move(*target), wanted.rights, wanted.flags};
  SHMB_TRY(attached, attach_region(known, item, wanted.timeout_ns, wanted.wait_ns));
  *region = new shmb_region{std::move(attached)};
  return {};
}

Result<void> make_ticket(shmb_region* region, std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime,
                         std::uint32_t flags, Deadline deadline, std::uint8_t* ticket, std::int64_t* expires) {
  SHMB_TRY(known, region_of(region));
  if (ticket == nullptr) return shmb::error(Status::invalid, "no place for the ticket was given");
  if ((rights & ~static_cast<std::uint32_t>(SHMB_RIGHT_ALL)) != 0)
    return shmb::error(Status::unknown_flags, "an unknown right");
  SHMB_TRY(made, known->make_ticket(rights, uses, lifetime, deadline, flags));
  std::ranges::copy(made.token.bytes, ticket);
  if (expires != nullptr) *expires = made.expires;
  return {};
}

Result<Target> target_of(const shmb_attach_item& item) {
  const int given = (item.address != nullptr) + (item.id != nullptr) + (item.ticket != nullptr);
  if (given != 1) return shmb::error(Status::invalid, "an element names its region in exactly one way");
  if (item.address != nullptr) return Target::at(item.address);
  if (item.id != nullptr) return Target::with_id(to_ref(*item.id), item.id->epoch);
  return Target::with_ticket(to_token(item.ticket));
}

// Results of a batch into the caller's arrays; the first failure is the call's. A handle that finds no memory is one
// more element that failed, and its region is given back.
Result<void> hand_out(std::vector<Result<Region::Handle>>& results, shmb_region** regions, int* statuses) {
  Result<void> first;
  for (std::size_t i = 0; i < results.size(); ++i) {
    regions[i] = results[i] ? new (std::nothrow) shmb_region{std::move(*results[i])} : nullptr;
    if (results[i] && regions[i] == nullptr) results[i] = shmb::error(Status::no_memory, "out of memory");
    if (statuses != nullptr)
      statuses[i] = results[i] ? static_cast<int>(SHMB_OK) : static_cast<int>(results[i].error().status);
    if (!results[i] && first) first = std::unexpected(results[i].error());
  }
  return first;
}

Result<void> fill(shmb_session* session, const RegionRow& row, shmb_region_stat* stat) {
  SHMB_TRY(known, session_of(session));
  shmb_region_stat out{};
  out.id = to_id(row.record.region, known->facts().epoch);
  out.length = row.record.length;
  out.bytes = row.record.bytes;
  out.touched = row.record.touched;
  out.group = row.record.group;
  out.owner_uid = row.record.owner_uid;
  out.state = row.record.state;
  out.page_kind = row.record.page_kind;
  out.flags = row.record.flags;
  out.holders = row.record.holders;
  out.writers = row.record.writers;
  out.tickets = row.record.tickets;
  out.creator_pid = row.record.creator_pid;
  out.created_ns = row.record.created;
  out.keep_ns = row.record.keep;
  out.freed_at_ns = row.record.freed_at;
  copy_text(out.group_name, row.group);
  copy_text(out.name, row.name);
  return write_struct(out, stat);
}

}  // namespace
}  // namespace shmb::client::c_api

using namespace shmb;
using namespace shmb::client;
using namespace shmb::client::c_api;

extern "C" {

int shmb_create(shmb_session* session, uint64_t length, const shmb_create_options* options, shmb_region** region,
                shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(item, create_item(length, options));
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    SHMB_TRY(made, create_region(known, item, options == nullptr ? 0 : options->timeout_ns));
    *region = new shmb_region{std::move(made)};
    return {};
  });
}

int shmb_create_many(shmb_session* session, const shmb_create_item* items, size_t count, int64_t timeout_ns,
                     shmb_region** regions, int* statuses, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (count != 0 && (items == nullptr || regions == nullptr))
      return shmb::error(Status::invalid, "no items or no place for the regions was given");
    std::vector<CreateItem> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      SHMB_TRY(item, create_item(items[i].length, items[i].options));
      wanted.push_back(std::move(item));
    }
    auto results = create_regions(known, wanted, timeout_ns);
    return hand_out(results, regions, statuses);
  });
}

int shmb_attach(shmb_session* session, const char* address, const shmb_attach_options* options, shmb_region** region,
                shmb_error* error) noexcept {
  return guarded(error, [&] { return c_api::attach(session, Target::at(text_or_empty(address)), options, region); });
}

int shmb_attach_id(shmb_session* session, const shmb_region_id* id, const shmb_attach_options* options,
                   shmb_region** region, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (id == nullptr) return shmb::error(Status::invalid, "no identity was given");
    return c_api::attach(session, Target::with_id(to_ref(*id), id->epoch), options, region);
  });
}

int shmb_attach_ticket(shmb_session* session, const uint8_t ticket[16], const shmb_attach_options* options,
                       shmb_region** region, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (ticket == nullptr) return shmb::error(Status::invalid, "no ticket was given");
    return c_api::attach(session, Target::with_ticket(to_token(ticket)), options, region);
  });
}

int shmb_attach_many(shmb_session* session, const shmb_attach_item* items, size_t count, int64_t timeout_ns,
                     shmb_region** regions, int* statuses, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (count != 0 && (items == nullptr || regions == nullptr))
      return shmb::error(Status::invalid, "no items or no place for the regions was given");
    std::vector<AttachItem> wanted;
    for (std::size_t i = 0; i < count; ++i) {
      SHMB_TRY(target, target_of(items[i]));
      if ((items[i].flags & ~kAttachFlags) != 0) return shmb::error(Status::unknown_flags, "an unknown flag of attach");
      wanted.push_back({std::move(target), items[i].rights, items[i].flags});
    }
    auto results = attach_regions(known, wanted, timeout_ns);
    return hand_out(results, regions, statuses);
  });
}

int shmb_adopt_fd(shmb_session* session, int fd, uint32_t rights, shmb_region** region, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    SHMB_TRY(made, adopt_local(known, fd, rights));
    *region = new shmb_region{std::move(made)};
    return {};
  });
}

void* shmb_region_data(const shmb_region* region) noexcept {
  return region == nullptr ? nullptr : static_cast<void*>(region->it->data());
}
uint64_t shmb_region_length(const shmb_region* region) noexcept { return region == nullptr ? 0 : region->it->length(); }
shmb_region_id shmb_region_get_id(const shmb_region* region) noexcept {
  if (region == nullptr) return {};
  return to_id(region->it->facts().ref, region->it->facts().epoch);
}

int shmb_region_get_info(const shmb_region* region, shmb_region_info* info, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (region == nullptr) return shmb::error(Status::invalid, "no region was given");
    const RegionFacts facts = region->it->facts();
    shmb_region_info out{};
    out.id = to_id(facts.ref, facts.epoch);
    out.length = facts.length;
    out.bytes = facts.bytes;
    out.group = facts.group;
    out.populated = facts.populated;
    out.rights = facts.rights;
    out.state = facts.state;
    out.page_kind = facts.page_kind;
    out.flags = facts.flags;
    out.recycled = facts.recycled ? 1 : 0;
    out.descriptor_kept = region->it->keeps_descriptor() ? 1 : 0;
    return write_struct(out, info);
  });
}

int shmb_region_session(const shmb_region* region, shmb_session** session, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (region == nullptr) return shmb::error(Status::invalid, "no region was given");
    if (session == nullptr) return shmb::error(Status::invalid, "no place for the session was given");
    *session = new shmb_session{region->it->session().shared_from_this()};
    return {};
  });
}

int shmb_region_map(shmb_region* region, uint64_t offset, uint64_t length, uint32_t access, void** address,
                    shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, region_of(region));
    if (access > SHMB_ACCESS_READ_WRITE) return shmb::error(Status::invalid, "an unknown kind of access");
    if (address == nullptr) return shmb::error(Status::invalid, "no place for the address was given");
    SHMB_TRY(mapped, known->map_part(offset, length, access == SHMB_ACCESS_READ ? Access::read : Access::read_write,
                                     Deadline::after(0)));
    *address = mapped;
    return {};
  });
}

int shmb_region_unmap(shmb_region* region, void* address, uint64_t length, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, region_of(region));
    return known->unmap_part(address, length);
  });
}

int shmb_region_populate(shmb_region* region, uint64_t offset, uint64_t length, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, region_of(region));
    return known->populate(offset, length);
  });
}

int shmb_region_descriptor(shmb_region* region, int* fd, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, region_of(region));
    if (fd == nullptr) return shmb::error(Status::invalid, "no place for the descriptor was given");
    SHMB_TRY(made, known->descriptor(Deadline::after(0)));
    *fd = made.release();
    return {};
  });
}

int shmb_publish(shmb_region* region, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, region_of(region));
    return known->publish(Deadline::after(timeout_ns));
  });
}

int shmb_release(shmb_region* region, uint32_t flags, shmb_error* error) noexcept {
  if (region == nullptr) return SHMB_OK;
  const int status = guarded(error, [&]() -> Result<void> {
    if ((flags & ~(kReleaseNoRecycle | kReleaseUnname)) != 0) {
      (void)Region::release(std::move(region->it), 0);
      return shmb::error(Status::unknown_flags, "an unknown flag of release; the region was released without it");
    }
    return Region::release(std::move(region->it), flags);
  });
  delete region;
  return status;
}

int shmb_unname(shmb_session* session, const char* address, int64_t timeout_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(target, Target::at(text_or_empty(address)));
    return unname(*known, target, Deadline::after(timeout_ns));
  });
}

int shmb_stat(shmb_session* session, const char* address, int64_t timeout_ns, shmb_region_stat* stat,
              shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(parsed, names::parse_region(text_or_empty(address)));
    SHMB_TRY(row, find_region(*known, parsed, Deadline::after(timeout_ns)));
    return fill(session, row, stat);
  });
}

int shmb_stat_id(shmb_session* session, const shmb_region_id* id, int64_t timeout_ns, shmb_region_stat* stat,
                 shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (id == nullptr) return shmb::error(Status::invalid, "no identity was given");
    if (id->epoch != 0 && id->epoch != known->facts().epoch)
      return shmb::error(Status::stale, "the region's identity is from another life of the broker");
    SHMB_TRY(row, find_region(*known, to_ref(*id), Deadline::after(timeout_ns)));
    return fill(session, row, stat);
  });
}

int shmb_ticket_create(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns, int64_t timeout_ns,
                       uint8_t ticket[16], int64_t* expires_ns, shmb_error* error) noexcept {
  return guarded(error, [&] {
    return make_ticket(region, rights, uses, lifetime_ns, 0, Deadline::after(timeout_ns), ticket, expires_ns);
  });
}

int shmb_ticket_lend(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns, int64_t timeout_ns,
                     uint8_t ticket[16], int64_t* expires_ns, shmb_error* error) noexcept {
  return guarded(error, [&] {
    return make_ticket(region, rights, uses, lifetime_ns, SHMBW_TICKET_CREATE_WITH_SESSION, Deadline::after(timeout_ns),
                       ticket, expires_ns);
  });
}

int shmb_ticket_revoke(shmb_session* session, const uint8_t ticket[16], int64_t timeout_ns,
                       shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    if (ticket == nullptr) return shmb::error(Status::invalid, "no ticket was given");
    return revoke_ticket(*known, to_token(ticket), Deadline::after(timeout_ns));
  });
}

}  // extern "C"
