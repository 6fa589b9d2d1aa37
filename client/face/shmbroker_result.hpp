// SPDX-License-Identifier: Apache-2.0
// How operations of the C++ API end: with a status, an Error, or a Result that holds a value or an Error. shmbroker.hpp
// includes this file. Threads: plain values. C++20, libc and std only.
#if __cplusplus < 202002L
#error "shmbroker/shmbroker_result.hpp needs C++20: compile with -std=c++20 or later (from C, shmbroker/shmbroker.h)"
#elif !defined(SHMBROKER_RESULT_HPP)
#define SHMBROKER_RESULT_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shmbroker.h"

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define SHMBROKER_EXCEPTIONS 1
#else
#define SHMBROKER_EXCEPTIONS 0
#endif

namespace shmbroker {

/// The outcome of a call, by name. The numbers are those of enum shmb_status_code, see shmb_status.h.
enum class Status : std::int32_t {
#define SHMBROKER_X(name, value, text) name = value,
  SHMB_STATUS_TABLE(SHMBROKER_X)
#undef SHMBROKER_X
};

/// The reason of a failure. what() is a sentence to print, in the words of this API, that says what to change. It is
/// also the exception type. A plain value.
class Error : public std::exception {
 public:
  /// From the error of a C function.
  explicit Error(const shmb_error& detail) noexcept : detail_(detail) { shmb_error_words(&detail_, SHMB_WORDS_CXX); }
  /// With the general sentence of a status.
  explicit Error(Status status) noexcept : Error(status, shmb_status_text(static_cast<int>(status))) {}
  /// A sentence longer than the room in shmb_error is cut.
  Error(Status status, std::string_view sentence) noexcept {
    detail_.status = static_cast<std::int32_t>(status);
    const std::size_t length = sentence.copy(detail_.sentence, sizeof detail_.sentence - 1);
    detail_.sentence[length] = '\0';
  }
  /// The sentence, the status, the errno behind it (0: none), and the C form with the numbers of a refusal. They live
  /// as long as the Error.
  const char* what() const noexcept override { return detail_.sentence; }
  Status status() const noexcept { return static_cast<Status>(detail_.status); }
  int system_errno() const noexcept { return detail_.system_errno; }
  const shmb_error& detail() const noexcept { return detail_; }  // the numbers of a refusal

 private:
  shmb_error detail_{};
};

/// A text that an options struct owns. It can be made from anything that holds characters, also from a
/// std::string_view. A plain value.
class Text : public std::string {
 public:
  using std::string::string;
  Text() noexcept = default;
  /// Copies the characters of a view. Throws std::bad_alloc.
  Text(std::string text) noexcept : std::string(std::move(text)) {}
  Text(std::string_view text) : std::string(text) {}
};

template <class T>
class Result;

namespace detail {

template <class>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<Result<T> > = true;

// Calls `call` with the value or, for Result<void>, without an argument.
template <class T, class Call, class Stored>
constexpr decltype(auto) with_value(Call&& call, [[maybe_unused]] Stored&& value) {
  if constexpr (std::is_void_v<T>) return std::forward<Call>(call)();
  else return std::forward<Call>(call)(std::forward<Stored>(value));
}

struct Nothing {};

}  // namespace detail

/// A value or an Error: std::expected<T, Error> for C++20, with the same names and rules. For Result<void> the
/// functions of and_then and transform take no argument. value() throws the Error. It is a plain value: it owns what it
/// holds, and threads that share one must not change it at the same time.
template <class T>
class [[nodiscard]] Result {
  using Stored = std::conditional_t<std::is_void_v<T>, detail::Nothing, T>;

 public:
  using value_type = T;
  using error_type = Error;

  /// A success without a value, a success with `value`, or a failure.
  Result() noexcept
    requires std::is_void_v<T>
      : value_() {}
  /// A success that holds `value`. Throws only what the value throws as it is moved.
  Result(Stored value) noexcept(std::is_nothrow_move_constructible_v<Stored>)
    requires(!std::is_void_v<T>)
      : value_(std::move(value)) {}
  Result(const Error& error) noexcept : error_(error), has_value_(false) {}
  Result(const Result& other)
    requires std::is_copy_constructible_v<Stored>
      : has_value_(other.has_value_) {
    take(other);
  }
  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<Stored>) : has_value_(other.has_value_) {
    take(std::move(other));
  }
  Result& operator=(const Result& other)
    requires std::is_copy_constructible_v<Stored>
  {
    return *this = Result(other);
  }
  Result& operator=(Result&& other) noexcept {
    static_assert(std::is_nothrow_move_constructible_v<Stored>,
                  "a Result of what may throw as it moves is not assigned");
    if (this == &other) return *this;
    drop();
    has_value_ = other.has_value_;
    take(std::move(other));
    return *this;
  }
  ~Result() { drop(); }

  /// Whether there is a value.
  bool has_value() const noexcept { return has_value_; }
  explicit operator bool() const noexcept { return has_value(); }
  /// The error. Only where there is no value.
  const Error& error() const noexcept { return error_; }

  /// The value. Only where there is one.
  Stored& operator*() & noexcept { return value_; }
  const Stored& operator*() const& noexcept { return value_; }
  Stored&& operator*() && noexcept { return std::move(value_); }
  Stored* operator->() noexcept { return &value_; }
  const Stored* operator->() const noexcept { return &value_; }

  /// The value, or `other` in place of an error. Throws only what copies of a T throw.
  template <class U>
  T value_or(U&& other) const&
    requires(!std::is_void_v<T>)
  {
    return has_value() ? **this : static_cast<T>(std::forward<U>(other));
  }
  /// The same, with the value moved out.
  template <class U>
      T value_or(U&& other) &&
      requires(!std::is_void_v<T>) { return has_value() ? *std::move(*this) : static_cast<T>(std::forward<U>(other)); }

      /// `call` takes the value and returns another Result, which is the outcome. An error stays as it is. Throws what
      /// `call` throws.
      template <class Call>
      auto and_then(Call&& call) & {
    return chained(*this, std::forward<Call>(call));
  }
  template <class Call>
  auto and_then(Call&& call) const& {
    return chained(*this, std::forward<Call>(call));
  }
  template <class Call>
  auto and_then(Call&& call) && {
    return chained(std::move(*this), std::forward<Call>(call));
  }
  /// `call` takes the value and returns that of the outcome. An error stays as it is. Throws what `call` throws.
  template <class Call>
  auto transform(Call&& call) & {
    return transformed(*this, std::forward<Call>(call));
  }
  template <class Call>
  auto transform(Call&& call) const& {
    return transformed(*this, std::forward<Call>(call));
  }
  template <class Call>
  auto transform(Call&& call) && {
    return transformed(std::move(*this), std::forward<Call>(call));
  }
  /// `call` takes the error and returns a Result of the same type. A value stays as it is. Throws what `call` throws;
  /// the Status of the outcome is that of `call`.
  template <class Call>
  Result or_else(Call&& call) const& {
    static_assert(std::is_same_v<std::invoke_result_t<Call, const Error&>, Result>);
    return has_value() ? *this : std::forward<Call>(call)(error());
  }
  template <class Call>
  Result or_else(Call&& call) && {
    static_assert(std::is_same_v<std::invoke_result_t<Call, const Error&>, Result>);
    return has_value() ? std::move(*this) : std::forward<Call>(call)(error());
  }
  /// `call` takes the error and returns another one. The Status is that of the new error. Throws what `call` throws.
  template <class Call>
  Result transform_error(Call&& call) const& {
    return has_value() ? *this : Result(Error(std::forward<Call>(call)(error())));
  }
  template <class Call>
  Result transform_error(Call&& call) && {
    return has_value() ? std::move(*this) : Result(Error(std::forward<Call>(call)(error())));
  }

#if SHMBROKER_EXCEPTIONS
  /// The value. Throws the Error if there is none.
  T value() && {
    if (!has_value()) throw error();
    if constexpr (!std::is_void_v<T>) return *std::move(*this);
  }
  std::add_lvalue_reference_t<T> value() & {
    if (!has_value()) throw error();
    if constexpr (!std::is_void_v<T>) return **this;
  }
  std::add_lvalue_reference_t<const T> value() const& {
    if (!has_value()) throw error();
    if constexpr (!std::is_void_v<T>) return **this;
  }
#endif

 private:
  template <class Self, class Call>
  static auto chained(Self&& self, Call&& call) {
    using Next =
        std::remove_cvref_t<decltype(detail::with_value<T>(std::forward<Call>(call), *std::forward<Self>(self)))>;
    static_assert(detail::is_result<Next>, "and_then() takes a function that gives a Result; transform() takes others");
    if (!self.has_value()) return Next(self.error());
    return Next(detail::with_value<T>(std::forward<Call>(call), *std::forward<Self>(self)));
  }
  template <class Self, class Call>
  static auto transformed(Self&& self, Call&& call) {
    using Next = std::remove_cv_t<decltype(detail::with_value<T>(std::forward<Call>(call), *std::forward<Self>(self)))>;
    if (!self.has_value()) return Result<Next>(self.error());
    if constexpr (std::is_void_v<Next>) {
      detail::with_value<T>(std::forward<Call>(call), *std::forward<Self>(self));
      return Result<void>();
    } else {
      return Result<Next>(detail::with_value<T>(std::forward<Call>(call), *std::forward<Self>(self)));
    }
  }
  // Constructs into raw storage.
  template <class Other>
  void take(Other&& other) {
    if (has_value_) ::new (static_cast<void*>(&value_)) Stored(std::forward<Other>(other).value_);
    else ::new (static_cast<void*>(&error_)) Error(other.error_);
  }
  void drop() noexcept {
    if (has_value_) value_.~Stored();
    else error_.~Error();
  }
  // Not std::variant, which costs a tenth of the time that this header takes to compile.
  union {
    Stored value_;
    Error error_;
  };
  bool has_value_ = true;
};

namespace detail {

// A text for the C functions: characters that end with NUL. No valid name contains a NUL. One that does is refused like
// any other wrong character, and is not cut there.
class CText {
 public:
  explicit CText(std::string_view text) noexcept {
    if (text.size() >= sizeof small_) large_ = new (std::nothrow) char[text.size() + 1];
    text_ = large_ != nullptr ? large_ : small_;
    const std::size_t length = text.copy(text_, large_ != nullptr ? text.size() : sizeof small_ - 1);
    for (std::size_t i = 0; i < length; ++i)
      if (text_[i] == '\0') text_[i] = '\x01';
    text_[length] = '\0';
  }
  CText(const CText&) = delete;
  CText& operator=(const CText&) = delete;
  ~CText() { delete[] large_; }
  const char* get() const noexcept { return text_; }

 private:
  char small_[256];  // every valid address
  char* large_ = nullptr;
  char* text_;
};

// The refusal of as<T>().
inline Error not_a(std::string_view what, std::size_t has, std::size_t needs) noexcept {
  char sentence[160];
  std::snprintf(sentence, sizeof sentence, "%.*s has %zu bytes; the type asked for has %zu",
                static_cast<int>(what.size()), what.data(), has, needs);
  return Error(Status::invalid, sentence);
}
// The T at the start of memory. Memory of the library begins on a page or on a cache line.
template <class T, class Byte>
Result<T*> first_of(std::string_view what, std::span<Byte> bytes) noexcept {
  static_assert(std::is_trivially_copyable_v<T>, "shared memory holds objects that are their bytes");
  static_assert(alignof(T) <= 64, "slots begin on a multiple of 64 bytes");
  if (bytes.size() < sizeof(T)) return not_a(what, bytes.size(), sizeof(T));
  return reinterpret_cast<T*>(bytes.data());
}

}  // namespace detail
}  // namespace shmbroker

#endif
