// SPDX-License-Identifier: Apache-2.0
// Message and its parts, as received. A part is a read-only buffer in place. A slot or region that is taken out
// outlives the message; while a part has buffers it stays in.
#include <algorithm>
#include <cstddef>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

Message* open_message(PyObject* self) {
  auto* const message = as<Message>(self);
  return message->handle == nullptr ? raise(SHMB_E_CLOSED, "the message is done: its parts went back") : message;
}

// Counts a buffer of a part. False: an exception is set.
bool count_buffer(Message* message, std::size_t number) {
  if (message->of_part == nullptr) {
    const std::size_t count = std::max<std::size_t>(shmb_message_count(message->handle), 1);
    message->of_part = static_cast<Py_ssize_t*>(PyMem_Calloc(count, sizeof(Py_ssize_t)));
    if (message->of_part == nullptr) return PyErr_NoMemory(), false;
  }
  if (message->of_part[number] == kTaken) {
    PyErr_SetString(PyExc_BufferError, "the part was taken out of the message: use what take() gave");
    return false;
  }
  return true;
}

// `owner` is the object that the buffer keeps alive.
int part_buffer(Message* message, std::size_t number, PyObject* owner, Py_buffer* view, int flags) {
  view->obj = nullptr;
  shmb_part part{};
  shmb_error error{};
  if (shmb_message_part(message->handle, number, &part, &error) != SHMB_OK) return raise(error), -1;
  if (part.status != SHMB_OK) {
    raise(part.status, "part %zu of the message could not be mapped: %s", number, shmb_status_text(part.status));
    return -1;
  }
  if (!count_buffer(message, number)) return -1;
  static char nothing;
  void* const data = part.data != nullptr ? const_cast<void*>(part.data) : &nothing;
  if (PyBuffer_FillInfo(view, owner, data, static_cast<Py_ssize_t>(part.length), 1, flags) != 0) return -1;
  ++message->of_part[number];
  ++message->exports;
  return 0;
}

void drop_buffer(Message* message, std::size_t number) {
  --message->of_part[number];
  --message->exports;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  Message* const message = open_message(self);
  return message == nullptr ? -1 : part_buffer(message, 0, self, view, flags);
}
void release_buffer(PyObject* self, Py_buffer*) { drop_buffer(as<Message>(self), 0); }

bool no_buffers(Message* message) {
  if (message->exports == 0) return true;
  PyErr_Format(PyExc_BufferError, "the message cannot go back: %zd buffers of it are in use (memoryviews or arrays)",
               message->exports);
  return false;
}

// Through with the handle, which the queue uses for its next message.
void let_go(Message* message, bool give_back) {
  shmb_message* const handle = std::exchange(message->handle, nullptr);
  Queue* const queue = message->queue;
  if (handle == nullptr) return;
  if (queue->borrowed == message) queue->borrowed = nullptr;
  (void)(give_back ? shmb_message_give_back(handle, nullptr) : shmb_message_done(handle, nullptr));
  PyMem_Free(std::exchange(message->of_part, nullptr));
  if (queue->spare == nullptr && !queue->calls.closed) queue->spare = handle;
  else shmb_message_free(handle);
}

PyObject* done(PyObject* self, PyObject*) {
  auto* const message = as<Message>(self);
  if (!no_buffers(message)) return nullptr;
  let_go(message, false);
  Py_RETURN_NONE;
}

PyObject* give_back(PyObject* self, PyObject*) {
  Message* const message = open_message(self);
  if (message == nullptr || !no_buffers(message)) return nullptr;
  if ((message->queue->flags & SHMB_QUEUE_AT_LEAST_ONCE) == 0)
    return raise(SHMB_E_INVALID, "only a message of an at_least_once queue can be given back");
  let_go(message, true);
  Py_RETURN_NONE;
}

PyObject* make_part(Message* message, std::size_t number) {
  shmb_part part{};
  shmb_error error{};
  if (shmb_message_part(message->handle, number, &part, &error) != SHMB_OK) return raise(error);
  auto* const made = make_object<MessagePart>(types.message_part);
  if (made == nullptr) return nullptr;
  made->message = as<Message>(Py_NewRef(as_object(message)));
  made->number = number;
  made->part = part;
  return as_object(made);
}

PyObject* get_parts(PyObject* self, void*) {
  Message* const message = open_message(self);
  if (message == nullptr) return nullptr;
  const std::size_t count = shmb_message_count(message->handle);
  Ref parts(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; parts && i < count; ++i) {
    PyObject* const part = make_part(message, i);
    if (part == nullptr || PyTuple_SetItem(parts.get(), static_cast<Py_ssize_t>(i), part) != 0) return nullptr;
  }
  return parts.release();
}

PyObject* get_type(PyObject* self, void*) {
  Message* const message = open_message(self);
  return message == nullptr ? nullptr : PyLong_FromUnsignedLongLong(shmb_message_type(message->handle));
}
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Message>(self)->handle == nullptr); }

Py_ssize_t length(PyObject* self) {
  Message* const message = open_message(self);
  return message == nullptr ? -1 : static_cast<Py_ssize_t>(shmb_message_count(message->handle));
}

PyObject* tobytes(PyObject* self, PyObject*) {
  const Ref parts(get_parts(self, nullptr));
  if (!parts) return nullptr;
  const Ref empty(PyBytes_FromStringAndSize(nullptr, 0));
  return empty ? PyObject_CallMethod(empty.get(), "join", "(O)", parts.get()) : nullptr;
}

PyObject* take_region(Message* message, std::size_t number) {
  shmb_region* region = nullptr;
  shmb_error error{};
  if (shmb_message_take_region(message->handle, number, &region, &error) != SHMB_OK) return raise(error);
  return make_region(message->queue->session, region, nullptr);
}

PyObject* take_slot(Message* message, std::size_t number, const shmb_part& part, bool writable) {
  Queue* const queue = message->queue;
  if (writable && queue->kind == SHMB_QUEUE_BROADCAST)
    return raise(SHMB_E_DENIED, "writable=True, but other readers of this queue may have the slot, too");
  if (writable && (part.rights & SHMB_RIGHT_WRITE) == 0)
    return raise(SHMB_E_DENIED,
                 "writable=True, but the sender of the slot may still use it: it hands one over by "
                 "send(..., move=True), or by Part(slot, write=True)");
  if (writable && queue->pool->read_only)
    return raise(SHMB_E_DENIED, "writable=True, but this process has opened the pool for reading alone");
  shmb_slot slot{};
  shmb_error error{};
  if (shmb_message_take_slot(message->handle, number, &slot, &error) != SHMB_OK) return raise(error);
  return make_slot(queue->pool, slot, part.offset, part.length, !writable);
}

PyObject* take(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> take_names = signature("take", 1, 0, {"number", "writable"});
  const Arguments arguments(take_names, given, count, names);
  std::uint64_t number = 0;
  bool writable = false;
  if (!arguments || !to_number(arguments[0], "number", number) || !to_flag(arguments[1], writable)) return nullptr;
  Message* const message = open_message(self);
  if (message == nullptr) return nullptr;
  shmb_part part{};
  shmb_error error{};
  if (shmb_message_part(message->handle, number, &part, &error) != SHMB_OK) return raise(error);
  if (part.kind == SHMB_PART_BYTES)
    return raise(SHMB_E_INVALID, "part %llu of the message is bytes: copy them, or keep the message",
                 static_cast<unsigned long long>(number));
  if (part.status != SHMB_OK)
    return raise(part.status, "part %llu of the message could not be mapped: %s",
                 static_cast<unsigned long long>(number), shmb_status_text(part.status));
  if (!count_buffer(message, number)) return nullptr;
  if (message->of_part[number] != 0) {
    PyErr_SetString(PyExc_BufferError,
                    "the part cannot be taken out: buffers of it are in use (memoryviews or arrays)");
    return nullptr;
  }
  PyObject* const taken =
      part.kind == SHMB_PART_REGION ? take_region(message, number) : take_slot(message, number, part, writable);
  if (taken != nullptr) message->of_part[number] = kTaken;
  return taken;
}

PyObject* enter(PyObject* self, PyObject*) { return open_message(self) == nullptr ? nullptr : Py_NewRef(self); }

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const message = as<Message>(self);
  if (message->weak != nullptr) PyObject_ClearWeakRefs(self);
  let_go(message, false);
  Py_CLEAR(message->queue);
  free_object(self);
}

PyGetSetDef properties[] = {{"type", get_type, nullptr, nullptr, nullptr},
                            {"closed", get_closed, nullptr, nullptr, nullptr},
                            {"parts", get_parts, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef methods[] = {
    {"tobytes", tobytes, METH_NOARGS, "All parts, one after another, copied."},
    {"take", as_function(take), METH_FASTCALL | METH_KEYWORDS, "Moves a slot or region out of the message."},
    {"done", done, METH_NOARGS, "Through with it: what it holds goes back."},
    {"give_back", give_back, METH_NOARGS, "Not done: another reader shall have it."},
    {"__array__", as_function(to_array), METH_FASTCALL | METH_KEYWORDS, "For NumPy; the buffer without a copy."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", done, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Message, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A received message; a read-only buffer of its first part.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {Py_sq_length, reinterpret_cast<void*>(length)},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Message", sizeof(Message), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

// ------------------------------------------------------------------------------------------------ one part

int get_part_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  auto* const part = as<MessagePart>(self);
  Message* const message = open_message(as_object(part->message));
  return message == nullptr ? -1 : part_buffer(message, part->number, self, view, flags);
}
void release_part_buffer(PyObject* self, Py_buffer*) {
  drop_buffer(as<MessagePart>(self)->message, as<MessagePart>(self)->number);
}
Py_ssize_t part_length(PyObject* self) { return static_cast<Py_ssize_t>(as<MessagePart>(self)->part.length); }

PyObject* get_kind(PyObject* self, void*) {
  const std::uint32_t kind = as<MessagePart>(self)->part.kind;
  return PyUnicode_FromString(kind == SHMB_PART_BYTES ? "bytes" : kind == SHMB_PART_SLOT ? "slot" : "region");
}
PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as<MessagePart>(self)->part.length); }
PyObject* get_offset(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as<MessagePart>(self)->part.offset); }
PyObject* get_same_as(PyObject* self, void*) { return PyLong_FromUnsignedLong(as<MessagePart>(self)->part.same_as); }
PyObject* get_status(PyObject* self, void*) { return PyLong_FromLong(as<MessagePart>(self)->part.status); }
PyObject* get_region(PyObject* self, void*) {
  const shmb_part& part = as<MessagePart>(self)->part;
  return part.kind == SHMB_PART_REGION ? make_region_id(part.id) : Py_NewRef(Py_None);
}

void deallocate_part(PyObject* self) {
  Py_CLEAR(as<MessagePart>(self)->message);
  free_object(self);
}

PyGetSetDef part_properties[] = {
    {"kind", get_kind, nullptr, nullptr, nullptr},       {"nbytes", get_nbytes, nullptr, nullptr, nullptr},
    {"offset", get_offset, nullptr, nullptr, nullptr},   {"region", get_region, nullptr, nullptr, nullptr},
    {"same_as", get_same_as, nullptr, nullptr, nullptr}, {"status", get_status, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef part_methods[] = {
    {"__array__", as_function(to_array), METH_FASTCALL | METH_KEYWORDS, "For NumPy; the buffer without a copy."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot part_slots[] = {{Py_tp_doc, const_cast<char*>("A part of a received message; a read-only buffer.")},
                            {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_part)},
                            {Py_tp_methods, part_methods},
                            {Py_tp_getset, part_properties},
                            {Py_sq_length, reinterpret_cast<void*>(part_length)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(get_part_buffer)},
                            {Py_bf_releasebuffer, reinterpret_cast<void*>(release_part_buffer)},
                            {0, nullptr}};
PyType_Spec part_spec = {"shmbroker._core.MessagePart", sizeof(MessagePart), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, part_slots};

}  // namespace

bool end_borrowed(Message* message) {
  if (!no_buffers(message)) return false;
  let_go(message, true);
  return true;
}

PyObject* make_message(Queue* queue, shmb_message* handle) {
  auto* const message = make_object<Message>(types.message);
  if (message == nullptr) {
    shmb_message_free(handle);
    return nullptr;
  }
  message->handle = handle;
  message->queue = as<Queue>(Py_NewRef(as_object(queue)));
  if ((queue->flags & SHMB_QUEUE_AT_LEAST_ONCE) != 0) queue->borrowed = message;
  return as_object(message);
}

bool add_message(PyObject* module) {
  return add_type(module, spec, types.message) && add_type(module, part_spec, types.message_part);
}

}  // namespace shmb::python
