// SPDX-License-Identifier: Apache-2.0
// CREATE, in batches. The library looks for room before it asks the broker. It puts memory behind a region before the
// caller gets it. It zeroes recycled memory unless the caller does not mind.
//
// A batch is sent in one packet as far as the broker's batch allows, and each region has its own outcome. Between the
// grant and the handle each region passes the same steps: check the grant, check the file, map, populate, zero, READY.
// A region that fails at any of them is given back at once, and the others go on.
#include <algorithm>
#include <cstring>

#include "client/region/headroom.hpp"
#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

// A create that its caller does not get leaves nothing, named or not. Brokers of all versions know unname; undo is for
// leases without the right to it.
std::uint32_t release_to_undo(const shmbw_create_reply& made) {
  return (made.rights & SHMBW_RIGHT_RELEASE) != 0 ? SHMBW_RELEASE_UNNAME : SHMBW_RELEASE_UNDO;
}

bool on_node(const CreateItem& item) { return (item.flags & kCreateOnNode) != 0; }

// The room of a node is looked at only here, so a region on a node is populated whatever its length.
bool populates(const CreateItem& item, bool strict) {
  if ((item.flags & (kCreateNoPopulate | kCreateUnmapped)) != 0) return false;
  return item.length <= kPopulateByDefault || on_node(item) || strict;
}

// Pages of the host's reserve are no cgroup's memory.
bool needs_room(const CreateItem& item, bool strict) { return populates(item, strict) && !item.hugetlb(); }

// Bound memory has no other node to come from. A later touch could be SIGBUS (the reserve of hugetlb pages is the
// host's, not the node's) or wake the OOM killer. So all of it comes now, with calls that return an errno.
Result<void> check_node(const CreateItem& item) {
  if ((item.flags & kCreateUnmapped) != 0)
    return error(Status::invalid, "a NUMA node is set through a mapping: a region on a node is mapped");
  if ((item.flags & kCreateNoPopulate) != 0)
    return error(Status::invalid,
                 "a region on a NUMA node is populated at its creation, because a later touch could find the node full "
                 "and end the process: create it populated, or leave the node out");
  if (item.rights != 0 && (item.rights & SHMBW_RIGHT_MAP_WRITE) == 0)
    return error(Status::invalid,
                 "a region on a NUMA node is populated at its creation, which takes the right to write: ask for that "
                 "right, or leave the node out");
  return {};
}

// The checks that need no answer of the broker.
Result<void> check_item(const CreateItem& item, bool strict) {
  if (item.length > kMaxLength)
    return error(Status::invalid, "a region has fewer than 2^47 bytes, asked " + std::to_string(item.length));
  if (!item.name.empty()) SHMB_TRY_VOID(names::check(item.name, "region name"));
  if (on_node(item)) SHMB_TRY_VOID(check_node(item));
  if (item.hugetlb()) {
    if (item.length == 0) return error(Status::invalid, "a region of 0 bytes has no hugetlb page: leave hugetlb out");
    if ((item.flags & kCreateSmallPages) != 0)
      return error(Status::invalid, "a region has either hugetlb pages or small ones: leave one of the two out");
    return {};  // mapping it reserves its pages
  }
  if (strict && !populates(item, strict))
    return error(Status::unsupported,
                 "an unpopulated region is refused while vm.overcommit_memory is 2: touching it could be a SIGBUS; "
                 "create it populated");
  return {};
}

Result<Region::Handle> finish_create(const std::shared_ptr<Session>& session, const SessionFacts& broker,
                                     const CreateItem& item, const shmbw_create_reply& granted, Fd fd, bool strict,
                                     ReadyReport& ready) {
  const std::uint32_t rights = item.rights != 0 ? item.rights : std::uint32_t{SHMBW_RIGHT_KNOWN};
  const Granted grant{granted.region, granted.rights, item.length, granted.bytes};
  SHMB_TRY_VOID(check_grant(grant, {}, rights));
  if (granted.group == 0 || (item.group != 0 && granted.group != item.group))
    return error(Status::protocol, "the broker's answer is not what was asked for: the region is in group " +
                                       names::id_text(granted.group));
  RegionFacts facts;
  facts.ref = granted.region;
  facts.epoch = broker.epoch;
  facts.length = item.length;
  facts.bytes = granted.bytes;
  facts.group = granted.group;
  facts.rights = rights;
  facts.state = SHMBW_REGION_STATE_CREATED;
  facts.page_kind = SHMBW_PAGE_KIND_UNPOPULATED;
  facts.flags = SHMBW_REGION_WRITE_OPEN;
  facts.small_pages = (item.flags & kCreateSmallPages) != 0;
  if (item.hugetlb()) facts.flags |= SHMBW_REGION_HUGETLB;
  facts.name_at_publish = (item.flags & SHMBW_CREATE_NAME_AT_PUBLISH) != 0;
  if (!item.name.empty() && !facts.name_at_publish) facts.flags |= SHMBW_REGION_NAMED;
  if ((item.flags & SHMBW_CREATE_MANY_WRITERS) != 0) facts.flags |= SHMBW_REGION_MANY_WRITERS;
  const bool dirty = (granted.flags & SHMBW_CREATED_DIRTY) != 0;
  if ((item.flags & SHMBW_CREATE_HEAP) != 0) facts.flags |= SHMBW_REGION_HEAP;
  if (dirty) facts.flags |= SHMBW_REGION_DIRTY_BIRTH;
  facts.recycled = dirty;
  SHMB_TRY_VOID(check_memory(fd.get(), facts.length, facts.bytes));
  if ((item.flags & kCreateUnmapped) != 0) {
    ready.add_unmapped(facts.ref);
    return std::make_shared<Region>(session, facts, Mapping(), Fd());
  }

  const Access access = (facts.rights & SHMBW_RIGHT_MAP_WRITE) != 0 ? Access::read_write : Access::read;
  SHMB_TRY(mapping, map_checked(fd.get(), 0, facts.bytes, access, facts.hugetlb()));
  if (on_node(item)) SHMB_TRY_VOID(place_region(mapping, item));
  Populated populated{0, SHMBW_PAGE_KIND_UNPOPULATED};
  if (access == Access::read_write && (populates(item, strict) || dirty)) {
    SHMB_TRY(filled, populate_fresh(mapping, fd.get(), facts.pages(), dirty));
    populated = filled;
    if (dirty && (item.flags & SHMBW_CREATE_UNINITIALISED) == 0) std::memset(mapping.data(), 0, facts.bytes);
  }
  facts.populated = populated.bytes;
  facts.page_kind = populated.kind;
  if (access == Access::read_write) {
    ready.add(facts.ref, populated);
    facts.state = SHMBW_REGION_STATE_READY;
  }
  return std::make_shared<Region>(session, facts, std::move(mapping), Fd(), KeptDescriptor::of(std::move(fd)));
}

// Which of the items travel, and how.
struct Portion {
  std::span<const std::size_t> which;
  bool strict = false;
  bool recycled_only = false;  // what is populated, from recycled memory: fresh memory has no room
};

void send_batch(const std::shared_ptr<Session>& session, std::span<const CreateItem> items, const Portion& portion,
                Deadline deadline, std::span<Result<Region::Handle>> out) {
  const std::span<const std::size_t> sent = portion.which;
  const bool strict = portion.strict;
  const auto all = [&](const Error& failure) {
    for (const std::size_t i : sent) out[i] = std::unexpected(failure);
  };
  std::vector<shmbw_create> requests;
  std::vector<std::string_view> names;
  requests.reserve(sent.size());
  names.reserve(sent.size());
  for (const std::size_t i : sent) {
    const CreateItem& item = items[i];
    shmbw_create request{};
    request.group = item.group;
    request.length = item.length;
    request.keep = item.keep;
    request.flags = item.flags & SHMBW_CREATE_KNOWN & ~std::uint32_t{SHMBW_CREATE_RECYCLED_ONLY};
    // Old contents could only be zeroed by touching every page, which is what this caller does not want.
    if (!populates(item, strict) && (item.flags & SHMBW_CREATE_UNINITIALISED) == 0)
      request.flags |= SHMBW_CREATE_NO_RECYCLE;
    // The node belongs to the file: its next user would get it too.
    if (on_node(item)) request.flags |= SHMBW_CREATE_NO_RECYCLE;
    if (portion.recycled_only && needs_room(item, strict)) request.flags |= SHMBW_CREATE_RECYCLED_ONLY;
    request.rights = item.rights;
    request.name_len = static_cast<std::uint16_t>(item.name.size());
    requests.push_back(request);
    names.push_back(item.name);
  }
  const SessionFacts broker = session->facts();  // this needs memory, and what was granted must not be lost
  auto answers = call_batch<SHMBW_OP_CREATE>(*session, requests, names, deadline);
  if (!answers) return all(answers.error());
  ReadyReport ready;
  for (const std::size_t i : sent) {
    auto& result = out[i];
    const CreateItem& item = items[i];
    auto granted = answers->next();
    if (!granted) {
      const bool unknown = granted.error().status == Status::unknown_flags;
      result = std::unexpected(unknown ? of_older_broker(broker, std::move(granted.error())) : granted.error());
      continue;
    }
    auto fd = take_fd(answers->reply, granted->outcome);
    result = fd ? without_throwing(
                      [&] { return finish_create(session, broker, item, *granted, std::move(*fd), strict, ready); })
                : Result<Region::Handle>(std::unexpected(fd.error()));
    if (!result) (void)post_release(*session, granted->region, release_to_undo(*granted));
    else if (item.group == 0) session->note_group(granted->group);
  }
  ready.post(*session);
}

std::uint64_t populated_bytes(std::span<const CreateItem> items, std::span<const std::size_t> which, bool strict) {
  std::uint64_t bytes = 0;
  for (const std::size_t i : which)
    if (needs_room(items[i], strict)) bytes += rounded_bytes(items[i].length);
  return bytes;
}

// Recycled memory needs no room: it has its pages. So where there is no room for all, the group's shelf is asked first.
// The other regions need room, and the shelf is given up for it.
void create_batch(const std::shared_ptr<Session>& session, std::span<const CreateItem> items, bool strict,
                  std::int64_t timeout, std::span<Result<Region::Handle>> out) {
  const Deadline deadline = Deadline::after(timeout);
  // Elements that are wrong in themselves do not travel.
  std::vector<std::size_t> sent;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (auto checked = check_item(items[i], strict); checked) sent.push_back(i);
    else out[i] = std::unexpected(checked.error());
  if (sent.empty()) return;
  const std::uint64_t populated = populated_bytes(items, sent, strict);
  if (populated == 0 || check_headroom(populated))
    return send_batch(session, items, {sent, strict, false}, deadline, out);

  send_batch(session, items, {sent, strict, true}, deadline, out);
  std::erase_if(sent, [&](std::size_t i) {
    return !needs_room(items[i], strict) || out[i] || out[i].error().status != Status::no_memory;
  });
  if (sent.empty()) return;
  if (auto room = find_headroom(*session, populated_bytes(items, sent, strict), deadline); !room)
    for (const std::size_t i : sent) out[i] = std::unexpected(room.error());
  else send_batch(session, items, {sent, strict, false}, deadline, out);
}

}  // namespace

Handles create_regions(const std::shared_ptr<Session>& session, std::span<const CreateItem> items,
                       std::int64_t timeout) {
  Handles results = unset_handles(items.size());
  bool looks = false;
  for (const CreateItem& item : items) looks |= !populates(item, false);
  const bool strict = looks && strict_overcommit();
  if (session->is_local()) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      auto checked = check_item(items[i], strict);
      results[i] = checked ? create_local(session, items[i]) : Result<Region::Handle>(std::unexpected(checked.error()));
    }
    return results;
  }
  const std::size_t batch = session->facts().max_batch;
  for (std::size_t first = 0; first < items.size(); first += batch) {
    const std::size_t count = std::min(batch, items.size() - first);
    create_batch(session, items.subspan(first, count), strict, timeout, std::span(results).subspan(first, count));
  }
  return results;
}

Result<Region::Handle> create_region(const std::shared_ptr<Session>& session, const CreateItem& item,
                                     std::int64_t timeout) {
  return std::move(create_regions(session, std::span(&item, 1), timeout)[0]);
}

void undo_create(LateReply& late) {
  std::vector<shmbw_release> releases;
  late.each_granted<shmbw_create_reply>(
      [&](const shmbw_create_reply& made) { releases.push_back({made.region, 1, release_to_undo(made)}); });
  late.post<SHMBW_OP_RELEASE>(releases);
}

}  // namespace shmb::client
