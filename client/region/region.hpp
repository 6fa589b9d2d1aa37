// SPDX-License-Identifier: Apache-2.0
// A region as this process has it: one lease, with the mapping made for it. Handles share it, and each handle ends by
// itself: the parts of a message that name one region are handles of one mapping. The descriptor is closed after
// mapping. So a process may hold thousands of regions under a limit of 1,024 descriptors. A call that needs a
// descriptor later fetches it from the broker (the strategy file_descriptor keeps it: strategy.hpp). If a step fails
// after the broker granted a lease, the lease is given back before the error is returned.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "client/face/shmbroker.h"
#include "client/region/populate.hpp"
#include "client/session/session.hpp"
#include "client/session/strategy.hpp"
#include "proto/names.hpp"

namespace shmb::client {

// Flags that only the library knows, beside those of the wire, which are the low bits.
inline constexpr std::uint32_t kCreateNoPopulate = SHMB_CREATE_NO_POPULATE, kCreateSmallPages = SHMB_CREATE_SMALL_PAGES,
                               kCreateUnmapped = SHMB_CREATE_UNMAPPED, kCreateOnNode = SHMB_CREATE_ON_NODE;
inline constexpr std::uint32_t kAttachUnmapped = SHMB_ATTACH_UNMAPPED, kAttachNoPopulate = SHMB_ATTACH_NO_POPULATE;
inline constexpr std::uint32_t kAttachTimeline = 1 << 10;  // not in the C ABI: refused if the region is no timeline
inline constexpr std::uint32_t kReleaseNoRecycle = SHMB_RELEASE_NO_RECYCLE, kReleaseUnname = SHMB_RELEASE_UNNAME;
inline constexpr std::uint64_t kMaxLength = (std::uint64_t{1} << 47) - 1;

// The memory behind a region of `length` bytes: whole pages, huge ones from 2 MiB and on hugetlb. A region without
// bytes has one page: so it has an address, a size that the kernel can map, and a descriptor like any other.
std::uint64_t rounded_bytes(std::uint64_t length, bool hugetlb = false);

struct CreateItem {
  std::uint64_t length = 0;
  std::string name;
  std::uint64_t group = 0;
  std::int64_t keep = 0;
  std::uint32_t flags = 0, rights = 0;
  std::uint32_t node = 0;  // with kCreateOnNode
  bool hugetlb() const { return (flags & SHMBW_CREATE_HUGETLB) != 0; }
};

// The target of an attach, named in one of three ways.
struct Target {
  shmbw_attach_by by = SHMBW_ATTACH_BY_NONE;
  names::Address address;
  shmbw_region_ref region{};
  std::uint64_t epoch = 0;  // with `region`: 0 or the broker's
  Token ticket;
  static Result<Target> at(const std::string& address);
  static Target with_id(shmbw_region_ref region, std::uint64_t epoch = 0);
  static Target with_ticket(const Token& ticket);
};
struct AttachItem {
  Target target;
  std::uint32_t rights = 0, flags = 0;
};

struct RegionFacts {
  shmbw_region_ref ref{};
  std::uint64_t epoch = 0, length = 0, bytes = 0, group = 0, populated = 0;
  std::uint32_t rights = 0, state = 0, page_kind = 0, flags = 0;
  bool recycled = false;
  bool small_pages = false, name_at_publish = false;  // as the creator asked for
  bool hugetlb() const { return (flags & SHMBW_REGION_HUGETLB) != 0; }
  PagesWanted pages() const {
    return hugetlb() ? PagesWanted::hugetlb : small_pages ? PagesWanted::small : PagesWanted::huge;
  }
};

// Ownership: handles share it. The last one gives the lease back and removes the mapping, unless hold_mapping() keeps
// it. It shares its session, so the connection lives as long as any region.
//
// Threads: any thread may call the functions that take a deadline. The memory itself has no lock: that is the
// program's. A release while another thread uses the mapping is a fault of the program.
//
// A fork: the child has the mapping, and at its first call a lease of its own (Session::take_over). If the broker did
// not grant it, the handle is orphaned, and each call of it that needs the broker is an error.
class Region final : public HeldLease, public std::enable_shared_from_this<Region> {
 public:
  using Handle = std::shared_ptr<Region>;

  Region(std::shared_ptr<Session> session, RegionFacts facts, Mapping mapping, Fd own_fd, KeptDescriptor kept = {});
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();  // as release({}), if that was not called

  RegionFacts facts() const;  // as they are now
  std::uint64_t length() const { return facts_.length; }
  shmbw_region_ref ref() const override { return facts_.ref; }
  std::uint32_t rights() const override { return facts_.rights; }
  std::uint64_t serial() const { return serial_; }  // of this handle, never reused in this process
  std::byte* data() const { return mapping_.data(); }
  std::span<std::byte> bytes() const { return {mapping_.data(), mapping_ ? facts_.length : 0}; }
  Session& session() const { return *session_; }
  bool keeps_descriptor() const { return own_fd_ || kept_; }

  // Makes another mapping of a part. The caller unmaps it with unmap_part.
  Result<void*> map_part(std::uint64_t offset, std::uint64_t length, Access access, Deadline deadline);
  Result<void> unmap_part(void* address, std::uint64_t length);
  Result<void> populate(std::uint64_t offset, std::uint64_t length);
  Result<Fd> descriptor(Deadline deadline);
  // Refused as `pinned` while there is another handle, because its mapping would vanish.
  Result<void> publish(Deadline deadline);
  // Ends this handle, also on an error. The last handle gives back lease and mapping. A name is removed at once,
  // and memory that must not be recycled is not, whichever handle asked.
  static Result<void> release(Handle handle, std::uint32_t flags);
  // For the only handle. It is invalid afterwards, also on an error.
  Result<void> release(std::uint32_t flags);
  // While the result lives, the mapping stays where it is: `publish` is refused as `pinned`. A release leaves mapping
  // and lease to the result, which gives them back at its own end. A name that release removes goes at once.
  Sys<std::shared_ptr<void>> hold_mapping();
  struct Ticket {
    Token token;
    std::int64_t expires = 0;
  };
  // `flags`: of SHMBW_TICKET_CREATE_*. `with`: the session with which the ticket ends, 0: this one.
  Result<Ticket> make_ticket(std::uint32_t rights, std::uint32_t uses, std::int64_t lifetime, Deadline deadline,
                             std::uint32_t flags = 0, std::uint64_t with = 0);

  bool is_mapped() const override { return mapping_.data() != nullptr; }
  void not_inherited() override { orphaned_ = true; }

 private:
  bool writable() const;
  bool holds(std::uint64_t offset, std::uint64_t length) const;
  Result<void> usable() const;
  Result<Fd> fetch(std::uint32_t rights, bool for_others, Deadline deadline);
  Result<void> publish_local();
  Result<void> map_back(Deadline deadline);
  void report(std::uint64_t populated, shmbw_page_kind kind);
  void report_unmapped();
  struct Rest;
  Result<void> leave_to(Rest& rest, std::uint32_t flags);

  std::shared_ptr<Session> session_;
  RegionFacts facts_;
  Mapping mapping_;
  Fd own_fd_;                 // local sessions only: no broker could give it again
  KeptDescriptor kept_;       // of the present mapping: for writing as long as that can be written
  std::weak_ptr<Rest> held_;  // the result of hold_mapping
  std::list<HeldLease*>::iterator place_;
  std::uint64_t forks_at_birth_, serial_;
  // Other handles may change these at the same time.
  std::atomic<std::uint32_t> parts_ = 0, state_, page_kind_;
  std::atomic<std::uint64_t> populated_;
  std::atomic<bool> no_recycle_ = false;
  bool orphaned_ = false, released_ = false;
  bool unmapped_by_publish_ = false;  // a publish without a reply: if it is repeated, it maps the region again
};

// One result for each item, in order. An error of the whole call (session lost, deadline) is in every element that it
// concerns.
std::vector<Result<Region::Handle>> create_regions(const std::shared_ptr<Session>& session,
                                                   std::span<const CreateItem> items, std::int64_t timeout);
std::vector<Result<Region::Handle>> attach_regions(const std::shared_ptr<Session>& session,
                                                   std::span<const AttachItem> items, std::int64_t timeout);
Result<Region::Handle> create_region(const std::shared_ptr<Session>& session, const CreateItem& item,
                                     std::int64_t timeout = 0);
// Waits for a name that does not exist yet, and for a writer that has not mapped yet. wait 0: no wait for a name, and
// the default for a writer.
Result<Region::Handle> attach_region(const std::shared_ptr<Session>& session, const AttachItem& item,
                                     std::int64_t timeout = 0, std::int64_t wait = 0);
// Removes the name of the region at an address.
Result<void> unname(Session& session, const Target& target, Deadline deadline);

Result<Region::Handle> create_local(const std::shared_ptr<Session>& session, const CreateItem& item);
// Adopts shared memory by its descriptor, of which it keeps a duplicate.
Result<Region::Handle> adopt_local(const std::shared_ptr<Session>& session, int fd, std::uint32_t rights);

// Ends a ticket that this session, or one of its group, made.
Result<void> revoke_ticket(Session& session, const Token& ticket, Deadline deadline);

// Tickets of one user, made by any session. `region` id 0 and `group` 0: for any target.
struct TicketsMeant {
  std::uint32_t owner_uid = 0;
  shmbw_region_ref region{};
  std::uint64_t group = 0;
  bool held = false;  // also those that a session still holds, as maker or as the one they end with
};
struct TicketsEnded {
  std::uint64_t tickets = 0, regions = 0, bytes = 0;  // regions and bytes: freed, because only these tickets held them
  std::uint64_t held = 0;                             // tickets that stay because a session holds them
};
// For the session's user; over the admin socket for all users. The broker looks at a part of the table for each reply.
// Tickets that were ended before an error stay ended. Errors: denied, deadline.
Result<TicketsEnded> release_tickets(Session& session, const TicketsMeant& meant, Deadline deadline);
Result<Region::Ticket> make_ticket(Session& session, shmbw_region_ref region, std::uint32_t rights, std::uint32_t uses,
                                   std::int64_t lifetime, Deadline deadline, std::uint32_t flags = 0,
                                   std::uint64_t with = 0);
// Gives back one reference and removes the name. If the name may not be removed, the reference is given back all the
// same.
Result<void> release_with_name(Session& session, shmbw_region_ref region, std::uint32_t flags);
// RELEASE without a reply.
Result<void> post_release(Session& session, shmbw_region_ref region, std::uint32_t flags);
// Reports that one reference is only kept, so that the broker may ask for it, or that none is.
Result<void> post_kept(Session& session, shmbw_region_ref region, bool kept);

}  // namespace shmb::client
