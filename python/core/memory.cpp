// SPDX-License-Identifier: Apache-2.0
// Which open slot or region a buffer lies in: so an array over one travels without a copy.
#include <map>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

// Guarded by the GIL. Several objects may begin at one address: two handles of one mapping.
using Places = std::multimap<const std::byte*, std::pair<std::uint64_t, PyObject*>>;
Places& places() {
  static auto* const all = new Places;  // not freed: objects may end after the destructors of the process
  return *all;
}

}  // namespace

void remember(const std::byte* begin, std::uint64_t length, PyObject* object) {
  if (begin != nullptr) places().emplace(begin, std::pair(length, object));
}

void forget(const std::byte* begin, PyObject* object) {
  if (begin == nullptr) return;
  auto [at, end] = places().equal_range(begin);
  for (; at != end; ++at) {
    if (at->second.second != object) continue;
    places().erase(at);
    return;
  }
}

PyObject* find(PyObject* buffer, bool in_pool, std::uint64_t pool) {
  if (PyObject_CheckBuffer(buffer) == 0)
    return raise_type("buffer", "a buffer such as a memoryview or an array", buffer);
  Py_buffer view;
  if (PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS) != 0) return nullptr;
  const auto* const begin = static_cast<const std::byte*>(view.buf);
  const auto length = static_cast<std::uint64_t>(view.len);
  PyBuffer_Release(&view);
  PyObject* found = Py_None;
  auto at = places().upper_bound(begin);
  // Ranges of slots do not overlap, and those of regions that overlap begin together.
  for (const std::byte* first = nullptr; at != places().begin();) {
    --at;
    if (first != nullptr && at->first != first) break;
    first = at->first;
    const auto [bytes, object] = at->second;
    const auto offset = static_cast<std::uint64_t>(begin - at->first);
    if (offset > bytes || length > bytes - offset) continue;
    if (in_pool && (!Py_IS_TYPE(object, types.slot) || as<Slot>(object)->slot.pool != pool)) continue;
    if (Py_REFCNT(object) == 0) continue;  // it is being freed
    found = object;
    break;
  }
  return Py_NewRef(found);
}

}  // namespace shmb::python
