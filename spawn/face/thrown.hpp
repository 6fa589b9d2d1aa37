// SPDX-License-Identifier: Apache-2.0
// An exception as another process sees it: its type, its text, and those of its causes. Causes are the exceptions that
// it was thrown from (std::throw_with_nested). Included by spawn.hpp and remote.hpp; needs exceptions.
#if __cplusplus < 202002L
#error "shmbroker/thrown.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker_spawn.h)"
#elif !defined(SHMBROKER_THROWN_HPP)
#define SHMBROKER_THROWN_HPP

#if !defined(__cpp_exceptions) && !defined(__EXCEPTIONS)
#error "shmbroker/thrown.hpp needs exceptions; without, use shmbroker/shmbroker_spawn.h"
#else

#include <cxxabi.h>

#include <exception>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "packed.hpp"
#include "shmbroker_spawn.h"

namespace shmbroker {

/// The exception that another one was thrown from: it was caught at that moment. A plain value.
struct RaisedCause {
  std::string type, text;
  friend bool operator==(const RaisedCause&, const RaisedCause&) = default;
};

namespace detail {

// Takes over memory that the library has allocated.
[[gnu::cold]] inline std::string taken_text(char* text, const char* otherwise) {
  struct Freeing {
    char* text;
    ~Freeing() { shmb_bytes_free(text); }
  } const freeing{text};
  return text != nullptr ? text : otherwise;
}
[[gnu::cold]] inline std::string demangled(const char* name) {
  char* text = nullptr;
  (void)shmb_type_text(name, &text, nullptr);
  return taken_text(text, name);
}
// The type that was given to std::throw_with_nested, which throws a type of its own, derived from it.
inline std::string type_text(const std::type_info& type) { return demangled(type.name()); }

struct Thrown {
  std::string type, text;
  std::vector<RaisedCause> causes;  // from the next one to the first that was thrown
  // For the C API: valid while this object is not changed.
  std::vector<shmb_cause> c() const {
    std::vector<shmb_cause> all;
    for (const RaisedCause& one : causes) all.push_back({one.type.c_str(), one.text.c_str()});
    return all;
  }
};

inline constexpr const char* kNoText = "not derived from std::exception";

// Adds the exception that is being handled, and returns the one that it was thrown from.
[[gnu::cold]] inline std::exception_ptr take_handled(std::vector<RaisedCause>& chain) {
  const auto nested = [](const auto& error) -> std::exception_ptr {
    const auto* const from = dynamic_cast<const std::nested_exception*>(&error);
    return from == nullptr ? nullptr : from->nested_ptr();
  };
  try {
    throw;
  } catch (const std::exception& error) {
    chain.push_back({type_text(typeid(error)), error.what()});
    return nested(error);
  } catch (const std::nested_exception& error) {
    chain.push_back({type_text(typeid(error)), kNoText});
    return error.nested_ptr();
  } catch (...) {
    const std::type_info* const type = abi::__cxa_current_exception_type();
    chain.push_back({type == nullptr ? "" : type_text(*type), kNoText});
    return nullptr;
  }
}

// The exception that is being handled, and its causes. Call it in a catch clause.
[[gnu::cold]] inline Thrown thrown_now() {
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

// The causes as lines below a message: "\ncaused by TYPE: TEXT" for each.
[[gnu::cold]] inline std::string causes_text(const std::vector<RaisedCause>& causes) {
  std::string text;
  for (const RaisedCause& one : causes) text += joined({"\ncaused by ", one.type, ": ", one.text});
  return text;
}

}  // namespace detail
}  // namespace shmbroker

#endif
#endif
