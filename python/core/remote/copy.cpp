// SPDX-License-Identifier: Apache-2.0
// PrivateCopy: a region as memory of this process alone. The kernel copies a page when it is first written, so a copy
// of 64 MiB that is only read costs a mapping. The region stays held: the broker must not use its memory again.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "python/core/remote/remote.hpp"

namespace shmb::python::remote {

namespace {

struct Copy {
  PyObject_HEAD void* data;
  std::size_t length;
  PyObject* region;  // owned
};

// private_copy(region) -> PrivateCopy. Nobody may write the region any more: what is written shows in unwritten pages.
PyObject* make(PyObject*, PyObject* region) {
  if (!Py_IS_TYPE(region, python::types.region)) return PyErr_SetString(PyExc_TypeError, "not a Region"), nullptr;
  auto* const source = as<Region>(region);
  if (source->calls.closed) return raise_closed("region");
  int fd = -1;
  shmb_error error{};
  const int status =
      wait_in(source, SHMB_FOREVER, [&](std::int64_t) { return shmb_region_descriptor(source->handle, &fd, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  const std::size_t length = shmb_region_length(source->handle);
  void* const data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  const int number = errno;
  ::close(fd);
  if (data == MAP_FAILED) return errno = number, PyErr_SetFromErrno(PyExc_OSError);
  auto* const made = make_object<Copy>(types.copy);
  if (made == nullptr) return ::munmap(data, length), nullptr;
  made->data = data;
  made->length = length;
  made->region = Py_NewRef(region);
  return as_object(made);
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const copy = as<Copy>(self);
  return PyBuffer_FillInfo(view, self, copy->data, static_cast<Py_ssize_t>(copy->length), 0, flags);
}

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const copy = as<Copy>(self);
  if (copy->data != nullptr) {
    const Unlocked unlocked;
    ::munmap(copy->data, copy->length);
  }
  Py_CLEAR(copy->region);
  free_object(self);
}

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A region as memory of this process alone; a buffer.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.PrivateCopy", sizeof(Copy), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
PyMethodDef functions[] = {{"private_copy", make, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

bool add_copy(PyObject* module) {
  return add_type(module, spec, types.copy) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmb::python::remote
