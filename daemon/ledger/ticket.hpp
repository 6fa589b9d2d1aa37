// SPDX-License-Identifier: Apache-2.0
// A ticket carries rights to a region across groups and users. It belongs to the broker, so the sender may die after
// sending. A ticket that is bound to a session ends with it. A ticket holds its region, never the group. Tickets that
// expired, were used up or never existed get one answer.
//
// A ticket counts for the session that made it while that session lives, and then for its user alone. So a process that
// dies does not take the tickets along that it has sent. It ends by its last use, its time, a revocation, or the end of
// the session that it is bound to. Its secret is the key of the registry, hashed with a key of the broker's own. So no
// client can choose secrets that make the table slow.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <unordered_map>

#include "daemon/books/booked.hpp"
#include "daemon/kit/account.hpp"
#include "daemon/kit/list.hpp"
#include "daemon/kit/secret.hpp"
#include "daemon/kit/timers.hpp"
#include "daemon/ledger/watch.hpp"

namespace shmb::daemon {

struct Host;
struct Tickets;
class Session;
struct Region;

struct OfMaker;
struct OfPayer;
struct Ticket final : Timer, Hook<Ticket, OfMaker>, Hook<Ticket, OfPayer>, books::Booked<Ticket> {
  Ticket(Tickets& owner, const Secret& value) : tickets(owner), secret(value) {}
  void on_timer(std::int64_t now) override;

  Tickets& tickets;
  Secret secret;
  std::uint64_t serial = 0;  // cursor of LIST
  Region* region = nullptr;
  std::uint32_t rights = 0;
  std::uint32_t uses_left = 0;
  std::uint32_t maker_uid = 0;
  std::uint64_t maker = 0,
                // who may revoke it: sessions of the maker's chain, and members of the group that it was in; 0: none
      maker_group = 0;
  Session* with = nullptr;  // the session whose end ends the ticket; it may revoke it as well
  // the session that made it; null: that one has ended, and the ticket counts for its user alone
  Session* payer = nullptr;
  std::int64_t expires = 0;
  List<Watch, OfTicket> watchers;  // sessions that wait, without a lease, for the region to be ready
  Charge charge;
  bool left() const { return payer == nullptr && with == nullptr; }  // no session holds it any more
};

// Notes that its record must be written again.
void changed(Ticket& ticket);

// The share of its user's tickets that one session may have. So no process can take all of them and die.
std::uint64_t ticket_share(const Host& host, const Account& user);
Result<Ticket*> make_ticket(Tickets& tickets, Session& session, Region& region, std::uint32_t rights,
                            std::uint32_t uses, std::int64_t lifetime);
// The object alone. It ends at the time `expires`.
Ticket& add_ticket(Tickets& tickets, const Secret& secret, std::uint64_t serial, Region& region, std::int64_t expires,
                   Charge charge);
void pay_with(Session& payer, Ticket& ticket);
void end_with_session(Session& session, Ticket& ticket);
void destroy_tickets_of(Tickets& tickets, Session& session);  // those that end with it
void move_tickets(Session& from, Session& heir);              // those that end with `from` end with `heir`
void move_ticket_charges(Session& from, Session& heir);
void leave_ticket_charges(Tickets& tickets, Session& session);  // at the session's end: its user pays for them
Ticket* find_ticket(Tickets& tickets, const Secret& secret);
void use_ticket(Tickets& tickets, Ticket& ticket);  // uses it once; the last use ends it
void destroy_ticket(Tickets& tickets, Ticket& ticket);
bool may_revoke(const Session& session, const Ticket& ticket);

}  // namespace shmb::daemon
