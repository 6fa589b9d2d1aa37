// SPDX-License-Identifier: Apache-2.0
// Whether our declaration of a driver's function is the toolkit's: the same registers and the same bytes. A handle of
// theirs is a pointer of ours, an enum is an int.
#pragma once

#include <type_traits>

namespace shmb::facts {

template <class A, class B>
consteval bool same_slot() {
  return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && std::is_class_v<A> == std::is_class_v<B> &&
         std::is_pointer_v<A> == std::is_pointer_v<B>;
}

template <class Result, class... Ours, class... Theirs>
consteval bool same_call(int (*)(Ours...), Result (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
    return false;
  } else {
    return (same_slot<Ours, Theirs>() && ...);
  }
}

}  // namespace shmb::facts
