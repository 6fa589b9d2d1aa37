// SPDX-License-Identifier: Apache-2.0
// Messages: their parts, how a list of parts is written into a cell, a slot or a region, and a received message. Data
// of a peer is copied once and checked on the copy: no offset or number in it reaches outside of the message.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/queue/pool.hpp"

namespace shmb::client {

class Delivery;
class Receiver;

enum class PartKind : std::uint8_t { none, bytes, slot, region };

// A part to send. It is borrowed for the call.
struct OutPart {
  PartKind kind = PartKind::bytes;
  std::uint32_t rights = 0;         // regions: rights of the receiver; 0: read
  const std::byte* data = nullptr;  // bytes
  std::uint64_t length = 0, offset = 0;
  Slot slot;
  Region* region = nullptr;
};

// A list as it travels: a header, the table of entries, then the bytes of its parts, each at a multiple of 16.
struct ListHeader {
  std::uint32_t parts;  // 0: no table, one part of `bytes` bytes follows
  std::uint32_t bytes;
  std::uint64_t type;
};
struct ListEntry {
  std::uint32_t kind_rights;  // PartKind, rights << 8
  std::uint32_t number;       // slot, or generation of the region
  std::uint64_t id;           // generation of the slot, or id of the region
  std::uint64_t offset, length;
  PartKind kind() const { return static_cast<PartKind>(kind_rights & 0xff); }
  std::uint32_t rights() const { return kind_rights >> 8; }
};
static_assert(sizeof(ListHeader) == 16 && sizeof(ListEntry) == 32);

inline constexpr std::size_t kMostParts = 65536;  // of a message: a receiver makes room for each
Result<void> check_parts(std::size_t count);      // a message that is to be sent

// Bytes that the list takes. nullopt: more than an address can count.
std::optional<std::uint64_t> list_bytes(std::span<const OutPart> parts);
void write_list(std::span<const OutPart> parts, std::uint64_t type, std::span<std::byte> to);
// The table of a list that a peer wrote, copied and checked. Every part of bytes lies within `from`. Every slot exists,
// and every range lies within its slot. False: the list is impossible.
bool read_list(std::span<const std::byte> from, std::uint64_t expected_parts, const Participant& me,
               std::vector<ListEntry>& table, ListHeader& header);

// A received message. The object is reused for many messages.
class Message {
 public:
  struct Part {
    PartKind kind = PartKind::none;
    bool kept = false;  // the message holds its own reference to the slot
    std::uint32_t rights = 0, slot = pool::kNone, generation = 0;
    const std::byte* data = nullptr;
    std::uint64_t length = 0, offset = 0;
    shmbw_region_ref region{};
    Region::Handle handle;      // parts of one region share it
    std::uint32_t same_as = 0;  // the first part with its mapping; itself if it is the first, or has none
    Error failure;              // why a region could not be attached, or a slot not mapped
    Status status = Status::ok;
  };

  Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() { (void)done(); }

  std::size_t count() const { return count_; }
  std::uint64_t type() const { return type_; }
  const Part& part(std::size_t number) const { return parts_[number]; }
  std::uint64_t epoch() const { return epoch_; }
  // The participant that sent the message. The broker assigned the lane, so the sender cannot forge it.
  struct Writer {
    std::uint32_t participant = pool::kNone, life = 0;
  };
  const Writer& writer() const { return writer_; }
  Pool* pool() const { return pool_.get(); }

  Result<void> done();
  Result<void> give_back();
  Result<void> keep();
  Result<Slot> take_slot(std::size_t number);
  Result<Region::Handle> take_region(std::size_t number);

 private:
  friend class Delivery;
  friend class Receiver;
  Part& add();
  void clear();
  void drop_kept(Pool& pool);  // call with the lock held
  // A region that parts of the message name, and the rights of all these parts together.
  using Sharers = std::span<std::uint32_t>;  // numbers of parts, ascending
  struct Wanted {
    shmbw_region_ref region{};
    std::uint32_t rights = 0;
    Sharers parts;
  };
  // Calls once for each run of parts that are equal by `key`.
  template <class Key>
  void want(Sharers parts, Key key) {
    while (!parts.empty()) {
      Wanted one{parts_[parts[0]].region, 0, parts.first(1)};
      while (one.parts.size() < parts.size() && key(parts[one.parts.size()]) == key(parts[0]))
        one.parts = parts.first(one.parts.size() + 1);
      for (const std::uint32_t number : one.parts) one.rights |= parts_[number].rights;
      parts = parts.subspan(one.parts.size());
      wanted_.push_back(one);
    }
  }
  void share(const Wanted& wanted, const Region::Handle& handle);
  void refuse(const Wanted& wanted, const Error& why);
  bool stale() const { return pool_ == nullptr || pool_->is_fresh_child() || pool_->incarnation() != incarnation_; }

  std::vector<Part> parts_;  // never shrinks: the first count_ are valid
  std::size_t count_ = 0;
  std::uint64_t type_ = 0, epoch_ = 0, incarnation_ = 0;
  Writer writer_;
  std::shared_ptr<Pool> pool_;             // while slots are kept or a cell is borrowed
  Receiver* receiver_ = nullptr;           // of the queue whose cell is not done
  std::uint32_t container_ = pool::kNone;  // a kept slot that holds the list
  Region::Handle container_region_;
  std::vector<ListEntry> table_;
  std::vector<std::uint32_t> by_region_;  // the parts that are regions, those of one region together
  std::vector<Wanted> wanted_;
  alignas(16) std::array<std::byte, pool::kTagMaxInline> body_;
};

}  // namespace shmb::client
