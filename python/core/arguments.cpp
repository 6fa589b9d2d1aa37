// SPDX-License-Identifier: Apache-2.0
// See arguments.hpp.
#include "python/core/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace shmb::python {

namespace {

constexpr double kMostSeconds = 9e9;  // 285 years: what nanoseconds can count

// A number of seconds in nanoseconds, rounded up so that a small one is not the 0 that means something else.
std::int64_t nanoseconds_of(double seconds) {
  if (seconds >= kMostSeconds) return INT64_MAX - 1;
  return static_cast<std::int64_t>(std::ceil(seconds * 1e9));
}

bool to_seconds(PyObject* value, const char* what, double& seconds) {
  seconds = PyFloat_AsDouble(value);
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) return raise_type(what, "a number of seconds", value), false;
    if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
      PyErr_Clear();
      raise(SHMB_E_INVALID, "%s is too large", what);
    }
    return false;
  }
  if (std::isnan(seconds)) return raise(SHMB_E_INVALID, "%s is not a number", what), false;
  if (seconds < 0) return raise(SHMB_E_INVALID, "%s is negative (%g s)", what, seconds), false;
  return true;
}

std::ptrdiff_t find_name(PyObject* name, const char* const* names, PyObject** interned, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (interned[i] == name) return static_cast<std::ptrdiff_t>(i);
  for (std::size_t i = 0; i < count; ++i)
    if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) return static_cast<std::ptrdiff_t>(i);
  return -1;
}

}  // namespace

bool read_arguments(const char* function, std::size_t positional, std::size_t required, const char* const* names,
                    PyObject** interned, std::size_t count, PyObject* const* given, Py_ssize_t positions,
                    PyObject* keywords, PyObject** values) {
  const auto places = static_cast<std::size_t>(positions);
  if (places > positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zu positional arguments (%zd given)", function, positional,
                 positions);
    return false;
  }
  std::copy_n(given, places, values);
  if (keywords != nullptr) {
    const Py_ssize_t named = PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < named; ++i) {
      PyObject* const name = PyTuple_GetItem(keywords, i);
      if (interned[0] == nullptr)
        for (std::size_t j = 0; j < count; ++j) interned[j] = PyUnicode_InternFromString(names[j]);
      const std::ptrdiff_t place = find_name(name, names, interned, count);
      if (place < 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
        return false;
      }
      if (values[place] != nullptr) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function, name);
        return false;
      }
      values[place] = given[places + static_cast<std::size_t>(i)];
    }
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (values[i] != nullptr) continue;
    PyErr_Format(PyExc_TypeError, "%s() misses the argument '%s'", function, names[i]);
    return false;
  }
  return true;
}

std::nullptr_t raise_type(const char* what, const char* takes, PyObject* given) {
  PyErr_Clear();
  if (const Ref name(PyType_GetName(Py_TYPE(given))); name)
    PyErr_Format(PyExc_TypeError, "%s is %s, not '%U'", what, takes, name.get());
  return nullptr;
}

Ref to_items(PyObject* value, const char* what, const char* takes) {
  if (PyUnicode_Check(value) != 0 || PyBytes_Check(value) != 0) return raise_type(what, takes, value), Ref();
  const Ref iterator(PyObject_GetIter(value));
  if (iterator) return Ref(PySequence_Tuple(iterator.get()));
  if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) raise_type(what, takes, value);
  return {};
}

bool to_wait(PyObject* value, Wait of, std::int64_t& nanoseconds) {
  if (value == nullptr) return nanoseconds = kDefaultWait, true;
  if (value == Py_None) {
    if (of == Wait::broker)
      return raise(SHMB_E_INVALID, "a call to the broker has a limit: give timeout in seconds, not None"), false;
    return nanoseconds = SHMB_FOREVER, true;
  }
  double seconds = 0;
  if (!to_seconds(value, "timeout", seconds)) return false;
  if (seconds == 0) {
    if (of == Wait::broker)
      return raise(SHMB_E_INVALID, "a call to the broker waits for its answer: timeout is above 0"), false;
    return nanoseconds = SHMB_NO_WAIT, true;
  }
  if (std::isinf(seconds) && of == Wait::others) return nanoseconds = SHMB_FOREVER, true;
  nanoseconds = nanoseconds_of(seconds);
  return true;
}

bool to_name_wait(PyObject* value, std::int64_t& nanoseconds) {
  nanoseconds = 0;
  if (value == nullptr) return true;
  if (value == Py_None) return nanoseconds = SHMB_FOREVER, true;
  double seconds = 0;
  if (!to_seconds(value, "wait", seconds)) return false;
  nanoseconds = std::isinf(seconds) ? SHMB_FOREVER : nanoseconds_of(seconds);
  return true;
}

bool to_duration(PyObject* value, const char* what, std::int64_t none, std::int64_t& nanoseconds) {
  nanoseconds = none;
  if (value == nullptr || value == Py_None) return true;
  double seconds = 0;
  if (!to_seconds(value, what, seconds)) return false;
  if (seconds == 0) return raise(SHMB_E_INVALID, "%s is above 0", what), false;
  nanoseconds = nanoseconds_of(seconds);
  return true;
}

bool to_keep(PyObject* value, bool& given, std::int64_t& nanoseconds) {
  given = value != nullptr && value != Py_None;
  nanoseconds = 0;
  if (!given) return true;
  if (PyUnicode_Check(value) != 0) {
    if (PyUnicode_CompareWithASCIIString(value, "released") == 0) return nanoseconds = SHMB_KEEP_UNTIL_RELEASED, true;
    return raise(SHMB_E_INVALID, "keep is a number of seconds, or \"released\" (until it is released)"), false;
  }
  double seconds = 0;
  if (!to_seconds(value, "keep", seconds)) return false;
  nanoseconds = nanoseconds_of(seconds);
  return true;
}

bool to_flag(PyObject* value, bool& flag) {
  if (value == nullptr) return true;
  const int truth = PyObject_IsTrue(value);
  flag = truth == 1;
  return truth >= 0;
}

bool to_number(PyObject* value, const char* what, std::uint64_t& number) {
  if (value == nullptr) return true;
  if (PyLong_CheckExact(value)) {
    number = PyLong_AsUnsignedLongLong(value);
    if (number != UINT64_MAX) return true;
    PyErr_Clear();
  }
  const Ref index(PyNumber_Index(value));
  if (!index) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) raise_type(what, "an int", value);
    return false;
  }
  number = PyLong_AsUnsignedLongLong(index.get());
  if (number != UINT64_MAX || PyErr_Occurred() == nullptr) return true;
  if (PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {
    PyErr_Clear();
    const Ref text(PyObject_Str(index.get()));
    const char* const digits = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
    if (digits != nullptr) raise(SHMB_E_INVALID, "%s is %.40s: a number from 0 to 2^64 - 1 is asked for", what, digits);
    else if (PyErr_Clear(), true) raise(SHMB_E_INVALID, "%s is not from 0 to 2^64 - 1", what);
  }
  return false;
}

bool to_number(PyObject* value, const char* what, std::uint32_t& number) {
  std::uint64_t wide = number;
  if (!to_number(value, what, wide)) return false;
  if (wide > UINT32_MAX) {
    raise(SHMB_E_INVALID, "%s is %llu: a number from 0 to 2^32 - 1 is asked for", what,
          static_cast<unsigned long long>(wide));
    return false;
  }
  number = static_cast<std::uint32_t>(wide);
  return true;
}

bool to_text(PyObject* value, const char* what, const char*& text) {
  text = nullptr;
  if (value == nullptr || value == Py_None) return true;
  if (PyUnicode_Check(value) == 0) return raise_type(what, "a str", value), false;
  Py_ssize_t length = 0;
  text = PyUnicode_AsUTF8AndSize(value, &length);
  if (text == nullptr) return false;
  if (length == 0) return raise(SHMB_E_INVALID, "%s is empty: give None, or leave it out", what), false;
  if (std::strlen(text) != static_cast<std::size_t>(length))
    return raise(SHMB_E_INVALID, "%s has a NUL character in it", what), false;
  return true;
}

bool to_choice(PyObject* value, const char* what, const char* const* choices, std::size_t count,
               std::uint32_t& number) {
  if (value == nullptr) return true;
  std::string known;
  for (std::size_t i = 0; i < count; ++i) {
    if (PyUnicode_Check(value) != 0 && PyUnicode_CompareWithASCIIString(value, choices[i]) == 0) {
      number = static_cast<std::uint32_t>(i);
      return true;
    }
    known += std::string(i == 0 ? "" : ", ") + "\"" + choices[i] + "\"";
  }
  raise(SHMB_E_INVALID, "%s is one of %s", what, known.c_str());
  return false;
}

}  // namespace shmb::python
