// SPDX-License-Identifier: Apache-2.0
// The stack at the throw of an exception that nobody caught. It is gone when a handler runs.
// A catch clause whose type says "no" to everything is asked while the stack is still there: unwinding looks for a
// handler first, and only then begins. What is caught further in costs nothing. shmb_stack_text makes the text of it.
// Included by spawn.hpp.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_THROW_POINT_HPP)
#define SHMBROKER_THROW_POINT_HPP

#include <string>

#include "shmbroker_spawn.h"
#include "thrown.hpp"

#if defined(__GLIBCXX__) && defined(__GLIBC__)
#define SHMBROKER_THROW_POINTS 1
#include <execinfo.h>

#include <iterator>
#include <typeinfo>
#else
#define SHMBROKER_THROW_POINTS 0
#endif

namespace shmbroker::detail {

// The address that the first frame not to be shown returns to. Neither that frame nor those above it are shown.
inline thread_local void* bottom_of_stack = nullptr;

#if SHMBROKER_THROW_POINTS

struct ThrowPoint {
  void* frames[64];
  int count = 0;
};
inline thread_local ThrowPoint throw_point;

// Nothing of this type is ever thrown. As its first virtual function is defined nowhere, no compiler makes its
// type_info.
struct AskedAtThrow {
  virtual void defined_nowhere();
};
struct AskedAtThrowInfo final : std::type_info {
  AskedAtThrowInfo() noexcept : std::type_info("N9shmbroker6detail12AskedAtThrowE") {}
  bool __do_catch(const std::type_info* thrown, void**, unsigned) const override {
    try {
      (void)shmb_rank_throwing(type_text(*thrown).c_str(), nullptr);
    } catch (...) {  // no memory for the name: it is told when it has been caught
    }
    throw_point.count = ::backtrace(throw_point.frames, static_cast<int>(std::size(throw_point.frames)));
    return false;
  }
};
inline const AskedAtThrowInfo asked_at_throw_info __asm__("_ZTIN9shmbroker6detail12AskedAtThrowE");

// One line for each frame, the one that threw first; empty where none was seen.
inline std::string throw_point_text() {
  char* text = nullptr;
  (void)shmb_stack_text(throw_point.frames, static_cast<std::size_t>(throw_point.count), bottom_of_stack, &text,
                        nullptr);
  return taken_text(text, "");
}

#else

struct AskedAtThrow {};
inline std::string throw_point_text() { return {}; }

#endif

}  // namespace shmbroker::detail

#endif
