// SPDX-License-Identifier: Apache-2.0
// A group: the unit of lifetime, limits and names; a process tree, a job. It ends when no member or heir is left and,
// where it is supervised, the supervisor has reported that the tree is gone. Its kept regions outlive it for their
// keep. A join or a create in that time revives it. Foreign leases and tickets hold their region, never the group.
//
// Its states, in this order:
// - alive: a member, a sponsor, a world, or a supervisor whose tree still runs holds it.
// - kept: nothing holds it, and named regions or pools still have their keep. A timer ends the keeps one by one. A
//   session that joins, supervises or sponsors it makes it alive again.
// - closed: no kept name is left. Its own name is free, and its token admits no session. Regions stay while leases,
//   tickets or messages hold them.
// - collected: its last region and pool are gone. The object goes with them, and gives back its charges.
//
// settle_group() moves it on, and is called after each change that may have taken away its last holder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "daemon/books/booked.hpp"
#include "daemon/kit/secret.hpp"
#include "daemon/ledger/name_table.hpp"
#include "daemon/ledger/session.hpp"
#include "daemon/ledger/shelf.hpp"
#include "daemon/ledger/watch.hpp"
#include "proto/names.hpp"

namespace shmb::daemon {

struct Groups;
struct Pool;
struct World;

struct Group final : Timer, Hook<Group, OfSponsor>, books::Booked<Group> {  // the timer ends the next keep
  Group(Groups& groups, std::uint64_t id, std::uint32_t uid, std::string_view name, Account& uid_account);
  void on_timer(std::int64_t now) override;
  std::string text() const { return name.empty() ? names::id_text(id) : name; }
  bool kept() const { return ended_at != 0 && !closed; }
  std::uint32_t heirs() const;
  std::uint64_t configured(Resource resource) const;  // by the file, whatever was asked for this group
  // A limit that was asked for this group outlives a reload of the configuration. Its owner may ask for at most what is
  // configured, at any time; an administrator for any limit.
  void apply_limits();
  std::int64_t freed_at(const Region& region) const {
    return kept() && region.name && region.keep >= 0 ? ended_at + region.keep : 0;
  }

  Groups& groups;
  std::uint64_t id;
  std::uint32_t uid;
  std::string name;  // empty: unnamed
  Secret token;
  Account account;
  Charge charge;                                     // a group of its uid
  std::uint64_t asked_bytes = 0, asked_regions = 0;  // limits; 0: what is configured
  bool asked_by_admin = false;
  std::int64_t created = 0;
  std::int64_t keep = 0;      // default of its regions
  std::int64_t ended_at = 0;  // 0: alive
  // No kept region or pool has a name any more.
  bool nothing_kept() const { return names.empty() && pool_names.empty(); }
  Session* sponsor = nullptr;  // holds a group without members: the session that made or revived it last
  List<Session, OfMembers> members;
  List<Session, OfSupervisors> supervisors;
  List<Region, OfGroup> regions;  // live ones and those being closed
  List<Pool, OfGroup> pools;
  List<World, OfGroup> worlds;  // each holds the group up
  NameTable names;
  std::map<std::string, Pool*, std::less<>> pool_names;
  Shelf shelf;
  Watchers watchers;
  bool supervised = false;
  bool supervisor_lost = false;
  bool tree_gone = false;
  bool closed = false;      // ended for good: neither found nor revived
  bool in_service = false;  // its regions are being walked: do not collect it
};

// Notes that its record must be written again.
void changed(Group& group);

struct GroupRequest {
  std::string_view name;  // checked
  std::int64_t keep = 0;
  std::uint64_t limit_bytes = 0, limit_regions = 0;
  bool supervised = false;
};
Result<Group*> make_group(Groups& groups, Session& founder, const GroupRequest& wish);
// The object alone, for a user that is held for it. Sessions find it after `make_known`.
Group& add_group(Groups& groups, std::uint64_t id, std::uint32_t uid, std::string_view name, Charge charge);
void make_known(Groups& groups, Group& group);
Group* find_group(Groups& groups, std::uint64_t id);
Group* find_group(Groups& groups, std::uint32_t owner_uid, std::string_view name_or_id);
Group* find_group(Groups& groups, const Secret& token);
// True for the same uid, a member or a supervisor. For all others the group does not exist.
bool may_address(const Session& session, const Group& group);

// The session's own group. It is made now if the session has none.
Result<Group*> own_group(Groups& groups, Session& session);
void join_group(Groups& groups, Session& session, Group& group);
void leave_group(Groups& groups, Session& session);
void supervise_group(Groups& groups, Session& session, Group& group);
void stop_supervising(Groups& groups, Session& session);
void sponsor_group(Session& session, Group& group);  // revives a kept group
void stop_sponsoring(Groups& groups, Session& session);
void stop_sponsoring(Groups& groups, Group& group);
void end_group(Groups& groups, Group& group, bool release_kept);
// Ends, closes or destroys the group if nothing holds it any more. The group may be gone afterwards.
void settle_group(Groups& groups, Group& group);

}  // namespace shmb::daemon
