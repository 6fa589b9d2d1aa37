// SPDX-License-Identifier: Apache-2.0
// The messages that workers send each other, on their way into the library and out of it.
#include "python/core/remote/remote.hpp"
#include "python/core/spawn.hpp"

namespace shmb::python::remote {

Payload::Payload(PyObject* data, PyObject* regions, PyObject* references) : good_(read(data, regions, references)) {}

Payload::~Payload() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool Payload::read(PyObject* data, PyObject* regions, PyObject* references) {
  if (data != Py_None) {
    if (PyObject_GetBuffer(data, &view_, PyBUF_SIMPLE) != 0) return false;
    c_.data = view_.buf;
    c_.length = static_cast<std::uint64_t>(view_.len);
  }
  const Py_ssize_t region_count = PySequence_Size(regions), reference_count = PySequence_Size(references);
  if (region_count < 0 || reference_count < 0) return false;
  for (Py_ssize_t i = 0; i < region_count; ++i) {
    Ref one(PySequence_GetItem(regions, i));
    if (!one) return false;
    if (!Py_IS_TYPE(one.get(), python::types.region)) return PyErr_SetString(PyExc_TypeError, "not a Region"), false;
    auto* const region = as<Region>(one.get());
    if (region->calls.closed) return raise_closed("region"), false;
    open_regions_.emplace_back(region);
    regions_.push_back(region->handle);
    kept_.push_back(std::move(one));
  }
  for (Py_ssize_t i = 0; i < reference_count; ++i) {
    Ref one(PySequence_GetItem(references, i));
    if (!one) return false;
    if (!Py_IS_TYPE(one.get(), types.reference))
      return PyErr_SetString(PyExc_TypeError, "not a RemoteReference"), false;
    auto* const reference = as<Reference>(one.get());
    open_references_.emplace_back(reference);
    references_.push_back(reference->handle);
    kept_.push_back(std::move(one));
  }
  c_.regions = regions_.data(), c_.region_count = regions_.size();
  c_.references = references_.data(), c_.reference_count = references_.size();
  return true;
}

Ref take(World* world, shmb_content* content) {
  const std::size_t region_count = shmb_content_regions(content), reference_count = shmb_content_references(content);
  const Ref data(PyByteArray_FromStringAndSize(static_cast<const char*>(shmb_content_data(content)),
                                               static_cast<Py_ssize_t>(shmb_content_length(content))));
  const Ref regions(PyTuple_New(static_cast<Py_ssize_t>(region_count)));
  const Ref references(PyTuple_New(static_cast<Py_ssize_t>(reference_count)));
  if (!data || !regions || !references) return {};
  shmb_error error{};
  for (std::size_t i = 0; i < region_count; ++i) {
    PyObject* const session = session_of(world);
    if (session == nullptr) return {};
    shmb_region* handle = nullptr;
    int status = 0;
    {
      const Unlocked unlocked;
      status = shmb_content_take_region(content, i, &handle, &error);
    }
    if (status != SHMB_OK) return raise(error), Ref();
    PyObject* const region = make_region(as<Session>(session), handle, nullptr);
    if (region == nullptr) return {};
    (void)PyTuple_SetItem(regions.get(), static_cast<Py_ssize_t>(i), region);
  }
  for (std::size_t i = 0; i < reference_count; ++i) {
    shmb_reference* handle = nullptr;
    if (shmb_content_take_reference(content, i, &handle, &error) != SHMB_OK) return raise(error), Ref();
    PyObject* const reference = make_reference(world, handle);
    if (reference == nullptr) return {};
    (void)PyTuple_SetItem(references.get(), static_cast<Py_ssize_t>(i), reference);
  }
  return Ref(PyTuple_Pack(3, data.get(), regions.get(), references.get()));
}

Ref describe(const shmb_remote_failure& failure) {
  const Ref worker = decoded(failure.worker), type = decoded(failure.type), text = decoded(failure.text);
  const Ref trace = decoded(failure.trace), causes(PyList_New(0));
  if (!worker || !type || !text || !trace || !causes) return {};
  for (std::size_t i = 0; i < failure.cause_count; ++i) {
    const Ref cause_type = decoded(failure.causes[i].type), cause_text = decoded(failure.causes[i].text);
    const Ref cause(cause_type && cause_text ? PyTuple_Pack(2, cause_type.get(), cause_text.get()) : nullptr);
    if (!cause || PyList_Append(causes.get(), cause.get()) != 0) return {};
  }
  return Ref(Py_BuildValue("iiOOOOO", failure.status, failure.rank, worker.get(), type.get(), text.get(), trace.get(),
                           causes.get()));
}

}  // namespace shmb::python::remote
