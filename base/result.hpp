// SPDX-License-Identifier: Apache-2.0
// Two kinds of failure, never mixed. A system call returns `Sys<T>`: the value or the errno, without allocation.
// Everything above returns `Result<T>`: the value or an `Error` that a person can act on.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <utility>

#include "base/status.hpp"

namespace shmb {

struct Errno {
  int value = 0;
  friend bool operator==(Errno, Errno) = default;
};

template <class T>
using Sys = std::expected<T, Errno>;

inline std::unexpected<Errno> sys_error(int value) { return std::unexpected(Errno{value}); }

// A refusal's numbers: the resource, its scope, and the amounts (slot and scope are the wire's enums).
struct Shortage {
  std::uint16_t slot = 0;
  std::uint16_t scope = 0;
  std::uint64_t scope_id = 0;
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  std::uint64_t asked = 0;
};

struct Error {
  Status status = Status::invalid;
  int system_errno = 0;
  Shortage shortage;
  std::string sentence;
};

template <class T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> error(Status status, std::string sentence) {
  return std::unexpected(Error{status, 0, {}, std::move(sentence)});
}

// `what` names the call and the object ("memfd_create for region 'kv'"); the errno's text is appended.
std::unexpected<Error> system_failure(Errno code, const std::string& what);

}  // namespace shmb

// Passes an error on: ends the function with the error of the expression, a `Sys` or a `Result`. Otherwise `name` is
// its value, which lives as long as the scope, used or not. The function may return another type of value, but the same
// type of error.
//
//   SHMB_TRY(file, open_file(path));    // instead of: auto file = ...; if (!file) return std::unexpected(...)
//   SHMB_TRY_VOID(write_all(file, text));
#define SHMB_TRY(name, ...)                                                         \
  auto shmb_try_##name = (__VA_ARGS__);                                             \
  if (!shmb_try_##name) return std::unexpected(std::move(shmb_try_##name).error()); \
  [[maybe_unused]] auto& name = *shmb_try_##name

// The same for an expression whose value is not needed.
#define SHMB_TRY_VOID(...) \
  if (auto shmb_try = (__VA_ARGS__); !shmb_try) return std::unexpected(std::move(shmb_try).error())
