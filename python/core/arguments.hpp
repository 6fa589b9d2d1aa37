// SPDX-License-Identifier: Apache-2.0
// Arguments of a call, taken from the vector in which the interpreter has them. There is no tuple, no dictionary and no
// format string, because a send of a few bytes takes less time than those.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "python/core/errors.hpp"

namespace shmb::python {

// The names of a call's arguments. The first `positional` ones may be given without name, the first `required` ones
// must be given.
template <std::size_t count>
struct Signature {
  const char* function;
  std::size_t positional, required;
  std::array<const char*, count> names;
  std::array<PyObject*, count> interned{};
};

bool read_arguments(const char* function, std::size_t positional, std::size_t required, const char* const* names,
                    PyObject** interned, std::size_t count, PyObject* const* given, Py_ssize_t positions,
                    PyObject* keywords, PyObject** values);

// The values, borrowed, by the signature's order; nullptr where one was left out.
template <std::size_t count>
class Arguments {
 public:
  Arguments(Signature<count>& of, PyObject* const* given, Py_ssize_t positions, PyObject* keywords)
      : good_(read_arguments(of.function, of.positional, of.required, of.names.data(), of.interned.data(), count, given,
                             positions, keywords, values_.data())) {}
  explicit operator bool() const { return good_; }
  PyObject* operator[](std::size_t number) const { return values_[number]; }

 private:
  std::array<PyObject*, count> values_{};
  bool good_;
};

template <std::size_t count>
Signature<count> signature(const char* function, std::size_t positional, std::size_t required,
                           const char* const (&names)[count]) {
  Signature<count> made{function, positional, required, {}, {}};
  for (std::size_t i = 0; i < count; ++i) made.names[i] = names[i];
  return made;
}

inline constexpr std::int64_t kDefaultWait = 5'000'000'000;

// Raises a TypeError: "WHAT is TAKES, not 'TYPE'".
std::nullptr_t raise_type(const char* what, const char* takes, PyObject* given);

// A duration in seconds. `broker`: a call that the broker answers, which has a limit and waits. `others`: a call that
// waits for other processes: None is no limit, 0 does not wait.
enum class Wait { broker, others };
bool to_wait(PyObject* value, Wait of, std::int64_t& nanoseconds);
// How long to wait for a name: 0 and left out are not at all, None is no limit.
bool to_name_wait(PyObject* value, std::int64_t& nanoseconds);
// A duration that is no wait: seconds above 0. Left out or None: `none`.
bool to_duration(PyObject* value, const char* what, std::int64_t none, std::int64_t& nanoseconds);
// None and left out: not given. A number of seconds, or "released".
bool to_keep(PyObject* value, bool& given, std::int64_t& nanoseconds);

// Left out: unchanged.
bool to_flag(PyObject* value, bool& flag);
bool to_number(PyObject* value, const char* what, std::uint64_t& number);
bool to_number(PyObject* value, const char* what, std::uint32_t& number);
// The items of a list, a tuple or whatever else can be iterated, but of no text, as a tuple. Empty: an exception is
// set.
Ref to_items(PyObject* value, const char* what, const char* takes);
// None and left out: nullptr. The text lives as long as the object.
bool to_text(PyObject* value, const char* what, const char*& text);
// One of the texts of a table: its number. Left out: unchanged.
bool to_choice(PyObject* value, const char* what, const char* const* choices, std::size_t count, std::uint32_t& number);

inline PyCFunction as_function(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace shmb::python
