// SPDX-License-Identifier: Apache-2.0
// How handles come to be: CREATE and ATTACH, in batches. Between the broker's grant and the handle stand mapping,
// populating and zeroing, each of which can fail; then the lease is given back and the element is an error.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>

#include "base/text.hpp"
#include "client/headroom.hpp"
#include "client/populate.hpp"
#include "client/region.hpp"
#include "client/views.hpp"
#include "proto/refusal.hpp"

namespace shmb::client {
namespace {

using Handles = std::vector<Result<Region::Handle>>;

Error failure_of(Status status, std::string sentence) { return error(status, std::move(sentence)).error(); }

std::uint64_t rounded(std::uint64_t length) {
  const std::uint64_t unit = length >= kHugePage ? kHugePage : kSmallPage;
  return (length + unit - 1) / unit * unit;
}

bool populates(const CreateItem& item, bool strict) {
  if ((item.flags & (kCreateNoPopulate | kCreateUnmapped)) != 0) return false;
  return item.length <= kPopulateByDefault || strict;
}

// What can be told before the broker is asked.
Result<void> check_item(const CreateItem& item, bool strict) {
  if (item.length == 0) return error(Status::invalid, "a region has at least one byte");
  if (item.length > kMaxLength)
    return error(Status::invalid, "a region has fewer than 2^47 bytes, asked " + std::to_string(item.length));
  if (!item.name.empty())
    if (auto checked = names::check(item.name, "region name"); !checked) return checked;
  if (strict && !populates(item, strict))
    return error(Status::unsupported,
                 "an unpopulated region is refused while vm.overcommit_memory is 2: touching it could be a SIGBUS; "
                 "create it populated");
  return {};
}

// READY for several regions in one packet.
class ReadyReport {
 public:
  void add(shmbw_region_ref region, const Populated& populated) {
    elements_.push_back({region, populated.bytes, populated.kind, 0});
  }
  void post(Session& session) {
    if (elements_.empty()) return;
    std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + elements_.size() * sizeof(shmbw_ready));
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_ready>(SHMBW_OP_READY, 0, elements_.size(), SHMBW_HEADER_NO_REPLY);
    for (std::size_t i = 0; i < elements_.size(); ++i) writer.element(i, elements_[i]);
    writer.finish(0);
    (void)session.post(buffer, Deadline::after(0));
  }

 private:
  std::vector<shmbw_ready> elements_;
};

Result<Mapping> map_whole(int fd, std::uint64_t bytes, Access access) {
  auto mapping = Mapping::map(fd, 0, bytes, access);
  if (mapping) return std::move(*mapping);
  if (mapping.error().value == EPERM && access == Access::read_write)
    return error(Status::write_closed, "writing to the region is closed for ever: read-only readers have it");
  return system_failure(mapping.error(), "mapping a region of " + format_size(bytes));
}

// Between the grant and the handle: what the allocator throws must not carry the lease away.
template <class Make>
Result<Region::Handle> without_throwing(Make make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return error(Status::no_memory, "out of memory");  // short enough to need none
  }
}

// The element's own descriptor, or none.
Result<Fd> take_fd(Reply& reply, const shmbw_outcome& outcome) {
  if (outcome.fd_index >= reply.fds.size() || !reply.fds[outcome.fd_index])
    return error(Status::protocol, "the broker's answer lacks a descriptor");
  return std::move(reply.fds[outcome.fd_index]);
}

Result<Region::Handle> finish_create(const std::shared_ptr<Session>& session, const SessionFacts& broker,
                                     const CreateItem& item, const shmbw_create_reply& granted, Fd fd, bool strict,
                                     ReadyReport& ready) {
  RegionFacts facts;
  facts.ref = granted.region;
  facts.epoch = broker.epoch;
  facts.length = item.length;
  facts.bytes = granted.bytes;
  facts.group = granted.group;
  facts.rights = granted.rights;
  facts.state = SHMBW_REGION_STATE_CREATED;
  facts.page_kind = SHMBW_PAGE_KIND_UNPOPULATED;
  facts.flags = SHMBW_REGION_WRITE_OPEN;
  if (!item.name.empty()) facts.flags |= SHMBW_REGION_NAMED;
  if ((item.flags & SHMBW_CREATE_MANY_WRITERS) != 0) facts.flags |= SHMBW_REGION_MANY_WRITERS;
  const bool dirty = (granted.flags & SHMBW_CREATED_DIRTY) != 0;
  if (dirty) facts.flags |= SHMBW_REGION_DIRTY_BIRTH;
  facts.recycled = dirty;
  if ((item.flags & kCreateUnmapped) != 0) return std::make_unique<Region>(session, facts, Mapping(), Fd());

  const Access access = (facts.rights & SHMBW_RIGHT_MAP_WRITE) != 0 ? Access::read_write : Access::read;
  auto mapping = map_whole(fd.get(), facts.bytes, access);
  if (!mapping) return std::unexpected(mapping.error());
  Populated populated{0, SHMBW_PAGE_KIND_UNPOPULATED};
  if (access == Access::read_write && (populates(item, strict) || dirty)) {
    auto filled = populate_fresh(*mapping, fd.get(), (item.flags & kCreateSmallPages) != 0);
    if (!filled) return std::unexpected(filled.error());
    populated = *filled;
    if (dirty && (item.flags & SHMBW_CREATE_UNINITIALISED) == 0) std::memset(mapping->data(), 0, facts.bytes);
  }
  facts.populated = populated.bytes;
  facts.page_kind = populated.kind;
  const bool read_only_later = broker.mode == SHMBW_MODE_PRIVATE && (item.flags & SHMBW_CREATE_MANY_WRITERS) == 0;
  if (access == Access::read_write && (read_only_later || facts.bytes >= kHugePage)) {
    ready.add(facts.ref, populated);
    facts.state = SHMBW_REGION_STATE_READY;
  }
  return std::make_unique<Region>(session, facts, std::move(*mapping), Fd());
}

void create_batch(const std::shared_ptr<Session>& session, std::span<const CreateItem> items, bool strict,
                  std::int64_t timeout, std::span<Result<Region::Handle>> out) {
  const auto all = [&](const Error& failure) {
    for (auto& element : out) element = std::unexpected(failure);
  };
  // Elements that are wrong in themselves do not travel.
  std::vector<std::size_t> sent;
  std::uint64_t populated = 0;
  std::size_t text_bytes = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (auto checked = check_item(items[i], strict); !checked) {
      out[i] = std::unexpected(checked.error());
      continue;
    }
    sent.push_back(i);
    text_bytes += items[i].name.size();
    if (populates(items[i], strict)) populated += rounded(items[i].length);
  }
  if (sent.empty()) return;
  if (populated != 0)
    if (auto room = check_headroom(populated); !room) {
      for (std::size_t i : sent) out[i] = std::unexpected(room.error());
      return;
    }

  std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + sent.size() * sizeof(shmbw_create) +
                                text_bytes);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_create>(SHMBW_OP_CREATE, 0, sent.size());
  for (std::size_t n = 0; n < sent.size(); ++n) {
    const CreateItem& item = items[sent[n]];
    shmbw_create request{};
    request.group = item.group;
    request.length = item.length;
    request.keep = item.keep;
    request.flags = item.flags & SHMBW_CREATE_KNOWN;
    // Old contents could only be zeroed by touching every page, which is what this caller does not want.
    if (!populates(item, strict) && (item.flags & SHMBW_CREATE_UNINITIALISED) == 0)
      request.flags |= SHMBW_CREATE_NO_RECYCLE;
    request.rights = item.rights;
    request.name_len = static_cast<std::uint16_t>(item.name.size());
    writer.element(n, request);
  }
  for (std::size_t i : sent) writer.text(items[i].name);
  writer.finish(0);
  auto reply = session->call(buffer, Deadline::after(timeout));
  if (!reply) {
    for (std::size_t i : sent) out[i] = std::unexpected(reply.error());
    return;
  }
  auto batch = wire::BatchView::open(reply->view);
  if (!batch || batch->count() != sent.size())
    return all(failure_of(Status::protocol, "the broker's answer to CREATE is malformed"));
  const SessionFacts broker = session->facts();
  auto texts = batch->texts();
  ReadyReport ready;
  for (std::size_t n = 0; n < sent.size(); ++n) {
    auto& result = out[sent[n]];
    const CreateItem& item = items[sent[n]];
    auto granted = batch->element<shmbw_create_reply>(n);
    if (!granted) {
      result = error(Status::protocol, "the broker's answer to CREATE is malformed");
      continue;
    }
    const auto detail = texts.take(granted->outcome.detail_len).value_or("");
    if (granted->outcome.status != 0) {
      result = std::unexpected(wire::read_element_detail(granted->outcome.status, detail));
      continue;
    }
    auto fd = take_fd(*reply, granted->outcome);
    result = fd ? without_throwing(
                      [&] { return finish_create(session, broker, item, *granted, std::move(*fd), strict, ready); })
                : Result<Region::Handle>(std::unexpected(fd.error()));
    if (!result) (void)post_release(*session, granted->region, item.name.empty() ? 0U : unsigned{SHMBW_RELEASE_UNNAME});
    else if (item.group == 0) session->note_group(granted->group);
  }
  ready.post(*session);
}

std::uint32_t rights_of(const AttachItem& item) {
  return item.rights != 0 ? item.rights : static_cast<std::uint32_t>(SHMBW_RIGHT_MAP_READ);
}

Result<Region::Handle> finish_attach(const std::shared_ptr<Session>& session, const SessionFacts& broker,
                                     const AttachItem& item, const shmbw_attach_reply& granted, Fd fd,
                                     ReadyReport& ready) {
  RegionFacts facts;
  facts.ref = granted.region;
  facts.epoch = broker.epoch;
  facts.length = granted.length;
  facts.bytes = granted.bytes;
  facts.group = granted.group;
  facts.rights = granted.rights & rights_of(item);  // the lease has those of the session's other handles too
  facts.state = granted.state;
  facts.page_kind = granted.page_kind;
  facts.flags = granted.flags;
  if ((item.flags & kAttachUnmapped) != 0) return std::make_unique<Region>(session, facts, Mapping(), Fd());
  const bool writes = (facts.rights & SHMBW_RIGHT_MAP_WRITE) != 0;
  auto mapping = map_whole(fd.get(), facts.bytes, writes ? Access::read_write : Access::read);
  if (!mapping) return std::unexpected(mapping.error());
  // Only what has memory behind it: reading a hole through a mapping allocates the page, charged to the reader.
  const bool has_pages = facts.page_kind == SHMBW_PAGE_KIND_SMALL || facts.page_kind == SHMBW_PAGE_KIND_HUGE ||
                         facts.page_kind == SHMBW_PAGE_KIND_MIXED;
  if (has_pages && (item.flags & kAttachNoPopulate) == 0 && facts.bytes <= kPopulateByDefault)
    (void)map_existing(*mapping, writes ? Access::read_write : Access::read, false);
  // Every writer reports, the creator may have died before it did; the pages are the creator's to describe.
  if (writes && (broker.mode == SHMBW_MODE_PRIVATE || facts.state == SHMBW_REGION_STATE_CREATED))
    ready.add(facts.ref, {0, SHMBW_PAGE_KIND_UNKNOWN});
  return std::make_unique<Region>(session, facts, std::move(*mapping), Fd());
}

Result<shmbw_attach> attach_request(const AttachItem& item, std::uint64_t epoch) {
  shmbw_attach request{};
  request.by = item.target.by;
  request.rights = rights_of(item);
  if ((item.flags & kAttachUnmapped) != 0) request.flags |= SHMBW_ATTACH_NO_FD;
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
  std::size_t text_bytes = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto request = attach_request(items[i], broker.epoch);
    if (!request) {
      out[i] = std::unexpected(request.error());
      continue;
    }
    sent.push_back(i);
    requests.push_back(*request);
    text_bytes += request->group_len + request->name_len;
  }
  if (sent.empty()) return;
  std::vector<std::byte> buffer(sizeof(shmbw_header) + sizeof(shmbw_batch) + sent.size() * sizeof(shmbw_attach) +
                                text_bytes);
  wire::Writer writer(buffer);
  writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 0, sent.size());
  for (std::size_t n = 0; n < sent.size(); ++n) writer.element(n, requests[n]);
  for (std::size_t i : sent) {
    if (items[i].target.by != SHMBW_ATTACH_BY_NAME) continue;
    writer.text(items[i].target.address.group);
    writer.text(items[i].target.address.name);
  }
  writer.finish(0);
  auto reply = session->call(buffer, deadline);
  auto batch = reply ? wire::BatchView::open(reply->view) : std::unexpected(Status::invalid);
  if (!batch || batch->count() != sent.size()) {
    const Error failure =
        reply ? failure_of(Status::protocol, "the broker's answer to ATTACH is malformed") : reply.error();
    for (std::size_t i : sent) out[i] = std::unexpected(failure);
    return;
  }
  auto texts = batch->texts();
  ReadyReport ready;
  for (std::size_t n = 0; n < sent.size(); ++n) {
    auto& result = out[sent[n]];
    auto granted = batch->element<shmbw_attach_reply>(n);
    if (!granted) {
      result = error(Status::protocol, "the broker's answer to ATTACH is malformed");
      continue;
    }
    const auto detail = texts.take(granted->outcome.detail_len).value_or("");
    if (granted->outcome.status != 0) {
      result = std::unexpected(wire::read_element_detail(granted->outcome.status, detail));
      continue;
    }
    const bool unmapped = (items[sent[n]].flags & kAttachUnmapped) != 0;
    auto fd = unmapped ? Result<Fd>(Fd()) : take_fd(*reply, granted->outcome);
    result = fd ? without_throwing(
                      [&] { return finish_attach(session, broker, items[sent[n]], *granted, std::move(*fd), ready); })
                : Result<Region::Handle>(std::unexpected(fd.error()));
    if (!result) (void)post_release(*session, granted->region, 0);
  }
  ready.post(*session);
}

Handles prepared(std::size_t count) {
  Handles results;
  results.reserve(count);
  for (std::size_t i = 0; i < count; ++i) results.emplace_back(std::unexpected(Error{}));
  return results;
}

// Until the region is ready, or gone: then the next ATTACH tells.
Result<void> wait_for_writer(Session& session, const Target& target, Deadline deadline) {
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_REGION;
  spec.region = target.region;
  if (target.by == SHMBW_ATTACH_BY_NAME) {
    auto row = find_region(session, target.address, Deadline::after(0));
    if (!row) return row.error().status == Status::not_found ? Result<void>{} : std::unexpected(row.error());
    spec.region = row->record.region;
  }
  Channel::Subscription subscription;
  auto subscribed = target.by == SHMBW_ATTACH_BY_TICKET ? error(Status::not_found, "")
                                                        : session.subscribe(spec, subscription, Deadline::after(0));
  if (!subscribed && subscribed.error().status == Status::not_found) {
    // The bearer of a ticket may not watch a region that it has no lease on: it looks again instead.
    const timespec rest{0, 5'000'000};
    ::nanosleep(&rest, nullptr);
    return {};
  }
  if (!subscribed) return subscribed;
  auto waited = subscription.state != 0 ? Result<void>{} : session.await(subscription, deadline);
  session.unsubscribe(subscription);
  return waited;
}

Result<void> wait_for_name(Session& session, const names::Address& address, Deadline deadline) {
  WatchSpec spec;
  spec.kind = SHMBW_WATCH_KIND_NAME;
  if (address.owner_uid) spec.address = std::to_string(*address.owner_uid) + ":";
  if (!address.group.empty()) spec.address += address.group + "/";
  spec.address += address.name;
  Channel::Subscription subscription;
  if (auto subscribed = session.subscribe(spec, subscription, Deadline::after(0)); !subscribed) return subscribed;
  auto waited = subscription.state != 0 ? Result<void>{} : session.await(subscription, deadline);
  session.unsubscribe(subscription);
  return waited;
}

}  // namespace

Result<Target> Target::at(const std::string& address) {
  auto parsed = names::parse_region(address);
  if (!parsed) return std::unexpected(parsed.error());
  Target target;
  target.by = SHMBW_ATTACH_BY_NAME;
  target.address = std::move(*parsed);
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

Handles create_regions(const std::shared_ptr<Session>& session, std::span<const CreateItem> items,
                       std::int64_t timeout) {
  Handles results = prepared(items.size());
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

Handles attach_regions(const std::shared_ptr<Session>& session, std::span<const AttachItem> items,
                       std::int64_t timeout) {
  Handles results = prepared(items.size());
  if (session->is_local()) {
    for (auto& result : results) result = needs_broker("names, identities and tickets");
    return results;
  }
  const std::size_t batch = session->facts().max_batch;
  for (std::size_t first = 0; first < items.size(); first += batch) {
    const std::size_t count = std::min(batch, items.size() - first);
    attach_batch(session, items.subspan(first, count), Deadline::after(timeout),
                 std::span(results).subspan(first, count));
  }
  return results;
}

Result<Region::Handle> create_region(const std::shared_ptr<Session>& session, const CreateItem& item,
                                     std::int64_t timeout) {
  return std::move(create_regions(session, std::span(&item, 1), timeout)[0]);
}

Result<Region::Handle> attach_region(const std::shared_ptr<Session>& session, const AttachItem& item,
                                     std::int64_t timeout, std::int64_t wait) {
  if (session->is_local()) return needs_broker("names, identities and tickets");
  const Deadline name_deadline = wait == 0 ? Deadline::now() : Deadline::after(wait);
  const Deadline writer_deadline = wait == 0 ? Deadline::after(timeout) : Deadline::after(wait);
  for (;;) {
    Handles result = prepared(1);
    attach_batch(session, std::span(&item, 1), Deadline::after(timeout), result);
    if (result[0]) return std::move(result[0]);
    const Status why = result[0].error().status;
    Result<void> waited;
    if (why == Status::not_found && item.target.by == SHMBW_ATTACH_BY_NAME && wait != 0 && wait != kNoWait)
      waited = wait_for_name(*session, item.target.address, name_deadline);
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
    AttachItem item{target, rights, kAttachUnmapped};
    auto request = attach_request(item, session.facts().epoch);
    if (!request) return std::unexpected(request.error());
    std::array<std::byte, 512> buffer;
    wire::Writer writer(buffer);
    writer.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 0, 1);
    writer.element(0, *request);
    writer.text(target.address.group);
    writer.text(target.address.name);
    auto packet = writer.finish(0);
    auto reply = session.call(std::span(buffer).first(packet.size()), deadline);
    if (!reply) return std::unexpected(reply.error());
    return only_element<shmbw_attach_reply>(*reply, "ATTACH");
  };
  // Asked for writing first: a read-only grant would close writing to a region that is in use.
  auto element = reach(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_RELEASE);
  if (!element && element.error().status == Status::write_closed)
    element = reach(SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_RELEASE);
  if (!element) return std::unexpected(element.error());
  // From here on the handle's own way of releasing with the name serves.
  RegionFacts facts;
  facts.ref = element->region;
  facts.bytes = element->bytes;
  facts.rights = element->rights;
  Region handle(session.shared_from_this(), facts, Mapping(), Fd());
  return handle.release(kReleaseUnname | kReleaseNoRecycle);
}

}  // namespace shmb::client
