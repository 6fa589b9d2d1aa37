// SPDX-License-Identifier: Apache-2.0
// Slot: a slot of a pool that this process holds, and a buffer. It is read-only once it was sent.
#include <cstddef>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

Slot* open_slot(PyObject* self) {
  auto* const slot = as<Slot>(self);
  return slot->pool == nullptr ? raise_closed("slot") : slot;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  view->obj = nullptr;
  Slot* const slot = open_slot(self);
  if (slot == nullptr) return -1;
  auto* const data = static_cast<std::byte*>(slot->slot.data) + slot->offset;
  if (PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(slot->length), slot->readonly ? 1 : 0, flags) != 0)
    return -1;
  ++slot->exports;
  return 0;
}

void release_buffer(PyObject* self, Py_buffer*) { --as<Slot>(self)->exports; }

Py_ssize_t length(PyObject* self) { return static_cast<Py_ssize_t>(as<Slot>(self)->length); }

PyObject* release(PyObject* self, PyObject*) {
  if (!release_slot(as<Slot>(self))) return nullptr;
  Py_RETURN_NONE;
}
PyObject* enter(PyObject* self, PyObject*) { return open_slot(self) == nullptr ? nullptr : Py_NewRef(self); }

PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as<Slot>(self)->length); }
PyObject* get_capacity(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as<Slot>(self)->slot.size); }
PyObject* get_index(PyObject* self, void*) { return PyLong_FromUnsignedLong(as<Slot>(self)->slot.index); }
PyObject* get_pool(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(as<Slot>(self)->slot.pool); }
PyObject* get_readonly(PyObject* self, void*) { return PyBool_FromLong(as<Slot>(self)->readonly); }
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Slot>(self)->pool == nullptr); }
PyObject* get_address(PyObject* self, void*) {
  Slot* const slot = open_slot(self);
  return slot == nullptr ? nullptr : PyLong_FromVoidPtr(static_cast<std::byte*>(slot->slot.data) + slot->offset);
}

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const slot = as<Slot>(self);
  if (slot->weak != nullptr) PyObject_ClearWeakRefs(self);
  slot->finish();
  free_object(self);
}

PyGetSetDef properties[] = {
    {"nbytes", get_nbytes, nullptr, nullptr, nullptr},     {"capacity", get_capacity, nullptr, nullptr, nullptr},
    {"index", get_index, nullptr, nullptr, nullptr},       {"pool", get_pool, nullptr, nullptr, nullptr},
    {"readonly", get_readonly, nullptr, nullptr, nullptr}, {"closed", get_closed, nullptr, nullptr, nullptr},
    {"address", get_address, nullptr, nullptr, nullptr},   {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef methods[] = {
    {"release", release, METH_NOARGS, "Gives it back."},
    {"__array__", as_function(to_array), METH_FASTCALL | METH_KEYWORDS, "For NumPy; the buffer without a copy."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", release, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Slot, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A slot of a pool that this process holds; a buffer.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {Py_sq_length, reinterpret_cast<void*>(length)},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Slot", sizeof(Slot), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void Slot::finish() {
  PoolHandle* const held = std::exchange(pool, nullptr);
  if (held == nullptr) return;
  forget(static_cast<const std::byte*>(slot.data) + offset, as_object(this));
  (void)shmb_slot_release(held->it, &slot, nullptr);  // a forked child's copy holds nothing
  drop(held);
}

bool release_slot(Slot* slot) {
  if (slot->exports != 0) {
    PyErr_Format(PyExc_BufferError, "the slot cannot be released: %zd buffers of it are in use (memoryviews or arrays)",
                 slot->exports);
    return false;
  }
  slot->finish();
  return true;
}

PyObject* make_slot(PoolHandle* pool, const shmb_slot& slot, std::uint64_t offset, std::uint64_t length,
                    bool readonly) {
  auto* const made = make_object<Slot>(types.slot);
  if (made == nullptr) {
    (void)shmb_slot_release(pool->it, &slot, nullptr);
    return nullptr;
  }
  made->pool = share(pool);
  made->slot = slot;
  made->offset = offset;
  made->length = length;
  made->readonly = readonly;
  remember(static_cast<const std::byte*>(slot.data) + offset, length, as_object(made));
  return as_object(made);
}

bool add_slot(PyObject* module) { return add_type(module, spec, types.slot); }

}  // namespace shmb::python
