// SPDX-License-Identifier: Apache-2.0
// Where an exception came from that nobody caught: the stack as it was at the throw, which is gone when a handler runs.
// A catch clause whose type says "no" to everything is asked while the stack is still there: unwinding looks for a
// handler first, and only then begins. What is caught further in costs nothing. Names come from dynamic symbol tables:
// link with -rdynamic to see the program's own; otherwise offsets are given, for addr2line. Frames of std and of this
// library are left out. Included by spawn.hpp.
#if __cplusplus < 202002L
#error "shmbroker/spawn.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_THROW_POINT_HPP)
#define SHMBROKER_THROW_POINT_HPP

#include <string>

#include "shmbroker_spawn.h"
#include "thrown.hpp"

#if defined(__GLIBCXX__) && defined(__GLIBC__)
#define SHMBROKER_THROW_POINTS 1
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <typeinfo>
#else
#define SHMBROKER_THROW_POINTS 0
#endif

namespace shmbroker::detail {

// Where the frame returns to that calls what a stack is to show. That frame and what is above it are not shown.
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
      (void)shmb_rank_throwing(type_thrown(*thrown).c_str(), nullptr);
    } catch (...) {  // no memory for the name: it is told when it has been caught
    }
    throw_point.count = ::backtrace(throw_point.frames, static_cast<int>(std::size(throw_point.frames)));
    return false;
  }
};
inline const AskedAtThrowInfo asked_at_throw_info __asm__("_ZTIN9shmbroker6detail12AskedAtThrowE");

// "f" of "std::vector<int> f<g>(int)", with its scopes.
inline std::string_view function_in(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with("operator")) return name.substr(begin);  // its name may hold any of these
    if (name.substr(i).starts_with(kAnonymous)) i += kAnonymous.size() - 1;
    else if (name[i] == '<') ++depth;
    else if (name[i] == '>') --depth;
    else if (depth == 0 && name[i] == ' ') begin = i + 1;
    else if (depth == 0 && name[i] == '(') return name.substr(begin, i - begin);
  }
  return name.substr(begin);
}

// Of std, of the C library, or of this one: not what the program's author wrote.
inline bool is_foreign(std::string_view name, std::string_view file) {
  const std::string_view function = function_in(name);
  for (const std::string_view scope : {"std::", "__gnu_cxx::", "__cxxabiv1::", "__cxa_", "shmbroker::", "shmb_"})
    if (function.starts_with(scope)) return true;
  file.remove_prefix(std::min(file.rfind('/') + 1, file.size()));
  for (const std::string_view library : {"libstdc++.so", "libc.so", "libgcc_s.so", "libshmbroker.so"})
    if (file.starts_with(library)) return true;
  return false;
}

// Empty: it is not to be shown.
inline std::string frame_text(void* address) {
  Dl_info found{};
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  char offset[32];
  // A return address may be the first of the next function.
  if (::dladdr(reinterpret_cast<void*>(place - 1), &found) == 0 || found.dli_fname == nullptr) {
    std::snprintf(offset, sizeof offset, "%#jx", static_cast<std::uintmax_t>(place));
    return offset;
  }
  const std::string name = found.dli_sname == nullptr ? "" : demangled(found.dli_sname);
  if (is_foreign(name, found.dli_fname)) return {};
  std::snprintf(offset, sizeof offset, "(+%#jx)",
                static_cast<std::uintmax_t>(place - reinterpret_cast<std::uintptr_t>(found.dli_fbase)));
  return name + (name.empty() ? "" : " in ") + found.dli_fname + offset;
}

// One line for each frame, the one that threw first; empty where none was seen.
inline std::string throw_point_text() {
  int first = 0, end = throw_point.count;
  for (int i = 0; i < throw_point.count; ++i) {
    Dl_info found{};
    if (throw_point.frames[i] == bottom_of_stack && i > 0) {
      end = i - 1;
      break;
    }
    if (::dladdr(throw_point.frames[i], &found) == 0 || found.dli_sname == nullptr) continue;
    if (std::strcmp(found.dli_sname, "__cxa_throw") == 0 || std::strcmp(found.dli_sname, "__cxa_rethrow") == 0)
      first = i + 1;
  }
  std::string text;
  int shown = 0;
  for (int i = first; i < end; ++i)
    if (const std::string frame = frame_text(throw_point.frames[i]); !frame.empty())
      text += "  #" + std::to_string(shown++) + " " + frame + "\n";
  return text;
}

#else

struct AskedAtThrow {};
inline std::string throw_point_text() { return {}; }

#endif

}  // namespace shmbroker::detail

#endif
