// SPDX-License-Identifier: Apache-2.0
// An exception as another process learns of it: its type, its text, and those of the exceptions that it was thrown
// from (std::throw_with_nested), which are its causes. Included by spawn.hpp and remote.hpp; needs exceptions.
#if __cplusplus < 202002L
#error "shmbroker/thrown.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_THROWN_HPP)
#define SHMBROKER_THROWN_HPP

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS)
#error "shmbroker/thrown.hpp needs exceptions; without, use shmbroker/shmbroker_spawn.h"
#else

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "shmbroker_cause.h"

namespace shmbroker {

// What an exception was thrown from: the one that was caught when it was thrown.
struct RaisedCause {
  std::string type, text;
  friend bool operator==(const RaisedCause&, const RaisedCause&) = default;
};

namespace detail {

inline std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

// The type that was given to std::throw_with_nested: the library throws one of its own, derived from it.
inline std::string type_thrown(const std::type_info& type) {
  std::string name = demangled(type.name());
  for (const std::string_view wrapper : {"std::_Nested_exception<", "std::__nested<", "std::__1::__nested<"}) {
    if (!name.starts_with(wrapper) || !name.ends_with('>')) continue;
    name = name.substr(wrapper.size(), name.size() - wrapper.size() - 1);
    while (name.ends_with(' ')) name.pop_back();
    break;
  }
  return name;
}

struct Thrown {
  std::string type, text;
  std::vector<RaisedCause> causes;  // from the next one to the first that was thrown
  // For the C face: valid while this one is not changed.
  std::vector<shmb_cause> c() const {
    std::vector<shmb_cause> all;
    for (const RaisedCause& one : causes) all.push_back({one.type.c_str(), one.text.c_str()});
    return all;
  }
};

inline constexpr const char* kNoText = "not derived from std::exception";

// Adds the exception that is being handled, and gives what it was thrown from.
inline std::exception_ptr take_handled(std::vector<RaisedCause>& chain) {
  const auto nested = [](const auto& error) -> std::exception_ptr {
    const auto* const from = dynamic_cast<const std::nested_exception*>(&error);
    return from == nullptr ? nullptr : from->nested_ptr();
  };
  try {
    throw;
  } catch (const std::exception& error) {
    chain.push_back({type_thrown(typeid(error)), error.what()});
    return nested(error);
  } catch (const std::nested_exception& error) {
    chain.push_back({type_thrown(typeid(error)), kNoText});
    return error.nested_ptr();
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    chain.push_back({type == nullptr ? "" : type_thrown(*type), kNoText});
    return nullptr;
  }
}

// The exception that is being handled, and what it was thrown from. To be called in a catch clause.
inline Thrown thrown_now() {
  std::vector<RaisedCause> chain;
  std::exception_ptr next = take_handled(chain);
  while (next != nullptr && chain.size() <= SHMB_MOST_CAUSES) {
    try {
      std::rethrow_exception(std::exchange(next, nullptr));
    } catch (...) {
      next = take_handled(chain);
    }
  }
  Thrown all{std::move(chain.front().type), std::move(chain.front().text), {}};
  chain.erase(chain.begin());
  all.causes = std::move(chain);
  return all;
}

// The chain as lines below a message: "\ncaused by TYPE: TEXT" for each.
inline std::string causes_text(const std::vector<RaisedCause>& causes) {
  std::string text;
  for (const RaisedCause& one : causes) text += "\ncaused by " + one.type + ": " + one.text;
  return text;
}

}  // namespace detail
}  // namespace shmbroker

#endif
#endif
