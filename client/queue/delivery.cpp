// SPDX-License-Identifier: Apache-2.0
// Bytes, slots, lists and regions. See delivery.hpp.
#include "client/queue/delivery.hpp"

#include <algorithm>
#include <cstring>

#include "client/region/kept_mappings.hpp"
#include "client/region/obtain.hpp"

namespace shmb::client {
namespace {

// The lane holds what its messages name, and the region of a list belongs to the pool's group. A sender that names
// anything else breaks the rules.
bool never_held(const Error& error) {
  return error.status == Status::not_found || error.status == Status::stale || error.status == Status::invalid;
}

}  // namespace

Result<Delivery::Outcome> Delivery::deliver(bool keep) {
  const bool once = state_.at_least_once();
  const bool lasting = (keep || state_.drops_oldest()) && !once;
  // A claimed cell goes to another consumer when this process dies. So it is done before the application has it.
  keep = lasting || (competing_ && !once);
  message_.epoch_ = pool().session()->epoch();
  message_.incarnation_ = state_.incarnation;
  if (got_.tag <= pool::kTagMaxInline) {
    deliver_bytes();
    if (once) message_.pool_ = state_.pool;
    return once ? Outcome::borrowed : Outcome::taken;
  }
  SHMB_TRY(outcome, got_.tag == pool::kTagSlot ? deliver_slot(keep) : deliver_list(keep));
  return outcome == Outcome::taken && !lasting ? Outcome::lent : outcome;
}

void Delivery::deliver_bytes() {
  Message::Part& part = message_.add();
  part.kind = PartKind::bytes;
  std::memcpy(message_.body_.data(), got_.body, got_.bytes);
  part.data = message_.body_.data();
  part.length = got_.bytes;
}

Result<Delivery::Outcome> Delivery::deliver_slot(bool keep) {
  pool::Handle handle;
  std::memcpy(&handle, got_.body, sizeof handle);
  Error why;
  const std::byte* const base = pool().data(handle.slot, &why, map_timeout_);
  if (base == nullptr) return std::unexpected(std::move(why));  // not taken: the receive can be repeated
  Message::Part& part = message_.add();
  part.kind = PartKind::slot;
  part.slot = handle.slot;
  part.generation = handle.generation;
  part.offset = handle.offset;
  part.length = handle.length;
  part.data = base + handle.offset;
  message_.type_ = handle.type;
  if (!keep) {
    message_.pool_ = state_.pool;
    return Outcome::borrowed;
  }
  const bool held = keep_slot(part);
  if (!held || !lane_.confirm()) {
    const bool lost = state_.drops_oldest() && (held || !lane_.confirm());
    if (held) state_.me().undo(part.slot);
    part.kept = false;
    message_.clear();
    return lost ? Outcome::lost : Outcome::broken;
  }
  message_.pool_ = state_.pool;
  return Outcome::taken;
}

bool Delivery::keep_slot(Message::Part& part) {
  if (!state_.me().keep(part.slot, part.generation)) return false;
  part.kept = true;
  return true;
}

Result<Delivery::Outcome> Delivery::deliver_list(bool keep) {
  Participant& me = state_.me();
  std::span<const std::byte> from;
  pool::Handle handle{};
  handle.slot = pool::kNone;
  std::uint64_t parts = 0;
  bool possible = true;

  if (got_.tag == pool::kTagListInline) {
    std::memcpy(message_.body_.data(), got_.body, got_.bytes);
    from = std::span(message_.body_).first(got_.bytes);
    ListHeader header{};
    if (from.size() >= sizeof header) std::memcpy(&header, from.data(), sizeof header);
    parts = header.parts;
  } else {
    std::memcpy(&handle, got_.body, sizeof handle);
    parts = handle.parts;
    if (got_.tag == pool::kTagListInSlot) {
      Error why;
      const std::byte* const base = pool().data(handle.slot, &why, map_timeout_);
      if (base == nullptr) return std::unexpected(std::move(why));
      from = {base + handle.offset, handle.length};
      if (keep) {
        possible = me.keep(handle.slot, handle.generation);
        if (possible) message_.container_ = handle.slot;
      }
    } else {
      AttachItem item;
      item.target = Target::with_id({handle.region, handle.generation, 0});
      item.rights = SHMBW_RIGHT_MAP_READ;
      auto region = attach_region(pool().session(), item, state_.spec.timeout);
      if (!region && !state_.drops_oldest() && !never_held(region.error()))
        return std::unexpected(region.error());  // not taken: the receive can be repeated
      if (!region || handle.offset > (*region)->length() || handle.length > (*region)->length() - handle.offset) {
        possible = false;
      } else {
        from = {(*region)->data() + handle.offset, handle.length};
        message_.container_region_ = std::move(*region);
      }
    }
  }
  ListHeader header{};
  possible = possible && read_list(from, parts, me, message_.table_, header);
  std::optional<Error> unmapped;  // the broker is asked for a segment once, not for each slot in it
  if (possible) {
    message_.type_ = header.type;
    for (const ListEntry& entry : message_.table_) {
      Message::Part& part = message_.add();
      part.kind = entry.kind();
      part.rights = entry.rights();
      part.offset = entry.offset;
      part.length = entry.length;
      if (part.kind == PartKind::bytes) {
        part.data = from.data() + entry.offset;
        part.offset = 0;
      } else if (part.kind == PartKind::region) {
        part.region = {entry.id, entry.number, 0};
      } else {
        part.slot = entry.number;
        part.generation = static_cast<std::uint32_t>(entry.id);
        Error why;
        const std::byte* const base =
            unmapped ? pool().data_if_mapped(part.slot) : pool().data(part.slot, &why, state_.spec.timeout);
        if (base != nullptr) {
          part.data = base + entry.offset;
        } else if (!unmapped && why.sentence.empty()) {
          possible = false;  // it is in no segment
        } else {             // not the sender's fault: as with a region, the message arrives with the reason
          if (!unmapped) unmapped = std::move(why);
          part.failure = *unmapped;
          part.status = unmapped->status;
        }
        if (possible && keep && !keep_slot(part)) possible = false;
      }
      if (!possible) break;
    }
  }
  if (possible) attach_parts(unmapped && unmapped->status == Status::deadline ? &*unmapped : nullptr);
  const bool lost = !lane_.confirm();
  if (lost || !possible) {
    for (std::size_t i = 0; i < message_.count_; ++i)
      if (std::exchange(message_.parts_[i].kept, false)) me.undo(message_.parts_[i].slot);
    if (message_.container_ != pool::kNone) me.undo(std::exchange(message_.container_, pool::kNone));
    message_.clear();
    return lost ? Outcome::lost : Outcome::broken;
  }
  message_.pool_ = state_.pool;
  if (keep) return Outcome::taken;
  if (got_.tag == pool::kTagListInSlot) container_ = {handle.slot, handle.generation};
  return Outcome::borrowed;
}

// Takes kept mappings, and asks the broker for the others. `unanswered`: the broker has just let a deadline pass, and
// is not waited for again. `too_much`: the parts of regions that the broker refuses with the rights of all parts
// together.
void Delivery::attach_wanted(const Error* unanswered, std::vector<Message::Sharers>& too_much) {
  KeptMappings& kept = pool().kept_mappings();
  std::vector<const Message::Wanted*> asked;
  for (const Message::Wanted& one : message_.wanted_)
    if (auto handle = kept.take(one.region, one.rights)) message_.share(one, handle);
    else asked.push_back(&one);
  if (asked.empty()) return;
  std::vector<AttachItem> items(asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    items[i].target = Target::with_id(asked[i]->region);
    items[i].rights = asked[i]->rights;
  }
  Handles handles;
  if (unanswered == nullptr) handles = attach_regions(pool().session(), items, state_.spec.timeout);
  else
    for (std::size_t i = 0; i < items.size(); ++i) handles.emplace_back(std::unexpected(*unanswered));
  const auto fails = [](const Result<Region::Handle>& one, auto... why) {
    return !one && ((one.error().status == why) || ...);
  };
  // Where leases run short, mappings that are only kept go first.
  const auto is_short = [&](const Result<Region::Handle>& one) { return fails(one, Status::limit); };
  if (kept.size() != 0 && std::ranges::any_of(handles, is_short)) {
    kept.give_up_all();
    for (std::size_t i = 0; i < items.size(); ++i)
      if (is_short(handles[i])) handles[i] = attach_region(pool().session(), items[i], state_.spec.timeout);
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Message::Wanted& one = *asked[i];
    const bool mixed =
        std::ranges::any_of(one.parts, [&](auto number) { return message_.parts_[number].rights != one.rights; });
    if (mixed && fails(handles[i], Status::write_closed, Status::denied)) too_much.push_back(one.parts);
    else if (handles[i]) message_.share(one, *handles[i]);
    else message_.refuse(one, handles[i].error());
  }
}

// The parts of one region share one mapping, with the rights of all of them together. So a region is attached once,
// however often it comes. A part that only reads does not close writing for one that writes. Where this process cannot
// have all these rights together, parts with the same rights share.
void Delivery::attach_parts(const Error* unanswered) {
  pool().kept_mappings().give_up_asked(*pool().session());
  auto& order = message_.by_region_;
  order.clear();
  for (std::size_t i = 0; i < message_.count_; ++i) {
    Message::Part& part = message_.parts_[i];
    if (part.kind != PartKind::region) continue;
    if (part.rights == 0) part.rights = SHMBW_RIGHT_MAP_READ;
    order.push_back(static_cast<std::uint32_t>(i));
  }
  if (order.empty()) return;
  const auto region_of = [&](std::uint32_t number) {
    const shmbw_region_ref& region = message_.parts_[number].region;
    return std::pair(region.id, region.generation);
  };
  const auto rights_of = [&](std::uint32_t number) { return message_.parts_[number].rights; };
  std::vector<Message::Sharers> too_much;
  std::ranges::sort(order, {}, [&](auto number) { return std::pair(region_of(number), number); });
  message_.wanted_.clear();
  message_.want(order, region_of);
  attach_wanted(unanswered, too_much);
  if (too_much.empty()) return;
  message_.wanted_.clear();
  for (const Message::Sharers parts : too_much) {
    std::ranges::sort(parts, {}, [&](auto number) { return std::pair(rights_of(number), number); });
    message_.want(parts, rights_of);
  }
  attach_wanted(unanswered, too_much);
}

}  // namespace shmb::client
