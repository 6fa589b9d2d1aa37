// SPDX-License-Identifier: Apache-2.0
// Seals and descriptors of grants.
#include "daemon/ledger/grant.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/group.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/reply.hpp"
#include "daemon/ledger/watches.hpp"

namespace shmb::daemon {

std::uint32_t authority(Session& session, const Region& region) {
  if (may_address(session, *region.group)) return SHMBW_RIGHT_KNOWN;
  const Lease* lease = find_lease(session, region);
  return lease ? lease->rights : 0;
}

bool closes_writing(const Host& host, const Session& session, const Region& region, std::uint32_t rights) {
  return (rights & SHMBW_RIGHT_MAP_WRITE) == 0 && !host.mode_bits_bind(session.uid) && !region.many_writers &&
         !region.sealed();
}

Result<void> admit_rights(const Host& host, const Session& session, const Region& region, std::uint32_t rights) {
  if ((rights & SHMBW_RIGHT_MAP_WRITE) != 0) {
    if (region.state == SHMBW_REGION_STATE_PUBLISHED)
      return error(Status::write_closed, "the region is published: nobody can write to it any more");
    if (region.sealed())
      return error(Status::write_closed,
                   "a reader has closed writing to the region for ever; create its successor with replace");
    return {};
  }
  if (closes_writing(host, session, region, rights) && region.unmapped_writers != 0)
    return error(Status::not_ready,
                 "a writer has not reported yet that it has mapped the region; wait for the ready event");
  return {};
}

Result<Fd> reopen_read_only(int fd, std::string_view what) {
  auto reader = sys::reopen_read_only(fd);
  if (reader) return std::move(*reader);
  const std::string asked = "reopening " + std::string(what) + " read-only";
  if (reader.error().value == EMFILE)
    return error(Status::no_descriptors,
                 asked + ": the broker (pid " + std::to_string(::getpid()) +
                     ") has as many descriptors open as it may: ask again when fewer are open, or raise descriptors in "
                     "its configuration (and its hard RLIMIT_NOFILE), and restart it");
  Error failed = system_failure(reader.error(), asked).error();
  if (reader.error().value == ENOENT) {
    failed.status = Status::unsupported;
    failed.sentence += ": the broker's /proc is not mounted, and only through it can read-only access be given";
  }
  return std::unexpected(std::move(failed));
}

Result<int> lend_descriptor(const Accounts& accounts, Reply& reply, Region& region, std::uint32_t rights) {
  if ((rights & SHMBW_RIGHT_MAP_WRITE) != 0) return region.fd.get();
  // The descriptor is closed once the reply has been sent, so it may use the reserve.
  const std::uint64_t used = accounts.descriptors() + reply.owned.size(), limit = accounts.host.facts.descriptors_limit;
  if (used >= limit)
    return std::unexpected(
        refuse_descriptors(accounts.host, {SHMBW_SLOT_DESCRIPTORS, SHMBW_SCOPE_HOST, 0, limit, used, 1}));
  SHMB_TRY(reader, reopen_read_only(region.fd.get(), "the region"));
  reply.owned.push_back(std::move(reader));
  return reply.owned.back().get();
}

Result<void> may_be_published(const Region& region, const Lease& own) {
  if (region.seal_sealed)
    return error(Status::unsupported, "a region made with many_writers cannot be published in private mode");
  const std::uint32_t others = region.lent_writers - (own.lent_for_writing() ? 1 : 0);
  if (others == 0) return {};
  return error(Status::not_ready, std::to_string(others) + (others == 1 ? " other writer has" : " other writers have") +
                                      " not reported yet that the region is mapped; wait for the ready event");
}

Error publication_refused(int code) {
  if (code == EBUSY)
    return plain(Status::still_mapped,
                 "the region is still mapped for writing, here or in a forked child, or something still refers to its "
                 "pages, as a pipe or io_uring does: unmap it and publish again");
  if (code == EPERM)
    return plain(Status::unsupported, "a writer has sealed the region's seals itself: it cannot be published");
  return system_failure(Errno{code}, "publishing (F_SEAL_WRITE)").error();
}

Error closing_refused(int code) {
  if (code == EPERM)
    return plain(Status::unsupported, "a writer has sealed the region's seals itself: it cannot be made read-only");
  return system_failure(Errno{code}, "closing writing (F_SEAL_FUTURE_WRITE)").error();
}

void sealed(Regions& regions, Region& region, int seals) {
  changed(region);
  if (seals == kClosingSeals) {
    if (!region.sealed()) region.state = SHMBW_REGION_STATE_WRITE_CLOSED;
    return;
  }
  region.state = SHMBW_REGION_STATE_PUBLISHED;
  region.leases.each([&](Lease& lease) {
    set_lease(regions, lease, lease.rights & ~std::uint32_t{SHMBW_RIGHT_MAP_WRITE}, lease.reach);
  });
  tell_region(regions.watches, region, SHMBW_WATCH_EVENT_PUBLISHED);
}

}  // namespace shmb::daemon
