// SPDX-License-Identifier: Apache-2.0
// Subscriptions. No request waits inside the broker (law 8): a client that wants to wait subscribes. The reply says
// what holds already, so nothing is missed between asking and subscribing. The end of the watched object ends the
// watch.
//
// The session owns its watches. Each one hangs on one list of watchers: that of a region, of a group, of a name, or of
// reclaims. A watch by a ticket also hangs on the ticket, and ends with it. An event carries a number that rises by one
// with each event of the session. A client that reads too slowly loses events, and a gap event says
// how many.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <string>
#include <string_view>

#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "proto/shmb_wire.h"

namespace shmb::daemon {

class Session;
struct Watches;
struct Group;
struct Region;

struct Watch;
struct OfTarget;
struct OfTicket;
struct Ticket;
using Watchers = List<Watch, OfTarget>;
// Keyed by name_key() and pool_name_key() of name_table.hpp. No entry is empty.
using NameWatches = std::pmr::map<std::string, Watchers>;
struct Watch : Hook<Watch, OfTarget>, Hook<Watch, OfTicket>, books::Booked<Watch> {
  std::uint64_t id = 0;
  Session* session = nullptr;
  shmbw_watch_kind kind = SHMBW_WATCH_KIND_CANCEL;
  std::uint32_t events = 0;
  Region* region = nullptr;
  Ticket* ticket = nullptr;  // by which it watches `region`; its end is that of the watch
  Group* group = nullptr;
  std::uint64_t only_group = 0;  // reclaim: 0 all
  NameWatches::value_type* name = nullptr;
  Charge charge;
};

// Notes that its record must be written again.
void changed(Watch& watch);

// A watch is charged to the session and its uid, and bounded per watched object. An event goes to all watchers at once,
// so the session that causes it makes all others wait for that long.
Result<Watch*> make_watch(Watches& watches, Session& session, shmbw_watch_kind kind, std::uint32_t events,
                          Watchers& target);
// The object alone.
Watch& add_watch(Watches& watches, Session& session, std::uint64_t id, shmbw_watch_kind kind, std::uint32_t events,
                 Watchers& target, Charge charge);
void destroy_watch(Watches& watches, Watch& watch);
Watchers& reclaims_of(Watches& watches, const Session& session);  // those that this session may see
bool cancel_watch(Watches& watches, Session& session, std::uint64_t id);

void tell_region(Watches& watches, Region& region, shmbw_watch_event_flags what);  // `gone` ends the watches
void tell_ticket_ends(Watches& watches, Ticket& ticket);                           // ends the watches by it
void tell_name(Watches& watches, const Group& group, const Region& region);
void tell_pool_name(Watches& watches, const Group& group, std::string_view name, std::uint64_t pool);
// Notifies each holder of a lease, and each watcher.
void tell_gpu_state(Region& region, std::int32_t code, std::uint32_t pid);
void tell_gpu_drained(Session& session, const Region& region);
void tell_gpu_device(Session& session, shmbw_gpu_device_event event, std::string_view text);
void tell_give_up(Session& session, const Region& region);
void tell_pool_changed(Session& session, std::uint64_t pool);
void tell_world_changed(Session& session, std::uint64_t world, std::uint32_t change, std::uint32_t rank,
                        std::uint32_t life, std::uint32_t present);
void tell_ref_unused(Session& session, std::uint64_t world, const shmbw_ref_id& reference);
void tell_ref_changed(Session& session, std::uint64_t world, const shmbw_ref_id& reference, std::uint32_t state,
                      std::uint32_t owner);
void tell_group_ended(Watches& watches, Group& group, std::uint64_t bytes_freed);  // ends the watches

}  // namespace shmb::daemon
