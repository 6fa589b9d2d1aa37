// SPDX-License-Identifier: Apache-2.0
// CREATE, ATTACH, RELEASE, READY: batches in which each element has its own outcome.
//
// An ATTACH in private mode may close writing to a region for ever, and that needs a seal (law 6). So all elements are
// looked at twice. The first look (waits_for_seals) changes no books. It begins the seals that are needed, and holds
// the request back. The second one, after the seals, books the leases. Between the two looks a writer may have come or
// gone: the second look checks all rights again, and refuses what does not hold any more.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/result.hpp"
#include "daemon/ledger/create.hpp"
#include "daemon/ledger/grant.hpp"
#include "daemon/ledger/target.hpp"
#include "daemon/ledger/views.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {

static std::uint16_t add_descriptor(Ledger& ledger, int fd) {
  ledger.reply.fds.push_back(fd);
  return static_cast<std::uint16_t>(ledger.reply.fds.size() - 1);
}

void serve_create(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = open_batch<shmbw_create>(request, [](const shmbw_create& element) { return element.name_len; });
  if (!batch) return;
  BatchAnswer<shmbw_create_reply> answer(request, batch->count());
  wire::TextReader texts = batch->texts();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    const shmbw_create wish = *batch->element<shmbw_create>(i);
    const std::string_view name = *texts.take(wish.name_len);
    if (i < answer.first()) continue;
    if (answer.turn_is_over()) return;
    auto created = create_region(ledger.regions, request.session, wish, name);
    if (!created) {
      answer.fail(created.error());
      continue;
    }
    const Region& region = *created->region;
    shmbw_create_reply reply{};
    reply.region = region.ref();
    reply.bytes = region.bytes;
    reply.group = region.group->id;
    reply.flags = created->dirty ? SHMBW_CREATED_DIRTY : 0;
    reply.rights = created->lease->rights;
    answer.ok(reply, add_descriptor(ledger, region.fd.get()));
  }
  answer.send();
}

Result<void> lend_again(const Request& request, const shmbw_create& /*wish*/, shmbw_create_reply& reply) {
  SHMB_TRY(lease, lease_again(request, reply.region));
  reply.outcome.fd_index = add_descriptor(request.ledger, lease->region->fd.get());
  return {};
}

namespace {

struct Attached {
  Region* region;
  const Lease* lease;
  int fd;
};

Naming naming_of(const Session& session, const shmbw_attach& wish, std::string_view group, std::string_view name) {
  const bool owner_given = (wish.flags & SHMBW_ATTACH_OWNER_GIVEN) != 0;
  return {wish.by, wish.region, wish.ticket, owner_given ? wish.owner_uid : session.uid, group, name};
}

bool no_descriptor(const shmbw_attach& wish) { return (wish.flags & SHMBW_ATTACH_NO_FD) != 0; }
bool writes(const shmbw_attach& wish) { return (wish.rights & SHMBW_RIGHT_MAP_WRITE) != 0; }

// Checks the words and whether the rights can be granted. Changes nothing.
Result<Target> admit_attach(Ledger& ledger, Session& session, const shmbw_attach& wish, std::string_view group,
                            std::string_view name) {
  if ((wish.flags & ~std::uint32_t{SHMBW_ATTACH_KNOWN}) != 0)
    return error(Status::unknown_flags, "an attach flag is not known to this broker");
  if ((wish.rights & ~std::uint32_t{SHMBW_RIGHT_KNOWN}) != 0)
    return error(Status::unknown_flags, "a right is not known to this broker");
  if ((wish.rights & SHMBW_RIGHT_MAP_READ) == 0) return error(Status::invalid, "an attach asks for map_read at least");
  auto target = find_target(ledger.sessions, session, naming_of(session, wish, group, name));
  if (!target) return target;
  const Region& region = *target->region;
  if (on_gpu(region)) return std::unexpected(other_kind(region));
  // Checked before anything is done to the region, because a reader may close its writing for ever.
  if ((wish.flags & SHMBW_ATTACH_TIMELINE) != 0 && !(region.gpu && region.gpu->timeline))
    return error(Status::invalid, "region " + std::to_string(region.id) + " is no timeline");
  SHMB_TRY_VOID(check_rights(*target, wish.rights));
  SHMB_TRY_VOID(admit_rights(ledger.host, session, region, wish.rights));
  return target;
}

Result<Attached> attach(Ledger& ledger, Session& session, const shmbw_attach& wish, std::string_view group,
                        std::string_view name) {
  SHMB_TRY(target, admit_attach(ledger, session, wish, group, name));
  Region& region = *target.region;
  AwaitedSeals* const closing = awaited_seals(session, region, kClosingSeals);
  if (closing && closing->refusal && closes_writing(ledger.host, session, region, wish.rights))
    return std::unexpected(*closing->refusal);
  SHMB_TRY(charge, closing && closing->charge ? Result<Charge>(std::move(closing->charge))
                                              : charge_lease(ledger.regions, session, region, 1));
  int fd = -1;
  if (!no_descriptor(wish)) {
    if (closing && closing->reader && !writes(wish)) {
      ledger.accounts.open_descriptors -= std::exchange(closing->counted, false);
      ledger.reply.owned.push_back(std::move(closing->reader));
      fd = ledger.reply.owned.back().get();
    } else {
      SHMB_TRY(lent, lend_descriptor(ledger.accounts, ledger.reply, region, wish.rights));
      fd = lent;
    }
  }
  // Writing is closed already, unless that was refused or could not begin before the first element was served.
  if (closes_writing(ledger.host, session, region, wish.rights)) {
    if (fd >= 0) ledger.reply.owned.pop_back();
    if (closing && closing->code != 0) return std::unexpected(closing_refused(closing->code));
    return error(Status::not_ready,
                 "a writer has reported only after this request had begun that it has mapped the region: ask again");
  }
  Lease& lease = book_charged(ledger.regions, session, region, wish.rights, 1,
                              no_descriptor(wish) ? Reach::mapped : Reach::lent, std::move(charge));
  if (target.ticket) use_ticket(ledger.tickets, *target.ticket);
  return Attached{&region, &lease, fd};
}

// Begins to close writing, for ever, after everything else that can fail. A descriptor that was opened O_RDONLY before
// the seal can do no more than one opened after it. It leaves the broker after the seal.
Result<void> begin_closing(Ledger& ledger, Session& session, Region& region, const shmbw_attach& wish) {
  SHMB_TRY(charge, charge_lease(ledger.regions, session, region, 1));
  Result<Fd> reader = Fd();
  if (!no_descriptor(wish)) reader = reopen_read_only(region.fd.get(), "the region");
  if (!reader) return std::unexpected(reader.error());
  return await_seals(ledger.sessions, session, region, kClosingSeals, std::move(*reader), std::move(charge));
}

// Regions whose writing a request closes are sealed on another thread before any element is served. A session that asks
// to write meanwhile waits for the end of that, because it could not map the descriptor any more.
bool waits_for_seals(const Request& request, const wire::BatchView& batch) {
  Ledger& ledger = request.ledger;
  Session& session = request.session;
  if (ledger.regions.sealings.empty() && ledger.host.mode_bits_bind(session.uid)) return false;
  bool waits = false;
  std::vector<const Region*> written;  // by the elements so far
  wire::TextReader texts = batch.texts();
  for (std::size_t i = 0; i < batch.count(); ++i) {
    const shmbw_attach wish = *batch.element<shmbw_attach>(i);
    const std::string_view group = *texts.take(wish.group_len), name = *texts.take(wish.name_len);
    if (batch.count() == 1 && writes(wish) && ledger.regions.sealings.empty()) return false;
    auto target = admit_attach(ledger, session, wish, group, name);
    if (!target) continue;
    Region& region = *target->region;
    const AwaitedSeals* const closing = awaited_seals(session, region, kClosingSeals);
    if (closing && closing->done) continue;
    if (writes(wish)) {
      if (batch.count() > 1) written.push_back(&region);
      if (seals_under_way(ledger.regions, region) == kClosingSeals &&
          await_seals(ledger.sessions, session, region, kClosingSeals, {}))
        waits = true;
    } else if (closes_writing(ledger.host, session, region, wish.rights) && !closing) {
      Result<void> begun =
          error(Status::busy, "an element before this one in the batch asks to write: ask for this one alone");
      if (std::ranges::find(written, &region) == written.end()) begun = begin_closing(ledger, session, region, wish);
      if (begun) waits = true;
      else session.awaited.push_back({region.id, kClosingSeals, true, 0, {}, {}, false, begun.error()});
    }
  }
  return waits;
}

}  // namespace

void serve_attach(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = open_batch<shmbw_attach>(
      request, [](const shmbw_attach& element) { return std::size_t{element.group_len} + element.name_len; });
  if (!batch) return;
  if (!request.session.batch && waits_for_seals(request, *batch)) return request.hold();
  BatchAnswer<shmbw_attach_reply> answer(request, batch->count());
  wire::TextReader texts = batch->texts();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    const shmbw_attach wish = *batch->element<shmbw_attach>(i);
    const std::string_view group = *texts.take(wish.group_len), name = *texts.take(wish.name_len);
    if (i < answer.first()) continue;
    if (answer.turn_is_over()) return;
    auto attached = attach(ledger, request.session, wish, group, name);
    if (!attached) {
      answer.fail(attached.error());
      continue;
    }
    const Region& region = *attached->region;
    shmbw_attach_reply reply{};
    reply.region = region.ref();
    reply.length = region.length;
    reply.bytes = region.bytes;
    reply.group = region.group->id;
    reply.rights = attached->lease->rights;
    reply.state = region.state;
    reply.page_kind = region.page_kind;
    reply.flags = region_flags(region);
    answer.ok(reply, attached->fd < 0 ? std::uint16_t{SHMBW_NO_FD} : add_descriptor(ledger, attached->fd));
  }
  answer.send();
}

// Rights that the lease has lost since are not lent.
Result<void> lend_again(const Request& request, const shmbw_attach& wish, shmbw_attach_reply& reply) {
  if (reply.outcome.fd_index == SHMBW_NO_FD) return {};
  Ledger& ledger = request.ledger;
  SHMB_TRY(lease, lease_again(request, reply.region));
  SHMB_TRY(lent, lend_descriptor(ledger.accounts, ledger.reply, *lease->region, wish.rights & lease->rights));
  reply.outcome.fd_index = add_descriptor(ledger, lent);
  return {};
}

namespace {

Result<void> release(Ledger& ledger, Session& session, const shmbw_release& wish) {
  if ((wish.flags & ~std::uint32_t{SHMBW_RELEASE_KNOWN}) != 0)
    return error(Status::unknown_flags, "a release flag is not known to this broker");
  SHMB_TRY(target, target_by_id(ledger.regions, session, wish.region));
  Region& region = *target.region;
  Lease* lease = find_lease(session, region);
  const bool undo = (wish.flags & SHMBW_RELEASE_UNDO) != 0;
  const bool unname = undo || (wish.flags & SHMBW_RELEASE_UNNAME) != 0;
  if (!lease && !unname) return error(Status::not_found, "this session has no lease on the region");
  if (lease && wish.count > lease->count)
    return error(Status::invalid, "this session has " + std::to_string(lease->count) +
                                      " references to the region, not " + std::to_string(wish.count));
  // The right protects the name from others. A request that failed for its caller leaves nothing, named or not.
  if (undo && (!lease || !lease->made))
    return error(Status::denied, "only the session that made a region undoes it, while it has its reference");
  if (unname && !undo && ((lease ? lease->rights : target.may) & SHMBW_RIGHT_RELEASE) == 0)
    return error(Status::denied, "taking a region's name away needs the right release");
  if (lease && region.gpu && region.gpu->kind == SHMBW_GPU_KIND_LEGACY && region.gpu->exporter == session.id)
    return error(
        Status::invalid,
        "others may still use this memory, which is its publisher's: retire it, and free it once it is drained");
  if ((wish.flags & (SHMBW_RELEASE_KEPT | SHMBW_RELEASE_USED)) != 0) {
    if (!std::has_single_bit(wish.flags) || wish.count != 0)
      return error(Status::invalid, "release flags kept and used give nothing back: count 0, and no other flag");
    if (region.gpu) return error(Status::invalid, "memory of a GPU is not kept for later messages");
    if (wish.flags == SHMBW_RELEASE_KEPT) keep_lease(ledger.regions, *lease);
    else use_lease(ledger.regions, *lease);
    return {};
  }
  Group& group = *region.group;
  const std::uint64_t group_id = group.id;
  if (unname) group.names.remove(region);
  const bool unmapped = (wish.flags & SHMBW_RELEASE_RECYCLE) != 0;
  if (lease && wish.count != 0 && wish.count < lease->count) {
    lease->count -= wish.count;
    changed(*lease);
    if (!unmapped) region.no_recycle = true;
    changed(region);
    if (lease->kept) keep_lease(ledger.regions, *lease);  // asked for again if no session needs it now
  } else if (lease) {
    drop_lease(ledger.regions, *lease, unmapped);
  } else {
    release_region(ledger.regions, region, unmapped);
  }
  if (!unname) return {};
  // the group may have ended with its last region
  if (Group* left = find_group(ledger.groups, group_id)) settle_group(ledger.groups, *left);
  return {};
}

}  // namespace

void serve_release(const Request& request) {
  auto batch = open_batch<shmbw_release>(request, [](const shmbw_release&) { return std::size_t{0}; });
  if (!batch) return;
  BatchAnswer<shmbw_release_reply> answer(request, batch->count());
  for (std::size_t i = answer.first(); i < batch->count(); ++i) {
    if (answer.turn_is_over()) return;
    if (auto released = release(request.ledger, request.session, *batch->element<shmbw_release>(i)); released)
      answer.ok({});
    else answer.fail(released.error());
  }
  answer.send();
}

void serve_shelf_empty(const Request& request) {
  auto wish = request.read<shmbw_shelf_empty>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  Ledger& ledger = request.ledger;
  shmbw_shelf_empty_reply reply{};
  reply.bytes = empty_shelves(ledger.regions, request.session, wish->bytes != 0 ? wish->bytes : UINT64_MAX);
  if (auto uid = ledger.accounts.uids.find(request.session.uid); uid != ledger.accounts.uids.end())
    reply.pending = uid->second.bytes_freeing;
  request.answer(reply);
}

// One-way: a faulty request is ignored, because there is no reply.
void serve_ready(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = wire::BatchView::open(request.packet);
  if (!batch) return;
  for (std::size_t i = 0; i < batch->count(); ++i) {
    auto ready = batch->element<shmbw_ready>(i);
    if (!ready) return;
    Region* region = ledger.regions.find(ready->region.id);
    Lease* lease = region ? find_lease(request.session, *region) : nullptr;
    if (!lease || ready->region.generation != region->generation) continue;
    if ((ready->flags & SHMBW_READY_UNMAPPED) != 0) {
      if (lease->lent_for_writing()) set_lease(ledger.regions, *lease, lease->rights, Reach::later);
      continue;
    }
    // Only writers populate. A reader's report of the pages would be a guess.
    if (lease->writes() && ready->page_kind != SHMBW_PAGE_KIND_UNKNOWN &&
        ready->page_kind <= SHMBW_PAGE_KIND_UNPOPULATED) {
      region->page_kind = static_cast<std::uint8_t>(ready->page_kind);
      region->populated = std::min(ready->populated, region->bytes);
    }
    if (region->state == SHMBW_REGION_STATE_CREATED && lease->writes()) region->state = SHMBW_REGION_STATE_READY;
    changed(*region);
    if (lease->may_still_map_for_writing()) set_lease(ledger.regions, *lease, lease->rights, Reach::mapped);
  }
}

}  // namespace shmb::daemon
