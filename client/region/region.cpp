// SPDX-License-Identifier: Apache-2.0
// The operations of an existing handle. create.cpp and attach.cpp make handles.
#include "client/region/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "client/region/headroom.hpp"
#include "client/region/obtain.hpp"
#include "client/region/populate.hpp"
#include "client/session/call.hpp"
#include "client/session/forked.hpp"
#include "client/session/late_reply.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

std::atomic<std::uint64_t> last_serial{0};

// The kernel maps no empty range. So a part without bytes takes a page, as its region does.
std::uint64_t mappable(std::uint64_t length) { return std::max<std::uint64_t>(length, 1); }

}  // namespace

std::uint64_t rounded_bytes(std::uint64_t length, bool hugetlb) {
  const std::uint64_t unit = hugetlb || length >= kHugePage ? kHugePage : kSmallPage;
  return std::max(unit, (length + unit - 1) / unit * unit);
}

Region::Region(std::shared_ptr<Session> session, RegionFacts facts, Mapping mapping, Fd own_fd, KeptDescriptor kept)
    : session_(std::move(session)),
      facts_(facts),
      mapping_(std::move(mapping)),
      own_fd_(std::move(own_fd)),
      kept_(std::move(kept)),
      place_(session_->enrol_lease(*this)),
      forks_at_birth_(forks_seen()),
      serial_(last_serial.fetch_add(1, std::memory_order_relaxed) + 1),
      state_(facts.state),
      page_kind_(facts.page_kind),
      populated_(facts.populated) {}

RegionFacts Region::facts() const {
  RegionFacts now = facts_;
  now.state = state_;
  now.page_kind = page_kind_;
  now.populated = populated_;
  return now;
}

// The rest of a released handle, for objects that still need its mapping. A forked child has neither them nor the
// lease.
struct Region::Rest {
  explicit Rest(ForkMark made) : mark(std::move(made)) {}
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;
  ~Rest() {
    mapping.reset();
    kept.reset();
    if (session == nullptr || !here() || session->is_local() || session->lost()) return;
    (void)post_release(*session, ref, 0);
  }
  bool here() const { return mark.intact(); }

  ForkMark mark;
  std::shared_ptr<Session> session;  // null: the handle still exists
  shmbw_region_ref ref{};
  Mapping mapping;
  KeptDescriptor kept;
};

Region::~Region() { (void)release(0); }

bool Region::writable() const {
  return (facts_.rights & SHMBW_RIGHT_MAP_WRITE) != 0 && state_ != SHMBW_REGION_STATE_PUBLISHED;
}

Result<void> Region::usable() const {
  SHMB_TRY_VOID(session_->enter());
  if (orphaned_)
    return error(Status::forked,
                 "this forked child got no lease of its own on the region: its mapping stays, but the "
                 "broker does not know of it");
  return {};
}

static Result<void> post_release_of(Session& session, shmbw_region_ref region, std::uint32_t count,
                                    std::uint32_t flags) {
  return post<SHMBW_OP_RELEASE>(session, shmbw_release{region, count, flags}, Deadline::after(0));
}

Result<void> post_release(Session& session, shmbw_region_ref region, std::uint32_t flags) {
  return post_release_of(session, region, 1, flags);
}

Result<void> post_kept(Session& session, shmbw_region_ref region, bool kept) {
  return post_release_of(session, region, 0, kept ? SHMBW_RELEASE_KEPT : SHMBW_RELEASE_USED);
}

// Takes a lease for a moment, for its descriptor, and gives it back. A kept descriptor serves for use inside the
// process. The broker must know of one that leaves the process, unless there is no broker any more.
Result<Fd> Region::fetch(std::uint32_t rights, bool for_others, Deadline deadline) {
  if (own_fd_) {
    auto copy = (rights & SHMBW_RIGHT_MAP_WRITE) != 0 ? own_fd_.dup() : sys::reopen_read_only(own_fd_.get());
    if (!copy) return system_failure(copy.error(), "a descriptor of the local region");
    return std::move(*copy);
  }
  if (kept_ && (!for_others || session_->lost())) {
    auto copy = kept_.fd().dup();
    if (!copy) return system_failure(copy.error(), "a copy of the kept descriptor");
    return std::move(*copy);
  }
  shmbw_attach request{};
  request.by = SHMBW_ATTACH_BY_ID;
  request.rights = rights;
  request.region = facts_.ref;
  SHMB_TRY(answer, call<SHMBW_OP_ATTACH>(*session_, request, {}, deadline));
  const shmbw_attach_reply& element = answer.fixed;
  // A region whose descriptor leaves the process is never recycled. The own mapping is accounted for when the handle is
  // released.
  (void)post_release(*session_, facts_.ref, for_others ? 0U : unsigned{SHMBW_RELEASE_RECYCLE});
  const Granted granted{element.region, element.rights, element.length, element.bytes};
  auto fine = check_grant(granted, facts_.ref, rights);
  if (fine) state_ = element.state;
  auto fd = fine ? take_fd(answer.reply, element.outcome) : Result<Fd>(std::unexpected(fine.error()));
  if (fd) fine = check_memory(fd->get(), facts_.length, facts_.bytes);
  if (!fine) fd = std::unexpected(fine.error());
  if (!fd) report_unmapped();
  return fd;
}

// A descriptor was lent for writing and was not mapped: publishers must not wait for this process.
void Region::report_unmapped() {
  if (own_fd_ || !writable()) return;
  if (mapping_ || parts_ > 0) return report(0, SHMBW_PAGE_KIND_UNKNOWN);
  ReadyReport ready;
  ready.add_unmapped(facts_.ref);
  ready.post(*session_);
}

// READY. After it lends a descriptor for writing, the broker delays read-only grants until it gets the report of the
// mapping.
void Region::report(std::uint64_t populated, shmbw_page_kind kind) {
  if (own_fd_ || !writable()) return;
  const shmbw_ready ready{facts_.ref, populated, static_cast<std::uint32_t>(kind), 0};
  (void)post<SHMBW_OP_READY>(*session_, ready, Deadline::after(0));
}

// A region without bytes has only parts without bytes.
bool Region::holds(std::uint64_t offset, std::uint64_t length) const {
  return offset < facts_.bytes && length <= facts_.bytes - offset && (length != 0 || facts_.length == 0);
}

Result<void*> Region::map_part(std::uint64_t offset, std::uint64_t length, Access access, Deadline deadline) {
  SHMB_TRY_VOID(usable());
  if (offset % kSmallPage != 0) return error(Status::invalid, "the offset of a part is a multiple of 4096");
  if (!holds(offset, length)) return error(Status::invalid, "the part lies outside of the region");
  if (facts_.hugetlb() && (offset % kHugePage != 0 || length % kHugePage != 0))
    return error(Status::invalid, "a part of a hugetlb region begins and ends at multiples of 2 MiB");
  if (access == Access::read_write && (facts_.rights & SHMBW_RIGHT_MAP_WRITE) == 0)
    return error(Status::denied, "the handle has no right to write");
  if (access == Access::read_write && !writable())
    return error(Status::write_closed, "the region is published: writing is closed for ever");
  // A writer asks for writing also where it only reads, because a read-only grant would close writing for all.
  std::uint32_t rights = SHMBW_RIGHT_MAP_READ | (writable() ? unsigned{SHMBW_RIGHT_MAP_WRITE} : 0U);
  auto fd = fetch(rights, false, deadline);
  if (!fd && fd.error().status == Status::write_closed && access == Access::read)
    fd = fetch(SHMBW_RIGHT_MAP_READ, false, deadline);
  if (!fd) return std::unexpected(fd.error());
  auto mapped = map_checked(fd->get(), offset, mappable(length), access, facts_.hugetlb());
  if (!mapped) {
    report_unmapped();
    return std::unexpected(mapped.error());
  }
  report(0, SHMBW_PAGE_KIND_UNKNOWN);
  ++parts_;
  return mapped->release();
}

Result<void> Region::unmap_part(void* address, std::uint64_t length) {
  if (length == 0 && facts_.length != 0)
    return error(Status::invalid, "a part that was mapped is given back with its length, and 0 was given");
  const auto begin = reinterpret_cast<std::uintptr_t>(address), own = reinterpret_cast<std::uintptr_t>(data());
  if (begin < own + mapping_.size() && (own <= begin || own - begin < mappable(length)))
    return error(Status::invalid, "this is the mapping of the handle and no part: it goes with the handle");
  if (auto done = sys::munmap(address, mappable(length)); !done)
    return system_failure(done.error(), "unmapping a part");
  for (std::uint32_t parts = parts_; parts > 0 && !parts_.compare_exchange_weak(parts, parts - 1);) continue;
  return {};
}

Result<void> Region::populate(std::uint64_t offset, std::uint64_t length) {
  if (!mapping_) return error(Status::invalid, "the region is not mapped");
  if (!holds(offset, length)) return error(Status::invalid, "the part lies outside of the region");
  length = mappable(length);
  const bool write = writable();
  // Mapping has taken the pages of a hugetlb region out of their reserve. They are no cgroup's memory. Memory that was
  // all there at birth needs no room.
  const bool needs_room = write && !facts_.hugetlb() && facts_.populated < facts_.bytes;
  if (needs_room) SHMB_TRY_VOID(find_headroom(*session_, length, Deadline::after(0)));
  SHMB_TRY(done, populate_part(mapping_, offset, length, write ? Access::read_write : Access::read, facts_.pages()));
  if (!write) return {};
  std::uint64_t before = populated_, now = 0;
  do now = std::min(facts_.bytes, before + done.bytes);
  while (!populated_.compare_exchange_weak(before, now));
  if (before == 0 || done.bytes == facts_.bytes || page_kind_ == done.kind) page_kind_ = done.kind;
  else if (page_kind_ != SHMBW_PAGE_KIND_UNKNOWN) page_kind_ = SHMBW_PAGE_KIND_MIXED;
  // Not for each of many small parts.
  if (done.bytes >= kHugePage || now == facts_.bytes) report(now, static_cast<shmbw_page_kind>(page_kind_.load()));
  return {};
}

Result<Fd> Region::descriptor(Deadline deadline) {
  SHMB_TRY_VOID(usable());
  auto fd = fetch(SHMBW_RIGHT_MAP_READ | (writable() ? unsigned{SHMBW_RIGHT_MAP_WRITE} : 0U), true, deadline);
  if (!fd && fd.error().status == Status::write_closed) fd = fetch(SHMBW_RIGHT_MAP_READ, true, deadline);
  if (fd) report(0, SHMBW_PAGE_KIND_UNKNOWN);
  return fd;
}

Result<void> Region::map_back(Deadline deadline) {
  const interrupt::Shield shield;
  SHMB_TRY(fd, fetch(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE, false, deadline));
  auto mapped = map_checked(fd.get(), 0, facts_.bytes, Access::read_write, facts_.hugetlb());
  if (!mapped) {
    report_unmapped();
    return std::unexpected(mapped.error());
  }
  mapping_ = std::move(*mapped);
  report(0, SHMBW_PAGE_KIND_UNKNOWN);
  (void)map_existing(mapping_, Access::read_write, false);
  return {};
}

// PUBLISH. Another writer that was lent a descriptor may be about to map it, and could not after the seal. So this
// waits for it. The subscription is made before the second request, so that no report falls in between.
static Result<Answered<SHMBW_OP_PUBLISH>> ask_to_publish(Session& session, shmbw_region_ref region, Deadline deadline) {
  const auto ask = [&] { return call<SHMBW_OP_PUBLISH>(session, shmbw_publish{region}, {}, deadline); };
  auto reply = ask();
  if (reply || reply.error().status != Status::not_ready) return reply;
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  spec.events = SHMBW_WATCH_EVENT_READY | SHMBW_WATCH_EVENT_PUBLISHED | SHMBW_WATCH_EVENT_GONE;
  spec.region = region;
  Session::OwnWatch watch(session);
  SHMB_TRY_VOID(watch.begin(spec, deadline));
  for (;;) {
    reply = ask();
    if (reply || reply.error().status != Status::not_ready) return reply;
    auto event = watch.await(deadline);
    if (event) continue;
    // No event is on its way: the broker's last reply is the result.
    if (event.error().status == Status::deadline) return reply;
    return std::unexpected(event.error());
  }
}

Result<void> Region::publish(Deadline deadline) {
  SHMB_TRY_VOID(usable());
  SHMB_TRY_VOID(check_answer_deadline(deadline));
  if (state_ == SHMBW_REGION_STATE_PUBLISHED) return error(Status::invalid, "the region is published already");
  if ((facts_.rights & SHMBW_RIGHT_MAP_WRITE) == 0) return error(Status::denied, "only a writer can publish a region");
  if (auto held = held_.lock(); held && held->here())
    return error(Status::pinned, "the region is registered with a GPU in this process: unpin it, then publish");
  if (const long handles = weak_from_this().use_count(); handles > 1)
    return error(Status::pinned, "the region came in several parts of a message, and this process has " +
                                     std::to_string(handles) +
                                     " handles of its mapping, those still in the message among them: release the "
                                     "others and be done with the message, then publish");
  if (parts_ > 0)
    return error(Status::still_mapped, "a part of the region is still mapped by shmb_region_map: unmap it first");
  const bool was_mapped = mapping_ || unmapped_by_publish_;
  mapping_.reset();
  if (own_fd_) {
    auto done = publish_local();
    if (!done && was_mapped)
      if (auto back = map_back(deadline); !back) done.error().sentence += "; " + back.error().sentence;
    return done;
  }
  auto answer = ask_to_publish(*session_, facts_.ref, deadline);
  if (!answer) {
    Error failure = answer.error();
    unmapped_by_publish_ = was_mapped && failure.status == Status::deadline;
    // The request may be on its way. Mapping the region for writing now would make it fail, or be refused after it.
    // Besides, the caller's time is over.
    if (failure.status == Status::deadline)
      failure.sentence +=
          "; the region is unmapped now, and published once the broker serves the request: publish it again for the "
          "answer and a mapping";
    else if (was_mapped)
      if (auto back = map_back(Deadline::after(0)); !back)
        failure.sentence += "; the region is unmapped now: " + back.error().sentence;
    return std::unexpected(std::move(failure));
  }
  auto& [published, reply] = *answer;
  unmapped_by_publish_ = false;
  state_ = SHMBW_REGION_STATE_PUBLISHED;
  facts_.flags &= ~static_cast<std::uint32_t>(SHMBW_REGION_WRITE_OPEN);
  facts_.rights &= published.rights & ~std::uint32_t{SHMBW_RIGHT_MAP_WRITE};
  if (facts_.name_at_publish) facts_.flags |= SHMBW_REGION_NAMED;
  const Granted granted{published.region, published.rights, facts_.length, facts_.bytes};
  SHMB_TRY_VOID(check_grant(granted, facts_.ref, SHMBW_RIGHT_MAP_READ));
  if (reply.fds.empty()) return error(Status::protocol, "the broker's answer to PUBLISH lacks its descriptor");
  if (!was_mapped) return {};
  auto mapped = map_whole(reply.fds[0].get(), facts_.length, facts_.bytes, Access::read, facts_.hugetlb());
  if (!mapped) {
    mapped.error().sentence.insert(0, "the region is published; ");
    return std::unexpected(mapped.error());
  }
  mapping_ = std::move(*mapped);
  // The old one was for writing: the kernel would not map it any more, not even for reading (until 6.7).
  if (kept_) kept_ = KeptDescriptor::of(std::move(reply.fds[0]));
  if (populated_ != 0) (void)map_existing(mapping_, Access::read, false);
  return {};
}

Result<void> revoke_ticket(Session& session, const Token& ticket, Deadline deadline) {
  if (session.is_local()) return needs_broker("tickets");
  shmbw_ticket_revoke request{};
  std::memcpy(request.ticket, ticket.bytes.data(), sizeof request.ticket);
  SHMB_TRY_VOID(call<SHMBW_OP_TICKET_REVOKE>(session, request, {}, deadline));
  return {};
}

Result<TicketsEnded> release_tickets(Session& session, const TicketsMeant& meant, Deadline deadline) {
  if (session.is_local()) return needs_broker("tickets");
  TicketsEnded all;
  shmbw_tickets_release request{};
  request.region = meant.region;
  request.group = meant.group;
  request.owner_uid = meant.owner_uid;
  request.flags = SHMBW_TICKETS_RELEASE_OWNER_GIVEN | (meant.held ? unsigned{SHMBW_TICKETS_RELEASE_HELD} : 0U);
  do {
    SHMB_TRY(answer, call<SHMBW_OP_TICKETS_RELEASE>(session, request, {}, deadline));
    const shmbw_tickets_release_reply& part = answer.fixed;
    all.tickets += part.tickets;
    all.regions += part.regions;
    all.bytes += part.bytes_freed;
    all.held += part.held;
    if (part.next != 0 && part.next <= request.cursor)  // would never end
      return malformed_answer<SHMBW_OP_TICKETS_RELEASE>();
    request.cursor = part.next;
  } while (request.cursor != 0);
  return all;
}

Result<Region::Ticket> Region::make_ticket(std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime,
                                           Deadline deadline, std::uint32_t flags, std::uint64_t with) {
  if (session_->is_local()) return needs_broker("tickets");
  SHMB_TRY_VOID(usable());
  return client::make_ticket(*session_, facts_.ref, rights, uses, lifetime, deadline, flags, with);
}

Result<Region::Ticket> make_ticket(Session& session, shmbw_region_ref region, std::uint32_t rights, std::uint32_t uses,
                                   std::int64_t lifetime, Deadline deadline, std::uint32_t flags, std::uint64_t with) {
  shmbw_ticket_create request{};
  request.region = region;
  request.rights = rights != 0 ? rights : static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ);
  request.uses = uses;
  request.lifetime = lifetime;
  request.flags = flags;
  request.session = with;
  SHMB_TRY(answer, call<SHMBW_OP_TICKET_CREATE>(session, request, {}, deadline));
  Region::Ticket ticket;
  std::memcpy(ticket.token.bytes.data(), answer.fixed.ticket, sizeof answer.fixed.ticket);
  if (ticket.token == Token{}) return error(Status::protocol, "the broker's answer to TICKET_CREATE has no ticket");
  ticket.expires = answer.fixed.expires;
  return ticket;
}

void undo_ticket_create(LateReply& late) {
  shmbw_ticket_revoke revoke{};
  const auto made = late.fixed<shmbw_ticket_create_reply>();
  std::memcpy(revoke.ticket, made.ticket, sizeof revoke.ticket);
  late.ask<SHMBW_OP_TICKET_REVOKE>(revoke);
}

Result<void> Region::release(Handle handle, std::uint32_t flags) {
  if ((flags & kReleaseNoRecycle) != 0) handle->no_recycle_ = true;
  if (handle.use_count() == 1) return handle->release(flags);
  if ((flags & kReleaseUnname) == 0 || handle->session_->is_local()) return {};
  return client::unname(*handle->session_, Target::with_id(handle->facts_.ref), Deadline::after(0));
}

Result<void> Region::release(std::uint32_t flags) {
  if (std::exchange(released_, true)) return {};
  const bool unnames = (flags & kReleaseUnname) != 0 && !session_->is_local();
  // A forked child that makes no other call has no lease to give back. But only a session can remove a name.
  if (unnames) (void)session_->enter();
  const bool leased = session_->withdraw_lease(place_);
  if (auto rest = held_.lock(); rest && rest->here()) return leave_to(*rest, flags);
  mapping_.reset();
  kept_.reset();
  if (unnames && orphaned_) return client::unname(*session_, Target::with_id(facts_.ref), Deadline::after(0));
  if (session_->is_local() || !leased || orphaned_) return {};
  if (!unnames && session_->lost()) return {};  // its references ended with it
  // Memory may be recycled only if no other holder exists. There is no further mapping here, and no child was forked
  // since that may map it unnoticed by the broker. (The broker learned of descriptors when they left.)
  std::uint32_t wire = 0;
  if ((flags & kReleaseNoRecycle) == 0 && !no_recycle_ && parts_ == 0 && forks_at_birth_ == forks_seen())
    wire |= SHMBW_RELEASE_RECYCLE;
  if (!unnames) return post_release(*session_, facts_.ref, wire);
  return release_with_name(*session_, facts_.ref, wire);
}

Sys<std::shared_ptr<void>> Region::hold_mapping() {
  if (auto held = held_.lock()) return held;
  SHMB_TRY(mark, ForkMark::make());
  auto rest = std::make_shared<Rest>(std::move(mark));
  held_ = rest;
  return rest;
}

// Memory that a device may still write to is never recycled.
Result<void> Region::leave_to(Rest& rest, std::uint32_t flags) {
  rest.mapping = std::move(mapping_);
  rest.kept = std::move(kept_);
  rest.ref = facts_.ref;
  rest.session = session_;
  if ((flags & kReleaseUnname) == 0 || session_->is_local()) return {};
  return client::unname(*session_, Target::with_id(facts_.ref), Deadline::after(0));
}

Result<void> release_with_name(Session& session, shmbw_region_ref region, std::uint32_t flags) {
  const shmbw_release release{region, 1, flags | SHMBW_RELEASE_UNNAME};
  SHMB_TRY(answers, call_batch<SHMBW_OP_RELEASE>(session, std::span(&release, 1), Texts{}, Deadline::after(0)));
  auto released = answers.next();
  if (released) return {};
  // The name stays, but the reference must end.
  (void)post_release(session, region, flags);
  return std::unexpected(released.error());
}

}  // namespace shmb::client
