// SPDX-License-Identifier: Apache-2.0
// The stack at the throw of an exception that is not caught. It is gone when a handler runs. So it is recorded while
// the unwinder searches: the unwinder asks each catch clause first and unwinds only afterwards. A catch clause of a
// type that never matches is asked while the stack is still there. An exception that is caught further in costs
// nothing. shmb_stack_text makes the text. Included by spawn.hpp.
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

// The return address of the first frame that is not shown. Neither that frame nor those above it are shown.
inline thread_local void* bottom_of_stack = nullptr;

#if SHMBROKER_THROW_POINTS

struct ThrowPoint {
  void* frames[64];
  int count = 0;
};
inline thread_local ThrowPoint throw_point;

// Never thrown. Its first virtual function is defined nowhere, so no compiler makes its type_info.
struct AskedAtThrow {
  virtual void defined_nowhere();
};
struct AskedAtThrowInfo final : std::type_info {
  AskedAtThrowInfo() noexcept : std::type_info("N9shmbroker6detail12AskedAtThrowE") {}
  bool __do_catch(const std::type_info* thrown, void**, unsigned) const override {
    try {
      (void)shmb_rank_throwing(type_text(*thrown).c_str(), nullptr);
    } catch (...) {  // no memory for the name: it is found when the exception has been caught
    }
    throw_point.count = ::backtrace(throw_point.frames, static_cast<int>(std::size(throw_point.frames)));
    return false;
  }
};
inline const AskedAtThrowInfo asked_at_throw_info __asm__("_ZTIN9shmbroker6detail12AskedAtThrowE");

// One line for each frame, starting with the one that threw. Empty if none was recorded.
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
