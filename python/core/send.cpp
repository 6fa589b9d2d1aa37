// SPDX-License-Identifier: Apache-2.0
// Sending: what is given becomes the parts of a message. Bytes that fit into the queue itself, where there is room,
// are sent with the GIL held. That takes less time than giving it up. All else is sent without it.
#include <algorithm>
#include <cstddef>
#include <list>
#include <vector>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

// The parts of some messages, with what they need until they were sent.
class Parts {
 public:
  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    for (Slot* slot : slots_) --slot->exports;
  }

  // All parts of one message: one, or those of a list or tuple. False: an exception is set.
  bool add_message(PyObject* given) {
    const std::size_t before = parts_.size();
    if (PyTuple_CheckExact(given) == 0 && PyList_CheckExact(given) == 0) {
      if (!add(given)) return false;
    } else {
      const Py_ssize_t count = PySequence_Size(given);
      if (count == 0) return raise(SHMB_E_INVALID, "a message has at least one part"), false;
      for (Py_ssize_t i = 0; i < count; ++i) {
        const Ref one(PySequence_GetItem(given, i));
        if (!one || !add(one.get())) return false;
      }
    }
    counts_.push_back(parts_.size() - before);
    return true;
  }

  std::vector<shmb_outgoing> messages(std::uint64_t type, std::int64_t lifetime) const {
    std::vector<shmb_outgoing> made;
    const shmb_part* next = parts_.data();
    for (const std::size_t count : counts_) {
      made.push_back({next, count, type, lifetime});
      next += count;
    }
    return made;
  }
  const std::vector<Slot*>& slots() const { return slots_; }
  // The receivers may write to the slots: their sender uses them no more.
  void hand_over() {
    for (shmb_part& part : parts_)
      if (part.kind == SHMB_PART_SLOT) part.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
  }
  bool may_move() const {
    for (const Slot* slot : slots_)
      if (slot->exports > std::count(slots_.begin(), slots_.end(), slot)) {
        PyErr_SetString(
            PyExc_BufferError,
            "move=True, but a slot of the message has buffers in use (memoryviews or arrays): release them, "
            "or send without move");
        return false;
      }
    return true;
  }

 private:
  bool add(PyObject* given) {
    if (Py_IS_TYPE(given, types.part)) {
      auto* const part = as<Part>(given);
      return add_source(part->source, part->offset, part->length, part->write);
    }
    return add_source(given, 0, UINT64_MAX, false);
  }

  // A range within what `size` bytes there are. False: it reaches over the end.
  static bool range(std::uint64_t size, std::uint64_t offset, std::uint64_t& length) {
    if (offset <= size && length == UINT64_MAX) length = size - offset;
    if (offset <= size && length <= size - offset) return true;
    if (length == UINT64_MAX)
      return raise(SHMB_E_INVALID, "offset is %llu, behind the end of what the part is of (%llu bytes)",
                   static_cast<unsigned long long>(offset), static_cast<unsigned long long>(size)),
             false;
    return raise(SHMB_E_INVALID,
                 "a part of %llu bytes at offset %llu reaches over the end of what it is of (%llu bytes)",
                 static_cast<unsigned long long>(length), static_cast<unsigned long long>(offset),
                 static_cast<unsigned long long>(size)),
           false;
  }

  bool add_source(PyObject* source, std::uint64_t offset, std::uint64_t length, bool write) {
    shmb_part part{};
    if (Py_IS_TYPE(source, types.slot)) {
      auto* const slot = as<Slot>(source);
      if (slot->pool == nullptr) return raise_closed("slot"), false;
      if (!range(slot->length, offset, length)) return false;
      part.kind = length == 0 ? SHMB_PART_BYTES : SHMB_PART_SLOT;  // 0 means all of a slot to the library
      part.slot = slot->slot;
      part.slot.length = slot->offset + slot->length;
      part.offset = slot->offset + offset;
      part.length = length;
      if (write) part.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
      if (length == 0) part.offset = 0, part.rights = 0;
      ++slot->exports;  // not released meanwhile
      slots_.push_back(slot);
    } else if (Py_IS_TYPE(source, types.region)) {
      auto* const region = as<Region>(source);
      if (region->calls.closed) return raise_closed("region"), false;
      const std::uint64_t size = shmb_region_length(region->handle);
      if (!range(size, offset, length)) return false;
      part.kind = length == 0 && size != 0 ? SHMB_PART_BYTES : SHMB_PART_REGION;
      part.rights = SHMB_RIGHT_READ | (write ? unsigned{SHMB_RIGHT_WRITE} : 0U);
      if (part.kind == SHMB_PART_REGION) part.region = region->handle, part.offset = offset, part.length = length;
      regions_.emplace_back(region);
    } else {
      if (PyObject_CheckBuffer(source) == 0)
        return raise_type("a part of a message", "a Slot, a Region, a Part, or a buffer such as bytes or an array",
                          source),
               false;
      Py_buffer view;
      if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE) != 0) return false;
      views_.push_back(view);
      if (!range(static_cast<std::uint64_t>(view.len), offset, length)) return false;
      part.kind = SHMB_PART_BYTES;
      part.data = static_cast<const std::byte*>(view.buf) + offset;
      part.length = length;
    }
    parts_.push_back(part);
    return true;
  }

  std::vector<shmb_part> parts_;
  std::vector<std::size_t> counts_;
  std::vector<Py_buffer> views_;
  std::vector<Slot*> slots_;         // kept alive by what was given
  std::list<Call<Region>> regions_;  // not closed meanwhile
};

Signature<5> send_names = signature("send", 2, 1, {"parts", "timeout", "type", "lifetime", "move"});

// The short way for most sends: bytes, or one slot. SHMB_E_FULL also where it does not apply or cannot be done at once.
int send_at_once(Queue* queue, PyObject* given, shmb_error& error) {
  if (PyBytes_CheckExact(given) != 0) {
    const auto length = static_cast<std::uint64_t>(PyBytes_Size(given));
    if (length > queue->inline_bytes) return SHMB_E_FULL;
    return shmb_queue_send(queue->handle, PyBytes_AsString(given), length, SHMB_NO_WAIT, &error);
  }
  auto* const slot = as<Slot>(given);
  if (!Py_IS_TYPE(given, types.slot) || slot->pool == nullptr || slot->offset != 0 || slot->length == 0)
    return SHMB_E_FULL;
  shmb_slot sent = slot->slot;
  sent.length = slot->length;
  const int status = shmb_queue_send_slot(queue->handle, &sent, SHMB_NO_WAIT, &error);
  if (status == SHMB_OK) slot->readonly = true;
  return status;
}

}  // namespace

PyObject* queue_send(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(send_names, given, count, names);
  if (!arguments) return nullptr;
  auto* const queue = as<Queue>(self);
  if (queue->calls.closed) return raise_closed("queue");
  shmb_error error{};
  std::int64_t wait = 0, lifetime = 0;
  if (!to_wait(arguments[1], Wait::others, wait)) return nullptr;
  const bool plain = arguments[2] == nullptr && arguments[3] == nullptr && arguments[4] == nullptr;
  if (plain) {
    const int status = send_at_once(queue, arguments[0], error);
    if (status == SHMB_OK) Py_RETURN_NONE;
    if (status != SHMB_E_FULL) return raise(error);
  }
  std::uint64_t type = 0;
  bool move = false;
  if (!to_number(arguments[2], "type", type) || !to_duration(arguments[3], "lifetime", 0, lifetime) ||
      !to_flag(arguments[4], move))
    return nullptr;
  Parts parts;
  if (!parts.add_message(arguments[0]) || (move && !parts.may_move())) return nullptr;
  if (move) parts.hand_over();
  const std::vector<shmb_outgoing> message = parts.messages(type, lifetime);
  // The writer that waits may be the one whose buffers fill the pool: what a list names is alive in `parts`.
  const Ref kept = Ref::borrow(arguments[0]);
  const int status = wait_in(queue, wait, [&](std::int64_t left) {
    return shmb_queue_send_message(queue->handle, message.data(), left, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  for (Slot* slot : parts.slots()) slot->readonly = true;
  if (move)
    for (Slot* slot : parts.slots()) slot->finish();
  Py_RETURN_NONE;
}

PyObject* queue_send_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<4> many_names = signature("send_many", 2, 1, {"messages", "timeout", "type", "wait_for_all"});
  const Arguments arguments(many_names, given, count, names);
  std::int64_t wait = 0;
  std::uint64_t type = 0;
  bool wait_for_all = true;
  if (!arguments || !to_wait(arguments[1], Wait::others, wait) || !to_number(arguments[2], "type", type) ||
      !to_flag(arguments[3], wait_for_all))
    return nullptr;
  auto* const queue = as<Queue>(self);
  if (queue->calls.closed) return raise_closed("queue");
  const Ref list(to_items(arguments[0], "messages", "a list or tuple of messages"));
  if (!list) return nullptr;
  Parts parts;
  for (Py_ssize_t i = 0; i < PyTuple_Size(list.get()); ++i)
    if (!parts.add_message(PyTuple_GetItem(list.get(), i))) return nullptr;
  const std::vector<shmb_outgoing> messages = parts.messages(type, 0);
  std::size_t done = 0;
  shmb_error error{};
  const int status = wait_in(queue, wait, [&](std::int64_t left) {
    std::size_t sent = 0;
    const std::size_t now = wait_for_all ? messages.size() - done : std::min<std::size_t>(messages.size(), 1);
    int made = shmb_queue_send_many(queue->handle, messages.data() + done, now, left, &sent, &error);
    done += sent;
    if (made != SHMB_OK || wait_for_all || messages.size() == done) return made;
    (void)shmb_queue_send_many(queue->handle, messages.data() + done, messages.size() - done, SHMB_NO_WAIT, &sent,
                               &error);
    done += sent;
    return made;
  });
  for (Slot* slot : parts.slots()) slot->readonly = true;
  if (status == kRaised) return nullptr;
  return status == SHMB_OK || done != 0 ? PyLong_FromSize_t(done) : raise(error);
}

namespace {

PyObject* new_part(PyTypeObject* type, PyObject* given, PyObject* keywords) {
  static const char* names[] = {"source", "offset", "length", "write", nullptr};
  PyObject *source = nullptr, *offset = nullptr, *length = nullptr;
  int write = 0;
  if (PyArg_ParseTupleAndKeywords(given, keywords, "O|OO$p:Part", const_cast<char**>(names), &source, &offset, &length,
                                  &write) == 0)
    return nullptr;
  std::uint64_t from = 0, bytes = UINT64_MAX;
  if (!to_number(offset, "offset", from) || (length != Py_None && !to_number(length, "length", bytes))) return nullptr;
  auto* const part = make_object<Part>(type);
  if (part == nullptr) return nullptr;
  part->source = Py_NewRef(source);
  part->offset = from;
  part->length = bytes;
  part->write = write != 0;
  return as_object(part);
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as<Part>(self)->source);
  return 0;
}
int clear(PyObject* self) {
  Py_CLEAR(as<Part>(self)->source);
  return 0;
}
void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  (void)clear(self);
  free_object(self);
}

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A part of a message to send: some of a buffer, slot or region.")},
                       {Py_tp_new, reinterpret_cast<void*>(new_part)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_traverse, reinterpret_cast<void*>(visit)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Part", sizeof(Part), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_part(PyObject* module) { return add_type(module, spec, types.part); }

}  // namespace shmb::python
