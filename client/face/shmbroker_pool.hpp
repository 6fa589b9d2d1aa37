// SPDX-License-Identifier: Apache-2.0
// Pools, queues and queue sets in C++, header-only over shmbroker_pool.h. They follow shmbroker.hpp: C++20, each
// operation as `try_x` that returns a Result, and as `x` that throws Error with the same status. Handles only move.
// Slots and messages give back what they hold when they end. Waits for slots and messages take Timeout::forever() and
// Timeout::no_wait().
#if __cplusplus < 202002L
#error "shmbroker/pool.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker.h)"
#elif !defined(SHMBROKER_POOL_HPP)
#define SHMBROKER_POOL_HPP

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "shmbroker.hpp"
#include "shmbroker_message.hpp"

namespace shmbroker {
namespace detail {

template <>
struct Closer<shmb_pool> {
  static void close(shmb_pool* handle) noexcept { shmb_pool_close(handle); }
};
template <>
struct Closer<shmb_queue> {
  static void close(shmb_queue* handle) noexcept { (void)shmb_queue_close(handle, 0, nullptr); }
};
template <>
struct Closer<shmb_queue_set> {
  static void close(shmb_queue_set* handle) noexcept { shmb_queue_set_free(handle); }
};

}  // namespace detail

/// The slots of one size in bytes.
struct SizeClass {
  std::uint64_t slot_size = 0;
  std::uint32_t slots = 1;        // made at once
  std::uint32_t slots_limit = 0;  // 0: no more than `slots`
};

/// The properties of a new pool. See shmb_pool_options for the limits.
struct PoolOptions {
  Text name{};  // empty: unnamed
  std::vector<SizeClass> classes{};
  GroupId group{};
  std::optional<Keep> keep{};
  bool huge_pages = true;
  bool populate = true;
  bool name_with_holders = false;       // the pool and its name go with the last participant; without keep
  bool replace = false;                 // a pool with that name loses it; its participants keep using it
  std::uint32_t lanes = 0, queues = 0;  // 0: 64 and 16
  std::uint64_t lane_bytes = 0;         // 0: 1 MiB
  Timeout timeout{};
};

/// How a pool is opened. A read-only participant maps slots for reading, opens no writer and takes no slots.
struct PoolOpenOptions {
  bool read_only = false;
  Timeout wait{};  // for a name that does not exist yet; default: no wait
  Timeout timeout{};
};

/// The kind of a queue: one writer and one reader; many of both, each message to one reader; or one writer, and each
/// message to all readers.
enum class QueueKind : std::uint32_t {
  as_is = SHMB_QUEUE_AS_IS,
  spsc = SHMB_QUEUE_SPSC,
  mpmc = SHMB_QUEUE_MPMC,
  broadcast = SHMB_QUEUE_BROADCAST,
};
enum class Role : std::uint32_t {
  reader = SHMB_QUEUE_READER,
  writer = SHMB_QUEUE_WRITER,
  both = SHMB_QUEUE_READER | SHMB_QUEUE_WRITER,
};

/// How a queue is opened or made. `cells` are the messages under way for each lane, a power of two.
struct QueueOptions {
  QueueKind kind = QueueKind::as_is;  // a reader waits for the queue and takes its kind; a writer makes an spsc queue
  std::uint32_t cells = 0;            // 0: as the queue has them, 256 in a new one
  std::uint32_t inline_bytes = 0;     // 56 or 120; 0: as the queue has them, 56 in a new one
  bool drop_oldest = false;
  bool expiring = false;
  bool at_least_once = false;
  bool create_only = false;
  bool open_only = false;
  Timeout spin{};  // looks so long before it sleeps; default: 20 us, less after useless spins
  Timeout wait{};  // for a queue that does not exist yet; default: with open_only no wait, for a reader as_is `timeout`
  Timeout timeout{};
};

class Messages;

/// This process' ends of one queue: reader, writer or both. Ownership: its end closes these ends; what was sent stays
/// for its readers. Threads: any number may send; only queues of competing readers may be received from by several
/// threads at once, with kept messages. No thread may be in a call when it ends. Lifetime: it keeps its pool.
class Queue {
 public:
  /// Takes over a C handle.
  explicit Queue(shmb_queue* adopted) noexcept : handle_(adopted) {}

  /// Sends bytes, a text, or a slot. On success the message arrives, even if this process is killed at once. Bytes are
  /// copied. A slot must not be written any more, and stays held until its object ends. Statuses: full (no_wait),
  /// deadline, closed, peer_gone (once for each event, nothing was sent: call again to wait for newcomers), denied (no
  /// writer), invalid (too large), stale, broken, session_lost.
  Result<void> try_send(std::span<const std::byte> bytes, Timeout wait = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_send(handle_.get(), bytes.data(), bytes.size(), wait.nanoseconds(), &error),
                           error);
  }
  Result<void> try_send(std::string_view text, Timeout wait = {}) const noexcept {
    return try_send(std::as_bytes(std::span(text.data(), text.size())), wait);
  }
  Result<void> try_send(const char* text, Timeout wait = {}) const noexcept {
    return try_send(std::string_view(text), wait);
  }
  Result<void> try_send(const Slot& slot, Timeout wait = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_send_slot(handle_.get(), &slot.c(), wait.nanoseconds(), &error), error);
  }
  /// Sends one message of many parts. It arrives as a whole or not at all. Statuses: those of try_send().
  Result<void> try_send_parts(std::span<const Part> parts, const SendOptions& options = {}) const noexcept {
    static_assert(sizeof(Part) == sizeof(shmb_part) && std::is_standard_layout_v<Part>);
    shmb_outgoing message{};
    message.parts = reinterpret_cast<const shmb_part*>(parts.data());
    message.count = parts.size();
    message.type = options.type;
    message.lifetime_ns = options.lifetime.nanoseconds();
    shmb_error error;
    return detail::outcome(shmb_queue_send_message(handle_.get(), &message, options.wait.nanoseconds(), &error), error);
  }
  Result<void> try_send_parts(std::initializer_list<Part> parts, const SendOptions& options = {}) const noexcept {
    return try_send_parts(std::span(parts.begin(), parts.size()), options);
  }
  /// Sends many messages of one part each. Returns how many were sent; fewer than all only after an error. Statuses:
  /// those of try_send(). Throws std::bad_alloc.
  Result<std::size_t> try_send_many(std::span<const Part> messages, Timeout wait = {}) const {
    std::vector<shmb_outgoing> list(messages.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i].parts = &messages[i].c();
      list[i].count = 1;
    }
    std::size_t sent = 0;
    shmb_error error;
    if (shmb_queue_send_many(handle_.get(), list.data(), list.size(), wait.nanoseconds(), &sent, &error) != SHMB_OK &&
        sent == 0)
      return Error(error);
    return sent;
  }

  /// A borrowed message: valid until it is done, or until the next receive on this queue. Statuses: empty (no_wait),
  /// deadline, closed (and nothing is left), peer_gone, denied (no reader), busy (the message before of an
  /// at-least-once queue is not done), broken (a peer wrote impossible words: call again), group_ended, session_lost.
  Result<void> try_receive(Message& message, Timeout wait = {}) const noexcept { return received(message, 0, wait); }
  /// A kept message: it has references of its own, and is valid until it is done. Statuses: those of try_receive().
  Result<void> try_receive_kept(Message& message, Timeout wait = {}) const noexcept {
    return received(message, SHMB_RECEIVE_KEEP, wait);
  }
  /// Returns a message of the caller's own: kept as above, and independent of later receives. It must end before the
  /// queue. Statuses: those of try_receive(), and no_memory.
  Result<Message> try_receive(Timeout wait = {}) const noexcept {
    auto message = Message::try_make();
    if (!message) return message;
    if (auto taken = try_receive_kept(*message, wait); !taken) return taken.error();
    return message;
  }
  /// Waits for one message and takes what else is there. Returns how many. Statuses: those of try_receive(). Throws
  /// std::bad_alloc.
  Result<std::size_t> try_receive_many(std::span<Message> messages, Timeout wait = {}) const {
    std::vector<shmb_message*> raw;
    for (const Message& message : messages) raw.push_back(message.c());
    std::size_t count = 0;
    shmb_error error;
    if (shmb_queue_receive_many(handle_.get(), raw.data(), raw.size(), wait.nanoseconds(), &count, &error) != SHMB_OK)
      return Error(error);
    return count;
  }
  /// Calls `body(message)` for each message. It ends when the queue is closed and drained, when its last writer has
  /// left and nothing is left, or when `body` returns false. It waits for the first writer. A dead writer is ignored
  /// while there are others. For the last one it returns `peer_gone`, because some of its messages may be missing.
  /// Messages are borrowed. For an at-least-once queue `body` must call done or give back; if it throws, the message
  /// goes back. `wait` is for each message; default: forever. Statuses: those of try_receive() but closed. Throws what
  /// `body` throws.
  template <class Body>
  Result<void> try_for_each(Body&& body, Timeout wait = {}) const {
    auto message = Message::try_make();
    if (!message) return message.error();
    for (;;) {
      auto taken = next(*message, 0, wait);
      if (!taken) return taken.error();
      if (!*taken) return {};
      if constexpr (std::is_void_v<std::invoke_result_t<Body, Message&> >) {
        body(*message);
      } else if (!body(*message)) {
        return {};
      }
    }
  }

  /// A range for a loop: for (auto message : queue.messages()). It ends as try_for_each does. Each message belongs to
  /// the loop's variable and may be moved from it; `auto&&` reuses one Message. `wait` is for each message; default:
  /// forever. After a failed receive the loop of try_messages() ends, and outcome() has the error; that of messages()
  /// throws it.
  Messages try_messages(Timeout wait = {}) const noexcept;

  /// Closes the queue for all: no process may send any more. Readers take what is left and then get `closed`. Status:
  /// denied (read-only participant).
  Result<void> try_shutdown(bool remove = false) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_shutdown(handle_.get(), remove ? unsigned{SHMB_QUEUE_CLOSE_REMOVE} : 0U, &error),
                           error);
  }
  /// Waits until its readers have taken all that this handle has sent. Statuses: deadline, full (no_wait), peer_gone
  /// (no reader is left, or one died).
  Result<void> try_drain(Timeout wait = {}) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_drain(handle_.get(), wait.nanoseconds(), &error), error);
  }
  /// Ends these ends of the queue now, whatever the result. `for_all` shuts the queue down first. `remove` frees its
  /// name. Statuses: the common ones.
  Result<void> try_close(bool for_all = false, bool remove = false) noexcept {
    shmb_error error;
    const std::uint32_t flags =
        (for_all ? unsigned{SHMB_QUEUE_CLOSE_ALL} : 0U) | (remove ? unsigned{SHMB_QUEUE_CLOSE_REMOVE} : 0U);
    return detail::outcome(shmb_queue_close(handle_.release(), flags, &error), error);
  }
  /// A descriptor for poll and epoll, readable when a receive may have something. Then receive without wait until
  /// `empty`, which arms it again. It belongs to the handle: never close, read or write it. Statuses: no_descriptors,
  /// limit.
  Result<int> try_descriptor() const noexcept {
    int fd = -1;
    shmb_error error;
    if (shmb_queue_descriptor(handle_.get(), &fd, &error) != SHMB_OK) return Error(error);
    return fd;
  }
  /// The facts of this handle, read from shared memory; and the C handle, which this object keeps.
  shmb_queue_info info() const noexcept {
    shmb_queue_info info{};
    info.size = sizeof info;
    (void)shmb_queue_get_info(handle_.get(), &info, nullptr);
    return info;
  }
  shmb_queue* c() const noexcept { return handle_.get(); }

#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  template <class What>
  void send(const What& what, Timeout wait = {}) const {
    try_send(what, wait).value();
  }
  void send_parts(std::span<const Part> parts, const SendOptions& options = {}) const {
    try_send_parts(parts, options).value();
  }
  void send_parts(std::initializer_list<Part> parts, const SendOptions& options = {}) const {
    try_send_parts(parts, options).value();
  }
  std::size_t send_many(std::span<const Part> messages, Timeout wait = {}) const {
    return try_send_many(messages, wait).value();
  }
  void receive(Message& message, Timeout wait = {}) const { try_receive(message, wait).value(); }
  Message receive(Timeout wait = {}) const { return try_receive(wait).value(); }
  Messages messages(Timeout wait = {}) const;
  void receive_kept(Message& message, Timeout wait = {}) const { try_receive_kept(message, wait).value(); }
  std::size_t receive_many(std::span<Message> messages, Timeout wait = {}) const {
    return try_receive_many(messages, wait).value();
  }
  template <class Body>
  void for_each(Body&& body, Timeout wait = {}) const {
    try_for_each(std::forward<Body>(body), wait).value();
  }
  void shutdown(bool remove = false) const { try_shutdown(remove).value(); }
  void drain(Timeout wait = {}) const { try_drain(wait).value(); }
  void close(bool for_all = false, bool remove = false) { try_close(for_all, remove).value(); }
  int descriptor() const { return try_descriptor().value(); }
#endif

 private:
  friend class Pool;
  friend class Messages;
  // False: the queue is closed, or its last writer has left, and nothing is left.
  Result<bool> next(Message& message, std::uint32_t flags, Timeout wait) const noexcept {
    if (wait == Timeout()) wait = Timeout::forever();  // what for_each() and messages() name as their default
    for (;;) {
      auto taken = received(message, flags, wait);
      if (taken) return true;
      if (taken.error().status() == Status::closed) return false;
      if (taken.error().status() != Status::peer_gone) return taken.error();
      if (info().writers != 0) continue;  // others, or one that has come since
      if (taken.error().system_errno() == EOWNERDEAD) return taken.error();
      return false;
    }
  }
  Result<void> received(Message& message, std::uint32_t flags, Timeout wait) const noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_receive(handle_.get(), message.c(), flags, wait.nanoseconds(), &error), error);
  }
  detail::Handle<shmb_queue> handle_;
};

/// The result of Queue::messages(). Ownership: one message at a time, unless the loop moved it. Lifetime: it must end
/// before the queue. Threads: one.
class Messages {
 public:
  /// The place of the loop, an input iterator. Ownership: none. Lifetime: that of its range. Threads: one.
  class Iterator {
   public:
    using value_type = Message;
    using difference_type = std::ptrdiff_t;
    /// At the message that the range has.
    explicit Iterator(Messages* range) noexcept : range_(range) {}
    Message&& operator*() const noexcept { return std::move(*range_->message_); }
    Iterator& operator++() {
      range_->advance();
      return *this;
    }
    void operator++(int) { range_->advance(); }
    /// Whether the range has ended.
    bool at_end() const noexcept { return !range_->there_; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) noexcept { return it.at_end(); }

   private:
    Messages* range_;
  };

  /// Receives from `queue`; `wait` is for each message. With `throws` an error is thrown, else it is the outcome().
  Messages(const Queue& queue, Timeout wait, bool throws) noexcept : queue_(&queue), wait_(wait), throws_(throws) {}
  /// Receives the first message. Throws Error for Queue::messages() only.
  Iterator begin() {  // receives the first message
    advance();
    return Iterator(this);
  }
  /// The end, for a loop.
  std::default_sentinel_t end() const noexcept { return {}; }
  /// The error that ended the loop, if the queue had not ended. Call it after the loop. Statuses: those of
  /// Queue::try_receive().
  const Result<void>& outcome() const noexcept { return outcome_; }

 private:
  Result<bool> next() noexcept {
    if (!message_ || message_->c() == nullptr) {  // the loop has moved it away
      auto made = Message::try_make();
      if (!made) return made.error();
      message_.emplace(std::move(*made));
    }
    return queue_->next(*message_, SHMB_RECEIVE_KEEP, wait_);
  }
  void advance() {
    const auto taken = next();
    there_ = taken && *taken;
    if (!taken) (void)(outcome_ = taken.error());  // nvcc: a Result must not be dropped
#if SHMBROKER_EXCEPTIONS
    if (throws_) outcome_.value();
#endif
  }

  const Queue* queue_;
  Timeout wait_;
  [[maybe_unused]] bool throws_;
  bool there_ = false;
  std::optional<Message> message_;
  Result<void> outcome_;
};

/// The bodies of the two functions of Queue. Each throws as said there.
inline Messages Queue::try_messages(Timeout wait) const noexcept { return Messages(*this, wait, false); }
#if SHMBROKER_EXCEPTIONS
/// As Queue::try_messages(). The loop throws Error.
inline Messages Queue::messages(Timeout wait) const { return Messages(*this, wait, true); }
#endif

namespace detail {

inline shmb_queue_options to_c(Role role, const QueueOptions& options) noexcept {
  shmb_queue_options c{};
  c.size = sizeof c;
  const bool makes = options.kind == QueueKind::as_is && role != Role::reader && !options.open_only;
  c.kind = static_cast<std::uint32_t>(makes ? QueueKind::spsc : options.kind);
  c.role = static_cast<std::uint32_t>(role);
  if (options.drop_oldest) c.flags |= SHMB_QUEUE_DROP_OLDEST;
  if (options.expiring) c.flags |= SHMB_QUEUE_EXPIRING;
  if (options.at_least_once) c.flags |= SHMB_QUEUE_AT_LEAST_ONCE;
  if (options.create_only) c.flags |= SHMB_QUEUE_CREATE_ONLY;
  if (options.open_only) c.flags |= SHMB_QUEUE_OPEN_ONLY;
  c.cells = options.cells;
  c.inline_bytes = options.inline_bytes;
  c.spin_ns = options.spin.nanoseconds();
  c.wait_ns = options.wait.nanoseconds();
  c.timeout_ns = options.timeout.nanoseconds();
  return c;
}

}  // namespace detail

/// Opens a queue that needs no slots, in a pool of its own, which is made if it does not exist. Statuses: those of
/// Pool::try_open_queue() and Pool::try_open().
inline Result<Queue> try_open_queue(const Session& session, std::string_view address, Role role,
                                    const QueueOptions& options = {}) noexcept {
  const shmb_queue_options c = detail::to_c(role, options);
  shmb_queue* raw = nullptr;
  shmb_error error;
  if (shmb_queue_open_alone(session.c(), detail::CText(address).get(), &c, &raw, &error) != SHMB_OK)
    return Error(error);
  return Queue(raw);
}

/// This process in one pool. Ownership: the last handle and queue of the process leave the pool; its slots are given
/// back, and what it sent stays. Threads: any. Lifetime: it must outlive its slots. It keeps its session alive.
class Pool {
 public:
  /// Takes over a C handle.
  explicit Pool(shmb_pool* adopted) noexcept : handle_(adopted) {}
  /// Makes a pool, joins it, and puts memory behind its slots. Statuses: invalid (a size of 0 or over the limits),
  /// exists, limit, no_memory, group_ended, local_only. Throws std::bad_alloc.
  static Result<Pool> try_create(const Session& session, const PoolOptions& options) {
    std::vector<shmb_size_class> classes;
    for (const SizeClass& one : options.classes) classes.push_back({one.slot_size, one.slots, one.slots_limit});
    shmb_pool_options c{};
    c.size = sizeof c;
    if (!options.name.empty()) c.name = options.name.c_str();
    c.classes = classes.data();
    c.class_count = static_cast<std::uint32_t>(classes.size());
    if (!options.huge_pages) c.flags |= SHMB_POOL_SMALL_PAGES;
    if (!options.populate) c.flags |= SHMB_POOL_NO_POPULATE;
    if (options.replace) c.flags |= SHMB_POOL_REPLACE;
    if (options.name_with_holders) c.flags |= SHMB_POOL_NAME_WITH_HOLDERS;
    c.group = options.group.value;
    if (options.keep) {
      c.keep_ns = options.keep->nanoseconds();
      c.flags |= SHMB_POOL_KEEP_GIVEN;
    }
    c.lanes = options.lanes;
    c.queues = options.queues;
    c.lane_bytes = options.lane_bytes;
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_pool* raw = nullptr;
    shmb_error error;
    if (shmb_pool_create(session.c(), &c, &raw, &error) != SHMB_OK) return Error(error);
    return Pool(raw);
  }
  /// Joins a pool by address or by id. It waits until a pool that is being made is whole. A pool that this session is
  /// in gives one more handle. Statuses: not_found, deadline, limit (64 participants), denied, busy (this session has
  /// it open read-only), group_ended (while the call waited for the name), local_only.
  static Result<Pool> try_open(const Session& session, std::string_view address,
                               const PoolOpenOptions& options = {}) noexcept {
    return opened(session, detail::CText(address).get(), 0, options);
  }
  static Result<Pool> try_open(const Session& session, std::uint64_t id, const PoolOpenOptions& options = {}) noexcept {
    return opened(session, nullptr, id, options);
  }

  /// Opens the pool of that name in the session's group (or in options.group), or creates it if there is none. So
  /// workers may start in any order, and start again. An existing pool is used as it is, whatever its classes are. Not
  /// with replace. Statuses: those of both. Throws std::bad_alloc.
  static Result<Pool> try_open_or_create(const Session& session, const PoolOptions& options) {
    if (options.name.empty() || options.replace) {
      shmb_error wrong{};
      wrong.status = SHMB_E_INVALID;
      std::strncpy(wrong.sentence, "open_or_create needs a name, and replaces no pool", sizeof wrong.sentence - 1);
      return Error(wrong);
    }
    std::string address = options.name;
    if (options.group.value != 0) address = "@" + std::to_string(options.group.value) + "/" + address;
    PoolOpenOptions opening;
    opening.timeout = options.timeout;
    // Each round that another process wins ends with that pool, or with its removal.
    constexpr int kTurns = 100;
    for (int turn = 0;; ++turn) {
      auto there = try_open(session, address, opening);
      if (there || there.error().status() != Status::not_found) return there;
      auto made = try_create(session, options);
      if (made || made.error().status() != Status::exists || turn == kTurns) return made;
    }
  }

  /// Frees its name at once. The pool ends with its last participant. Status: denied (opened read-only).
  Result<void> try_remove() const noexcept {
    shmb_error error;
    if (shmb_pool_remove(handle_.get(), &error) != SHMB_OK) return Error(error);
    return {};
  }
  /// Takes a free slot for `length` bytes, for this process alone to write. If all are in use and the class may grow,
  /// it adds memory. The slot holds what was written there before. Statuses: full (no_wait), deadline, invalid (larger
  /// than every class), denied (read-only), broken.
  Result<Slot> try_acquire(std::uint64_t length, Timeout wait = {}) const noexcept {
    shmb_slot slot{};
    shmb_error error;
    if (shmb_slot_acquire(handle_.get(), length, wait.nanoseconds(), &slot, &error) != SHMB_OK) return Error(error);
    return Slot(handle_.get(), slot);
  }
  /// Opens ends of a queue of this pool, and makes the queue if there is none of that name. Statuses: invalid, exists
  /// (the settings differ; the sentence says which), busy (the end is taken), denied (read-only participant), limit,
  /// not_found, closed, deadline (no queue came).
  Result<Queue> try_open_queue(std::string_view name, Role role, const QueueOptions& options = {}) const noexcept {
    const shmb_queue_options c = detail::to_c(role, options);
    shmb_queue* raw = nullptr;
    shmb_error error;
    if (shmb_queue_open(handle_.get(), detail::CText(name).get(), &c, &raw, &error) != SHMB_OK) return Error(error);
    return Queue(raw);
  }
  /// As Message::try_take_slot(), with its statuses, for messages of queues of this pool.
  Result<Slot> try_take_slot(Message& message, std::size_t number = 0) const noexcept {
    return message.try_take_slot(handle_.get(), number);
  }
  /// The facts of the pool, read from shared memory; and the C handle, which this object keeps.
  shmb_pool_info info() const noexcept {
    shmb_pool_info info{};
    info.size = sizeof info;
    (void)shmb_pool_get_info(handle_.get(), &info, nullptr);
    return info;
  }
  shmb_pool* c() const noexcept { return handle_.get(); }

#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  static Pool create(const Session& session, const PoolOptions& options) {
    return try_create(session, options).value();
  }
  static Pool open_or_create(const Session& session, const PoolOptions& options) {
    return try_open_or_create(session, options).value();
  }
  template <class Where>
  static Pool open(const Session& session, const Where& where, const PoolOpenOptions& options = {}) {
    return try_open(session, where, options).value();
  }
  void remove() const { try_remove().value(); }
  Slot acquire(std::uint64_t length, Timeout wait = {}) const { return try_acquire(length, wait).value(); }
  Queue open_queue(std::string_view name, Role role, const QueueOptions& options = {}) const {
    return try_open_queue(name, role, options).value();
  }
  Slot take_slot(Message& message, std::size_t number = 0) const { return try_take_slot(message, number).value(); }
#endif

 private:
  static Result<Pool> opened(const Session& session, const char* address, std::uint64_t id,
                             const PoolOpenOptions& options) noexcept {
    shmb_pool_open_options c{};
    c.size = sizeof c;
    c.id = id;
    c.read_only = options.read_only ? 1 : 0;
    c.wait_ns = options.wait.nanoseconds();
    c.timeout_ns = options.timeout.nanoseconds();
    shmb_pool* raw = nullptr;
    shmb_error error;
    if (shmb_pool_open(session.c(), address, &c, &raw, &error) != SHMB_OK) return Error(error);
    return Pool(raw);
  }
  detail::Handle<shmb_pool> handle_;
};

/// Memory of any size to fill and send: a slot of the smallest class that fits, or a region if it is larger than every
/// class. The group reuses a region's memory only if all its holders have unmapped it and its writing was not closed.
/// With a private broker each such region costs fresh memory. Ownership: the slot or the region. Lifetime: as theirs; a
/// slot must end before its pool's handle. Threads: one at a time.
class Buffer {
 public:
  /// Holds a slot, or a region.
  explicit Buffer(Slot slot) noexcept : memory_(std::move(slot)) {}
  explicit Buffer(Region region) noexcept : memory_(std::move(region)) {}
  /// The memory to fill.
  std::span<std::byte> bytes() const noexcept {
    if (const Slot* slot = std::get_if<Slot>(&memory_)) return slot->bytes();
    return std::get_if<Region>(&memory_)->bytes();
  }
  /// Whether it is a region, and the part to send it with. The part refers to this buffer.
  bool is_region() const noexcept { return std::holds_alternative<Region>(memory_); }
  Part part() const noexcept {
    if (const Slot* slot = std::get_if<Slot>(&memory_)) return Part(*slot);
    return Part(*std::get_if<Region>(&memory_));
  }

 private:
  std::variant<Slot, Region> memory_;
};

/// A pool that also gives memory larger than its classes, in regions. Ownership: the pool's handle. Lifetime: the
/// session must outlive it. Threads: any.
class SizeClassPool {
 public:
  /// `session` must outlive this object.
  SizeClassPool(const Session& session, Pool pool) noexcept : session_(&session), pool_(std::move(pool)) {}
  /// Memory for `length` bytes. Only a slot is waited for. Statuses: those of Pool::try_acquire() and
  /// Session::try_create().
  Result<Buffer> try_acquire(std::uint64_t length, Timeout wait = {}) const {
    const shmb_pool_info info = pool_.info();  // the maker of the pool may still be adding classes
    std::uint64_t largest = 0;
    for (std::uint32_t i = 0; i < info.class_count; ++i)
      if (info.classes[i].slot_size > largest) largest = info.classes[i].slot_size;
    if (length > largest) {
      CreateOptions options;
      options.group = GroupId{info.group};  // the pool's group, so that its participants may attach the region
      options.uninitialised = true;
      auto region = session_->try_create(length, options);
      if (!region) return region.error();
      return Buffer(std::move(*region));
    }
    auto slot = pool_.try_acquire(length, wait);
    if (!slot) return slot.error();
    return Buffer(std::move(*slot));
  }
  /// The pool, which this object keeps.
  const Pool& pool() const noexcept { return pool_; }
#if SHMBROKER_EXCEPTIONS
  /// As try_acquire(). Throws Error with the same status.
  Buffer acquire(std::uint64_t length, Timeout wait = {}) const { return try_acquire(length, wait).value(); }
#endif

 private:
  const Session* session_;
  Pool pool_;
};

/// Several queues to wait on, of one or several pools and sessions. Ownership: none of the queues. Lifetime: a queue
/// must be removed before it ends. Threads: one at a time.
class QueueSet {
 public:
  /// An empty set. Status: no_memory.
  static Result<QueueSet> try_make() noexcept {
    shmb_queue_set* raw = nullptr;
    shmb_error error;
    if (shmb_queue_set_new(&raw, &error) != SHMB_OK) return Error(error);
    return QueueSet(raw);
  }
#if SHMBROKER_EXCEPTIONS
  /// An empty set. Throws Error with no_memory.
  QueueSet() : handle_(try_make().value().handle_.release()) {}
#endif
  /// Takes over a C handle.
  explicit QueueSet(shmb_queue_set* adopted) noexcept : handle_(adopted) {}

  /// Adds a queue in which this process reads, or removes one. Both make the descriptor of the set readable. Statuses:
  /// the common ones.
  Result<void> try_add(Queue& queue) noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_set_add(handle_.get(), queue.c(), nullptr, &error), error);
  }
  Result<void> try_remove(Queue& queue) noexcept {
    shmb_error error;
    return detail::outcome(shmb_queue_set_remove(handle_.get(), queue.c(), &error), error);
  }
  /// Waits for a queue with a message or an error to report. Compare the result with Queue::c(). It takes nothing:
  /// another reader may be faster. Statuses: empty (no_wait), deadline, invalid (the set is empty).
  Result<shmb_queue*> try_wait(Timeout wait = {}) const noexcept {
    shmb_queue* queue = nullptr;
    shmb_error error;
    if (shmb_queue_set_wait(handle_.get(), wait.nanoseconds(), &queue, nullptr, &error) != SHMB_OK) return Error(error);
    return queue;
  }
  /// A descriptor for poll and epoll. A try_wait() that returns `empty` arms it again. It belongs to the set: never
  /// close, read or write it. Statuses: no_descriptors, limit.
  Result<int> try_descriptor() const noexcept {
    int fd = -1;
    shmb_error error;
    if (shmb_queue_set_descriptor(handle_.get(), &fd, &error) != SHMB_OK) return Error(error);
    return fd;
  }
#if SHMBROKER_EXCEPTIONS
  /// Each does what its try_ form does, and throws Error with the status that the form returns.
  void add(Queue& queue) { try_add(queue).value(); }
  void remove(Queue& queue) { try_remove(queue).value(); }
  shmb_queue* wait(Timeout wait = {}) const { return try_wait(wait).value(); }
  int descriptor() const { return try_descriptor().value(); }
#endif

 private:
  detail::Handle<shmb_queue_set> handle_;
};

#if SHMBROKER_EXCEPTIONS
/// As try_open_queue(). Throws Error with the same status.
inline Queue open_queue(const Session& session, std::string_view address, Role role, const QueueOptions& options = {}) {
  return try_open_queue(session, address, role, options).value();
}
#endif

}  // namespace shmbroker

#endif
