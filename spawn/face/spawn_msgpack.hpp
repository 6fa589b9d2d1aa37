// SPDX-License-Identifier: Apache-2.0
// Arguments and results of spawn.hpp and remote.hpp that msgpack-cxx packs: classes with MSGPACK_DEFINE, and all types
// that it has an adaptor for. It includes msgpack-cxx, which takes longer to compile than spawn.hpp. Such a class may
// contain the library's own classes too (shmbroker::remote::Bytes, a reference, a class with SHMBROKER_FIELDS). Needs
// exceptions.
#if __cplusplus < 202002L
#error "shmbroker/spawn_msgpack.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_SPAWN_MSGPACK_HPP)
#define SHMBROKER_SPAWN_MSGPACK_HPP

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS)
#error "shmbroker/spawn_msgpack.hpp needs exceptions: msgpack-cxx throws them; without, use shmbroker/shmbroker_spawn.h"
#else

#ifndef MSGPACK_NO_BOOST
#define MSGPACK_NO_BOOST
#endif
#include <msgpack.hpp>

#include "spawn.hpp"

namespace shmbroker::detail {

// The buffer to which msgpack-cxx writes.
struct Sink {
  Packer& out;
  void write(const char* data, std::size_t size) { out.raw(data, size); }
};
struct HasSink {
  Sink sink;
};
// The packer that MSGPACK_DEFINE gets. Members are packed like all other values, so the same types are refused in them.
class MemberPacker : private HasSink, public msgpack::packer<Sink> {
 public:
  explicit MemberPacker(Packer& out) : HasSink{{out}}, msgpack::packer<Sink>(sink) {}
  template <class T>
  MemberPacker& pack(const T& value) {
    if constexpr (std::is_array_v<T> || std::is_pointer_v<T>) msgpack::packer<Sink>::pack(value);
    else Element<T>::pack(sink.out, value, {});
    return *this;
  }
};

// Never called. It makes the compiler check the members of a class that is unpacked: a member that refers to bytes
// elsewhere would outlive them.
template <class T>
constexpr void check_taken();
template <class T>
constexpr void check_parts(const T*) {}
template <template <class...> class C, class... A>
constexpr void check_parts(const C<A...>*) {
  (check_taken<A>(), ...);
}
template <class T, std::size_t n>
constexpr void check_parts(const std::array<T, n>*) {
  check_taken<T>();
}
class MemberCheck : public msgpack::packer<Sink> {
 public:
  template <class T>
  MemberCheck& pack(const T&) {
    check_taken<T>();
    return *this;
  }
};
template <class T>
void check_members(const T& value, MemberCheck& check) {
  value.msgpack_pack(check);
}
template <class T>
constexpr void check_taken() {
  static_assert(!is_named<T>("std::basic_string_view<") && !is_named<T>("std::span<") &&
                    !std::is_same_v<T, msgpack::object> && !std::is_same_v<T, msgpack::type::raw_ref>,
                "a view (std::string_view, std::span, msgpack::object, msgpack::type::raw_ref) refers to bytes that go "
                "when they have been read: take a std::string or a std::vector");
  if constexpr (MsgpackClass<T>) (void)&check_members<T>;
  else check_parts(static_cast<const T*>(nullptr));
}

// True: there is an adaptor, and not only the default one, which calls a member function.
template <class T, class StandIn, class Found>
inline constexpr bool has_adaptor =
    !std::is_class_v<T> || !std::is_base_of_v<StandIn, Found> || std::is_same_v<StandIn, Found> ||
    is_named<T>("std::") || is_named<T>("msgpack::") || is_named<T>("boost::");
template <class T>
concept Packable = MsgpackClass<T> || has_adaptor<T, msgpack::v1::adaptor::pack<T, void>, msgpack::adaptor::pack<T> >;
template <class T>
concept Takeable = requires(T& value, const msgpack::object& object) {
  value.msgpack_unpack(object);
} || has_adaptor<T, msgpack::v1::adaptor::convert<T, void>, msgpack::adaptor::convert<T> > || msgpack::has_as<T>::value;
#define SHMBROKER_NO_ADAPTOR                                                                                         \
  "a class that cannot travel: give it SHMBROKER_FIELDS or MSGPACK_DEFINE, also where it derives from a container, " \
  "or an adaptor of msgpack-cxx; or say shmbroker::travels_as_container of a container that is no more than its "    \
  "elements"

template <class T>
struct Foreign {
  static void pack(Packer& packer, const T& value) {
    static_assert(Packable<T>, SHMBROKER_NO_ADAPTOR);
    if constexpr (MsgpackClass<T>) {
      const Level level = packer.enter();
      MemberPacker members(packer);
      value.msgpack_pack(members);
    } else {
      msgpack::sbuffer out;
      msgpack::pack(out, value);
      packer.packed({out.data(), out.size()});
    }
  }
  static T unpack(Reader& in) {
    static_assert(Takeable<T>, SHMBROKER_NO_ADAPTOR);
    check_taken<T>();
    // Copies and then checks the copy. Where a peer can change the bytes, a head may promise more elements than there
    // are, and msgpack-cxx makes room for as many as it promises.
    const std::string bytes(in.skip());
    if (!Reader::is_value(bytes)) throw Malformed();
    const msgpack::object_handle whole = msgpack::unpack(
        bytes.data(), bytes.size(), [](msgpack::type::object_type, std::size_t, void*) { return true; });
    try {
      return whole.get().template as<T>();
    } catch (const msgpack::type_error&) {
      throw TypeError();
    }
  }
};

#undef SHMBROKER_NO_ADAPTOR

}  // namespace shmbroker::detail

namespace msgpack {
MSGPACK_API_VERSION_NAMESPACE(MSGPACK_DEFAULT_API_NS) {
  namespace adaptor {

  template <shmbroker::detail::OwnValue T>
  struct pack<T> {
    template <class Stream>
    packer<Stream>& operator()(packer<Stream>& out, const T& value) const {
      shmbroker::detail::Packer own;
      value.pack_value(own);
      out.pack_ext_body(own.bytes().data(), static_cast<std::uint32_t>(own.bytes().size()));  // unchanged
      return out;
    }
  };
  template <shmbroker::detail::OwnValue T>
  struct convert<T> {
    const msgpack::object& operator()(const msgpack::object& object, T& value) const {
      msgpack::sbuffer bytes;
      msgpack::pack(bytes, object);
      shmbroker::detail::Reader in(bytes.data(), bytes.size());
      try {
        value.unpack_value(in);
      } catch (const shmbroker::detail::TypeError&) {
        throw msgpack::type_error();
      }
      return object;
    }
  };

  }  // namespace adaptor
}
}  // namespace msgpack

#endif
#endif
