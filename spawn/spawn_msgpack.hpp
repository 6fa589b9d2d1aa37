// SPDX-License-Identifier: Apache-2.0
// Arguments and results of spawn.hpp and remote.hpp that msgpack-cxx packs: classes with MSGPACK_DEFINE, and all types
// that it has an adaptor for. It includes msgpack-cxx, which takes longer to compile than spawn.hpp. Within such a
// class the library's own classes may stand too (shmbroker::remote::Bytes, a reference, a class with SHMBROKER_FIELDS).
// Needs exceptions.
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

template <class T>
struct Foreign {
  static void pack(Packer& packer, const T& value) {
    msgpack::sbuffer out;
    msgpack::pack(out, value);
    packer.packed({out.data(), out.size()});
  }
  static T unpack(Reader& in) {
    const std::string_view bytes = in.skip();
    // Texts within refer to the bytes, which outlive the call that they are for.
    const msgpack::object_handle whole = msgpack::unpack(
        bytes.data(), bytes.size(), [](msgpack::type::object_type, std::size_t, void*) { return true; });
    try {
      return whole.get().template as<T>();
    } catch (const msgpack::type_error&) {
      throw TypeError();
    }
  }
};

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
      out.pack_ext_body(own.bytes().data(), static_cast<std::uint32_t>(own.bytes().size()));  // as they are
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
