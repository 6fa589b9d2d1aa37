// SPDX-License-Identifier: Apache-2.0
// Names of functions from dladdr, demangled. A frame without a name shows its file and the offset in it.
#include "spawn/ranks/stack_text.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace shmb::spawn {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

// A function of std, of the C library, or of this library: not written by the program's author.
bool is_foreign(std::string_view name, std::string_view file) {
  const std::string_view function = function_in(name);
  for (const std::string_view scope : {"std::", "__gnu_cxx::", "__cxxabiv1::", "__cxa_", "shmbroker::", "shmb_"})
    if (function.starts_with(scope)) return true;
  file.remove_prefix(std::min(file.rfind('/') + 1, file.size()));
  for (const std::string_view library : {"libstdc++.so", "libc.so", "libgcc_s.so", "libshmbroker.so"})
    if (file.starts_with(library)) return true;
  return false;
}

// Empty: the frame is not shown.
std::string frame_text(void* address) {
  Dl_info found{};
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  char offset[32];
  // A return address may be the first address of the next function.
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

}  // namespace

std::string type_text(const char* mangled) {
  std::string name = demangled(mangled);
  for (const std::string_view wrapper : {"std::_Nested_exception<", "std::__nested<", "std::__1::__nested<"}) {
    if (!name.starts_with(wrapper) || !name.ends_with('>')) continue;
    name = name.substr(wrapper.size(), name.size() - wrapper.size() - 1);
    while (name.ends_with(' ')) name.pop_back();
    break;
  }
  return name;
}

namespace {

// Whether a name that begins here is that of an operator, and not another one that contains the word.
bool is_operator(std::string_view name, std::size_t begin) {
  constexpr std::string_view kWord = "operator";
  const auto in_word = [&](std::size_t at) {
    return at < name.size() && (name[at] == '_' || name[at] == '$' || (name[at] & 0x80) != 0 ||
                                std::isalnum(static_cast<unsigned char>(name[at])) != 0);
  };
  return name.substr(begin).starts_with(kWord) && (begin == 0 || !in_word(begin - 1)) && !in_word(begin + kWord.size());
}

}  // namespace

std::string_view function_in(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (is_operator(name, i)) return name.substr(begin);  // the name of an operator may hold any of these
    if (name.substr(i).starts_with(kAnonymous)) i += kAnonymous.size() - 1;
    else if (name[i] == '<') ++depth;
    else if (name[i] == '>') --depth;
    else if (depth == 0 && name[i] == ' ') begin = i + 1;
    else if (depth == 0 && name[i] == '(') return name.substr(begin, i - begin);
  }
  return name.substr(begin);
}

std::string stack_text(void* const* frames, std::size_t count, const void* bottom) {
  std::size_t first = 0, end = count;
  for (std::size_t i = 0; i < count; ++i) {
    Dl_info found{};
    if (frames[i] == bottom && i > 0) {
      end = i - 1;
      break;
    }
    if (::dladdr(frames[i], &found) == 0 || found.dli_sname == nullptr) continue;
    if (std::strcmp(found.dli_sname, "__cxa_throw") == 0 || std::strcmp(found.dli_sname, "__cxa_rethrow") == 0)
      first = i + 1;
  }
  std::string text;
  int shown = 0;
  for (std::size_t i = first; i < end; ++i)
    if (const std::string frame = frame_text(frames[i]); !frame.empty())
      text += "  #" + std::to_string(shown++) + " " + frame + "\n";
  return text;
}

}  // namespace shmb::spawn
