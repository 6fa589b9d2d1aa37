// SPDX-License-Identifier: Apache-2.0
// Booking and dropping of leases, and the region's counts that follow from them.
#include "daemon/ledger/lease.hpp"

#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/watches.hpp"

namespace shmb::daemon {

void changed(Lease& lease) { lease.session->books.leases.note(lease); }

static void count_in(const Lease& lease, int sign) {
  if (lease.writes()) lease.region->writers += static_cast<std::uint32_t>(sign);
  if (lease.may_still_map_for_writing()) lease.region->unmapped_writers += static_cast<std::uint32_t>(sign);
  if (lease.lent_for_writing()) lease.region->lent_writers += static_cast<std::uint32_t>(sign);
}

// Ends the wait of read-only requests, and of publishers.
static void tell_settled(Regions& regions, Region& region, std::uint32_t unmapped, std::uint32_t lent) {
  if ((unmapped != 0 && region.unmapped_writers == 0) || (lent != 0 && region.lent_writers == 0))
    tell_region(regions.watches, region, SHMBW_WATCH_EVENT_READY);
}

Lease* find_lease(Session& session, const Region& region) {
  auto at = session.leases.find(region.id);
  return at == session.leases.end() ? nullptr : &at->second;
}

static void ask_for(Lease& lease) {
  if (lease.kept && !std::exchange(lease.asked, true)) {
    changed(lease);
    tell_give_up(*lease.session, *lease.region);
  }
}

// Asks all sessions of one user: kept mappings count where a lease of another of its sessions is refused.
static void ask_for_kept_of(Regions& regions, std::uint32_t uid) {
  for (Lease* lease : regions.kept_leases)
    if (lease->session->uid == uid) ask_for(*lease);
}

Result<Charge> charge_lease(Regions& regions, Session& session, const Region& region, std::uint32_t count) {
  if (const Lease* held = find_lease(session, region)) {
    if (held->count > UINT32_MAX - count)
      return error(Status::invalid, "more references than a lease can count: release some");
    return Charge();  // paid for already
  }
  auto charge = session.account.charge(Resource::leases, 1);
  if (!charge) {
    ask_for_kept_of(regions, session.uid);
    return std::unexpected(refuse_limit(regions.groups, session, charge.error()));
  }
  return std::move(*charge);
}

Lease& book_charged(Regions& regions, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                    Reach reach, Charge charge) {
  if ((rights & SHMBW_RIGHT_MAP_WRITE) == 0) reach = Reach::mapped;  // its descriptor cannot be mapped for writing
  if (Lease* held = find_lease(session, region)) {
    held->count += count;
    changed(*held);
    // Earlier mappings say nothing about a new descriptor, and an old descriptor may still be mapped.
    set_lease(regions, *held, held->rights | rights, held->writes() ? std::min(held->reach, reach) : reach);
    return *held;
  }
  Lease& lease = add_lease(regions, session, region, ++regions.host.last_serial, std::move(charge), rights, reach);
  lease.since = regions.host.now();
  lease.count = count;
  if (!region.was_outside && (session.uid != region.group->uid || session.group != region.group)) {
    region.was_outside = true;
    changed(region);
  }
  return lease;
}

Lease& add_lease(Regions& regions, Session& session, Region& region, std::uint64_t serial, Charge charge,
                 std::uint32_t rights, Reach reach) {
  Lease& lease = session.leases.try_emplace(region.id).first->second;
  lease.region = &region;
  lease.session = &session;
  lease.serial = serial;
  lease.rights = rights;
  lease.reach = reach;
  lease.charge = std::move(charge);
  changed(lease);
  region.leases.push_back(lease);
  count_in(lease, 1);
  ++regions.leases;
  return lease;
}

Result<Lease*> book_lease(Regions& regions, Session& session, Region& region, std::uint32_t rights, std::uint32_t count,
                          Reach reach) {
  SHMB_TRY(charge, charge_lease(regions, session, region, count));
  return &book_charged(regions, session, region, rights, count, reach, std::move(charge));
}

void set_lease(Regions& regions, Lease& lease, std::uint32_t rights, Reach reach) {
  Region& region = *lease.region;
  const std::uint32_t unmapped = region.unmapped_writers, lent = region.lent_writers;
  count_in(lease, -1);
  lease.rights = rights;
  lease.reach = reach;
  changed(lease);
  count_in(lease, 1);
  tell_settled(regions, region, unmapped, lent);
}

void keep_lease(Regions& regions, Lease& lease) {
  regions.kept_leases.insert(&lease);
  lease.kept = true;
  lease.asked = false;
  changed(lease);
  release_region(regions, *lease.region);  // perhaps no other session needs it by now
}

void use_lease(Regions& regions, Lease& lease) {
  if (!std::exchange(lease.kept, false)) return;
  regions.kept_leases.erase(&lease);
  changed(lease);
}

void ask_for_kept(Region& region) { region.leases.each(ask_for); }

void drop_lease(Regions& regions, Lease& lease, bool recycle) {
  Region& region = *lease.region;
  if (region.gpu) gpu_lease_over(regions, lease);
  const std::uint32_t unmapped = region.unmapped_writers, lent = region.lent_writers;
  count_in(lease, -1);
  region.leases.remove(lease);
  use_lease(regions, lease);
  --regions.leases;
  if (regions.tally) ++regions.tally->leases;
  regions.host.books.end<books::LeaseRecord>(regions.host.books.leases, lease);
  lease.session->leases.erase(region.id);
  // A session that ended without saying "unmapped" may have left a mapping or a descriptor with a process that the
  // broker does not know.
  if (!recycle && !region.no_recycle) {
    region.no_recycle = true;
    changed(region);
  }
  if (release_region(regions, region, recycle)) return;
  tell_settled(regions, region, unmapped, lent);  // the death of a writer that never mapped ends waits too
}

}  // namespace shmb::daemon
