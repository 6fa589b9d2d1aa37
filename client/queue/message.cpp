// SPDX-License-Identifier: Apache-2.0
// How a list of parts is written and read, and what a received message holds. A message gives back everything that it
// holds, exactly once.
#include "client/queue/message.hpp"

#include <algorithm>
#include <cstring>

#include "client/queue/receiver.hpp"

namespace shmb::client {
namespace {

constexpr std::uint64_t kAlign = 16;
constexpr std::uint64_t aligned(std::uint64_t value) { return (value + kAlign - 1) / kAlign * kAlign; }
bool plain(std::span<const OutPart> parts) { return parts.size() == 1 && parts[0].kind == PartKind::bytes; }

}  // namespace

std::optional<std::uint64_t> list_bytes(std::span<const OutPart> parts) {
  if (plain(parts))
    return parts[0].length > UINT32_MAX ? std::nullopt : std::optional(sizeof(ListHeader) + parts[0].length);
  if (parts.size() > UINT32_MAX) return std::nullopt;
  std::uint64_t bytes = sizeof(ListHeader) + parts.size() * sizeof(ListEntry);
  for (const OutPart& part : parts) {
    if (part.kind != PartKind::bytes) continue;
    if (part.length > kMaxLength - bytes) return std::nullopt;
    bytes = aligned(bytes) + part.length;
  }
  return bytes;
}

void write_list(std::span<const OutPart> parts, std::uint64_t type, std::span<std::byte> to) {
  if (plain(parts)) {
    const ListHeader header{0, static_cast<std::uint32_t>(parts[0].length), type};
    std::memcpy(to.data(), &header, sizeof header);
    if (parts[0].length != 0) std::memcpy(to.data() + sizeof header, parts[0].data, parts[0].length);
    return;
  }
  const ListHeader header{static_cast<std::uint32_t>(parts.size()), 0, type};
  std::memcpy(to.data(), &header, sizeof header);
  std::uint64_t at = sizeof(ListHeader) + parts.size() * sizeof(ListEntry);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const OutPart& part = parts[i];
    ListEntry entry{};
    entry.kind_rights = static_cast<std::uint32_t>(part.kind) | part.rights << 8;
    entry.offset = part.offset;
    entry.length = part.length;
    if (part.kind == PartKind::slot) {
      entry.number = part.slot.index;
      entry.id = part.slot.generation;
    } else if (part.kind == PartKind::region) {
      entry.number = part.region->ref().generation;
      entry.id = part.region->ref().id;
    } else {
      at = aligned(at);
      entry.offset = at;
      if (part.length != 0) std::memcpy(to.data() + at, part.data, part.length);
      at += part.length;
    }
    std::memcpy(to.data() + sizeof(ListHeader) + i * sizeof(ListEntry), &entry, sizeof entry);
  }
}

Result<void> check_parts(std::size_t count) {
  if (count == 0) return error(Status::invalid, "a message has at least one part (which may be empty)");
  if (count > kMostParts)
    return error(Status::invalid,
                 "a message has at most " + std::to_string(kMostParts) + " parts, not " + std::to_string(count));
  return {};
}

bool read_list(std::span<const std::byte> from, std::uint64_t expected_parts, const Participant& me,
               std::vector<ListEntry>& table, ListHeader& header) {
  table.clear();
  if (from.size() < sizeof header) return false;
  std::memcpy(&header, from.data(), sizeof header);
  if (header.parts == 0) {
    if (header.bytes > from.size() - sizeof header) return false;
    table.push_back({static_cast<std::uint32_t>(PartKind::bytes), 0, 0, sizeof header, header.bytes});
    return true;
  }
  if (header.parts > kMostParts) return false;
  if (header.parts != expected_parts || header.parts > (from.size() - sizeof header) / sizeof(ListEntry)) return false;
  table.resize(header.parts);
  std::memcpy(table.data(), from.data() + sizeof header, table.size() * sizeof(ListEntry));
  for (const ListEntry& entry : table) {
    switch (entry.kind()) {
      case PartKind::bytes:
        if (entry.offset > from.size() || entry.length > from.size() - entry.offset) return false;
        break;
      case PartKind::slot: {
        if (entry.id > UINT32_MAX) return false;
        pool::Handle handle{};
        handle.slot = entry.number;
        handle.generation = static_cast<std::uint32_t>(entry.id);
        handle.offset = entry.offset;
        handle.length = entry.length;
        if (!me.fits(handle)) return false;
        break;
      }
      case PartKind::region:
        break;  // its size is known once it is attached
      default:
        return false;
    }
  }
  return true;
}

Message::Part& Message::add() {
  if (count_ == parts_.size()) parts_.emplace_back();
  Part& part = parts_[count_];
  part.same_as = static_cast<std::uint32_t>(count_++);
  part.kept = false;
  part.slot = pool::kNone;
  part.data = nullptr;
  part.length = part.offset = 0;
  part.rights = 0;
  part.status = Status::ok;
  return part;
}

void Message::share(const Wanted& wanted, const Region::Handle& handle) {
  const std::uint32_t* first = nullptr;
  for (const std::uint32_t& number : wanted.parts) {
    Part& part = parts_[number];
    if (part.offset > handle->length() || part.length > handle->length() - part.offset) {
      part.failure = error(Status::broken, "the message names a stretch beyond the end of a region").error();
      part.status = Status::broken;
      continue;
    }
    if (first == nullptr) first = &number;
    part.same_as = *first;
    part.handle = handle;
    part.rights = handle->rights();
    part.data = handle->data() + part.offset;
  }
}

void Message::refuse(const Wanted& wanted, const Error& why) {
  for (const std::uint32_t number : wanted.parts) {
    parts_[number].failure = why;
    parts_[number].status = why.status;
  }
}

void Message::clear() {
  for (std::size_t i = 0; i < count_; ++i)
    if (parts_[i].handle) parts_[i].handle.reset();
  count_ = 0;
  type_ = 0;
  container_ = pool::kNone;
  if (container_region_) container_region_.reset();
}

void Message::drop_kept(Pool& pool) {
  Participant& me = pool.me();
  for (std::size_t i = 0; i < count_; ++i)
    if (parts_[i].handle) pool.kept_mappings().give(std::move(parts_[i].handle));
  for (std::size_t i = 0; i < count_; ++i)
    if (std::exchange(parts_[i].kept, false)) me.drop(parts_[i].slot);
  if (container_ != pool::kNone) me.drop(std::exchange(container_, pool::kNone));
}

Result<void> Message::done() {
  if (pool_) {
    if (!stale()) {
      Pool::Lock lock(pool_->me().lock());
      if (receiver_ != nullptr) receiver_->settle(*this, Receiver::Settle::done);
      drop_kept(*pool_);
    }
    receiver_ = nullptr;
    clear();
    pool_.reset();  // without the pool's lock, because this may be the last reference to the pool
    return {};
  }
  clear();
  return {};
}

Result<void> Message::give_back() {
  if (receiver_ == nullptr || stale())
    return error(Status::invalid, "the message is done already, or was not received from an AT_LEAST_ONCE queue");
  {
    Pool::Lock lock(pool_->me().lock());
    if (!receiver_->at_least_once())
      return error(Status::invalid, "only a message of an AT_LEAST_ONCE queue can be given back");
    receiver_->settle(*this, Receiver::Settle::give_back);
    drop_kept(*pool_);
  }
  clear();
  pool_.reset();
  return {};
}

Result<void> Message::keep() {
  if (receiver_ == nullptr) return {};  // inline, or kept already
  if (stale()) return error(Status::forked, "the message is the parent's");
  Pool::Lock lock(pool_->me().lock());
  if (receiver_->at_least_once()) return {};  // no other consumer gets it until it is done
  Participant& me = pool_->me();
  for (std::size_t i = 0; i < count_; ++i) {
    Part& part = parts_[i];
    if (part.kind != PartKind::slot || part.kept) continue;
    if (!me.keep(part.slot, part.generation))
      return error(Status::broken, "a slot of the message was used again by its sender while the message was not done");
    part.kept = true;
  }
  const auto& container = receiver_->borrowed_container();
  if (container.slot != pool::kNone && container_ == pool::kNone) {
    if (!me.keep(container.slot, container.generation))
      return error(Status::broken, "the list's slot was used again by its sender while the message was not done");
    container_ = container.slot;
  }
  receiver_->settle(*this, Receiver::Settle::done);
  return {};
}

Result<Slot> Message::take_slot(std::size_t number) {
  if (number >= count_ || parts_[number].kind != PartKind::slot)
    return error(Status::invalid, "the message has no slot there");
  if (stale()) return error(Status::forked, "the message is the parent's, or done");
  Pool::Lock lock(pool_->me().lock());
  Part& part = parts_[number];
  if (part.status != Status::ok) return std::unexpected(part.failure);
  if (part.kept && receiver_ != nullptr) {  // lent by an mpmc queue: the message has it until it is done
    pool_->me().hold(part.slot);
    return pool_->give_to_user(part.slot, part.offset + part.length);
  }
  if (std::exchange(part.kept, false)) return pool_->give_to_user(part.slot, part.offset + part.length);
  if (receiver_ == nullptr) return error(Status::invalid, "the slot was taken out of the message already");
  if (!pool_->me().keep(part.slot, part.generation))
    return error(Status::broken, "a slot of the message was used again by its sender while the message was not done");
  return pool_->give_to_user(part.slot, part.offset + part.length);
}

Result<Region::Handle> Message::take_region(std::size_t number) {
  if (number >= count_ || parts_[number].kind != PartKind::region)
    return error(Status::invalid, "the message has no region there");
  Part& part = parts_[number];
  if (part.status != Status::ok) return std::unexpected(part.failure);
  if (!part.handle) return error(Status::invalid, "the region was taken out of the message already");
  if (!stale()) {
    Pool::Lock lock(pool_->me().lock());
    pool_->kept_mappings().hand_out(*part.handle);
  }
  return std::move(part.handle);
}

}  // namespace shmb::client
