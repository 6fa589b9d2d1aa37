// SPDX-License-Identifier: Apache-2.0
// Where an exception came from that nobody caught: the stack as it was at the throw, which is gone when a handler runs.
// A catch clause whose type says "no" to everything is asked while the stack is still there: unwinding looks for a
// handler first, and only then begins. What is caught further in costs nothing. Names come from dynamic symbol tables:
// link with -rdynamic to see the program's own; otherwise offsets are given, for addr2line. Included by spawn.hpp.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_THROW_POINT_HPP)
#define SHMBROKER_THROW_POINT_HPP

#include <string>

#if defined(__GLIBCXX__) && defined(__GLIBC__)
#define SHMBROKER_THROW_POINTS 1
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <typeinfo>
#else
#define SHMBROKER_THROW_POINTS 0
#endif

namespace shmbroker::detail {

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
  bool __do_catch(const std::type_info*, void**, unsigned) const override {
    throw_point.count = ::backtrace(throw_point.frames, static_cast<int>(std::size(throw_point.frames)));
    return false;
  }
};
inline const AskedAtThrowInfo asked_at_throw_info __asm__("_ZTIN9shmbroker6detail12AskedAtThrowE");

inline std::string frame_text(void* address) {
  Dl_info found{};
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  char offset[32];
  // A return address may be the first of the next function.
  if (::dladdr(reinterpret_cast<void*>(place - 1), &found) == 0 || found.dli_fname == nullptr) {
    std::snprintf(offset, sizeof offset, "%#jx", static_cast<std::uintmax_t>(place));
    return offset;
  }
  std::snprintf(offset, sizeof offset, "(+%#jx)",
                static_cast<std::uintmax_t>(place - reinterpret_cast<std::uintptr_t>(found.dli_fbase)));
  std::string text = found.dli_fname + std::string(offset);
  if (found.dli_sname == nullptr) return text;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status),
                                                    std::free);
  return (status == 0 && name ? name.get() : found.dli_sname) + (" in " + text);
}

// One line for each frame, the one that threw first; empty where none was seen.
inline std::string throw_point_text() {
  int first = 0;
  for (int i = 0; i < throw_point.count; ++i) {
    Dl_info found{};
    if (::dladdr(throw_point.frames[i], &found) == 0 || found.dli_sname == nullptr) continue;
    if (std::strcmp(found.dli_sname, "__cxa_throw") == 0 || std::strcmp(found.dli_sname, "__cxa_rethrow") == 0)
      first = i + 1;
  }
  std::string text;
  for (int i = first; i < throw_point.count; ++i)
    text += "  #" + std::to_string(i - first) + " " + frame_text(throw_point.frames[i]) + "\n";
  return text;
}

#else

struct AskedAtThrow {};
inline std::string throw_point_text() { return {}; }

#endif

}  // namespace shmbroker::detail

#endif
