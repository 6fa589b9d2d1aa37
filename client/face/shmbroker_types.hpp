// SPDX-License-Identifier: Apache-2.0
// The values of the C++ API: durations, numbers that name something, rights and tokens. shmbroker.hpp includes this
// file. All are plain values. C++20, libc and std only.
#if __cplusplus < 202002L
#error "shmbroker/shmbroker_types.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker.h)"
#elif !defined(SHMBROKER_TYPES_HPP)
#define SHMBROKER_TYPES_HPP

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
// Only durations and clocks, where the standard library has them apart: calendars take longer to compile than this
// file.
#if __has_include(<bits/chrono.h>)
#include <bits/chrono.h>
#else
#include <chrono>
#endif

#include "shmbroker.h"
#include "shmbroker_result.hpp"

namespace shmbroker {
namespace detail {

// Of any duration, rounded up. A duration that nanoseconds cannot count, such as hours::max(), is a hundred years: it
// would otherwise wrap round, and a wait without end would not wait at all.
template <class Rep, class Period>
constexpr std::int64_t nanoseconds_of(std::chrono::duration<Rep, Period> duration) noexcept {
  constexpr double most = 100 * 365.25 * 86400;
  const double seconds = std::chrono::duration<double>(duration).count();
  if (!(seconds < most)) return static_cast<std::int64_t>(most * 1e9);
  if (seconds <= -most) return -static_cast<std::int64_t>(most * 1e9);
  return std::chrono::ceil<std::chrono::nanoseconds>(duration).count();
}

}  // namespace detail

/// A duration of a call, a wait or a lifetime, in nanoseconds. Every function and every option takes this type, with
/// one meaning. Left out it is the default, which the function or option names; if none is named it is 5 s
/// (SHMB_CALL_TIMEOUT). A plain value.
class Timeout {
 public:
  /// The default of the call.
  constexpr Timeout() noexcept = default;
  /// From any std::chrono duration. Zero and below do not wait: they are no_wait().
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> duration) noexcept
      : nanoseconds_(detail::nanoseconds_of(duration)) {
    if (nanoseconds_ < 1) nanoseconds_ = SHMB_NO_WAIT;
  }
  /// No limit. Only waits for other processes take it. Calls that wait only for the broker fail with Status::invalid.
  static constexpr Timeout forever() noexcept { return Timeout(Raw{SHMB_FOREVER}); }
  /// Fails at once if the call would have to wait: with Status::full, empty or deadline.
  static constexpr Timeout no_wait() noexcept { return Timeout(Raw{SHMB_NO_WAIT}); }
  /// As the C functions take it: SHMB_DEFAULT_TIMEOUT, SHMB_FOREVER, SHMB_NO_WAIT, or nanoseconds above 0.
  constexpr std::int64_t nanoseconds() const noexcept { return nanoseconds_; }
  friend constexpr bool operator==(const Timeout&, const Timeout&) noexcept = default;

 private:
  struct Raw {
    std::int64_t value;
  };
  explicit constexpr Timeout(Raw raw) noexcept : nanoseconds_(raw.value) {}
  std::int64_t nanoseconds_ = SHMB_DEFAULT_TIMEOUT;
};

/// The fate of a region after the end of its group. A call that gets a negative duration refuses it. A plain value.
class Keep {
 public:
  /// The region ends with its group.
  static constexpr Keep none() noexcept { return Keep(0); }
  /// It stays until somebody releases it.
  static constexpr Keep until_released() noexcept { return Keep(SHMB_KEEP_UNTIL_RELEASED); }
  /// It stays for so long after the end of its group.
  template <class Rep, class Period>
  constexpr Keep(std::chrono::duration<Rep, Period> duration) noexcept
      : nanoseconds_(detail::nanoseconds_of(duration)) {
    if (nanoseconds_ < 0) nanoseconds_ = -2;  // -1 would be until_released()
  }
  /// As the C functions take it.
  constexpr std::int64_t nanoseconds() const noexcept { return nanoseconds_; }

 private:
  explicit constexpr Keep(std::int64_t nanoseconds) noexcept : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_;
};

/// The random number of one life of the broker's books. The numbers have types of their own, so that they cannot be
/// confused.
struct Epoch {
  std::uint64_t value = 0;
  friend auto operator<=>(const Epoch&, const Epoch&) = default;
};
/// The number of a group within an epoch.
struct GroupId {
  std::uint64_t value = 0;  // 0: the session's own group
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};
/// The number of a subscription to events.
struct WatchId {
  std::uint64_t value = 0;
  friend auto operator<=>(const WatchId&, const WatchId&) = default;
};
/// The identity of a region. Ids are never used twice within an epoch; `generation` counts re-creations under one name.
struct RegionId {
  Epoch epoch;
  std::uint64_t id = 0;
  std::uint32_t generation = 0;
  friend auto operator<=>(const RegionId&, const RegionId&) = default;
  /// From and to the C form. An epoch of 0 in a request is that of the broker asked; a generation of 0 is any.
  static RegionId from_c(const shmb_region_id& c) noexcept { return {{c.epoch}, c.id, c.generation}; }
  shmb_region_id to_c() const noexcept { return {epoch.value, id, generation, 0}; }
};

enum class Rights : std::uint32_t {
  none = 0,
  read = SHMB_RIGHT_READ,
  write = SHMB_RIGHT_WRITE,
  share = SHMB_RIGHT_SHARE,
  release = SHMB_RIGHT_RELEASE,
  all = SHMB_RIGHT_ALL,
};
/// The union of two sets of rights.
constexpr Rights operator|(Rights a, Rights b) noexcept {
  return static_cast<Rights>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}
/// The rights that both sets have.
constexpr Rights operator&(Rights a, Rights b) noexcept {
  return static_cast<Rights>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}

/// 128 random bits: a ticket to a region, or a group's token. Its holder has the rights. A plain value.
class Token {
 public:
  /// Sixteen zero bytes, which no ticket has; or 16 bytes as the C functions write them.
  Token() noexcept = default;
  explicit Token(const std::uint8_t (&bytes)[16]) noexcept { std::memcpy(bytes_.data(), bytes, 16); }
  /// Reads 32 lower-case hex digits. Status: invalid for any other text, which the error does not repeat.
  static Result<Token> try_parse(std::string_view text) noexcept {
    Token token;
    if (const int status = shmb_token_parse(detail::CText(text).get(), token.bytes_.data()); status != SHMB_OK) {
      // Without the text, which may be a secret with a typing error.
      return Error(static_cast<Status>(status), "a ticket or token is written as 32 lower-case hex digits");
    }
    return token;
  }
#if SHMBROKER_EXCEPTIONS
  /// As try_parse(). Throws Error with the same status.
  static Token parse(std::string_view text) { return try_parse(text).value(); }
#endif
  /// The 32 hex digits. Throws std::bad_alloc.
  std::string text() const {  // 32 hex digits
    char out[SHMB_TOKEN_TEXT];
    shmb_token_format(bytes_.data(), out);
    return out;
  }
  /// The 16 bytes. They live as long as this object.
  const std::uint8_t* data() const noexcept { return bytes_.data(); }
  friend bool operator==(const Token&, const Token&) = default;

 private:
  std::array<std::uint8_t, 16> bytes_{};
};

/// A token that gives rights to one region. A plain value.
class Ticket : public Token {
 public:
  /// No ticket, or the ticket with these bits.
  Ticket() noexcept = default;
  explicit Ticket(const Token& token) noexcept : Token(token) {}
};

/// A group that this process has made or was told of. A plain value: the group does not end with it.
struct Group {
  GroupId id;
  Token token;  // admits any session that shows it
  /// The value of SHMBROKER_GROUP that makes a child process a member. `name` is for messages. Status: invalid for a
  /// name that no group can have. Throws std::bad_alloc. The value of SHMBROKER_GROUP that makes a child process a
  /// member.
  Result<std::string> try_variable(std::string_view name) const {
    char text[SHMB_VARIABLE_TEXT];
    shmb_error error;
    if (shmb_group_variable(detail::CText(name).get(), token.data(), text, &error) != SHMB_OK) return Error(error);
    return std::string(text);
  }
#if SHMBROKER_EXCEPTIONS
  /// As try_variable(). Throws Error with the same status.
  std::string variable(std::string_view name) const { return try_variable(name).value(); }
#endif
};

}  // namespace shmbroker

template <>
struct std::hash<shmbroker::RegionId> {
  std::size_t operator()(const shmbroker::RegionId& id) const noexcept {
    return std::hash<std::uint64_t>()(id.id * 0x9e3779b97f4a7c15ULL ^ id.epoch.value ^ id.generation);
  }
};

#endif
