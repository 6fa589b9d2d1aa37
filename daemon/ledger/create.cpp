// SPDX-License-Identifier: Apache-2.0
// The order of a create: check all words, and charge the name. Then take memory from the shelf, which is charged
// already. Otherwise charge the region and its bytes, and make the file; recycled memory is dropped before a charge is
// refused. Then book the region, charge and book the lease, and give the name. If the lease is refused, the region is
// undone, and nothing is left.
#include "daemon/ledger/create.hpp"

#include <fcntl.h>

#include "base/sys_memory.hpp"
#include "base/text.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/watches.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

Result<void> check_keep(const Host& host, std::int64_t keep, bool named) {
  if (keep < -1) return error(Status::invalid, "a keep is 0, a duration, or SHMB_KEEP_UNTIL_RELEASED");
  if (keep != 0 && !named)
    return error(
        Status::invalid,
        "keep needs a name: an object without one goes with its last holder. Give it a name, or leave keep out");
  if (keep <= host.config.limits.keep_max) return {};
  Error refused =
      plain(Status::limit, "limit: keep of " + format_duration(keep) + " asked, at most " +
                               format_duration(host.config.limits.keep_max) +
                               "; give SHMB_KEEP_UNTIL_RELEASED, or raise limits.keep_max" + in_config(host));
  refused.shortage = {SHMBW_SLOT_KEEP,
                      SHMBW_SCOPE_HOST,
                      0,
                      static_cast<std::uint64_t>(host.config.limits.keep_max),
                      0,
                      static_cast<std::uint64_t>(keep)};
  return std::unexpected(std::move(refused));
}

namespace {

bool on_hugetlb(const shmbw_create& wish) { return (wish.flags & SHMBW_CREATE_HUGETLB) != 0; }

Result<void> check_words(const Host& host, const shmbw_create& wish, std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_CREATE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a create flag is not known to this broker");
  if ((wish.rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return error(Status::unknown_flags, "a right is not known to this broker");
  constexpr std::uint32_t needed = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
  if (wish.rights != 0 && (wish.rights & needed) != needed)
    return error(Status::invalid, "the creator's rights must include map_read and map_write");
  if (wish.length > kMaxLength) return error(Status::invalid, "a region is at most 2^47 - 1 bytes");
  if (wish.length == 0 && on_hugetlb(wish))
    return error(Status::invalid, "a region of 0 bytes has no hugetlb page: leave hugetlb out");
  bool keep_given = (wish.flags & SHMBW_CREATE_KEEP_GIVEN) != 0;
  if (!keep_given && wish.keep != 0) return error(Status::invalid, "keep without the flag keep_given");
  if (keep_given)
    if (auto keep = check_keep(host, wish.keep, !name.empty()); !keep) return keep;
  if (keep_given && (wish.flags & SHMBW_CREATE_NAME_WITH_HOLDERS) != 0)
    return error(Status::invalid, "a name that goes with the last holder is not kept: leave one of the two flags out");
  if (name.empty()) {
    if ((wish.flags & SHMBW_CREATE_REPLACE) != 0) return error(Status::invalid, "replace needs a name");
    if ((wish.flags & SHMBW_CREATE_NAME_AT_PUBLISH) != 0) return error(Status::invalid, "name_at_publish needs a name");
    if ((wish.flags & SHMBW_CREATE_NAME_WITH_HOLDERS) != 0)
      return error(Status::invalid, "name_with_holders needs a name");
    return {};
  }
  return names::check(name, "region name");
}

}  // namespace

Result<Group*> group_for_create(Regions& regions, Session& session, std::uint64_t id) {
  if (id == 0) return own_group(regions.groups, session);
  Group* group = find_group(regions.groups, id);
  if ((group && group->closed && may_address(session, *group)) || (!group && id == session.ended_group))
    return error(Status::group_ended, "group " + names::id_text(id) + " has ended");
  if (!group || !may_address(session, *group)) return std::unexpected(no_such_group(id));
  return group;
}

namespace {

bool in_scope(const Group& group, const Shortage& shortage) {
  switch (shortage.scope) {
    case SHMBW_SCOPE_GROUP:
      return group.id == shortage.scope_id;
    case SHMBW_SCOPE_UID:
      return group.uid == shortage.scope_id;
    default:
      return true;
  }
}

// Drops recycled regions until `shortage` is met. False: the shelves concerned do not hold that much. Bytes that the
// helper thread closes come back a moment later; `pending` counts them.
bool drop_cached(Regions& regions, const Shortage& shortage, std::uint64_t& pending) {
  bool bytes = shortage.slot == SHMBW_SLOT_BYTES;
  if (regions.groups.bytes_cached == 0 || shortage.asked > shortage.limit) return false;
  std::uint64_t needed = shortage.used + shortage.asked - shortage.limit, there = 0;
  regions.groups.filled_shelves.each([&](const Shelf& shelf) {
    if (in_scope(shelf.group(), shortage)) there += bytes ? shelf.bytes() : shelf.count();
  });
  if (there < needed) return false;
  std::uint64_t dropped = 0;
  regions.groups.filled_shelves.each([&](Shelf& shelf) {
    if (!in_scope(shelf.group(), shortage)) return;
    while (dropped < needed) {
      std::uint64_t before = shelf.bytes(), charged = shelf.group().account.used(Resource::bytes);
      if (!shelf.drop_oldest()) break;
      dropped += bytes ? before - shelf.bytes() : 1;
      if (shelf.group().account.used(Resource::bytes) == charged) pending += before - shelf.bytes();
    }
  });
  return true;
}

Error naming_pending(Error refused, std::uint64_t pending) {
  if (pending != 0) refused.sentence += "; " + format_size(pending) + " of it are being freed now, ask again";
  return refused;
}

}  // namespace

std::uint64_t empty_shelves(Regions& regions, const Session& session, std::uint64_t wanted) {
  std::uint64_t given = 0;
  const auto empty = [&](Shelf& shelf) {
    while (given < wanted) {
      const std::uint64_t before = shelf.bytes();
      if (!shelf.drop_oldest()) return;
      given += before - shelf.bytes();
    }
  };
  if (session.group) empty(session.group->shelf);
  regions.groups.filled_shelves.each([&](Shelf& shelf) {
    if (shelf.group().uid == session.uid) empty(shelf);
  });
  return given;
}

Result<Charge> charge_group(Regions& regions, const Session& session, Group& group, Resource resource,
                            std::uint64_t amount) {
  std::uint64_t pending = 0;
  for (;;) {
    auto charge = group.account.charge(resource, amount);
    if (charge) return std::move(*charge);
    if (pending == 0 && drop_cached(regions, charge.error(), pending)) continue;
    return std::unexpected(naming_pending(refuse_limit(regions.groups, session, charge.error()), pending));
  }
}

Result<void> room_for_descriptors(Regions& regions, const Session& session, std::uint32_t payer, std::uint64_t wanted) {
  const auto shortage = regions.accounts.descriptor_shortage(payer, wanted, session.admin);
  if (!shortage) return {};
  std::uint64_t pending = 0;
  const Shortage those{SHMBW_SLOT_REGIONS, shortage->scope, shortage->scope_id, wanted, wanted, wanted};
  if (drop_cached(regions, those, pending) && !regions.accounts.descriptor_shortage(payer, wanted, session.admin))
    return {};
  return std::unexpected(naming_pending(refuse_descriptors(regions.host, *shortage), pending));
}

namespace {

// For a client that has no room for fresh memory.
Error nothing_recycled(const Group& group, std::uint64_t bytes) {
  return plain(Status::no_memory, "no memory: group " + group.text() + " has no recycled region of " +
                                      format_size(bytes) + ", and fresh memory was not asked for");
}

bool seals_seal(const Host& host, const shmbw_create& wish) {
  return host.private_mode() && (wish.flags & SHMBW_CREATE_MANY_WRITERS) != 0;
}

// A region from the group's shelf. Only members of the group get one. It has all the seals that it had at its creation,
// and gets no more: an earlier user may still hold the lock of the file, and a seal would wait for that. Pages of the
// host's reserve of huge pages go back there at once, so such a region is never recycled.
Region* recycled(const Host& host, const Session& session, Group& group, const shmbw_create& wish) {
  if ((wish.flags & (SHMBW_CREATE_NO_RECYCLE | SHMBW_CREATE_HUGETLB)) != 0 || session.group != &group ||
      session.uid != group.uid)
    return nullptr;
  return group.shelf.take(rounded_bytes(wish.length), seals_seal(host, wish));
}

Result<Region*> fresh(Regions& regions, Session& session, Group& group, const shmbw_create& wish, std::string_view name,
                      std::uint32_t generation) {
  std::uint64_t bytes = rounded_bytes(wish.length, on_hugetlb(wish));
  SHMB_TRY_VOID(room_for_descriptors(regions, session, group.uid, 1));
  SHMB_TRY(region_charge, charge_group(regions, session, group, Resource::regions, 1));
  SHMB_TRY(bytes_charge, charge_group(regions, session, group, Resource::bytes, bytes));
  std::uint64_t id = ++regions.last_id;
  names::MemfdName label;
  names::write_memfd_name(label, {regions.host.facts.epoch, id, generation, group.uid, group.name, name, group.id});
  SHMB_TRY(fd, make_memory({.label = label.data(),
                            .bytes = bytes,
                            .no_exec = regions.host.facts.exec_seal,
                            .seal_sealed = seals_seal(regions.host, wish),
                            .hugetlb = on_hugetlb(wish)}));
  return &add_region(regions, group, id, bytes, std::move(fd), std::move(bytes_charge), std::move(region_charge));
}

void undo(Regions& regions, Group& group, Region& region, bool dirty) {
  if (dirty && group.shelf.put(region)) return;
  free_region(regions, region, !dirty);  // a fresh region has no page yet
}

}  // namespace

Result<Charge> may_take_name(Groups& groups, Session& session, Group& group, Region* old, std::string_view name,
                             bool replace) {
  if (old && !replace)
    return error(Status::exists, "the name '" + std::string(name) + "' is taken in group " + group.text() +
                                     "; use another one or replace it");
  if (old)
    if (const Lease* held = find_lease(session, *old); held && (held->rights & SHMBW_RIGHT_RELEASE) == 0)
      return error(Status::denied, "replacing '" + std::string(name) + "' needs the right release on it");
  if (name.empty() || old) return Charge{};
  auto charge = group.account.charge(Resource::names, 1);
  if (!charge) return std::unexpected(refuse_limit(groups, session, charge.error()));
  return std::move(*charge);
}

void give_name(Regions& regions, Region& region, std::string_view name, Charge charge) {
  Group& group = *region.group;
  if (Region* const old = group.names.replace(name, region)) release_region(regions, *old);
  else group.names.add(name, region, std::move(charge));
  tell_name(regions.watches, group, region);
}

Result<Charge> may_keep_promise(Groups& groups, Session& session, Region& region) {
  const Promised& promised = *region.promised;
  Group& group = *region.group;
  if (group.closed) return error(Status::group_ended, "group " + group.text() + " has ended: it gives no names");
  auto charge = may_take_name(groups, session, group, group.names.find(promised.name), promised.name, promised.replace);
  if (!charge && charge.error().status == Status::exists)
    return error(Status::exists, "the name '" + promised.name + "' was taken in group " + group.text() +
                                     " after this region had been made: release that one and publish again, or make "
                                     "this one again under another name");
  return charge;
}

void keep_promise(Regions& regions, Region& region, Charge charge) {
  const std::unique_ptr<Promised> promised = std::move(region.promised);
  region.keep = promised->keep;
  changed(region);
  give_name(regions, region, promised->name, std::move(charge));
}

Result<Created> create_region(Regions& regions, Session& session, const shmbw_create& wish, std::string_view name) {
  SHMB_TRY_VOID(check_words(regions.host, wish, name));
  SHMB_TRY(found, group_for_create(regions, session, wish.group));
  Group& group = *found;
  Region* old = name.empty() ? nullptr : group.names.find(name);
  SHMB_TRY(name_charge,
           may_take_name(regions.groups, session, group, old, name, (wish.flags & SHMBW_CREATE_REPLACE) != 0));
  const bool at_publish = (wish.flags & SHMBW_CREATE_NAME_AT_PUBLISH) != 0;
  if (const auto shortage = regions.accounts.take_create(session.uid, session.admin))
    return std::unexpected(refuse_create_rate(regions.groups, session, *shortage));

  std::uint32_t generation = old ? old->generation + 1 : 1;
  Region* region = recycled(regions.host, session, group, wish);
  bool dirty = region != nullptr;
  if (!region && (wish.flags & SHMBW_CREATE_RECYCLED_ONLY) != 0)
    return std::unexpected(nothing_recycled(group, rounded_bytes(wish.length)));
  if (!region) {
    SHMB_TRY(made, fresh(regions, session, group, wish, name, generation));
    region = made;
  }
  region->length = wish.length;
  region->generation = generation;
  region->keep = (wish.flags & SHMBW_CREATE_KEEP_GIVEN) != 0 ? wish.keep : group.keep;
  region->promised.reset();
  if (at_publish)
    region->promised = std::make_unique<Promised>(std::string(name), std::exchange(region->keep, 0),
                                                  (wish.flags & SHMBW_CREATE_REPLACE) != 0);
  region->created = regions.host.now();
  region->creator_pid = session.pid;
  region->state = SHMBW_REGION_STATE_CREATED;
  region->dirty_birth = dirty;
  region->seal_sealed = seals_seal(regions.host, wish);
  region->many_writers = region->seal_sealed;  // in system mode the mode bits bind readers in any case
  region->hugetlb = on_hugetlb(wish);
  region->no_recycle = region->hugetlb || (wish.flags & SHMBW_CREATE_NO_RECYCLE) != 0;
  region->heap = (wish.flags & SHMBW_CREATE_HEAP) != 0;
  region->name_with_holders = (wish.flags & SHMBW_CREATE_NAME_WITH_HOLDERS) != 0;
  changed(*region);
  ++regions.count;
  std::uint32_t rights = wish.rights ? wish.rights : std::uint32_t{SHMBW_RIGHT_KNOWN};
  auto lease = book_lease(regions, session, *region, rights, 1, Reach::lent);
  if (!lease) {
    undo(regions, group, *region, dirty);
    return std::unexpected(lease.error());
  }
  (*lease)->made = true;
  if (!name.empty() && !at_publish) give_name(regions, *region, name, std::move(name_charge));
  sponsor_group(session, group);
  return Created{region, *lease, dirty};
}

}  // namespace shmb::daemon
