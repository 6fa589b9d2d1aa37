// SPDX-License-Identifier: Apache-2.0
// PUBLISH, TICKET_CREATE, TICKET_REVOKE, TICKETS_RELEASE, INHERIT: what a lease can be turned into.
//
// A publication has an order, because its seals cannot be taken back: first everything that may refuse it, and the
// reader's descriptor; then the seals, on another thread; then the promised name, the rights of all leases, and the
// events. So a publication that is refused leaves the region as it was.
#include <algorithm>
#include <utility>

#include "base/result.hpp"
#include "base/text.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/sealer.hpp"
#include "daemon/ledger/views.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {

// The session whose end ends the ticket. It must be of the same user, because that user's tickets end with it.
static Result<Session*> end_of_ticket(const Request& request, const shmbw_ticket_create& wish) {
  if ((wish.flags & SHMBW_TICKET_CREATE_WITH_SESSION) == 0) {
    if (wish.session != 0) return error(Status::invalid, "a ticket ends with a session only by the flag with_session");
    return nullptr;
  }
  if (wish.session == 0) return &request.session;
  Session* session = request.ledger.sessions.find(wish.session);
  if (!session || !session->greeted() || session->process_gone || session->uid != request.session.uid)
    return error(Status::not_found, "session " + std::to_string(wish.session) +
                                        ", with which the ticket is to end, has ended or is not this user's");
  return session;
}

// The session's lease on the region, or the error: without a lease it can neither publish nor pass on.
static Result<Lease*> own_lease(Ledger& ledger, Session& session, const shmbw_region_ref& ref) {
  Region* region = ledger.regions.find(ref.id);
  Lease* lease = region ? find_lease(session, *region) : nullptr;
  if (!lease) return std::unexpected(no_lease(ref.id));
  if (ref.generation != 0 && ref.generation != region->generation)
    return std::unexpected(stale_region(ref.id, ref.generation, region->generation));
  return lease;
}

void serve_publish(const Request& request) {
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_publish>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto lease = own_lease(ledger, request.session, wish->region);
  if (!lease) return request.fail(lease.error());
  Region& region = *(*lease)->region;
  if (on_gpu(region)) return request.fail(other_kind(region));
  if (region.state != SHMBW_REGION_STATE_PUBLISHED && !(*lease)->writes())
    return request.fail(Status::denied, "publishing needs a lease with map_write");
  // The seal would fail, and only after 165 ms in which no other client is served (measured, Linux 6.18).
  std::uint32_t pins = 0;
  region.leases.each([&](const Lease& held) { pins += held.pins != 0; });
  if (pins != 0 && region.state != SHMBW_REGION_STATE_PUBLISHED)
    return request.fail(Status::pinned, "the region is registered with a GPU in " + std::to_string(pins) +
                                            (pins == 1 ? " process" : " processes") +
                                            ": unregister it there, then publish");
  Result<Charge> name_charge = Charge{};
  if (region.promised) name_charge = may_keep_promise(ledger.groups, request.session, region);
  if (!name_charge) return request.fail(name_charge.error());
  AwaitedSeals* const seals = awaited_seals(request.session, region, kPublishingSeals);
  if (seals && seals->code != 0) return request.fail(publication_refused(seals->code));
  auto reader = seals ? std::move(seals->reader) : Result<Fd>(Fd());
  // The descriptor first: the seals cannot be undone.
  if (!*reader) reader = reopen_read_only(region.fd.get(), "the region");
  if (!reader) return request.fail(reader.error());
  if (region.state != SHMBW_REGION_STATE_PUBLISHED) {
    if (auto may = may_be_published(region, **lease); !may) return request.fail(may.error());
    if (auto begun = await_seals(ledger.sessions, request.session, region, kPublishingSeals, std::move(*reader));
        !begun)
      return request.fail(begun.error());
    return request.hold();
  }
  if (region.promised) keep_promise(ledger.regions, region, std::move(*name_charge));
  ledger.reply.fds.push_back(reader->get());
  request.answer(shmbw_publish_reply{region.ref(), (*lease)->rights, 0});
}

Result<void> lend_again(const Request& request, const shmbw_publish& /*wish*/, shmbw_publish_reply& reply) {
  Ledger& ledger = request.ledger;
  SHMB_TRY(lease, lease_again(request, reply.region));
  SHMB_TRY(lent, lend_descriptor(ledger.accounts, ledger.reply, *lease->region, SHMBW_RIGHT_MAP_READ));
  ledger.reply.fds.push_back(lent);
  return {};
}

void serve_ticket_create(const Request& request) {
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_ticket_create>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto lease = own_lease(ledger, request.session, wish->region);
  if (!lease) return request.fail(lease.error());
  Region& region = *(*lease)->region;
  const Limits& limits = ledger.host.config.limits;
  if ((wish->rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a right is not known to this broker");
  if ((wish->flags & ~std::uint32_t{SHMBW_TICKET_CREATE_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a flag of ticket_create is not known to this broker");
  if ((wish->rights & SHMBW_RIGHT_MAP_READ) == 0)
    return request.fail(Status::invalid, "a ticket gives map_read at least");
  if (((*lease)->rights & SHMBW_RIGHT_SHARE) == 0)
    return request.fail(Status::denied, "the lease does not carry share: it cannot be passed on");
  if (std::uint32_t missing = wish->rights & ~(*lease)->rights; missing != 0) {
    if (missing == SHMBW_RIGHT_MAP_WRITE && region.sealed())
      return request.fail(Status::write_closed, "writing to the region is closed: a ticket cannot carry map_write");
    return request.fail(Status::denied, "the lease does not carry " + rights_text(missing));
  }
  if ((wish->rights & SHMBW_RIGHT_MAP_WRITE) != 0 && region.sealed())
    return request.fail(Status::write_closed, "writing to the region is closed: a ticket cannot carry map_write");
  if (wish->lifetime < 0) return request.fail(Status::invalid, "a ticket's lifetime is a duration or 0");
  std::int64_t lifetime = wish->lifetime == 0 ? limits.ticket_default : wish->lifetime;
  if (lifetime > limits.ticket_max) {
    Error refused = plain(Status::limit, "limit: lifetime of " + format_duration(lifetime) + " asked, at most " +
                                             format_duration(limits.ticket_max) +
                                             "; make another ticket later or raise limits.ticket_max");
    refused.shortage = {SHMBW_SLOT_LIFETIME,
                        SHMBW_SCOPE_HOST,
                        0,
                        static_cast<std::uint64_t>(limits.ticket_max),
                        0,
                        static_cast<std::uint64_t>(lifetime)};
    return request.fail(refused);
  }
  auto end = end_of_ticket(request, *wish);
  if (!end) return request.fail(end.error());
  auto ticket = make_ticket(ledger.tickets, request.session, region, wish->rights, std::max(wish->uses, 1U), lifetime);
  if (!ticket) return request.fail(ticket.error());
  if (*end) end_with_session(**end, **ticket);
  shmbw_ticket_create_reply reply{};
  (*ticket)->secret.to(reply.ticket);
  reply.expires = (*ticket)->expires;
  request.answer(reply);
}

// A session that holds only the token may use the ticket but not end it. Otherwise it could take the ticket from the
// others it is for.
void serve_ticket_revoke(const Request& request) {
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_ticket_revoke>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  Ticket* ticket = find_ticket(ledger.tickets, Secret::from(wish->ticket));
  if (!ticket || !may_revoke(request.session, *ticket))
    return request.fail(Status::not_found, "no such ticket of this session or its group: it may be used up or over");
  const shmbw_ticket_revoke_reply reply{ticket->uses_left, 0};
  destroy_ticket(ledger.tickets, *ticket);
  request.answer(reply);
}

// A part of the table in each turn, because others are served meanwhile (law 8): the end of a ticket may free a region.
void serve_tickets_release(const Request& request) {
  constexpr std::uint32_t kLooks = 512, kEnds = 64;
  Ledger& ledger = request.ledger;
  auto wish = request.read<shmbw_tickets_release>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  if ((wish->flags & ~std::uint32_t{SHMBW_TICKETS_RELEASE_KNOWN}) != 0)
    return request.fail(Status::unknown_flags, "a flag of tickets_release is not known to this broker");
  const bool held_too = (wish->flags & SHMBW_TICKETS_RELEASE_HELD) != 0;
  const std::uint32_t own = request.session.uid;
  const std::uint32_t user = (wish->flags & SHMBW_TICKETS_RELEASE_OWNER_GIVEN) != 0 ? wish->owner_uid : own;
  if (user != own && !request.session.admin)
    return request.fail(Status::denied, "tickets of uid " + std::to_string(user) +
                                            " are ended by that user, or by root and the broker's user over the "
                                            "admin socket");
  const auto meant = [&](const Ticket& ticket) {
    const Region& region = *ticket.region;
    if (ticket.maker_uid != user || (wish->group != 0 && region.group->id != wish->group)) return false;
    return wish->region.id == 0 || (region.id == wish->region.id &&
                                    (wish->region.generation == 0 || region.generation == wish->region.generation));
  };
  shmbw_tickets_release_reply reply{};
  Tally tally;
  Tally* const outer = std::exchange(ledger.regions.tally, &tally);
  auto at = ledger.tickets.in_order.upper_bound(wish->cursor);
  std::uint64_t last = 0;
  for (std::uint32_t looks = 0; at != ledger.tickets.in_order.end(); ++looks) {
    if (looks == kLooks || reply.tickets == kEnds) {
      reply.next = last;
      break;
    }
    Ticket& ticket = *at->second;
    last = at->first;
    ++at;  // before that ticket is destroyed
    if (!meant(ticket)) continue;
    if (!held_too && !ticket.left()) {
      ++reply.held;
      continue;
    }
    destroy_ticket(ledger.tickets, ticket);
    ++reply.tickets;
  }
  ledger.regions.tally = outer;
  reply.regions = tally.regions;
  reply.bytes_freed = tally.bytes;
  request.answer(reply);
}

// The copy carries no descriptor: the child has its parent's, or its mapping. So map_write is copied also where writing
// is closed (law 6). The child may not map what the parent has not mapped yet.
static Result<Lease*> inherit(Ledger& ledger, Session& session, const shmbw_inherit& wish) {
  if ((wish.rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return error(Status::unknown_flags, "a right is not known to this broker");
  Session* source = session.fork_source ? ledger.sessions.find(session.fork_source) : nullptr;
  if (!source) return error(Status::not_found, "no session to inherit from: HELLO named none, or it has ended");
  SHMB_TRY(held, own_lease(ledger, *source, wish.region));
  if (on_gpu(*held->region))
    return error(Status::forked_child, "GPU memory does not survive fork: open the region in the child after exec");
  std::uint32_t rights = wish.rights ? wish.rights : held->rights;
  if ((rights & ~held->rights) != 0)
    return error(Status::denied, "the parent's lease does not carry " + rights_text(rights & ~held->rights));
  return book_lease(ledger.regions, session, *held->region, rights, std::max(wish.count, 1U), held->reach);
}

void serve_inherit(const Request& request) {
  auto batch = open_batch<shmbw_inherit>(request, [](const shmbw_inherit&) { return std::size_t{0}; });
  if (!batch) return;
  BatchAnswer<shmbw_inherit_reply> answer(request, batch->count());
  for (std::size_t i = answer.first(); i < batch->count(); ++i) {
    if (answer.turn_is_over()) return;
    auto lease = inherit(request.ledger, request.session, *batch->element<shmbw_inherit>(i));
    if (!lease) {
      answer.fail(lease.error());
      continue;
    }
    shmbw_inherit_reply reply{};
    reply.rights = (*lease)->rights;
    answer.ok(reply);
  }
  answer.send();
}

}  // namespace shmb::daemon
