// SPDX-License-Identifier: Apache-2.0
// Tickets live in a table keyed by a hash under a secret key and are compared in constant time.
#include "daemon/ledger/ticket.hpp"

#include "base/text.hpp"
#include "daemon/ledger/accounts.hpp"
#include "daemon/ledger/groups.hpp"
#include "daemon/ledger/host.hpp"
#include "daemon/ledger/refuse.hpp"
#include "daemon/ledger/regions.hpp"
#include "daemon/ledger/tickets.hpp"

namespace shmb::daemon {

void changed(Ticket& ticket) { ticket.tickets.host.books.tickets.note(ticket); }

std::uint64_t ticket_share(const Host& host, const Account& user) {
  if (host.config.limits.session_tickets != 0) return host.config.limits.session_tickets;
  const std::uint64_t all = user.limit(Resource::tickets);
  return all == Account::kNoLimit ? all : all / 4 + (all % 4 != 0 ? 1 : 0);
}

Result<Ticket*> make_ticket(Tickets& tickets, Session& session, Region& region, std::uint32_t rights,
                            std::uint32_t uses, std::int64_t lifetime) {
  auto secret = Secret::draw();
  if (!secret) return system_failure(secret.error(), "drawing a ticket");
  tickets.accounts.hold_uid(session.uid);
  auto charge = session.account.charge(Resource::tickets, 1);
  if (!charge) {
    tickets.accounts.drop_uid(session.uid);
    return std::unexpected(refuse_limit(tickets.groups, session, charge.error()));
  }
  Ticket& ticket = add_ticket(tickets, *secret, ++tickets.host.last_serial, region, tickets.host.now() + lifetime,
                              std::move(*charge));
  ticket.rights = rights;
  ticket.uses_left = uses;
  ticket.maker_uid = session.uid;
  ticket.maker = session.line;
  ticket.maker_group = session.group ? session.group->id : 0;
  pay_with(session, ticket);
  return &ticket;
}

Ticket& add_ticket(Tickets& tickets, const Secret& secret, std::uint64_t serial, Region& region, std::int64_t expires,
                   Charge charge) {
  Ticket& ticket = tickets.all.try_emplace(secret, tickets, secret).first->second;
  ticket.serial = serial;
  tickets.in_order.emplace_hint(tickets.in_order.end(), serial, &ticket);
  ticket.region = &region;
  ++region.tickets;
  ticket.expires = expires;
  tickets.host.timers.set(ticket, expires);
  ticket.charge = std::move(charge);
  changed(ticket);
  return ticket;
}

void pay_with(Session& payer, Ticket& ticket) {
  ticket.payer = &payer;
  payer.paid_tickets.push_back(ticket);
}

void end_with_session(Session& session, Ticket& ticket) {
  ticket.with = &session;
  changed(ticket);
  session.tickets.push_back(ticket);
}

void destroy_tickets_of(Tickets& tickets, Session& session) {
  while (Ticket* ticket = session.tickets.first()) destroy_ticket(tickets, *ticket);
}

void move_tickets(Session& from, Session& heir) {
  while (Ticket* ticket = from.tickets.first()) {
    from.tickets.remove(*ticket);
    end_with_session(heir, *ticket);
  }
}

void move_ticket_charges(Session& from, Session& heir) {
  while (Ticket* ticket = from.paid_tickets.first()) {
    from.paid_tickets.remove(*ticket);
    ticket->payer = &heir;
    changed(*ticket);
    ticket->charge.move_to(heir.account);
    heir.paid_tickets.push_back(*ticket);
  }
}

void leave_ticket_charges(Tickets& tickets, Session& session) {
  while (Ticket* ticket = session.paid_tickets.first()) {
    session.paid_tickets.remove(*ticket);
    ticket->payer = nullptr;
    changed(*ticket);
    ticket->charge.rise();
    if (ticket->left()) ++tickets.accounts.uids.at(session.uid).tickets_left;
  }
}

Ticket* find_ticket(Tickets& tickets, const Secret& secret) {
  auto at = tickets.all.find(secret);
  // A ticket that the timer has not removed yet is expired all the same.
  return at == tickets.all.end() || at->second.expires <= tickets.host.now() ? nullptr : &at->second;
}

void use_ticket(Tickets& tickets, Ticket& ticket) {
  changed(ticket);
  if (--ticket.uses_left == 0) destroy_ticket(tickets, ticket);
}

void destroy_ticket(Tickets& tickets, Ticket& ticket) {
  Region& region = *ticket.region;
  std::uint32_t uid = ticket.maker_uid;
  const Secret secret = ticket.secret;
  tell_ticket_ends(tickets.regions.watches, ticket);
  if (ticket.left()) --tickets.accounts.uids.at(uid).tickets_left;
  if (ticket.with) ticket.with->tickets.remove(ticket);
  if (ticket.payer) ticket.payer->paid_tickets.remove(ticket);
  tickets.host.books.end<books::TicketRecord>(tickets.host.books.tickets, ticket);
  tickets.in_order.erase(ticket.serial);
  tickets.all.erase(secret);
  tickets.accounts.drop_uid(uid);
  --region.tickets;
  release_region(tickets.regions, region);
}

bool may_revoke(const Session& session, const Ticket& ticket) {
  return session.line == ticket.maker || ticket.with == &session ||
         (session.group && session.group->id == ticket.maker_group);
}

void Ticket::on_timer(std::int64_t) { destroy_ticket(tickets, *this); }

}  // namespace shmb::daemon
