// SPDX-License-Identifier: Apache-2.0
// How values travel to ranks, from them, and between workers: msgpack, and handles beside it. Regions go as tickets,
// pools by their id, queues by their address. A ticket that nobody takes must not hold a region on: each is bound to
// the session of who gave it, or for whom it is. Part of spawn.hpp, and needs msgpack-cxx and exceptions as that does.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_SPAWN_VALUES_HPP)
#define SHMBROKER_SPAWN_VALUES_HPP

#include "shmbroker.hpp"

#if !SHMBROKER_EXCEPTIONS
#error "shmbroker/spawn_values.hpp needs exceptions: msgpack-cxx throws them; without, use shmbroker/shmbroker_spawn.h"
#else

#ifndef MSGPACK_NO_BOOST
#define MSGPACK_NO_BOOST
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <msgpack.hpp>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "thrown.hpp"

namespace shmbroker {

// Where a queue is, for a rank to open an end of its own. A Queue as an argument travels as its address.
struct QueueAddress {
  std::uint64_t pool = 0;
  std::string name{};
  std::uint32_t role = 0;  // the ends of whoever gave the address, SHMB_QUEUE_READER and _WRITER; 0: not said
  MSGPACK_DEFINE(pool, name, role)
  template <class Queue>
  static QueueAddress of(const Queue& queue) {
    const auto info = queue.info();
    return {info.pool, info.name, info.role};
  }
};

// The session of this process as a rank: in the group of the ranks. Made at the first call.
inline const Session& rank_session() {
  static const Session* const session = new Session(Session::connect());  // goes with the process
  return *session;
}

namespace detail {

inline const char* type_text(const msgpack::object& object) {
  switch (object.type) {
    case msgpack::type::NIL:
      return "nil";
    case msgpack::type::BOOLEAN:
      return "boolean";
    case msgpack::type::POSITIVE_INTEGER:
    case msgpack::type::NEGATIVE_INTEGER:
      return "integer";
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      return "float";
    case msgpack::type::STR:
      return "string";
    case msgpack::type::BIN:
      return "bytes";
    case msgpack::type::ARRAY:
      return "array";
    case msgpack::type::MAP:
      return "map";
    case msgpack::type::EXT:
      break;
  }
  return object.via.ext.size > 0 && object.via.ext.type() == 1   ? "region"
         : object.via.ext.size > 0 && object.via.ext.type() == 2 ? "ticket"
         : object.via.ext.size > 0 && object.via.ext.type() == 3 ? "pool"
                                                                 : "extension";
}

// What was found where a T was expected: for a number also which, as it may be one that does not fit.
template <class T>
std::string found_text(const msgpack::object& object) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool negative = object.type == msgpack::type::NEGATIVE_INTEGER;
    if (negative || object.type == msgpack::type::POSITIVE_INTEGER) {
      const auto value = negative ? std::to_string(object.via.i64) : std::to_string(object.via.u64);
      return "integer " + value + ", which does not fit: " + std::to_string(std::numeric_limits<T>::min()) + " to " +
             std::to_string(std::numeric_limits<T>::max());
    }
  }
  if (object.type == msgpack::type::ARRAY || object.type == msgpack::type::MAP)
    return std::string(type_text(object)) + " (of another length, or with an element of another type or out of range)";
  return type_text(object);
}

// Tickets that were made for ranks. Those with uses left when the ranks have ended would hold their regions on.
class Lent {
 public:
  Lent() = default;
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { revoke(kPatience); }
  void add(const RegionBase& region, const Ticket& ticket) {
    shmb_session* session = nullptr;
    shmb_error error;
    if (shmb_region_session(region.c(), &session, &error) != SHMB_OK) throw Error(error);
    tickets_.emplace_back(Session(session), ticket);
  }
  // All together take no longer than `within`. Past it each is still sent, and its answer not waited for.
  void revoke(std::chrono::nanoseconds within) noexcept {
    if (owner_ != ::getpid()) return;  // a forked child's copy; the parent's tickets are still awaited
    const auto end = std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(within, kPatience);
    const std::lock_guard lock(mutex_);
    for (const auto& [session, ticket] : tickets_)
      (void)session.try_revoke(ticket, end - std::chrono::steady_clock::now());
    tickets_.clear();
  }
  static constexpr std::chrono::seconds kPatience{5};

 private:
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;
  std::vector<std::pair<Session, Ticket> > tickets_;
};

struct PackContext {
  std::uint32_t uses = 1;  // how many ranks will attach
  Timeout lifetime{};      // until when they must have: the region of a ticket that nobody took is held so long
  Lent* lent = nullptr;    // told of each ticket, where somebody will revoke it
  Ticket (*lend)(const RegionBase&, Rights) = nullptr;  // of results: a ticket that ends with whom it is for
};
using Packer = msgpack::packer<msgpack::sbuffer>;

enum class Extension : std::int8_t { region = 1, ticket, pool };

inline void pack_extension(Packer& packer, Extension kind, const void* data, std::uint32_t size) {
  packer.pack_ext(size, static_cast<std::int8_t>(kind));
  packer.pack_ext_body(static_cast<const char*>(data), size);
}
template <std::size_t size>
std::array<std::uint8_t, size> extension(const msgpack::object& object, Extension kind) {
  std::array<std::uint8_t, size> out;
  if (object.type != msgpack::type::EXT || object.via.ext.type() != static_cast<std::int8_t>(kind) ||
      object.via.ext.size != size)
    throw msgpack::type_error();
  std::memcpy(out.data(), object.via.ext.data(), size);
  return out;
}
inline Ticket ticket_of(const std::array<std::uint8_t, 16>& bytes) {
  std::uint8_t raw[16];
  std::memcpy(raw, bytes.data(), sizeof raw);
  return Ticket(Token(raw));
}

// Set while remote.hpp packs or unpacks: there regions go beside the bytes, leased to the message, so that one which
// nobody takes is nobody's; and pools are opened by the worker's own session.
class Beside {
 public:
  virtual std::uint32_t give(shmb_region* region) = 0;  // its number
  virtual shmb_region* take(std::uint32_t number, bool writable) = 0;
  virtual const Session& session() = 0;

 protected:
  ~Beside() = default;
};
inline thread_local Beside* beside = nullptr;

template <class R>
R region_beside(const msgpack::object& object) {
  const auto bytes = extension<sizeof(std::uint32_t)>(object, Extension::region);
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return R(beside->take(number, std::is_same_v<R, Region>));
}

// The session that arguments and results are attached by: the rank's own, that of the context that unpacks results, or
// a worker's.
using SessionSource = std::function<const Session&()>;  // asked only where something is to be attached
inline thread_local const SessionSource* unpacking_session = nullptr;
inline const Session& attaching_session() {
  if (beside != nullptr) return beside->session();
  return unpacking_session != nullptr ? (*unpacking_session)() : rank_session();
}
class AttachBy {
 public:
  explicit AttachBy(SessionSource source)
      : source_(std::move(source)), before_(std::exchange(unpacking_session, &source_)) {}
  AttachBy(const AttachBy&) = delete;
  AttachBy& operator=(const AttachBy&) = delete;
  ~AttachBy() { unpacking_session = before_; }

 private:
  const SessionSource source_;
  const SessionSource* before_;
};

// shmbroker_pool.hpp need not be there: Pool and Queue by what they can do.
template <class T>
concept PoolHandle = requires(const T& pool) {
  T::try_open(std::declval<const Session&>(), std::uint64_t{});
  pool.info().id;
};
template <class T>
concept QueueHandle = std::is_constructible_v<T, shmb_queue*> && requires(const T& queue) {
  queue.info().pool;
  queue.info().role;
};

// The other end of the queue: what a reader was given by, writes. Both ends where the giver had both.
inline shmb_queue* opposite_end(const QueueAddress& at) {
  constexpr std::uint32_t kBoth = unsigned{SHMB_QUEUE_READER} | unsigned{SHMB_QUEUE_WRITER};
  if (at.role == 0 || at.role > kBoth)
    throw std::invalid_argument(
        "the address of the queue \"" + at.name +
        "\" does not say whose ends it has: take a QueueAddress and open the end that is meant");
  shmb_pool_open_options pool_options{};
  pool_options.size = sizeof pool_options;
  pool_options.id = at.pool;
  shmb_pool* raw = nullptr;
  shmb_error error;
  if (shmb_pool_open(attaching_session().c(), nullptr, &pool_options, &raw, &error) != SHMB_OK) throw Error(error);
  const std::unique_ptr<shmb_pool, void (*)(shmb_pool*)> pool(raw, [](shmb_pool* open) { shmb_pool_close(open); });
  shmb_queue_options options{};
  options.size = sizeof options;
  options.kind = SHMB_QUEUE_AS_IS;
  options.role = at.role == kBoth ? kBoth : kBoth & ~at.role;
  options.flags = SHMB_QUEUE_OPEN_ONLY;
  shmb_queue* queue = nullptr;
  if (shmb_queue_open(pool.get(), at.name.c_str(), &options, &queue, &error) != SHMB_OK) throw Error(error);
  return queue;
}

// How a value travels. Regions go as tickets, each good for one attach by each rank: a ticket holds its region, so it
// is there for a rank that comes after the parent has let go.
template <class T>
struct Codec {
  static_assert(!std::is_pointer_v<T>,
                "a pointer means nothing in another process: pass a value, a std::string, a Region, a Pool or a Queue");
  static void pack(Packer& packer, const T& value, const PackContext&) {
    if constexpr (PoolHandle<T>) {
      const std::uint64_t id = value.info().id;
      pack_extension(packer, Extension::pool, &id, sizeof id);
    } else if constexpr (QueueHandle<T>) {
      packer.pack(QueueAddress::of(value));
    } else {
      packer.pack(value);
    }
  }
  static T unpack(const msgpack::object& object) {
    if constexpr (PoolHandle<T>) {
      std::uint64_t id = 0;
      const auto bytes = extension<sizeof id>(object, Extension::pool);
      std::memcpy(&id, bytes.data(), sizeof id);
      return T::try_open(attaching_session(), id).value();
    } else if constexpr (QueueHandle<T>) {
      return T(opposite_end(object.as<QueueAddress>()));
    } else {
      return object.as<T>();
    }
  }
};
template <class R, Rights rights>
struct RegionCodec {
  static void pack(Packer& packer, const R& region, const PackContext& context) {
    if (beside != nullptr) {
      const std::uint32_t number = beside->give(region.c());
      return pack_extension(packer, Extension::region, &number, sizeof number);
    }
    // Lent: a parent that is killed, even before there is anybody else, leaves none.
    const Ticket ticket = context.lend != nullptr   ? context.lend(region, rights)
                          : context.lent != nullptr ? region.lend(rights, context.uses, context.lifetime)
                                                    : region.ticket(rights, context.uses, context.lifetime);
    if (context.lent != nullptr) context.lent->add(region, ticket);
    pack_extension(packer, Extension::region, ticket.data(), 16);
  }
};
template <>
struct Codec<Region> : RegionCodec<Region, Rights::read | Rights::write | Rights::share> {
  static Region unpack(const msgpack::object& object) {
    if (beside != nullptr) return region_beside<Region>(object);
    const Ticket ticket = ticket_of(extension<16>(object, Extension::region));
    AttachOptions options;
    options.more_rights = Rights::share;
    return attaching_session().attach_writable(ticket, options);
  }
};
template <>
struct Codec<ReadOnlyRegion> : RegionCodec<ReadOnlyRegion, Rights::read> {
  static ReadOnlyRegion unpack(const msgpack::object& object) {
    if (beside != nullptr) return region_beside<ReadOnlyRegion>(object);
    return attaching_session().attach(ticket_of(extension<16>(object, Extension::region)));
  }
};
template <>
struct Codec<Ticket> {
  static void pack(Packer& packer, const Ticket& ticket, const PackContext&) {
    pack_extension(packer, Extension::ticket, ticket.data(), 16);
  }
  static Ticket unpack(const msgpack::object& object) { return ticket_of(extension<16>(object, Extension::ticket)); }
};

template <class T>
struct AsValue {
  using type = std::decay_t<T>;
};
template <std::size_t n>
struct AsValue<char[n]> {
  using type = std::string;
};
template <>
struct AsValue<const char*> {
  using type = std::string;
};
template <>
struct AsValue<char*> {
  using type = std::string;
};

template <class... A>
std::string pack_all(const PackContext& context, const A&... arguments) {
  msgpack::sbuffer out;
  Packer packer(out);
  packer.pack_array(static_cast<std::uint32_t>(sizeof...(A)));
  (Codec<typename AsValue<A>::type>::pack(packer, arguments, context), ...);
  return {out.data(), out.size()};
}

template <class T>
T unpack_argument(const std::string& function, std::size_t number, const msgpack::object& object) {
  try {
    return Codec<T>::unpack(object);
  } catch (const msgpack::type_error&) {
    throw std::invalid_argument("function \"" + function + "\", argument " + std::to_string(number) + ": expected " +
                                demangled(typeid(T).name()) + ", found " + found_text<T>(object));
  }
}

// What the function of a rank returned.
template <class T>
T unpack_result(int rank, const void* data, std::size_t length) {
  static_assert(!std::is_void_v<T>, "a function that returns nothing has no result: join says that it has returned");
  const auto refused = [&](const std::string& found) {
    return std::invalid_argument("the result of rank " + std::to_string(rank) + ": expected " +
                                 demangled(typeid(T).name()) + ", found " + found);
  };
  if (length == 0) throw refused("nothing: its function returns void, or has not returned");
  msgpack::object_handle whole;
  try {
    std::size_t end = 0;
    whole = msgpack::unpack(static_cast<const char*>(data), length, end);
    if (end != length) throw msgpack::parse_error("");
  } catch (const msgpack::unpack_error&) {
    throw refused("bytes that are no value of shmbroker::spawn: a program in C or another language gave them");
  }
  try {
    return Codec<T>::unpack(whole.get());
  } catch (const msgpack::type_error&) {
    throw refused(found_text<T>(whole.get()));
  }
}

}  // namespace detail
}  // namespace shmbroker

#endif
#endif
