// SPDX-License-Identifier: Apache-2.0
// Facts about pointers.
#include <cstring>

#include "tests/fakecuda/state.hpp"

namespace fakecuda {
namespace {

template <class T>
void put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// With `strict` an address that is none of ours is an error, as of cuPointerGetAttribute; else the answer is zero.
Code attribute_of(const State& it, PointerAttribute which, Address address, void* to, bool strict) {
  Address start = 0;
  const Mapping* mapping = mapping_at(it, address, &start);
  if (mapping == nullptr && strict) return kInvalidValue;
  const bool host = mapping != nullptr && mapping->kind == Kind::host;
  switch (which) {
    case PointerAttribute::context:
      put<Context>(to, mapping != nullptr ? mapping->context : nullptr);
      return kSuccess;
    case PointerAttribute::memory_type:
      put<unsigned>(to, mapping == nullptr ? 0U : static_cast<unsigned>(host ? kHostMemory : kDeviceMemory));
      return kSuccess;
    case PointerAttribute::device_pointer:
      put<Address>(to, mapping != nullptr ? address : 0);
      return kSuccess;
    case PointerAttribute::host_pointer:
      put<void*>(to, host ? static_cast<char*>(mapping->host) + (address - start) : nullptr);
      return kSuccess;
    case PointerAttribute::buffer_id:
      put<unsigned long long>(to, mapping != nullptr ? mapping->id : 0);
      return kSuccess;
    case PointerAttribute::device_ordinal:
      put<int>(to, mapping != nullptr ? mapping->ordinal : -2);
      return kSuccess;
    case PointerAttribute::legacy_ipc_capable:
      put<int>(to, mapping != nullptr && mapping->kind == Kind::plain);
      return kSuccess;
    case PointerAttribute::range_start:
      put<Address>(to, mapping != nullptr ? start : 0);
      return kSuccess;
    case PointerAttribute::range_size:
      put<std::size_t>(to, mapping != nullptr ? mapping->bytes : 0);
      return kSuccess;
    case PointerAttribute::mapped:
      put<int>(to, mapping != nullptr);
      return kSuccess;
    case PointerAttribute::allowed_handle_types:
      put<std::uint64_t>(to, mapping != nullptr && mapping->physical != nullptr
                                 ? static_cast<std::uint64_t>(mapping->physical->name().handle_types)
                                 : 0);
      return kSuccess;
    case PointerAttribute::mempool:
      put<void*>(to, nullptr);
      return kSuccess;
  }
  return kInvalidValue;
}

}  // namespace
}  // namespace fakecuda

using namespace fakecuda;

FAKECUDA_API Code cuPointerGetAttribute(void* to, PointerAttribute which, Address address) {
  return enter("cuPointerGetAttribute", Needs::driver, [&](State& it, Lock&) -> Code {
    return to == nullptr ? kInvalidValue : attribute_of(it, which, address, to, true);
  });
}

FAKECUDA_API Code cuPointerGetAttributes(unsigned count, PointerAttribute* which, void** to, Address address) {
  return enter("cuPointerGetAttributes", Needs::driver, [&](State& it, Lock&) -> Code {
    if (which == nullptr || to == nullptr) return kInvalidValue;
    for (unsigned i = 0; i < count; ++i)
      if (const Code code = attribute_of(it, which[i], address, to[i], false); code != kSuccess) return code;
    return kSuccess;
  });
}

FAKECUDA_API Code cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
  return enter("cuMemGetAddressRange", Needs::context, [&](State& it, Lock&) -> Code {
    Address start = 0;
    const Mapping* mapping = mapping_at(it, address, &start);
    if (mapping == nullptr) return kNotFound;
    if (base != nullptr) *base = start;
    if (bytes != nullptr) *bytes = mapping->bytes;
    return kSuccess;
  });
}
