// SPDX-License-Identifier: Apache-2.0
// The contents of queues, in C++: slots, the parts of a message to send, and received messages.
// shmbroker_pool.hpp includes this file. C++20, libc and std only.
#if __cplusplus < 202002L
#error "shmbroker/shmbroker_message.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker.h)"
#elif !defined(SHMBROKER_MESSAGE_HPP)
#define SHMBROKER_MESSAGE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shmbroker.hpp"

namespace shmbroker {
namespace detail {

template <>
struct Closer<shmb_message> {
  static void close(shmb_message* handle) noexcept { shmb_message_free(handle); }
};

}  // namespace detail

/// One reference to a slot. Ownership: its end gives the reference back. Lifetime: it must end before the pool's handle
/// that it came from. Threads: one at a time. In a forked child it is not usable (Status::forked).
class Slot {
 public:
  /// No slot; or one that a C function returned, whose reference this object takes over.
  Slot() noexcept = default;
  Slot(shmb_pool* pool, const shmb_slot& adopted) noexcept : pool_(pool), slot_(adopted) {}
  Slot(Slot&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  Slot& operator=(Slot&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      slot_ = other.slot_;
    }
    return *this;
  }
  ~Slot() { reset(); }

  /// Whether it holds a slot.
  explicit operator bool() const noexcept { return pool_ != nullptr; }
  /// The memory and its sizes in bytes. resize() sets the bytes in use. The send checks them against the capacity.
  std::byte* data() const noexcept { return static_cast<std::byte*>(slot_.data); }
  std::size_t size() const noexcept { return static_cast<std::size_t>(slot_.length); }    // bytes in use
  std::size_t capacity() const noexcept { return static_cast<std::size_t>(slot_.size); }  // bytes that fit
  void resize(std::size_t length) noexcept { slot_.length = length; }                     // checked when it is sent
  std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
  /// The bytes in use as many whole T as fit.
  template <class T>
  std::span<T> as_span() const noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
    return {reinterpret_cast<T*>(data()), size() / sizeof(T)};
  }
  /// The T at the start of the bytes in use. Status: invalid if they are fewer.
  template <class T>
  Result<T*> try_as() const noexcept {
    return detail::first_of<T>("the slot", bytes());
  }
  /// Makes a second reference. Statuses: stale (not held any more), forked.
  Result<Slot> try_share() const noexcept {
    shmb_error error;
    if (shmb_slot_retain(pool_, &slot_, &error) != SHMB_OK) return Error(error);
    return Slot(pool_, slot_);
  }
  /// Gives the reference back now.
  void reset() noexcept {
    if (pool_ != nullptr) (void)shmb_slot_release(std::exchange(pool_, nullptr), &slot_, nullptr);
  }
  /// The C form, which this object keeps.
  const shmb_slot& c() const noexcept { return slot_; }
#if SHMBROKER_EXCEPTIONS
  /// As the try_ forms. Each throws Error with the same status.
  template <class T>
  T& as() const {
    return *try_as<T>().value();
  }
  Slot share() const { return try_share().value(); }
#endif

 private:
  shmb_pool* pool_ = nullptr;
  shmb_slot slot_{};
};

/// One part of a message to send. Ownership: none, it copies nothing. Lifetime: its memory must stay valid until the
/// send returns. Threads: a plain value.
class Part {
 public:
  /// Bytes or a text, which the send copies; a slot; or a region. `rights` are those of the receiver's mapping.
  Part(std::span<const std::byte> bytes) noexcept {
    part_.kind = SHMB_PART_BYTES;
    part_.data = bytes.data();
    part_.length = bytes.size();
  }
  Part(std::string_view text) noexcept : Part(std::as_bytes(std::span(text.data(), text.size()))) {}
  Part(const char* text) noexcept : Part(std::string_view(text)) {}
  /// A slot with its bytes in use. The receiver gets a reference of its own.
  Part(const Slot& slot) noexcept {
    part_.kind = SHMB_PART_SLOT;
    part_.slot = slot.c();
    part_.length = slot.size();
  }
  /// A region, as a whole. `rights` are those of the receiver's mapping.
  Part(const RegionBase& region, Rights rights = Rights::read) noexcept {
    part_.kind = SHMB_PART_REGION;
    part_.region = region.c();
    part_.rights = static_cast<std::uint32_t>(rights);
  }
  /// A range of a slot or region, in bytes.
  Part within(std::uint64_t offset, std::uint64_t length) const noexcept {
    Part part = *this;
    part.part_.offset = offset;
    part.part_.length = length;
    return part;
  }
  /// The C form, which lives as long as this object.
  const shmb_part& c() const noexcept { return part_; }

 private:
  shmb_part part_{};
};

/// The facts that a message of several parts carries besides them. `type` is a number for the receiver.
struct SendOptions {
  std::uint64_t type = 0;
  Timeout lifetime{};  // of the message, in queues that are `expiring`; default: forever
  Timeout wait{};
};

/// A part as received. Its bytes are valid as long as the message holds them.
struct ReceivedPart {
  enum class Kind : std::uint32_t { bytes = SHMB_PART_BYTES, slot = SHMB_PART_SLOT, region = SHMB_PART_REGION };
  Kind kind;
  std::span<const std::byte> bytes;
  Status status;  // why a region could not be attached, or a slot not be mapped; then there are no bytes
  RegionId region;
  // Regions: the number of the first part of the message with the same mapping. A region that comes in several parts is
  // mapped once, and regions taken out of these parts are handles of that one mapping. Make one object from the first
  // of them and let the others share it. For the first part, and for parts that are not mapped, it is the part's own
  // number.
  std::size_t same_as;
};

/// A received message. The object can be reused for many receives. Ownership: it holds its slots and regions until
/// done() or its end. Lifetime: it must end before its queue; a borrowed one is valid until the next receive. Threads:
/// one at a time.
class Message {
 public:
  /// An empty message. Status: no_memory.
  static Result<Message> try_make() noexcept {
    shmb_message* raw = nullptr;
    shmb_error error;
    if (shmb_message_new(&raw, &error) != SHMB_OK) return Error(error);
    return Message(raw);
  }
#if SHMBROKER_EXCEPTIONS
  /// An empty message. Throws Error with no_memory.
  Message() : handle_(try_make().value().handle_.release()) {}
#endif
  /// Takes over a C handle.
  explicit Message(shmb_message* adopted) noexcept : handle_(adopted) {}
  Message(Message&& other) noexcept : handle_(std::move(other.handle_)) {}
  Message& operator=(Message&& other) noexcept {
    handle_ = std::move(other.handle_);
    return *this;
  }
  // As done(). If an exception destroys it, the work was not done: a message of an at-least-once queue goes back.
  ~Message() {
    if (std::uncaught_exceptions() > exceptions_) (void)shmb_message_give_back(handle_.get(), nullptr);
  }

  /// The number of its parts; 0: it is empty.
  std::size_t count() const noexcept { return shmb_message_count(handle_.get()); }
  /// The number that its sender gave it, else 0.
  std::uint64_t type() const noexcept { return shmb_message_type(handle_.get()); }
  /// The first part, which is the whole message unless it is a list: its bytes, the same as text, or as many whole T as
  /// fit. It is valid as long as the message holds it.
  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(shmb_message_data(handle_.get())),
            static_cast<std::size_t>(shmb_message_length(handle_.get()))};
  }
  std::string_view text() const noexcept {
    return {static_cast<const char*>(shmb_message_data(handle_.get())),
            static_cast<std::size_t>(shmb_message_length(handle_.get()))};
  }
  template <class T>
  std::span<const T> as_span() const noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
    return {reinterpret_cast<const T*>(shmb_message_data(handle_.get())), bytes().size() / sizeof(T)};
  }
  /// A copy of the message as a T. Status: invalid if it does not have exactly the size of a T.
  template <class T>
  Result<T> try_as() const noexcept {
    static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>,
                  "shared memory holds objects that are their bytes");
    if (bytes().size() != sizeof(T)) return detail::not_a("the message", bytes().size(), sizeof(T));
    T value;
    std::memcpy(&value, bytes().data(), sizeof value);
    return value;
  }
  /// A part by its number, from 0. Status: not_found if there is none.
  Result<ReceivedPart> try_part(std::size_t number) const noexcept {
    shmb_part part{};
    shmb_error error;
    if (shmb_message_part(handle_.get(), number, &part, &error) != SHMB_OK) return Error(error);
    return ReceivedPart{
        static_cast<ReceivedPart::Kind>(part.kind),
        {static_cast<const std::byte*>(part.data), part.data != nullptr ? static_cast<std::size_t>(part.length) : 0},
        static_cast<Status>(part.status),
        RegionId::from_c(part.id),
        part.same_as};
  }
  /// Takes a reference that outlives the message. `pool` must be the queue's pool. Statuses: invalid (no slot of that
  /// number, or one of another pool), forked, or the part's own status.
  Result<Slot> try_take_slot(shmb_pool* pool, std::size_t number = 0) noexcept {
    shmb_slot slot{};
    shmb_error error;
    shmb_part part{};
    if (shmb_message_part(handle_.get(), number, &part, &error) != SHMB_OK) return Error(error);
    if (part.kind == SHMB_PART_SLOT && part.slot.pool != shmb_pool_id(pool)) {
      // The other pool could not release it. So it stays in the message, and the error names its pool.
      if (shmb_slot_retain(pool, &part.slot, &error) == SHMB_OK) return Error(Status::invalid);
      return Error(error);
    }
    if (shmb_message_take_slot(handle_.get(), number, &slot, &error) != SHMB_OK) return Error(error);
    return Slot(pool, slot);
  }
  /// Takes a region that outlives the message. Regions of parts that are the same (ReceivedPart::same_as) share their
  /// mapping: they have equal addresses, and may be released in any order. While there are several, publish() returns
  /// Status::pinned. Statuses: invalid (no region of that number), forked, or the part's own status.
  Result<ReadOnlyRegion> try_take_region(std::size_t number = 0) noexcept { return taken<ReadOnlyRegion>(number); }
  Result<Region> try_take_writable_region(std::size_t number = 0) noexcept { return taken<Region>(number); }

  /// Makes a borrowed message a kept one. One of an at-least-once queue stays as it is. Statuses: forked, and those of
  /// attaching its regions.
  Result<void> try_keep() noexcept { return called(shmb_message_keep); }
  /// Ends the use of the message: its slots and regions go back, and the object may receive again. Status: forked.
  Result<void> try_done() noexcept { return called(shmb_message_done); }
  /// For at-least-once queues: the work was not done, and another reader gets the message. Statuses: invalid (no such
  /// message), forked.
  Result<void> try_give_back() noexcept { return called(shmb_message_give_back); }
  /// The C handle, which this object keeps.
  shmb_message* c() const noexcept { return handle_.get(); }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  template <class T>
  T as() const {
    return try_as<T>().value();
  }
  ReceivedPart part(std::size_t number) const { return try_part(number).value(); }
  Slot take_slot(shmb_pool* pool, std::size_t number = 0) { return try_take_slot(pool, number).value(); }
  ReadOnlyRegion take_region(std::size_t number = 0) { return try_take_region(number).value(); }
  Region take_writable_region(std::size_t number = 0) { return try_take_writable_region(number).value(); }
  void keep() { try_keep().value(); }
  void done() { try_done().value(); }
  void give_back() { try_give_back().value(); }
#endif

 private:
  template <class Kind>
  Result<Kind> taken(std::size_t number) noexcept {
    shmb_region* raw = nullptr;
    shmb_error error;
    if (shmb_message_take_region(handle_.get(), number, &raw, &error) != SHMB_OK) return Error(error);
    return Kind(raw);
  }
  template <class Call>
  Result<void> called(Call&& call) noexcept {
    shmb_error error;
    return detail::outcome(call(handle_.get(), &error), error);
  }
  detail::Handle<shmb_message> handle_;
  int exceptions_ = std::uncaught_exceptions();  // in flight already when this object was made
};

}  // namespace shmbroker

#endif
