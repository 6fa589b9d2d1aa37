// SPDX-License-Identifier: Apache-2.0
// Values travel to ranks, from ranks, and between workers as bytes of msgpack, with handles beside them. Regions travel
// as tickets, pools as their ids, queues as their addresses. A ticket that is not taken must not hold its region. So
// each ticket is bound to the session that gave it, or that it is for. Containers are recognised by their members, so
// none of their headers is needed here. Part of spawn.hpp; needs exceptions.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_SPAWN_VALUES_HPP)
#define SHMBROKER_SPAWN_VALUES_HPP

#include "shmbroker.hpp"

#if !SHMBROKER_EXCEPTIONS
#error "shmbroker/spawn_values.hpp needs exceptions; without, use shmbroker/shmbroker_spawn.h"
#else

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "packed.hpp"
#include "thrown.hpp"

namespace shmbroker {

namespace detail {
template <class... F>
void pack_fields(Packer& packer, const F&... fields);
template <class... F>
void unpack_fields(Reader& in, F&... fields);
}  // namespace detail

// For a container or a text that is not of std, and that has no more than its elements: specialise it as true, and it
// travels as one of std does. A class with further members would lose them, and takes SHMBROKER_FIELDS instead.
template <class T>
inline constexpr bool travels_as_container = false;
template <>
inline constexpr bool travels_as_container<Text> = true;

// In a class: its values can be arguments and results. They travel as an array of these members. The class needs a
// default constructor. A class that derives from it has its own SHMBROKER_FIELDS. MSGPACK_DEFINE gives the same bytes,
// and needs spawn_msgpack.hpp.
#define SHMBROKER_FIELDS(...)                                                      \
  void pack_value(::shmbroker::detail::Packer& shmbroker_packer) const {           \
    ::shmbroker::detail::pack_fields(shmbroker_packer __VA_OPT__(, ) __VA_ARGS__); \
  }                                                                                \
  void unpack_value(::shmbroker::detail::Reader& shmbroker_in) {                   \
    ::shmbroker::detail::unpack_fields(shmbroker_in __VA_OPT__(, ) __VA_ARGS__);   \
  }

/// The address of a queue, with which a rank opens an end of its own. A Queue as an argument travels as its address. A
/// plain value.
struct QueueAddress {
  std::uint64_t pool = 0;
  std::string name{};
  std::uint32_t role = 0;  // the ends that its giver had, SHMB_QUEUE_READER and _WRITER; 0: not said
  SHMBROKER_FIELDS(pool, name, role)
  /// From a Queue of this process. Throws std::bad_alloc.
  template <class Queue>
  static QueueAddress of(const Queue& queue) {
    const auto info = queue.info();
    return {info.pool, info.name, info.role};
  }
};

/// The session of this process as a rank, in the group of the ranks. The first call makes it; it lives as long as the
/// process. Threads: any. Throws Error as Session::connect() does.
inline const Session& rank_session() {
  static const Session* const session = new Session(Session::connect());  // goes with the process
  return *session;
}

namespace detail {

inline const char* type_text(const Reader::Item& item) {
  switch (item.kind) {
    case Reader::Kind::nil:
      return "nil";
    case Reader::Kind::boolean:
      return "boolean";
    case Reader::Kind::whole:
    case Reader::Kind::negative:
      return "integer";
    case Reader::Kind::real:
      return "float";
    case Reader::Kind::text:
      return "string";
    case Reader::Kind::binary:
      return "bytes";
    case Reader::Kind::array:
      return "array";
    case Reader::Kind::map:
      return "map";
    case Reader::Kind::extension:
      break;
  }
  return item.type == 1 ? "region" : item.type == 2 ? "ticket" : item.type == 3 ? "pool" : "extension";
}

// Describes a value that was found. An integer is shown itself, because it may not fit. `least` and `most`: the
// expected range of an integer.
[[gnu::cold]] inline std::string found_text(const Reader::Item& item, std::string_view least, std::string_view most) {
  const bool negative = item.kind == Reader::Kind::negative;
  if (!least.empty() && (negative || item.kind == Reader::Kind::whole)) {
    const auto value = negative ? std::to_string(static_cast<std::int64_t>(item.number)) : std::to_string(item.number);
    return joined({"integer ", value, ", which does not fit: ", least, " to ", most});
  }
  if (item.kind == Reader::Kind::array || item.kind == Reader::Kind::map)
    return joined({type_text(item), " (of another length, or with an element of another type or out of range)"});
  return type_text(item);
}
// Describes a value that was found where a number with a fraction was expected, at most `most`.
[[gnu::cold]] inline std::string found_real(const Reader::Item& item, double most) {
  if (item.kind == Reader::Kind::real) {
    char text[96];
    std::snprintf(text, sizeof text, "float %g, which does not fit: %g to %g", item.real, -most, most);
    return text;
  }
  const bool negative = item.kind == Reader::Kind::negative;
  if (!negative && item.kind != Reader::Kind::whole) return found_text(item, {}, {});
  const auto value = negative ? std::to_string(static_cast<std::int64_t>(item.number)) : std::to_string(item.number);
  return joined({"integer ", value, ", which does not fit: a double holds each integer of up to 2^53 alone"});
}
template <class T>
[[gnu::cold]] std::string found_text(const Reader::Item& item) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
    return found_text(item, std::to_string(std::numeric_limits<T>::min()),
                      std::to_string(std::numeric_limits<T>::max()));
  else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
    return found_real(item, std::numeric_limits<T>::max());
  else return found_text(item, {}, {});
}

inline std::chrono::nanoseconds least(std::chrono::nanoseconds a, std::chrono::nanoseconds b) { return b < a ? b : a; }

// Tickets that were made for ranks. Those with uses left when the ranks have ended would keep holding their regions.
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
  // All together take no longer than `within`. After that the others are still sent, without waiting for replies.
  void revoke(std::chrono::nanoseconds within) noexcept {
    if (owner_ != ::getpid()) return;  // a forked child's copy; the parent's tickets are still in use
    const auto end = std::chrono::steady_clock::now() + least(within, kPatience);
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

template <>
struct Closer<Lent> {
  static void close(Lent* lent) noexcept { delete lent; }
};

struct PackContext {
  std::uint32_t uses = 1;  // how many ranks will attach
  Timeout lifetime{};      // how long a ticket that no rank takes holds its region; default: 10 minutes
  Lent* lent = nullptr;    // gets each ticket that has to be revoked later
  // for results: makes a ticket that ends with its receiver's session
  Ticket (*lend)(const RegionBase&, Rights) = nullptr;
};

enum class Extension : std::int8_t { region = 1, ticket, pool };

inline void pack_extension(Packer& packer, Extension kind, const void* data, std::size_t size) {
  packer.extension(static_cast<std::int8_t>(kind), data, size);
}
template <std::size_t size>
std::array<std::uint8_t, size> extension(Reader& in, Extension kind) {
  const Reader::Item item = in.take(Reader::Kind::extension);
  if (item.type != static_cast<std::int8_t>(kind) || item.bytes.size() != size) throw TypeError();
  std::array<std::uint8_t, size> out;
  std::memcpy(out.data(), item.bytes.data(), size);
  return out;
}
inline Ticket ticket_of(const std::array<std::uint8_t, 16>& bytes) {
  std::uint8_t raw[16];
  std::memcpy(raw, bytes.data(), sizeof raw);
  return Ticket(Token(raw));
}

// Set while remote.hpp packs or unpacks. Regions then travel beside the bytes and are leased to the message. So a
// region that no process takes is freed with the message. Pools are opened by the worker's own session.
class Beside {
 public:
  virtual std::uint32_t give(shmb_region* region) = 0;  // returns its number
  virtual shmb_region* take(std::uint32_t number, bool writable) = 0;
  virtual const Session& session() = 0;

 protected:
  ~Beside() = default;
};
inline thread_local Beside* beside = nullptr;

template <class R>
R region_beside(Reader& in) {
  const auto bytes = extension<sizeof(std::uint32_t)>(in, Extension::region);
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return R(beside->take(number, std::is_same_v<R, Region>));
}

// The session by which arguments and results are attached: the rank's own, that of the context that unpacks results, or
// a worker's.
class SessionSource {
 public:
  virtual const Session& session() = 0;  // called only where something has to be attached

 protected:
  ~SessionSource() = default;
};
inline thread_local SessionSource* unpacking_session = nullptr;
inline const Session& attaching_session() {
  if (beside != nullptr) return beside->session();
  return unpacking_session != nullptr ? unpacking_session->session() : rank_session();
}
class AttachBy {
 public:
  explicit AttachBy(SessionSource& source) noexcept : before_(std::exchange(unpacking_session, &source)) {}
  AttachBy(const AttachBy&) = delete;
  AttachBy& operator=(const AttachBy&) = delete;
  ~AttachBy() { unpacking_session = before_; }

 private:
  SessionSource* before_;
};

// shmbroker_pool.hpp need not be included: Pool and Queue are recognised by their members.
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

// Opens the other end of the queue: the giver's reader end makes a writer. If the giver had both ends, so has this.
[[gnu::cold]] inline shmb_queue* opposite_end(const QueueAddress& at) {
  constexpr std::uint32_t kBoth = unsigned{SHMB_QUEUE_READER} | unsigned{SHMB_QUEUE_WRITER};
  if (at.role == 0 || at.role > kBoth)
    throw std::invalid_argument(
        joined({"the address of the queue \"", at.name,
                "\" does not say whose ends it has: take a QueueAddress and open the end that is meant"}));
  shmb_pool_open_options pool_options{};
  pool_options.size = sizeof pool_options;
  pool_options.id = at.pool;
  shmb_pool* raw = nullptr;
  shmb_error error;
  if (shmb_pool_open(attaching_session().c(), nullptr, &pool_options, &raw, &error) != SHMB_OK) throw Error(error);
  struct Closing {
    shmb_pool* pool;
    ~Closing() { shmb_pool_close(pool); }
  } const closing{raw};
  shmb_queue_options options{};
  options.size = sizeof options;
  options.kind = SHMB_QUEUE_AS_IS;
  options.role = at.role == kBoth ? kBoth : kBoth & ~at.role;
  options.flags = SHMB_QUEUE_OPEN_ONLY;
  shmb_queue* queue = nullptr;
  if (shmb_queue_open(raw, at.name.c_str(), &options, &queue, &error) != SHMB_OK) throw Error(error);
  return queue;
}

// The class in which a member function is declared.
template <class C, class R>
C* declared_in(R (C::*)(Packer&) const);
// A class with SHMBROKER_FIELDS of its own. A class that only inherits them would lose its own members.
template <class T>
concept HasFields = requires(const T& given, T& taken, Packer& packer, Reader& in) {
  given.pack_value(packer);
  taken.unpack_value(in);
};
template <class T>
concept OwnValue = HasFields<T> && std::is_same_v<decltype(declared_in(&T::pack_value)), T*>;
// Likewise with MSGPACK_DEFINE, which is recognised without msgpack-cxx.
template <class T>
concept HasMsgpack = requires(const T& given, Packer& packer) { given.msgpack_pack(packer); };
template <class T>
concept InheritsMsgpack = HasMsgpack<T> && requires {
  requires !std::is_same_v<decltype(declared_in(&T::template msgpack_pack<Packer>)), T*>;
};
template <class T>
concept MsgpackClass = HasMsgpack<T> && !InheritsMsgpack<T>;

// Whether the name of the type begins with that text.
template <class T>
consteval bool is_named(std::string_view begin) {
  const std::string_view all = __PRETTY_FUNCTION__;
  return all.substr(all.find("T = ") + 4).starts_with(begin);
}
// A class counts as a container, a text or a pointer only if it is of std, or its author says so. A class that derives
// from one may have members of its own.
template <class T>
inline constexpr bool is_plain = is_named<std::remove_cv_t<T> >("std::") || travels_as_container<T>;
template <class T>
concept TextLike = is_plain<T> && std::is_convertible_v<const T&, std::string_view> &&
                   std::is_constructible_v<T, const char*, std::size_t>;
template <class T>
concept RangeLike = is_plain<T> && requires(const T& range) {
  typename T::value_type;
  range.begin() != range.end();
  requires std::is_convertible_v<decltype(*range.begin()), const typename T::value_type&>;
};
template <class T>
concept BytesLike =
    RangeLike<T> &&
    requires(const T& range) {
      range.data();
      range.size();
    } &&
    (std::is_same_v<typename T::value_type, char> || std::is_same_v<typename T::value_type, unsigned char> ||
     std::is_same_v<typename T::value_type, std::byte>);
template <class T>
concept MapLike = RangeLike<T> && requires { typename T::mapped_type; };
// A view does not count: the memory that it refers to is gone after the read.
template <class T>
concept Fillable = requires(T& range, typename T::value_type&& one) { range.push_back(std::move(one)); } ||
                   requires(T& range, typename T::value_type&& one) { range.insert(std::move(one)); } ||
                   requires(T& range) { range.before_begin(); };
template <class T>
inline constexpr bool is_std_pointer =
    is_named<std::remove_cv_t<T> >("std::unique_ptr<") || is_named<std::remove_cv_t<T> >("std::shared_ptr<");
// A pointer that frees its element by delete, as a new element must be.
template <class T>
inline constexpr bool is_deleting = false;
template <template <class...> class P, class T, class... D>
inline constexpr bool is_deleting<P<T, D...> > =
    is_std_pointer<P<T, D...> > && !std::is_array_v<T> && (is_named<D>("std::default_delete<") && ...);
template <class T>
concept PointerLike = is_deleting<std::remove_cv_t<T> >;
// Types whose values may travel as nil. Inside an optional or a pointer, which do too, such a value would arrive as an
// empty one.
template <class T>
inline constexpr bool may_be_nil = PointerLike<T>;
template <class T>
inline constexpr bool may_be_nil<std::optional<T> > = true;
#define SHMBROKER_TWICE_NIL                                                                                           \
  "an optional or a pointer within an optional or a pointer cannot travel: one that is there and empty would arrive " \
  "as one that is not there; give the inner one to a class with SHMBROKER_FIELDS, or pass a std::vector"
// An enumeration whose values are all those of its underlying type.
template <class T>
concept FixedEnum = std::is_enum_v<T> && requires(std::underlying_type_t<T> value) { T{value}; };

// Packs the types that only msgpack-cxx knows. spawn_msgpack.hpp defines it.
template <class T>
struct Foreign;
template <class T>
concept HasForeign = requires { sizeof(Foreign<T>); };

template <class T>
struct Codec;

// A value in a container or in a class.
template <class T>
struct Element : Codec<std::remove_cv_t<T> > {
  static_assert(!std::is_base_of_v<RegionBase, T> && !PoolHandle<T> && !QueueHandle<T>,
                "a region, a pool or a queue is an argument or a result by itself, and no part of one");
};

[[noreturn, gnu::cold]] inline void refuse_derived(const char* found, const char* pointed) {
  throw std::invalid_argument(joined({"a pointer to ", demangled(pointed), " has an object of ", demangled(found),
                                      ", whose own members would be lost: pass a pointer to that class"}));
}

// Packs one value. A region travels as a ticket, good for one attach by each rank. The ticket holds its region, so a
// rank can attach it even after the parent has dropped it.
template <class T>
struct Codec {
  static_assert(!std::is_pointer_v<T>,
                "a pointer means nothing in another process: pass a value, a std::string, a Region, a Pool or a Queue");
  static_assert(!std::is_integral_v<T> || sizeof(T) <= 8, "msgpack has no integers of more than 64 bits");
  static_assert(!HasFields<T> || OwnValue<T> || MsgpackClass<T>,
                "the class derives from one with SHMBROKER_FIELDS, and its own members would be lost: give it "
                "SHMBROKER_FIELDS with all members");
  static_assert(!InheritsMsgpack<T> || OwnValue<T>,
                "the class derives from one with MSGPACK_DEFINE, and its own members would be lost: give it "
                "MSGPACK_DEFINE with all members, MSGPACK_BASE(the other class) among them");
  static_assert(!is_std_pointer<T> || PointerLike<T>,
                "a pointer to an array, or one with a deleter of its own, would free what it did not make: pass a "
                "value, a std::vector, or a pointer with std::default_delete");
  static void pack(Packer& packer, const T& value, const PackContext& context) {
    if constexpr (OwnValue<T>) {
      value.pack_value(packer);
    } else if constexpr (MsgpackClass<T>) {
      pack_foreign(packer, value);
    } else if constexpr (std::is_same_v<T, bool>) {
      packer.boolean(value);
    } else if constexpr (std::is_enum_v<T>) {
      Codec<std::underlying_type_t<T> >::pack(packer, static_cast<std::underlying_type_t<T> >(value), context);
    } else if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>) packer.integer(value);
      else packer.whole(value);
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      packer.real(value);
    } else if constexpr (PoolHandle<T>) {
      const std::uint64_t id = value.info().id;
      pack_extension(packer, Extension::pool, &id, sizeof id);
    } else if constexpr (QueueHandle<T>) {
      QueueAddress::of(value).pack_value(packer);
    } else if constexpr (TextLike<T>) {
      packer.text(value);
    } else if constexpr (BytesLike<T>) {
      packer.binary(value.data(), value.size());
    } else if constexpr (RangeLike<T>) {
      std::size_t count = 0;
      for (auto it = value.begin(); it != value.end(); ++it) ++count;
      const Level level = packer.enter();
      if constexpr (MapLike<T>) packer.map(count);
      else packer.array(count);
      for (auto it = value.begin(); it != value.end(); ++it) {
        const typename T::value_type& one = *it;
        if constexpr (MapLike<T>) {
          Element<typename T::key_type>::pack(packer, one.first, context);
          Element<typename T::mapped_type>::pack(packer, one.second, context);
        } else {
          Element<typename T::value_type>::pack(packer, one, context);
        }
      }
    } else if constexpr (PointerLike<T>) {
      using One = typename T::element_type;
      static_assert(!may_be_nil<std::remove_cv_t<One> >, SHMBROKER_TWICE_NIL);
      if (value.get() == nullptr) return packer.nil();
      if constexpr (std::is_polymorphic_v<One>)
        if (const One& one = *value; typeid(one) != typeid(One)) refuse_derived(typeid(one).name(), typeid(One).name());
      Element<One>::pack(packer, *value, context);
    } else {
      pack_foreign(packer, value);
    }
  }
  static T unpack(Reader& in) {
    if constexpr (OwnValue<T>) {
      T value{};
      value.unpack_value(in);
      return value;
    } else if constexpr (MsgpackClass<T>) {
      return unpack_foreign(in);
    } else if constexpr (std::is_same_v<T, bool>) {
      return in.take(Reader::Kind::boolean).number != 0;
    } else if constexpr (std::is_enum_v<T>) {
      static_assert(FixedEnum<T>,
                    "an enumeration without a type of its own cannot hold every number that may come: write "
                    "`enum Name : int` or `enum class Name`, or pass a number");
      return static_cast<T>(Codec<std::underlying_type_t<T> >::unpack(in));
    } else if constexpr (std::is_integral_v<T>) {
      return integer(in.take());
    } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      return real(in.take());
    } else if constexpr (PoolHandle<T>) {
      std::uint64_t id = 0;
      const auto bytes = extension<sizeof id>(in, Extension::pool);
      std::memcpy(&id, bytes.data(), sizeof id);
      return T::try_open(attaching_session(), id).value();
    } else if constexpr (QueueHandle<T>) {
      QueueAddress at;
      at.unpack_value(in);
      return T(opposite_end(at));
    } else if constexpr (TextLike<T> || (BytesLike<T> && requires(T& range) { range.resize(1); })) {
      static_assert(Fillable<T>,
                    "a view (std::string_view, std::span) refers to bytes that go when they have been read: take a "
                    "std::string or a std::vector");
      const std::string_view bytes = in.bytes();
      if constexpr (TextLike<T>) return T(bytes.data(), bytes.size());
      else {
        T value;
        value.resize(bytes.size());
        if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
        return value;
      }
    } else if constexpr (MapLike<T>) {
      T value;
      const Level level = in.enter();
      for (auto left = in.take(Reader::Kind::map).number; left > 0; --left) {
        in.make(sizeof(typename T::value_type));
        auto key = Element<typename T::key_type>::unpack(in);
        value.emplace(std::move(key), Element<typename T::mapped_type>::unpack(in));
      }
      return value;
    } else if constexpr (RangeLike<T>) {
      return elements(in);
    } else if constexpr (PointerLike<T>) {
      static_assert(!may_be_nil<std::remove_cv_t<typename T::element_type> >, SHMBROKER_TWICE_NIL);
      if (in.peek().kind == Reader::Kind::nil) return (void)in.take(), T();
      in.make(sizeof(typename T::element_type));
      return T(new typename T::element_type(Element<typename T::element_type>::unpack(in)));
    } else {
      return unpack_foreign(in);
    }
  }

 private:
  static constexpr void check_foreign() {
    static_assert(
        HasForeign<T>,
        "a type that cannot travel: give the class SHMBROKER_FIELDS; or include <shmbroker/spawn_msgpack.hpp> "
        "for MSGPACK_DEFINE and for all that msgpack-cxx packs; or say shmbroker::travels_as_container of a "
        "container that is no more than its elements");
  }
  static void pack_foreign(Packer& packer, const T& value) {
    check_foreign();
    if constexpr (HasForeign<T>) Foreign<T>::pack(packer, value);
  }
  static T unpack_foreign(Reader& in) {
    check_foreign();
    if constexpr (HasForeign<T>) return Foreign<T>::unpack(in);
  }
  static T integer(const Reader::Item& item) {
    using Limits = std::numeric_limits<T>;
    if (item.kind == Reader::Kind::whole && item.number <= static_cast<std::uint64_t>(Limits::max()))
      return static_cast<T>(item.number);
    if constexpr (std::is_signed_v<T>) {
      const auto value = static_cast<std::int64_t>(item.number);
      if (item.kind == Reader::Kind::negative && value >= static_cast<std::int64_t>(Limits::min()))
        return static_cast<T>(value);
    }
    throw TypeError();
  }
  // Whole numbers of any size travel as integers. An integer that a double cannot hold exactly did not come from a
  // double.
  static double exactly(std::uint64_t number) {
    const auto value = static_cast<double>(number);
    if (value >= 18446744073709551616.0 || static_cast<std::uint64_t>(value) != number) throw TypeError();
    return value;
  }
  static T real(const Reader::Item& item) {
    double value = item.real;
    if (item.kind == Reader::Kind::whole) value = exactly(item.number);
    else if (item.kind == Reader::Kind::negative) value = -exactly(std::uint64_t{0} - item.number);
    else if (item.kind != Reader::Kind::real) throw TypeError();
    constexpr double kMost = std::numeric_limits<T>::max();
    const bool infinite = value - value != 0;  // or not a number
    if (!infinite && (value > kMost || value < -kMost)) throw TypeError();
    return static_cast<T>(value);
  }
  static T elements(Reader& in) {
    using One = typename T::value_type;
    static_assert(
        Fillable<T>,
        "a view (std::string_view, std::span) refers to bytes that go when they have been read, and a container "
        "needs push_back or insert to be filled: take a std::string or a std::vector");
    T value;
    const Level level = in.enter();
    if constexpr (requires { value.before_begin(); }) {
      auto last = value.before_begin();
      for (std::size_t left = in.array(); left > 0; --left) {
        in.make(sizeof(One));
        last = value.insert_after(last, Element<One>::unpack(in));
      }
    } else {
      for (std::size_t left = in.array(); left > 0; --left) {
        in.make(sizeof(One));
        if constexpr (requires(One one) { value.push_back(std::move(one)); }) value.push_back(Element<One>::unpack(in));
        else value.insert(Element<One>::unpack(in));
      }
    }
    return value;
  }
};
template <>
struct Codec<const char*> {
  static void pack(Packer& packer, const char* text, const PackContext&) { packer.text(text); }
  template <class Lazy = void>
  static const char* unpack(Reader&) {
    static_assert(!std::is_void_v<Lazy>,
                  "a pointer refers to bytes that go when they have been read: take a std::string");
    return nullptr;
  }
};
template <>
struct Codec<char*> : Codec<const char*> {};
template <class T>
struct Codec<std::optional<T> > {
  static_assert(!may_be_nil<std::remove_cv_t<T> >, SHMBROKER_TWICE_NIL);
  static void pack(Packer& packer, const std::optional<T>& value, const PackContext& context) {
    if (value) Element<T>::pack(packer, *value, context);
    else packer.nil();
  }
  static std::optional<T> unpack(Reader& in) {
    if (in.peek().kind == Reader::Kind::nil) return (void)in.take(), std::nullopt;
    return Element<T>::unpack(in);
  }
};
#undef SHMBROKER_TWICE_NIL
template <class T, std::size_t n>
struct Codec<std::array<T, n> > {
  static void pack(Packer& packer, const std::array<T, n>& value, const PackContext& context) {
    if constexpr (BytesLike<std::array<T, n> >) return packer.binary(value.data(), n);
    const Level level = packer.enter();
    packer.array(n);
    for (const T& one : value) Element<T>::pack(packer, one, context);
  }
  static std::array<T, n> unpack(Reader& in) {
    std::array<T, n> value{};
    if constexpr (BytesLike<std::array<T, n> >) {
      const std::string_view bytes = in.bytes();
      if (bytes.size() != n) throw TypeError();
      if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
    } else {
      const Level level = in.enter();
      if (in.array() != n) throw TypeError();
      for (T& one : value) one = Element<T>::unpack(in);
    }
    return value;
  }
};
// A std::pair or a std::tuple.
template <class Tuple, class... T>
struct TupleCodec {
  static void pack(Packer& packer, const Tuple& value, const PackContext& context) {
    const Level level = packer.enter();
    packer.array(sizeof...(T));
    std::apply([&](const auto&... one) { (Element<T>::pack(packer, one, context), ...); }, value);
  }
  static Tuple unpack(Reader& in) {
    const Level level = in.enter();
    if (in.array() != sizeof...(T)) throw TypeError();
    return Tuple{Element<T>::unpack(in)...};
  }
};
template <class A, class B>
struct Codec<std::pair<A, B> > : TupleCodec<std::pair<A, B>, A, B> {};
template <class... T>
struct Codec<std::tuple<T...> > : TupleCodec<std::tuple<T...>, T...> {};

template <class... F>
void pack_fields(Packer& packer, const F&... fields) {
  const Level level = packer.enter();
  packer.array(sizeof...(F));
  (Element<F>::pack(packer, fields, {}), ...);
}
// Members that are missing keep their values, as with MSGPACK_DEFINE.
template <class... F>
void unpack_fields(Reader& in, F&... fields) {
  const Level level = in.enter();
  std::size_t left = in.array();
  [[maybe_unused]] const auto next = [&](auto& field) {
    if (left == 0) return;
    --left;
    field = Element<std::remove_reference_t<decltype(field)> >::unpack(in);
  };
  (next(fields), ...);
  for (; left > 0; --left) (void)in.skip();
}

template <class R, Rights rights>
struct RegionCodec {
  static void pack(Packer& packer, const R& region, const PackContext& context) {
    if (beside != nullptr) {
      const std::uint32_t number = beside->give(region.c());
      return pack_extension(packer, Extension::region, &number, sizeof number);
    }
    // Bound to a session: a parent that is killed leaves no region, even if no rank has started yet.
    const Ticket ticket = context.lend != nullptr   ? context.lend(region, rights)
                          : context.lent != nullptr ? region.lend(rights, context.uses, context.lifetime)
                                                    : region.ticket(rights, context.uses, context.lifetime);
    if (context.lent != nullptr) context.lent->add(region, ticket);
    pack_extension(packer, Extension::region, ticket.data(), 16);
  }
};
template <>
struct Codec<Region> : RegionCodec<Region, Rights::read | Rights::write | Rights::share> {
  static Region unpack(Reader& in) {
    if (beside != nullptr) return region_beside<Region>(in);
    const Ticket ticket = ticket_of(extension<16>(in, Extension::region));
    AttachOptions options;
    options.more_rights = Rights::share;
    return attaching_session().attach_writable(ticket, options);
  }
};
template <>
struct Codec<ReadOnlyRegion> : RegionCodec<ReadOnlyRegion, Rights::read> {
  static ReadOnlyRegion unpack(Reader& in) {
    if (beside != nullptr) return region_beside<ReadOnlyRegion>(in);
    return attaching_session().attach(ticket_of(extension<16>(in, Extension::region)));
  }
};
template <>
struct Codec<Ticket> {
  static void pack(Packer& packer, const Ticket& ticket, const PackContext&) {
    pack_extension(packer, Extension::ticket, ticket.data(), 16);
  }
  static Ticket unpack(Reader& in) { return ticket_of(extension<16>(in, Extension::ticket)); }
};

// A text of any kind arrives as a std::string.
template <class T>
struct AsValue {
  using type = std::decay_t<T>;
};
template <>
struct AsValue<std::string_view> {
  using type = std::string;
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
void pack_arguments(Packer& packer, const PackContext& context, const A&... arguments) {
  const Level level = packer.enter();
  packer.array(sizeof...(A));
  (Codec<std::decay_t<A> >::pack(packer, arguments, context), ...);
}
template <class... A>
std::string pack_all(const PackContext& context, const A&... arguments) {
  Packer packer;
  pack_arguments(packer, context, arguments...);
  return packer.take();
}

// The type into which a parameter is unpacked. A view gets a private copy of its text for the time of the call, because
// the sender may be able to change the bytes.
template <class P>
struct KeptAs {
  using type = P;
};
template <>
struct KeptAs<std::string_view> {
  using type = std::string;
};
template <class P>
using Kept = typename KeptAs<std::decay_t<P> >::type;
template <class P>
decltype(auto) passed(Kept<P>& value) {
  if constexpr (std::is_same_v<Kept<P>, std::decay_t<P> >) return std::forward<P>(value);
  else return std::decay_t<P>(value);
}

[[noreturn, gnu::cold]] inline void refuse_argument(std::string_view function, std::size_t number, const char* type,
                                                    std::string_view found) {
  throw std::invalid_argument(joined({"function \"", function, "\", argument ", std::to_string(number), ": expected ",
                                      demangled(type), ", found ", found}));
}
template <class T>
T unpack_argument(std::string_view function, std::size_t number, Reader& in) {
  const Reader begin = in;
  try {
    return Codec<T>::unpack(in);
  } catch (const TypeError&) {
    refuse_argument(function, number, typeid(T).name(), found_text<T>(begin.peek()));
  }
}

[[noreturn, gnu::cold]] inline void refuse_result(int rank, const char* type, std::string_view found) {
  throw std::invalid_argument(
      joined({"the result of rank ", std::to_string(rank), ": expected ", demangled(type), ", found ", found}));
}
// Returns the value that the function of a rank returned.
template <class T>
T unpack_result(int rank, const void* data, std::size_t length) {
  static_assert(!std::is_void_v<T>, "a function that returns nothing has no result: join says that it has returned");
  const char* const type = typeid(T).name();
  if (length == 0) refuse_result(rank, type, "nothing: its function returns void, or has not returned");
  Reader in(data, length);
  if (!Reader::is_value({static_cast<const char*>(data), length}))
    refuse_result(rank, type,
                  "bytes that are no value of shmbroker::spawn: a program in C or another language gave them");
  const Reader begin = in;
  try {
    return Codec<T>::unpack(in);
  } catch (const TypeError&) {
    refuse_result(rank, type, found_text<T>(begin.peek()));
  }
}

}  // namespace detail
}  // namespace shmbroker

#endif
#endif
