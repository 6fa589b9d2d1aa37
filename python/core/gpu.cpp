// SPDX-License-Identifier: Apache-2.0
// GpuRegion: GPU memory that a process has published, mapped for a device of this one, and the list of its tensors. The
// bytes are the device's: Python sees their address and not them. The end of the object asks the device nothing,
// because it comes at any time, also while a stream is captured into a graph.
#include <array>
#include <cstddef>
#include <string>

#include "cuda/shmbroker_cuda.h"
#include "python/core/objects.hpp"
#include "python/core/place.hpp"

namespace shmb::python {

namespace {

shmb_gpu_region* region_of(PyObject* self) {
  auto* const region = as<GpuRegion>(self);
  return region->calls.closed ? raise_closed("GPU region") : region->handle;
}

// As NumPy and torch name it, where they have it.
std::string type_name(const shmb_gpu_tensor& tensor) {
  static constexpr std::array<const char*, 7> kinds = {"int", "uint", "float", nullptr, "bfloat", "complex", "bool"};
  const char* const kind = tensor.type_code < kinds.size() ? kinds[tensor.type_code] : nullptr;
  std::string name = kind != nullptr ? kind : "dlpack" + std::to_string(tensor.type_code) + "_";
  if (name != "bool" || tensor.type_bits != 8) name += std::to_string(tensor.type_bits);
  return tensor.type_lanes == 1 ? name : name + "x" + std::to_string(tensor.type_lanes);
}

PyObject* numbers(const std::int64_t* values, std::uint32_t count) {
  Ref made(PyTuple_New(count));
  for (std::uint32_t i = 0; made && i < count; ++i) {
    PyObject* const one = PyLong_FromLongLong(values[i]);
    if (one == nullptr || PyTuple_SetItem(made.get(), i, one) != 0) return nullptr;
  }
  return made.release();
}

PyObject* make_tensor(const shmb_gpu_tensor& tensor) {
  return Row(Value::gpu_tensor)
      .text(tensor.name)
      .text(type_name(tensor))
      .add(numbers(tensor.shape, tensor.dimensions))
      .add(tensor.strides != nullptr ? numbers(tensor.strides, tensor.dimensions) : Py_NewRef(Py_None))
      .number(tensor.offset)
      .done();
}

bool facts_of(PyObject* self, shmb_gpu_region_info& facts) {
  shmb_gpu_region* const handle = region_of(self);
  if (handle == nullptr) return false;
  facts.size = sizeof(facts);
  shmb_error error{};
  if (shmb_gpu_region_get_info(handle, &facts, &error) == SHMB_OK) return true;
  raise(error);
  return false;
}

PyObject* get_tensors(PyObject* self, void*) {
  shmb_gpu_region_info facts{};
  if (!facts_of(self, facts)) return nullptr;
  const Call call(as<GpuRegion>(self));  // a collection on the way may close it, or let another thread do so
  Ref made(PyTuple_New(static_cast<Py_ssize_t>(facts.tensor_count)));
  for (std::size_t i = 0; made && i < facts.tensor_count; ++i) {
    shmb_gpu_tensor tensor{};
    shmb_error error{};
    if (shmb_gpu_region_tensor(as<GpuRegion>(self)->handle, i, &tensor, &error) != SHMB_OK) return raise(error);
    PyObject* const one = make_tensor(tensor);
    if (one == nullptr || PyTuple_SetItem(made.get(), static_cast<Py_ssize_t>(i), one) != 0) return nullptr;
  }
  return made.release();
}

PyObject* find_tensor(PyObject* self, PyObject* name) {
  const char* text = nullptr;
  if (!to_text(name, "the name of a tensor", text)) return nullptr;
  shmb_gpu_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  const Call call(as<GpuRegion>(self));
  shmb_gpu_tensor tensor{};
  shmb_error error{};
  return shmb_gpu_region_find_tensor(handle, text, &tensor, &error) == SHMB_OK ? make_tensor(tensor) : raise(error);
}

PyObject* get_pointer(PyObject* self, void*) {
  shmb_gpu_region* const handle = region_of(self);
  return handle == nullptr ? nullptr : PyLong_FromUnsignedLongLong(shmb_gpu_region_pointer(handle));
}
PyObject* get_size(PyObject* self, void*) {
  shmb_gpu_region* const handle = region_of(self);
  return handle == nullptr ? nullptr : PyLong_FromUnsignedLongLong(shmb_gpu_region_length(handle));
}
PyObject* get_id(PyObject* self, void*) {
  shmb_gpu_region* const handle = region_of(self);
  return handle == nullptr ? nullptr : make_region_id(shmb_gpu_region_get_id(handle));
}
PyObject* get_device(PyObject* self, void*) {
  shmb_gpu_region_info facts{};
  return facts_of(self, facts) ? PyLong_FromLong(facts.device) : nullptr;
}
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<GpuRegion>(self)->calls.closed); }

PyObject* close(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> close_names = signature("close", 0, 0, {"timeout"});
  const Arguments arguments(close_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[0], Wait::broker, timeout)) return nullptr;
  auto* const region = as<GpuRegion>(self);
  if (region->calls.closed) Py_RETURN_NONE;
  if (region->calls.any()) {  // a reader, which frees it
    close_handle(region);
    Py_RETURN_NONE;
  }
  region->calls.closed = true;
  shmb_gpu_region* const handle = std::exchange(region->handle, nullptr);
  shmb_error error{};
  int status = SHMB_OK;
  {
    const Unlocked unlocked;
    status = shmb_gpu_release(handle, 0, timeout, &error);
  }
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* enter(PyObject* self, PyObject*) { return region_of(self) == nullptr ? nullptr : Py_NewRef(self); }
PyObject* leave(PyObject* self, PyObject*) { return close(self, nullptr, 0, nullptr); }

void deallocate(PyObject* self) {
  const KeptException kept;
  close_handle(as<GpuRegion>(self));
  free_object(self);
}

PyGetSetDef properties[] = {
    {"tensors", get_tensors, nullptr, nullptr, nullptr}, {"pointer", get_pointer, nullptr, nullptr, nullptr},
    {"size", get_size, nullptr, nullptr, nullptr},       {"id", get_id, nullptr, nullptr, nullptr},
    {"device", get_device, nullptr, nullptr, nullptr},   {"closed", get_closed, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {
    {"tensor", find_tensor, METH_O, "The tensor of that name."},
    {"close", as_function(close), METH_FASTCALL | METH_KEYWORDS, "Waits for the device, unmaps it and gives it back."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", leave, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("GPU memory of the broker, mapped for a device, and its tensors.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.GpuRegion", sizeof(GpuRegion), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void GpuRegion::finish() { shmb_gpu_release_later(std::exchange(handle, nullptr)); }

PyObject* session_gpu_import(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<3> import_names = signature("gpu_import", 1, 1, {"where", "wait", "timeout"});
  const Arguments arguments(import_names, given, count, names);
  std::int64_t wait = 0;
  shmb_gpu_import_options options{};
  options.size = sizeof(options);
  Place place;
  if (!arguments || !place.read(arguments[0]) || !to_name_wait(arguments[1], wait) ||
      !to_wait(arguments[2], Wait::broker, options.timeout_ns))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_gpu_region* handle = nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), wait > 0 ? wait : SHMB_FOREVER, [&](std::int64_t left) {
    options.wait_ns = wait > 0 ? left : wait;
    if (place.address != nullptr) return shmb_gpu_import(session, place.address, &options, &handle, &error);
    if (place.ticket != nullptr) return shmb_gpu_import_ticket(session, place.ticket, &options, &handle, &error);
    return shmb_gpu_import_id(session, &place.id, &options, &handle, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return place.explain(error), raise(error);
  auto* const made = make_object<GpuRegion>(types.gpu_region);
  if (made == nullptr) {
    shmb_gpu_release_later(handle);
    return nullptr;
  }
  made->handle = handle;
  return as_object(made);
}

bool add_gpu_region(PyObject* module) { return add_type(module, spec, types.gpu_region); }

}  // namespace shmb::python
