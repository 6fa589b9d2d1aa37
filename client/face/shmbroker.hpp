// SPDX-License-Identifier: Apache-2.0
// The C++ API of shmbroker, header-only over the C ABI of shmbroker.h. C++20, libc and std only.
//
// Every operation comes twice: `try_x` returns Result<T> with the status, `x` returns T and throws shmbroker::Error
// with the same status. With -fno-exceptions the throwing forms are not declared. Each try_ form lists its statuses.
// The common ones are not listed: invalid (an argument), no_memory, system, forked (handles of the parent are not the
// child's), and in calls to the broker deadline, session_lost, protocol and local_only (a local session).
//
// Units: sizes and offsets are bytes. Threads: any thread may call any function of one session at the same time. A
// handle must not end, or be published, while another thread uses it. Forks: handles stay usable in a forked child,
// which opens its own session at its first call. Handles only move; a moved-from handle may only be assigned to or
// destroyed. Rights are types: a Region can be written, a ReadOnlyRegion cannot, and publish() turns the first into the
// second.
#if __cplusplus < 202002L
#error "shmbroker/shmbroker.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker.h)"
#elif !defined(SHMBROKER_HPP)
#define SHMBROKER_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shmbroker.h"
#include "shmbroker_result.hpp"
#include "shmbroker_types.hpp"

namespace shmbroker {
namespace detail {

template <class T>
struct Closer;
template <>
struct Closer<shmb_session> {
  static void close(shmb_session* handle) noexcept { shmb_disconnect(handle); }
};
template <>
struct Closer<shmb_region> {
  static void close(shmb_region* handle) noexcept { (void)shmb_release(handle, 0, nullptr); }
};

template <class T>
class Handle {
 public:
  Handle() noexcept = default;
  explicit Handle(T* raw) noexcept : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      Closer<T>::close(raw_);
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  ~Handle() { Closer<T>::close(raw_); }
  T* get() const noexcept { return raw_; }
  T* release() noexcept { return std::exchange(raw_, nullptr); }

 private:
  T* raw_ = nullptr;
};

inline Result<void> outcome(int status, const shmb_error& error) noexcept {
  if (status != SHMB_OK) return Error(error);
  return {};
}

}  // namespace detail

/// A mapping of a part of a region, besides the region's own. Ownership: its end unmaps the part. Lifetime: it must end
/// before its region handle. Threads: any may use the bytes, but not while it ends.
class MappedPart {
 public:
  MappedPart(MappedPart&& other) noexcept
      : region_(other.region_), bytes_(std::exchange(other.bytes_, {})), writable_(other.writable_) {}
  MappedPart& operator=(MappedPart&& other) noexcept {
    if (this != &other) {
      reset();
      region_ = other.region_;
      bytes_ = std::exchange(other.bytes_, {});
      writable_ = other.writable_;
    }
    return *this;
  }
  ~MappedPart() { reset(); }
  /// The mapped bytes; to write, or nothing if it was mapped for reading. They are valid until reset() or the end of
  /// the object.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  std::span<std::byte> writable_bytes() const noexcept { return writable_ ? bytes_ : std::span<std::byte>(); }
  /// Unmaps now.
  void reset() noexcept {
    if (bytes_.data() != nullptr) (void)shmb_region_unmap(region_, bytes_.data(), bytes_.size(), nullptr);
    bytes_ = {};
  }

 private:
  friend class RegionBase;
  MappedPart(shmb_region* region, std::span<std::byte> bytes, bool writable) noexcept
      : region_(region), bytes_(bytes), writable_(writable) {}
  shmb_region* region_;
  std::span<std::byte> bytes_;
  bool writable_;
};

/// The operations of both kinds of region. Ownership: a handle holds one reference of this process and its mapping.
/// Lifetime: addresses are valid until the handle ends. It keeps its session alive. Threads: any, but not while it
/// ends.
class RegionBase {
 public:
  /// Facts that need no call to the broker: the length asked for at creation; whether the handle has a mapping; the
  /// identity; all facts of this handle. c() is the C handle, which this object keeps.
  std::size_t size() const noexcept { return static_cast<std::size_t>(shmb_region_length(handle_.get())); }
  bool mapped() const noexcept { return shmb_region_data(handle_.get()) != nullptr; }
  RegionId id() const noexcept { return RegionId::from_c(shmb_region_get_id(handle_.get())); }
  shmb_region_info info() const noexcept {
    shmb_region_info info{};
    info.size = sizeof info;
    (void)shmb_region_get_info(handle_.get(), &info, nullptr);
    return info;
  }
  shmb_region* c() const noexcept { return handle_.get(); }

  /// A ticket for sessions of any group and user. It outlives this session. `rights`: at most those of the handle,
  /// which needs Rights::share. `uses`: the attaches that it allows. `lifetime`: 10 minutes by default. It holds the
  /// region, but never its group. Statuses: denied, limit (tickets of the session or of its user), invalid.
  Result<Ticket> try_ticket(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {},
                            Timeout timeout = {}) const noexcept {
    std::uint8_t bytes[16];
    shmb_error error;
    if (shmb_ticket_create(handle_.get(), static_cast<std::uint32_t>(rights), uses, lifetime.nanoseconds(),
                           timeout.nanoseconds(), bytes, nullptr, &error) != SHMB_OK)
      return Error(error);
    return Ticket(Token(bytes));
  }
  /// A ticket that ends with the session that made it, or its process, at the latest: for receivers that do not outlive
  /// this process. The rest, and the statuses, are as for try_ticket().
  Result<Ticket> try_lend(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {},
                          Timeout timeout = {}) const noexcept {
    std::uint8_t bytes[16];
    shmb_error error;
    if (shmb_ticket_lend(handle_.get(), static_cast<std::uint32_t>(rights), uses, lifetime.nanoseconds(),
                         timeout.nanoseconds(), bytes, nullptr, &error) != SHMB_OK)
      return Error(error);
    return Ticket(Token(bytes));
  }
  /// Maps a part. The offset is a multiple of 4096, and both are bytes. It asks the broker for a descriptor. Statuses:
  /// invalid, denied, write_closed, system.
  Result<MappedPart> try_map(std::uint64_t offset, std::uint64_t length, bool writable = false) const noexcept {
    void* address = nullptr;
    shmb_error error;
    if (shmb_region_map(handle_.get(), offset, length, writable ? SHMB_ACCESS_READ_WRITE : SHMB_ACCESS_READ, &address,
                        &error) != SHMB_OK)
      return Error(error);
    return MappedPart(handle_.get(), {static_cast<std::byte*>(address), static_cast<std::size_t>(length)}, writable);
  }
  /// Puts memory behind a part, so that no write to it can fail later. On a handle without write rights it maps the
  /// pages that exist. Statuses: invalid (outside of the region, or not mapped), no_memory, which names the cgroup.
  Result<void> try_populate(std::uint64_t offset, std::uint64_t length) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_region_populate(handle_.get(), offset, length, &error), error);
  }
  /// A descriptor of the region, close-on-exec. The caller owns and closes it. The broker does not free memory that it
  /// still holds, and never recycles the region. Statuses: denied, no_descriptors.
  Result<int> try_descriptor() const noexcept {
    int fd = -1;
    shmb_error error;
    if (shmb_region_descriptor(handle_.get(), &fd, &error) != SHMB_OK) return Error(error);
    return fd;
  }
  /// Ends the handle now, whatever the result. With `unname` the region loses its name too, and the call waits for the
  /// broker. Without `recycle` the memory is freed instead of kept ready for the group. Statuses: only with `unname`:
  /// denied, session_lost, deadline; then the name stays.
  Result<void> try_release(bool unname = false, bool recycle = true) noexcept {
    shmb_error error;
    const std::uint32_t flags =
        (unname ? unsigned{SHMB_RELEASE_UNNAME} : 0U) | (recycle ? 0U : unsigned{SHMB_RELEASE_NO_RECYCLE});
    return detail::outcome(shmb_release(handle_.release(), flags, &error), error);
  }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  Ticket ticket(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {},
                Timeout timeout = {}) const {
    return try_ticket(rights, uses, lifetime, timeout).value();
  }
  Ticket lend(Rights rights = Rights::read, std::uint32_t uses = 1, Timeout lifetime = {}, Timeout timeout = {}) const {
    return try_lend(rights, uses, lifetime, timeout).value();
  }
  MappedPart map(std::uint64_t offset, std::uint64_t length, bool writable = false) const {
    return try_map(offset, length, writable).value();
  }
  void populate(std::uint64_t offset, std::uint64_t length) const { try_populate(offset, length).value(); }
  int descriptor() const { return try_descriptor().value(); }
  void release(bool unname = false, bool recycle = true) { try_release(unname, recycle).value(); }
#endif

 protected:
  explicit RegionBase(shmb_region* raw) noexcept : handle_(raw) {}
  detail::Handle<shmb_region> handle_;
};

/// A region that this handle cannot write: writing is closed for all, or the handle was not given the right. Ownership:
/// one reference of this process, and its mapping. Lifetime: addresses are valid until the handle ends. Threads: any,
/// but not while it ends.
class ReadOnlyRegion : public RegionBase {
 public:
  /// Takes over a C handle.
  explicit ReadOnlyRegion(shmb_region* adopted) noexcept : RegionBase(adopted) {}
  /// The mapping: its first byte, or nullptr if the handle is not mapped; all bytes of the region.
  const std::byte* data() const noexcept { return static_cast<const std::byte*>(shmb_region_data(handle_.get())); }
  std::span<const std::byte> bytes() const noexcept { return {data(), mapped() ? size() : 0}; }
  /// As many whole T as fit.
  template <class T>
  std::span<const T> as_span() const noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
    static_assert(alignof(T) <= 4096);
    return {reinterpret_cast<const T*>(data()), mapped() ? size() / sizeof(T) : 0};
  }
  /// The T at the start of the region. Status: invalid if the region is smaller, or not mapped.
  template <class T>
  Result<const T*> try_as() const noexcept {
    return detail::first_of<const T>("what is mapped of the region", bytes());
  }
#if SHMBROKER_EXCEPTIONS
  /// As try_as(). Throws Error with the same status.
  template <class T>
  const T& as() const {
    return *try_as<T>().value();
  }
#endif
};

/// A region that this process can write. Ownership: one reference of this process, and its mapping. Lifetime: addresses
/// are valid until the handle ends or publish() succeeds. Threads: any, but not while it ends or is published.
class Region : public RegionBase {
 public:
  /// Takes over a C handle.
  explicit Region(shmb_region* adopted) noexcept : RegionBase(adopted) {}
  /// The mapping: its first byte, or nullptr if the handle is not mapped; all bytes of the region; as many whole T as
  /// fit.
  std::byte* data() const noexcept { return static_cast<std::byte*>(shmb_region_data(handle_.get())); }
  std::span<std::byte> bytes() const noexcept { return {data(), mapped() ? size() : 0}; }
  template <class T>
  std::span<T> as_span() const noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
    static_assert(alignof(T) <= 4096);
    return {reinterpret_cast<T*>(data()), mapped() ? size() / sizeof(T) : 0};
  }
  /// The T at the start of the region. Status: invalid if the region is smaller, or not mapped.
  template <class T>
  Result<T*> try_as() const noexcept {
    return detail::first_of<T>("what is mapped of the region", bytes());
  }
  /// Closes writing for ever, for all processes. On success the result replaces this Region, whose addresses become
  /// invalid. On failure this Region is unchanged, but after deadline it may be unmapped: publish it again. Statuses:
  /// still_mapped (another mapping for writing exists: try again once it is gone), pinned (this process has another
  /// handle of the mapping, or a GPU uses it), not_ready (a writer has not mapped it until the deadline), denied,
  /// invalid.
  Result<ReadOnlyRegion> try_publish(Timeout timeout = {}) && noexcept {
    shmb_error error;
    if (shmb_publish(handle_.get(), timeout.nanoseconds(), &error) != SHMB_OK) return Error(error);
    return ReadOnlyRegion(handle_.release());
  }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  template <class T>
  T& as() const {
    return *try_as<T>().value();
  }
  ReadOnlyRegion publish(Timeout timeout = {}) && { return std::move(*this).try_publish(timeout).value(); }
#endif
};

/// The names of all strategies. A strategy decides what later handles keep besides their mapping, see shmbroker.h. It
/// belongs to the process. Throws std::bad_alloc.
inline std::vector<std::string> sharing_strategies() {
  std::vector<std::string> names;
  for (const char* const* one = shmb_sharing_strategies(); *one != nullptr; ++one) names.emplace_back(*one);
  return names;
}
/// The strategy in force. Status: invalid if SHMBROKER_SHARING_STRATEGY names none. Throws std::bad_alloc.
inline Result<std::string> try_sharing_strategy() {
  const char* name = nullptr;
  shmb_error error;
  if (shmb_sharing_strategy(&name, &error) != SHMB_OK) return Error(error);
  return std::string(name);
}
/// Sets it for later handles. Status: invalid for an unknown name; the sentence lists the known ones.
inline Result<void> try_set_sharing_strategy(std::string_view name) noexcept {
  shmb_error error;
  return detail::outcome(shmb_set_sharing_strategy(detail::CText(name).get(), &error), error);
}
/// Whether signals end the waits of the calling thread, with Status::interrupted. Returns what it was; false is what
/// every thread begins with. shmbroker.h has the rules (shmb_thread_interruptible).
inline bool set_thread_interruptible(bool on) noexcept { return shmb_thread_interruptible(on ? 1 : 0) != 0; }
#if SHMBROKER_EXCEPTIONS
/// As the try_ forms. Each throws Error with the same status.
inline std::string sharing_strategy() { return try_sharing_strategy().value(); }
inline void set_sharing_strategy(std::string_view name) { try_set_sharing_strategy(name).value(); }
#endif

/// How to find the broker, and what the session is. See shmb_connect_options.
struct ConnectOptions {
  Text socket{};          // empty: searched
  std::string group{};    // "<name>:<token>"; empty: SHMBROKER_GROUP
  std::string program{};  // as `shmbroker list` shows the session
  bool local_ok = false;
  bool local_only = false;
  bool start = true;  // a private broker, if there is none
  bool admin = false;
  bool join_group = true;  // false: ignore SHMBROKER_GROUP
  Timeout timeout{};
};

/// The properties of a new region. `timeout` is for the broker's answer; to put memory behind the region takes as long
/// as it takes.
struct CreateOptions {
  Text name{};  // empty: unnamed
  GroupId group{};
  std::optional<Keep> keep{};  // none: the default of the group
  bool many_writers = false;
  bool replace = false;
  bool name_at_publish = false;    // name, keep and replace take effect at publish()
  bool name_with_holders = false;  // the name goes with the last handle and ticket; without keep
  bool uninitialised = false;
  bool recycle = true;
  bool populate = true;
  bool huge_pages = true;
  bool hugetlb = false;  // only pages of 2 MiB that the administrator has reserved (vm.nr_hugepages)
  std::optional<std::uint32_t> numa_node{};  // all its memory comes from this node, at once
  bool map = true;
  bool heap = false;  // a mark: the contents are, or will be, a heap (heap.hpp sets it)
  Rights rights = Rights::all;
  Timeout timeout{};
};

/// How a region is attached.
struct AttachOptions {
  Rights more_rights = Rights::none;  // share, release; reading, and writing where asked, are always included
  bool map = true;
  bool populate = true;
  // For a name that does not exist yet, and for a writer that has not mapped the region yet. Default: no wait for a
  // name, `timeout` for a writer.
  Timeout wait{};
  Timeout timeout{};
};

/// The properties of a new group. `keep` is the default of its regions.
struct GroupOptions {
  Text name{};
  std::uint64_t limit_bytes = 0;  // 0: the broker's default
  std::uint32_t limit_regions = 0;
  Keep keep = Keep::none();
  bool supervised = false;
  bool adopt_existing = false;  // a group of that name is used as it is, also an ended one that still keeps something
  Timeout timeout{};
};

/// The kind of an event. See enum shmb_event_kind.
enum class EventKind : std::uint32_t {
  region_ready = SHMB_EVENT_REGION_READY,
  region_published = SHMB_EVENT_REGION_PUBLISHED,
  region_gone = SHMB_EVENT_REGION_GONE,
  name_appeared = SHMB_EVENT_NAME_APPEARED,
  group_ended = SHMB_EVENT_GROUP_ENDED,
  reclaim = SHMB_EVENT_RECLAIM,
  gap = SHMB_EVENT_GAP,
  broker_away = SHMB_EVENT_BROKER_AWAY,
  gpu_state = SHMB_EVENT_GPU_STATE,
};

/// An event as the broker sent it. See shmb_event for the fields that each kind has.
struct Event {
  EventKind kind;
  WatchId watch;
  RegionId region;
  GroupId group;
  std::uint64_t sequence, bytes, lost;
  std::uint32_t uid, pid, regions, how;
  std::int32_t code;
  std::string text;
};

/// A subscription.
struct Watch {
  WatchId id;
  std::uint32_t state;  // SHMB_EVENT_BIT_* that hold already: no event comes for those
};

/// One connection to the broker. Ownership: the handle; region and pool handles of the session keep it alive until they
/// end too. Threads: any number, at the same time. Lifetime: when the broker goes away it is lost for good; mappings
/// stay valid, and other calls fail with Status::session_lost.
class Session {
 public:
  /// Takes over a C handle.
  explicit Session(shmb_session* adopted) noexcept : handle_(adopted) {}

  /// Connects to a broker, and starts a private one if there is none. shmb_connect has the order of the places where it
  /// looks. Statuses: no_broker (the sentence says what was tried), version, limit (sessions), not_found (the group's
  /// token), deadline.
  static Result<Session> try_connect(const ConnectOptions& options = {}) noexcept {
    shmb_connect_options c{};
    c.size = sizeof c;
    if (!options.socket.empty()) c.socket = options.socket.c_str();
    if (!options.group.empty()) c.group = options.group.c_str();
    if (!options.program.empty()) c.program = options.program.c_str();
    if (options.local_ok) c.flags |= SHMB_CONNECT_LOCAL_OK;
    if (options.local_only) c.flags |= SHMB_CONNECT_LOCAL_ONLY;
    if (!options.start) c.flags |= SHMB_CONNECT_NO_START;
    if (options.admin) c.flags |= SHMB_CONNECT_ADMIN;
    if (!options.join_group) c.flags |= SHMB_CONNECT_NO_GROUP;
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_session* raw = nullptr;
    shmb_error error;
    if (shmb_connect(&c, &raw, &error) != SHMB_OK) return Error(error);
    return Session(raw);
  }

  /// Facts that need no call to the broker: all of them; the broker's epoch; the session's group, 0 if it has none yet;
  /// whether it is a local session; and the C handle, which this object keeps.
  shmb_session_info info() const noexcept {
    shmb_session_info info{};
    info.size = sizeof info;
    (void)shmb_session_get_info(handle_.get(), &info, nullptr);
    return info;
  }
  Epoch epoch() const noexcept { return {info().epoch}; }
  GroupId group() const noexcept { return {info().group}; }
  bool local() const noexcept { return info().mode == SHMB_MODE_LOCAL; }
  shmb_session* c() const noexcept { return handle_.get(); }

  /// A round trip to the broker. A local session succeeds. Statuses: deadline, session_lost.
  Result<void> try_ping(Timeout timeout = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_ping(handle_.get(), timeout.nanoseconds(), &error), error);
  }

  /// Creates a region of `length` bytes and maps it for reading and writing. Up to 1 GiB it puts memory behind the
  /// region first. Statuses: limit, exists, no_memory (the sentence names the cgroup), no_descriptors, group_ended,
  /// denied.
  Result<Region> try_create(std::uint64_t length, const CreateOptions& options = {}) const noexcept {
    const shmb_create_options c = to_c(options);
    shmb_region* raw = nullptr;
    shmb_error error;
    if (shmb_create(handle_.get(), length, &c, &raw, &error) != SHMB_OK) return Error(error);
    return Region(raw);
  }
  /// Creates many in one round trip for up to 253. Elements fail one by one, with the statuses of try_create(); the
  /// first failure has its full sentence. Throws std::bad_alloc.
  Result<std::vector<Result<Region> > > try_create_many(std::span<const std::uint64_t> lengths,
                                                        const CreateOptions& options = {}) const {
    const shmb_create_options c = to_c(options);
    std::vector<shmb_create_item> items;
    for (std::uint64_t length : lengths) items.push_back({length, &c});
    std::vector<shmb_region*> regions(lengths.size());
    std::vector<int> statuses(lengths.size());
    std::vector<Result<Region> > results;
    results.reserve(lengths.size());  // before: what was made is not lost
    shmb_error error{};
    const int first = shmb_create_many(handle_.get(), items.data(), items.size(), options.timeout.nanoseconds(),
                                       regions.data(), statuses.data(), &error);
    bool told = false;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      if (regions[i] != nullptr) (void)results.emplace_back(Region(regions[i]));  // no temporary Result: GCC 12 warns
      else if (!std::exchange(told, true) && first != SHMB_OK) results.push_back(Error(error));
      else results.push_back(Error(static_cast<Status>(statuses[i])));
    }
    return {std::move(results)};  // named: nvcc 13 would copy
  }

  /// Takes a reference to an existing region and maps it, for reading or for both. The region is found by address
  /// ("NAME", "GROUP/NAME", "UID:GROUP/NAME"), by identity, or by ticket. Statuses: not_found (also where the caller
  /// may not know of it), denied, write_closed (read-only readers exist, or it is published), not_ready, stale (another
  /// generation or epoch), deadline, limit (leases), no_descriptors, group_ended (while the call waited for a name,
  /// the group of that name ended).
  Result<ReadOnlyRegion> try_attach(std::string_view address, const AttachOptions& options = {}) const noexcept {
    return attached<ReadOnlyRegion>(Rights::read, options, [&](const auto* c, auto** raw, auto* error) {
      return shmb_attach(handle_.get(), detail::CText(address).get(), c, raw, error);
    });
  }
  Result<ReadOnlyRegion> try_attach(const RegionId& id, const AttachOptions& options = {}) const noexcept {
    return attached<ReadOnlyRegion>(Rights::read, options, [&](const auto* c, auto** raw, auto* error) {
      const shmb_region_id c_id = id.to_c();
      return shmb_attach_id(handle_.get(), &c_id, c, raw, error);
    });
  }
  Result<ReadOnlyRegion> try_attach(const Ticket& ticket, const AttachOptions& options = {}) const noexcept {
    return attached<ReadOnlyRegion>(Rights::read, options, [&](const auto* c, auto** raw, auto* error) {
      return shmb_attach_ticket(handle_.get(), ticket.data(), c, raw, error);
    });
  }
  Result<Region> try_attach_writable(std::string_view address, const AttachOptions& options = {}) const noexcept {
    return attached<Region>(Rights::read | Rights::write, options, [&](const auto* c, auto** raw, auto* error) {
      return shmb_attach(handle_.get(), detail::CText(address).get(), c, raw, error);
    });
  }
  Result<Region> try_attach_writable(const RegionId& id, const AttachOptions& options = {}) const noexcept {
    return attached<Region>(Rights::read | Rights::write, options, [&](const auto* c, auto** raw, auto* error) {
      const shmb_region_id c_id = id.to_c();
      return shmb_attach_id(handle_.get(), &c_id, c, raw, error);
    });
  }
  Result<Region> try_attach_writable(const Ticket& ticket, const AttachOptions& options = {}) const noexcept {
    return attached<Region>(Rights::read | Rights::write, options, [&](const auto* c, auto** raw, auto* error) {
      return shmb_attach_ticket(handle_.get(), ticket.data(), c, raw, error);
    });
  }
  /// Local sessions only: makes a region of shared memory by its descriptor, which the caller keeps. Statuses: invalid,
  /// unsupported (with a broker).
  Result<Region> try_adopt(int fd) const noexcept {
    shmb_region* raw = nullptr;
    shmb_error error;
    if (shmb_adopt_fd(handle_.get(), fd, SHMB_RIGHT_READ | SHMB_RIGHT_WRITE, &raw, &error) != SHMB_OK)
      return Error(error);
    return Region(raw);
  }
  Result<ReadOnlyRegion> try_adopt_read_only(int fd) const noexcept {
    shmb_region* raw = nullptr;
    shmb_error error;
    if (shmb_adopt_fd(handle_.get(), fd, SHMB_RIGHT_READ, &raw, &error) != SHMB_OK) return Error(error);
    return ReadOnlyRegion(raw);
  }

  /// Takes the name of a region away. The region ends with its last reference. Statuses: not_found, denied.
  Result<void> try_unname(std::string_view address, Timeout timeout = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_unname(handle_.get(), detail::CText(address).get(), timeout.nanoseconds(), &error),
                           error);
  }
  /// Asks the broker for the present state of a region. Statuses: not_found, denied, local_only; by identity also
  /// stale.
  Result<shmb_region_stat> try_stat(std::string_view address, Timeout timeout = {}) const noexcept {
    shmb_region_stat stat{};
    stat.size = sizeof stat;
    shmb_error error;
    if (shmb_stat(handle_.get(), detail::CText(address).get(), timeout.nanoseconds(), &stat, &error) != SHMB_OK)
      return Error(error);
    return stat;
  }
  Result<shmb_region_stat> try_stat(const RegionId& id, Timeout timeout = {}) const noexcept {
    shmb_region_stat stat{};
    stat.size = sizeof stat;
    shmb_error error;
    const shmb_region_id c_id = id.to_c();
    if (shmb_stat_id(handle_.get(), &c_id, timeout.nanoseconds(), &stat, &error) != SHMB_OK) return Error(error);
    return stat;
  }

  /// Ends a ticket with its remaining uses. It must be of this session or its group. Regions that were attached by it
  /// stay. Status: not_found, also if it is used up or expired.
  Result<void> try_revoke(const Ticket& ticket, Timeout timeout = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_ticket_revoke(handle_.get(), ticket.data(), timeout.nanoseconds(), &error), error);
  }

  /// Makes a group. The session does not become a member. Until another session joins, the group lives as long as this
  /// session. Statuses: exists, limit, invalid.
  Result<Group> try_create_group(const GroupOptions& options = {}) const noexcept {
    shmb_group_options c{};
    c.size = sizeof c;
    if (!options.name.empty()) c.name = options.name.c_str();
    c.limit_bytes = options.limit_bytes;
    c.limit_regions = options.limit_regions;
    c.keep_ns = options.keep.nanoseconds();
    c.flags = (options.supervised ? unsigned{SHMB_GROUP_SUPERVISED} : 0U) |
              (options.adopt_existing ? unsigned{SHMB_GROUP_ADOPT_EXISTING} : 0U);
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_group made;
    shmb_error error;
    if (shmb_group_create(handle_.get(), &c, &made, &error) != SHMB_OK) return Error(error);
    return Group{{made.id}, Token(made.token)};
  }
  /// The session becomes a member of a group and leaves the one it was in. By name ("GROUP", "@id", "UID:GROUP") the
  /// group must be of the same user; by token any group. Statuses: not_found, group_ended, invalid.
  Result<GroupId> try_join(std::string_view group, Timeout timeout = {}) const noexcept {
    GroupId id;
    shmb_error error;
    if (shmb_group_join(handle_.get(), detail::CText(group).get(), 0, timeout.nanoseconds(), &id.value, &error) !=
        SHMB_OK)
      return Error(error);
    return id;
  }
  Result<GroupId> try_join(const Token& token, Timeout timeout = {}) const noexcept {
    GroupId id;
    shmb_error error;
    if (shmb_group_join_token(handle_.get(), token.data(), 0, timeout.nanoseconds(), &id.value, &error) != SHMB_OK)
      return Error(error);
    return id;
  }
  /// Leaves a group; the default is the session's own. A group that the session made and that no session has joined
  /// ends. Status: not_found if it is in no such group.
  Result<void> try_leave(GroupId group = {}, Timeout timeout = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_group_leave(handle_.get(), group.value, timeout.nanoseconds(), &error), error);
  }
  /// Ends a group: its members leave it, and its names go. Processes that still run lose what they share by it.
  /// `flags`: enum shmb_end_flag. Statuses: not_found, denied, busy (only what it keeps was to end, and the group
  /// is alive).
  Result<shmb_group_ending> try_end_group(GroupId group, std::uint32_t flags = 0, Timeout timeout = {}) const noexcept {
    shmb_group_ending ending{};
    shmb_error error;
    if (shmb_group_end(handle_.get(), group.value, nullptr, flags, timeout.nanoseconds(), &ending, &error) != SHMB_OK)
      return Error(error);
    return ending;
  }
  /// Waits until a group has ended, by default without limit. Statuses: not_found, deadline, session_lost.
  Result<void> try_wait_group(GroupId group = {}, Timeout wait = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_group_wait(handle_.get(), group.value, wait.nanoseconds(), &error), error);
  }

  /// Subscribes to events of a region, of a name that appears, of the end of a group, or of the reclaims of a group
  /// (default: of all). `events`: SHMB_EVENT_BIT_*; 0: all of the kind. Watch::state has what holds already; no event
  /// comes for it. Statuses: not_found, limit (watches), invalid.
  Result<Watch> try_watch(const RegionId& region, std::uint32_t events = 0) const noexcept {
    shmb_watch_options c{};
    c.kind = SHMB_WATCH_REGION;
    c.events = events;
    c.region = region.to_c();
    return watched(c);
  }
  Result<Watch> try_watch_name(std::string_view address) const noexcept {
    shmb_watch_options c{};
    c.kind = SHMB_WATCH_NAME;
    const detail::CText text(address);
    c.address = text.get();
    return watched(c);
  }
  Result<Watch> try_watch(GroupId group) const noexcept {
    shmb_watch_options c{};
    c.kind = SHMB_WATCH_GROUP;
    c.group = group.value;
    return watched(c);
  }
  Result<Watch> try_watch_reclaims(GroupId group = {}) const noexcept {
    shmb_watch_options c{};
    c.kind = SHMB_WATCH_RECLAIM;
    c.group = group.value;
    return watched(c);
  }
  /// Ends a subscription. Status: not_found.
  Result<void> try_unwatch(WatchId watch, Timeout timeout = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_unwatch(handle_.get(), watch.value, timeout.nanoseconds(), &error), error);
  }
  /// A descriptor for poll, select and epoll, readable when try_next_event() may have something. It belongs to the
  /// session: never close, read or write it. Status: unsupported for a local session.
  Result<int> try_event_descriptor() const noexcept {
    int fd = -1;
    shmb_error error;
    if (shmb_event_descriptor(handle_.get(), &fd, &error) != SHMB_OK) return Error(error);
    return fd;
  }
  /// Takes the next event of the session. Any thread may call it; each event goes to one caller. Statuses: deadline
  /// (none came), session_lost (stop polling). Throws std::bad_alloc.
  Result<Event> try_next_event(Timeout wait = {}) const {
    shmb_event c{};
    c.size = sizeof c;
    std::string text;
    text.reserve(sizeof c.text);  // before: an event that was taken is not lost
    shmb_error error;
    if (shmb_next_event(handle_.get(), wait.nanoseconds(), &c, &error) != SHMB_OK) return Error(error);
    text = c.text;
    return Event{static_cast<EventKind>(c.kind),
                 {c.watch},
                 RegionId::from_c(c.region),
                 {c.group},
                 c.sequence,
                 c.bytes,
                 c.lost,
                 c.uid,
                 c.pid,
                 c.regions,
                 c.how,
                 c.code,
                 std::move(text)};
  }

#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Session connect(const ConnectOptions& options = {}) { return try_connect(options).value(); }
  void ping(Timeout timeout = {}) const { try_ping(timeout).value(); }
  Region create(std::uint64_t length, const CreateOptions& options = {}) const {
    return try_create(length, options).value();
  }
  /// All or none: after a failure, those that were made are released again.
  std::vector<Region> create_many(std::span<const std::uint64_t> lengths, const CreateOptions& options = {}) const {
    auto results = try_create_many(lengths, options).value();
    std::vector<Region> regions;
    for (auto& result : results) regions.push_back(std::move(result).value());
    return regions;
  }
  template <class Where>
  ReadOnlyRegion attach(const Where& where, const AttachOptions& options = {}) const {
    return try_attach(where, options).value();
  }
  template <class Where>
  Region attach_writable(const Where& where, const AttachOptions& options = {}) const {
    return try_attach_writable(where, options).value();
  }
  Region adopt(int fd) const { return try_adopt(fd).value(); }
  ReadOnlyRegion adopt_read_only(int fd) const { return try_adopt_read_only(fd).value(); }
  void unname(std::string_view address, Timeout timeout = {}) const { try_unname(address, timeout).value(); }
  template <class Where>
  shmb_region_stat stat(const Where& where, Timeout timeout = {}) const {
    return try_stat(where, timeout).value();
  }
  Group create_group(const GroupOptions& options = {}) const { return try_create_group(options).value(); }
  template <class Which>
  GroupId join(const Which& which, Timeout timeout = {}) const {
    return try_join(which, timeout).value();
  }
  void leave(GroupId group = {}, Timeout timeout = {}) const { try_leave(group, timeout).value(); }
  void revoke(const Ticket& ticket, Timeout timeout = {}) const { try_revoke(ticket, timeout).value(); }
  shmb_group_ending end_group(GroupId group, std::uint32_t flags = 0, Timeout timeout = {}) const {
    return try_end_group(group, flags, timeout).value();
  }
  void wait_group(GroupId group = {}, Timeout wait = {}) const { try_wait_group(group, wait).value(); }
  Watch watch(const RegionId& region, std::uint32_t events = 0) const { return try_watch(region, events).value(); }
  Watch watch(GroupId group) const { return try_watch(group).value(); }
  Watch watch_name(std::string_view address) const { return try_watch_name(address).value(); }
  Watch watch_reclaims(GroupId group = {}) const { return try_watch_reclaims(group).value(); }
  void unwatch(WatchId watch, Timeout timeout = {}) const { try_unwatch(watch, timeout).value(); }
  int event_descriptor() const { return try_event_descriptor().value(); }
  Event next_event(Timeout wait = {}) const { return try_next_event(wait).value(); }
#endif

 private:
  static shmb_create_options to_c(const CreateOptions& options) noexcept {
    shmb_create_options c{};
    c.size = sizeof c;
    if (!options.name.empty()) c.name = options.name.c_str();
    c.group = options.group.value;
    if (options.keep) {
      c.keep_ns = options.keep->nanoseconds();
      c.flags |= SHMB_CREATE_KEEP_GIVEN;
    }
    if (options.heap) c.flags |= SHMB_CREATE_HEAP;
    if (options.many_writers) c.flags |= SHMB_CREATE_MANY_WRITERS;
    if (options.replace) c.flags |= SHMB_CREATE_REPLACE;
    if (options.name_at_publish) c.flags |= SHMB_CREATE_NAME_AT_PUBLISH;
    if (options.name_with_holders) c.flags |= SHMB_CREATE_NAME_WITH_HOLDERS;
    if (options.uninitialised) c.flags |= SHMB_CREATE_UNINITIALISED;
    if (!options.recycle) c.flags |= SHMB_CREATE_NO_RECYCLE;
    if (!options.populate) c.flags |= SHMB_CREATE_NO_POPULATE;
    if (!options.huge_pages) c.flags |= SHMB_CREATE_SMALL_PAGES;
    if (options.hugetlb) c.flags |= SHMB_CREATE_HUGETLB;
    if (options.numa_node) {
      c.numa_node = *options.numa_node;
      c.flags |= SHMB_CREATE_ON_NODE;
    }
    if (!options.map) c.flags |= SHMB_CREATE_UNMAPPED;
    c.rights = static_cast<std::uint32_t>(options.rights);
    c.timeout_ns = options.timeout.nanoseconds();
    return c;
  }
  template <class Kind, class Call>
  static Result<Kind> attached(Rights rights, const AttachOptions& options, Call&& call) noexcept {
    shmb_attach_options c{};
    c.size = sizeof c;
    c.rights = static_cast<std::uint32_t>(rights | options.more_rights);
    if (!options.map) c.flags |= SHMB_ATTACH_UNMAPPED;
    if (!options.populate) c.flags |= SHMB_ATTACH_NO_POPULATE;
    c.wait_ns = options.wait.nanoseconds();
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_region* raw = nullptr;
    shmb_error error;
    if (call(&c, &raw, &error) != SHMB_OK) return Error(error);
    return Kind(raw);
  }
  Result<Watch> watched(shmb_watch_options& c) const noexcept {
    c.size = sizeof c;
    Watch watch{};
    shmb_error error;
    if (shmb_watch(handle_.get(), &c, &watch.id.value, &watch.state, &error) != SHMB_OK) return Error(error);
    return watch;
  }

  detail::Handle<shmb_session> handle_;
};

}  // namespace shmbroker

#endif
