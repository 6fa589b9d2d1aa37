// SPDX-License-Identifier: Apache-2.0
// ATTACH, in batches and with waiting. No request waits inside the broker for a name or a writer. This file subscribes,
// sleeps until the event comes, and sends ATTACH again.
#include <algorithm>
#include <array>
#include <cstring>

#include "client/region/obtain.hpp"
#include "client/session/call.hpp"
#include "client/session/late_reply.hpp"
#include "client/session/name_wait.hpp"
#include "client/session/user_group.hpp"
#include "client/session/views.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

std::uint32_t rights_of(const AttachItem& item) {
  return item.rights != 0 ? item.rights : static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ);
}

Result<Region::Handle> finish_attach(const std::shared_ptr<Session>& session, const SessionFacts& broker,
                                     const AttachItem& item, const shmbw_attach_reply& granted, Fd fd,
                                     ReadyReport& ready) {
  const Granted grant{granted.region, granted.rights, granted.length, granted.bytes};
  const shmbw_region_ref asked = item.target.by == SHMBW_ATTACH_BY_ID ? item.target.region : shmbw_region_ref{};
  SHMB_TRY_VOID(check_grant(grant, asked, rights_of(item)));
  RegionFacts facts;
  facts.ref = granted.region;
  facts.epoch = broker.epoch;
  facts.length = granted.length;
  facts.bytes = granted.bytes;
  facts.group = granted.group;
  facts.rights = rights_of(item);  // the lease has those of the session's other handles too
  facts.state = granted.state;
  facts.page_kind = granted.page_kind;
  facts.flags = granted.flags;
  if ((item.flags & kAttachUnmapped) != 0) return std::make_shared<Region>(session, facts, Mapping(), Fd());
  const bool writes = (facts.rights & SHMBW_RIGHT_MAP_WRITE) != 0;
  SHMB_TRY(mapping,
           map_whole(fd.get(), facts.length, facts.bytes, writes ? Access::read_write : Access::read, facts.hugetlb()));
  // Only a region that has memory: reading a hole through a mapping allocates the page, and charges it to the reader.
  const bool has_pages = facts.page_kind == SHMBW_PAGE_KIND_SMALL || facts.page_kind == SHMBW_PAGE_KIND_HUGE ||
                         facts.page_kind == SHMBW_PAGE_KIND_MIXED;
  if (has_pages && (item.flags & kAttachNoPopulate) == 0 && facts.bytes <= kPopulateByDefault)
    (void)map_existing(mapping, writes ? Access::read_write : Access::read, false);
  // Every writer reports, or no other session could publish the region. Only the creator describes the pages.
  if (writes) ready.add(facts.ref, {0, SHMBW_PAGE_KIND_UNKNOWN});
  return std::make_shared<Region>(session, facts, std::move(mapping), Fd(), KeptDescriptor::of(std::move(fd)));
}

Result<shmbw_attach> attach_request(const AttachItem& item, std::uint64_t epoch) {
  shmbw_attach request{};
  request.by = item.target.by;
  request.rights = rights_of(item);
  if ((item.flags & kAttachUnmapped) != 0) request.flags |= SHMBW_ATTACH_NO_FD;
  if ((item.flags & kAttachTimeline) != 0) request.flags |= SHMBW_ATTACH_TIMELINE;
  switch (item.target.by) {
    case SHMBW_ATTACH_BY_ID:
      if (item.target.epoch != 0 && item.target.epoch != epoch)
        return error(Status::stale, "the region's identity is from another life of the broker");
      request.region = item.target.region;
      break;
    case SHMBW_ATTACH_BY_NAME:
      if (item.target.address.owner_uid) {
        request.flags |= SHMBW_ATTACH_OWNER_GIVEN;
        request.owner_uid = *item.target.address.owner_uid;
      }
      request.group_len = static_cast<std::uint16_t>(item.target.address.group.size());
      request.name_len = static_cast<std::uint16_t>(item.target.address.name.size());
      break;
    case SHMBW_ATTACH_BY_TICKET:
      std::memcpy(request.ticket, item.target.ticket.bytes.data(), sizeof request.ticket);
      break;
    default:
      return error(Status::invalid, "an attach names its region by address, by identity or by ticket");
  }
  return request;
}

void attach_batch(const std::shared_ptr<Session>& session, std::span<const AttachItem> items, Deadline deadline,
                  std::span<Result<Region::Handle>> out) {
  const SessionFacts broker = session->facts();
  std::vector<std::size_t> sent;
  std::vector<shmbw_attach> requests;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto request = attach_request(items[i], broker.epoch);
    if (!request) {
      out[i] = std::unexpected(request.error());
      continue;
    }
    sent.push_back(i);
    requests.push_back(*request);
    if (items[i].target.by != SHMBW_ATTACH_BY_NAME) continue;
    names.push_back(items[i].target.address.group);
    names.push_back(items[i].target.address.name);
  }
  if (sent.empty()) return;
  auto answers = call_batch<SHMBW_OP_ATTACH>(*session, requests, names, deadline);
  if (!answers) {
    for (std::size_t i : sent) out[i] = std::unexpected(answers.error());
    return;
  }
  ReadyReport ready;
  for (const std::size_t i : sent) {
    auto& result = out[i];
    auto granted = answers->next();
    if (!granted) {
      result = std::unexpected(session->of_broker(std::move(granted.error())));
      continue;
    }
    const bool unmapped = (items[i].flags & kAttachUnmapped) != 0;
    auto fd = unmapped ? Result<Fd>(Fd()) : take_fd(answers->reply, granted->outcome);
    result =
        fd ? without_throwing([&] { return finish_attach(session, broker, items[i], *granted, std::move(*fd), ready); })
           : Result<Region::Handle>(std::unexpected(fd.error()));
    if (!result) {
      (void)post_release(*session, granted->region, 0);
      // Where the session has other handles the lease stays, and with it what they have mapped.
      if ((rights_of(items[i]) & SHMBW_RIGHT_MAP_WRITE) != 0) ready.add(granted->region, {0, SHMBW_PAGE_KIND_UNKNOWN});
    }
  }
  ready.post(*session);
}

// A name that the session's own group does not have is looked up in the user's group.
void attach_in_places(const std::shared_ptr<Session>& session, std::span<const AttachItem> items, std::int64_t timeout,
                      std::span<Result<Region::Handle>> out) {
  attach_batch(session, items, Deadline::after(timeout), out);
  std::vector<AttachItem> again;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (out[i] || out[i].error().status != Status::not_found || items[i].target.by != SHMBW_ATTACH_BY_NAME) continue;
    auto second = in_user_group(*session, items[i].target.address);
    if (!second) continue;
    again.push_back(items[i]);
    again.back().target.address = std::move(*second);
    places.push_back(i);
  }
  if (again.empty()) return;
  Handles there = unset_handles(again.size());
  attach_batch(session, again, Deadline::after(timeout), there);
  for (std::size_t k = 0; k < again.size(); ++k) {
    auto& first = out[places[k]];
    if (there[k] || there[k].error().status != Status::not_found) first = std::move(there[k]);
    else first.error() = in_neither(std::move(first.error()), again[k].target.address);
  }
}

// Returns when the region is ready, or when the region or the ticket is gone. The next ATTACH then says which.
Result<void> wait_for_writer(Session& session, const Target& target, Deadline deadline) {
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  if (target.by == SHMBW_ATTACH_BY_TICKET) spec.ticket = target.ticket;
  else spec.region = target.region;
  if (target.by == SHMBW_ATTACH_BY_NAME) {
    auto row = find_region(session, target.address, Deadline::after(0));
    if (!row) return row.error().status == Status::not_found ? Result<void>{} : std::unexpected(row.error());
    spec.region = row->record.region;
  }
  Session::OwnWatch watch(session);
  auto begun = watch.begin(spec, Deadline::after(0));
  if (!begun) return begun.error().status == Status::not_found ? Result<void>{} : begun;
  if (watch.state() == 0) SHMB_TRY_VOID(watch.await(deadline));
  return {};
}

}  // namespace

Result<Target> Target::at(const std::string& address) {
  SHMB_TRY(parsed, names::parse_region(address));
  Target target;
  target.by = SHMBW_ATTACH_BY_NAME;
  target.address = std::move(parsed);
  return target;
}

Target Target::with_id(shmbw_region_ref region, std::uint64_t epoch) {
  Target target;
  target.by = SHMBW_ATTACH_BY_ID;
  target.region = region;
  target.epoch = epoch;
  return target;
}

Target Target::with_ticket(const Token& ticket) {
  Target target;
  target.by = SHMBW_ATTACH_BY_TICKET;
  target.ticket = ticket;
  return target;
}

Handles attach_regions(const std::shared_ptr<Session>& session, std::span<const AttachItem> items,
                       std::int64_t timeout) {
  Handles results = unset_handles(items.size());
  if (session->is_local()) {
    for (auto& result : results) result = needs_broker("names, identities and tickets");
    return results;
  }
  const std::size_t batch = session->facts().max_batch;
  for (std::size_t first = 0; first < items.size(); first += batch) {
    const std::size_t count = std::min(batch, items.size() - first);
    attach_in_places(session, items.subspan(first, count), timeout, std::span(results).subspan(first, count));
  }
  return results;
}

Result<Region::Handle> attach_region(const std::shared_ptr<Session>& session, const AttachItem& item,
                                     std::int64_t timeout, std::int64_t wait) {
  if (session->is_local()) return needs_broker("names, identities and tickets");
  const Deadline name_deadline = Deadline::after(wait, SHMB_NAME_WAIT);
  const Deadline writer_deadline = wait == 0 ? Deadline::after(timeout) : Deadline::after(wait);
  for (;;) {
    Handles result = unset_handles(1);
    attach_in_places(session, std::span(&item, 1), timeout, result);
    if (result[0]) return std::move(result[0]);
    const Status why = result[0].error().status;
    Result<void> waited;
    if (why == Status::not_found && item.target.by == SHMBW_ATTACH_BY_NAME && waits_for_name(wait))
      waited = wait_for_name(*session, item.target.address, Named::region, name_deadline);
    else if (why == Status::not_ready && !writer_deadline.passed())
      waited = wait_for_writer(*session, item.target, writer_deadline);
    else return std::move(result[0]);
    if (!waited && waited.error().status == Status::deadline) {
      waited.error().sentence += ": " + result[0].error().sentence;
      return std::unexpected(waited.error());
    }
    if (!waited) return std::unexpected(waited.error());
  }
}

Result<void> unname(Session& session, const Target& target, Deadline deadline) {
  if (session.is_local()) return needs_broker("names");
  const auto reach = [&](std::uint32_t rights) -> Result<shmbw_attach_reply> {
    const auto ask = [&](const Target& at) -> Result<shmbw_attach_reply> {
      SHMB_TRY(request, attach_request({at, rights, kAttachUnmapped}, session.facts().epoch));
      SHMB_TRY(answer, call<SHMBW_OP_ATTACH>(session, request, {at.address.group, at.address.name}, deadline));
      return answer.fixed;
    };
    auto first = ask(target);
    if (first || first.error().status != Status::not_found || target.by != SHMBW_ATTACH_BY_NAME) return first;
    auto address = in_user_group(session, target.address);
    if (!address) return first;
    Target second = target;
    second.address = std::move(*address);
    auto there = ask(second);
    if (!there && there.error().status == Status::not_found)
      return std::unexpected(in_neither(std::move(first.error()), second.address));
    return there;
  };
  // Asked for writing first: a read-only grant would close writing to a region that is in use.
  auto element = reach(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_RELEASE);
  if (!element && element.error().status == Status::write_closed)
    element = reach(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_RELEASE);
  if (!element) return std::unexpected(session.of_broker(std::move(element.error())));
  if (target.by == SHMBW_ATTACH_BY_ID && element->region.id != target.region.id)
    return error(Status::protocol, "the broker's answer to ATTACH is of another region");
  // From here on the handle's own way of releasing with the name serves. It has mapped nothing, so what the other
  // references say when they end decides whether the memory is recycled.
  RegionFacts facts;
  facts.ref = element->region;
  facts.bytes = element->bytes;
  facts.rights = element->rights;
  Region handle(session.shared_from_this(), facts, Mapping(), Fd());
  return handle.release(kReleaseUnname);
}

void undo_attach(LateReply& late) { late.release_granted<shmbw_attach_reply>(0); }

}  // namespace shmb::client
