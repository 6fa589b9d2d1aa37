// SPDX-License-Identifier: Apache-2.0
// Region: a counted reference to a region of the broker, and a buffer. It cannot be closed under a live buffer.
#include <cstddef>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

shmb_region* region_of(PyObject* self) {
  auto* const region = as<Region>(self);
  return region->calls.closed ? raise_closed("region") : region->handle;
}

// An address has left: `find` is to know it.
void make_findable(Region* region) {
  if (region->findable) return;
  remember(static_cast<const std::byte*>(shmb_region_data(region->handle)), shmb_region_length(region->handle),
           as_object(region));
  region->findable = true;
}
void make_unfindable(Region* region) {
  if (!std::exchange(region->findable, false)) return;
  forget(static_cast<const std::byte*>(shmb_region_data(region->handle)), as_object(region));
}

bool no_buffers(Region* region, const char* what) {
  if (region->exports == 0) return true;
  PyErr_Format(PyExc_BufferError, "the region cannot be %s: %zd buffers of it are in use (memoryviews or arrays)", what,
               region->exports);
  return false;
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* const region = as<Region>(self);
  view->obj = nullptr;
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return -1;
  void* const data = shmb_region_data(handle);
  if (data == nullptr) {
    PyErr_SetString(PyExc_BufferError, "the region is not mapped: call publish() again, which maps it for reading");
    return -1;
  }
  const auto length = static_cast<Py_ssize_t>(shmb_region_length(handle));
  if (PyBuffer_FillInfo(view, self, data, length, region->readonly ? 1 : 0, flags) != 0) return -1;
  make_findable(region);
  ++region->exports;
  return 0;
}

void release_buffer(PyObject* self, Py_buffer*) { --as<Region>(self)->exports; }

Py_ssize_t length(PyObject* self) {
  shmb_region* const handle = region_of(self);
  return handle == nullptr ? -1 : static_cast<Py_ssize_t>(shmb_region_length(handle));
}

PyObject* get_size(PyObject* self, void*) {
  shmb_region* const handle = region_of(self);
  return handle == nullptr ? nullptr : PyLong_FromUnsignedLongLong(shmb_region_length(handle));
}
PyObject* get_id(PyObject* self, void*) {
  shmb_region* const handle = region_of(self);
  return handle == nullptr ? nullptr : make_region_id(shmb_region_get_id(handle));
}
PyObject* get_address(PyObject* self, void*) {
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  make_findable(as<Region>(self));
  return PyLong_FromVoidPtr(shmb_region_data(handle));
}
PyObject* get_name(PyObject* self, void*) { return Py_NewRef(as<Region>(self)->name); }
PyObject* get_readonly(PyObject* self, void*) { return PyBool_FromLong(as<Region>(self)->readonly); }
PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Region>(self)->calls.closed); }
PyObject* get_session(PyObject* self, void*) { return Py_NewRef(as_object(as<Region>(self)->session)); }

PyObject* info(PyObject* self, PyObject*) {
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  shmb_region_info facts{};
  facts.size = sizeof(facts);
  shmb_error error{};
  if (shmb_region_get_info(handle, &facts, &error) != SHMB_OK) return raise(error);
  return make_region_info(facts);
}

Signature<1> stat_names = signature("stat", 0, 0, {"timeout"});
PyObject* stat(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(stat_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[0], Wait::broker, timeout)) return nullptr;
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  // The region's own handle of its session: the Session object may be closed.
  shmb_session* session = nullptr;
  shmb_error error{};
  if (shmb_region_session(handle, &session, &error) != SHMB_OK) return raise(error);
  const shmb_region_id id = shmb_region_get_id(handle);
  shmb_region_stat facts{};
  facts.size = sizeof(facts);
  const int status = wait_in(as<Region>(self), timeout,
                             [&](std::int64_t left) { return shmb_stat_id(session, &id, left, &facts, &error); });
  shmb_disconnect(session);
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? make_region_stat(facts) : raise(error);
}

PyObject* publish(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> publish_names = signature("publish", 0, 0, {"timeout"});
  const Arguments arguments(publish_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[0], Wait::broker, timeout)) return nullptr;
  auto* const region = as<Region>(self);
  shmb_region* const handle = region_of(self);
  if (handle == nullptr || !no_buffers(region, "published")) return nullptr;
  if (region->calls.any()) return raise(SHMB_E_BUSY, "another thread is in a call on this region");
  // The mapping may move: no new buffer begins meanwhile.
  make_unfindable(region);
  region->calls.closed = true;
  shmb_error error{};
  const int status =
      wait_for(timeout, [&](std::int64_t left) { return shmb_publish(handle, left, &error); }, [] { return false; });
  region->calls.closed = false;
  shmb_region_info facts{};
  facts.size = sizeof(facts);
  shmb_error ignored{};
  if (shmb_region_get_info(handle, &facts, &ignored) == SHMB_OK)
    region->readonly = (facts.rights & SHMB_RIGHT_WRITE) == 0 || facts.state == SHMB_REGION_PUBLISHED;
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  region->readonly = true;
  Py_RETURN_NONE;
}

using MakeTicket = int (*)(shmb_region*, std::uint32_t, std::uint32_t, std::int64_t, std::int64_t, std::uint8_t*,
                           std::int64_t*, shmb_error*);
Signature<5> ticket_names = signature("ticket", 0, 0, {"write", "share", "uses", "lifetime", "timeout"});

PyObject* ticket_by(MakeTicket make, PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(ticket_names, given, count, names);
  bool write = false, share = false;
  std::uint32_t uses = 1;
  std::int64_t lifetime = 0, timeout = 0;
  if (!arguments || !to_flag(arguments[0], write) || !to_flag(arguments[1], share) ||
      !to_number(arguments[2], "uses", uses) || !to_duration(arguments[3], "lifetime", 0, lifetime) ||
      !to_wait(arguments[4], Wait::broker, timeout))
    return nullptr;
  if (uses == 0) return raise(SHMB_E_INVALID, "uses is 0: a ticket has at least one use");
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  const std::uint32_t rights =
      SHMB_RIGHT_READ | (write ? unsigned{SHMB_RIGHT_WRITE} : 0U) | (share ? unsigned{SHMB_RIGHT_SHARE} : 0U);
  std::uint8_t token[16];
  shmb_error error{};
  const int status = wait_in(as<Region>(self), timeout, [&](std::int64_t left) {
    return make(handle, rights, uses, lifetime, left, token, nullptr, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  return PyObject_CallFunction(types.ticket, "y#", token, static_cast<Py_ssize_t>(sizeof(token)));
}

PyObject* ticket(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return ticket_by(shmb_ticket_create, self, given, count, names);
}
PyObject* lend(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return ticket_by(shmb_ticket_lend, self, given, count, names);
}

PyObject* populate(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> populate_names = signature("populate", 2, 0, {"offset", "length"});
  const Arguments arguments(populate_names, given, count, names);
  shmb_region* const handle = region_of(self);
  std::uint64_t offset = 0;
  if (!arguments || handle == nullptr || !to_number(arguments[0], "offset", offset)) return nullptr;
  const std::uint64_t whole = shmb_region_length(handle);
  std::uint64_t bytes = offset < whole ? whole - offset : 0;
  if (arguments[1] != Py_None && !to_number(arguments[1], "length", bytes)) return nullptr;
  shmb_error error{};
  const int status = wait_in(as<Region>(self), SHMB_FOREVER,
                             [&](std::int64_t) { return shmb_region_populate(handle, offset, bytes, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* descriptor(PyObject* self, PyObject*) {
  shmb_region* const handle = region_of(self);
  if (handle == nullptr) return nullptr;
  int fd = -1;
  shmb_error error{};
  const int status = wait_in(as<Region>(self), SHMB_FOREVER,
                             [&](std::int64_t) { return shmb_region_descriptor(handle, &fd, &error); });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? PyLong_FromLong(fd) : raise(error);
}

PyObject* close(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  if (count == 0 && names == nullptr && as<Region>(self)->exports == 0) {  // nearly every call
    close_handle(as<Region>(self));
    Py_RETURN_NONE;
  }
  static Signature<2> close_names = signature("close", 0, 0, {"unname", "recycle"});
  const Arguments arguments(close_names, given, count, names);
  bool unname = false, recycle = true;
  if (!arguments || !to_flag(arguments[0], unname) || !to_flag(arguments[1], recycle)) return nullptr;
  auto* const region = as<Region>(self);
  if (region->calls.closed) Py_RETURN_NONE;
  if (!no_buffers(region, "closed")) return nullptr;
  region->release_flags =
      (unname ? unsigned{SHMB_RELEASE_UNNAME} : 0U) | (recycle ? 0U : unsigned{SHMB_RELEASE_NO_RECYCLE});
  if (!unname || region->calls.any()) {
    close_handle(region);
    Py_RETURN_NONE;
  }
  // With its name: the broker answers, and may refuse.
  shmb_region* const handle = region->handle;
  make_unfindable(region);
  region->calls.closed = true;
  region->handle = nullptr;
  shmb_error error{};
  int status = 0;
  {
    const Unlocked unlocked;
    status = shmb_release(handle, region->release_flags, &error);
  }
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* enter(PyObject* self, PyObject*) { return region_of(self) == nullptr ? nullptr : Py_NewRef(self); }
PyObject* leave(PyObject* self, PyObject*) { return close(self, nullptr, 0, nullptr); }

PyObject* repr(PyObject* self) {
  auto* const region = as<Region>(self);
  if (region->calls.closed) return PyUnicode_FromString("<shmbroker.Region, closed>");
  return PyUnicode_FromFormat("<shmbroker.Region %R of %llu bytes, %s>", region->name,
                              static_cast<unsigned long long>(shmb_region_length(region->handle)),
                              region->readonly ? "read-only" : "writable");
}

void deallocate(PyObject* self) {
  auto* const region = as<Region>(self);
  if (region->weak != nullptr) PyObject_ClearWeakRefs(self);
  if (region->handle != nullptr) {
    const KeptException kept;
    close_handle(region);
  }
  Py_CLEAR(region->session);
  Py_CLEAR(region->name);
  free_object(self);
}

PyGetSetDef properties[] = {
    {"size", get_size, nullptr, nullptr, nullptr},       {"id", get_id, nullptr, nullptr, nullptr},
    {"name", get_name, nullptr, nullptr, nullptr},       {"readonly", get_readonly, nullptr, nullptr, nullptr},
    {"closed", get_closed, nullptr, nullptr, nullptr},   {"address", get_address, nullptr, nullptr, nullptr},
    {"session", get_session, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef methods[] = {
    {"info", info, METH_NOARGS, "The facts that this process has of it, without a call to the broker."},
    {"stat", as_function(stat), METH_FASTCALL | METH_KEYWORDS, "The broker's facts about it."},
    {"publish", as_function(publish), METH_FASTCALL | METH_KEYWORDS, "Ends writing, for everybody and for good."},
    {"ticket", as_function(ticket), METH_FASTCALL | METH_KEYWORDS, "A ticket that lives on after this process."},
    {"lend", as_function(lend), METH_FASTCALL | METH_KEYWORDS, "A ticket that ends with this session at the latest."},
    {"populate", as_function(populate), METH_FASTCALL | METH_KEYWORDS, "Puts memory behind a part of it."},
    {"descriptor", descriptor, METH_NOARGS, "A new descriptor of it, which the caller closes."},
    {"close", as_function(close), METH_FASTCALL | METH_KEYWORDS, "Unmaps it and gives the reference back."},
    {"__array__", as_function(to_array), METH_FASTCALL | METH_KEYWORDS, "For NumPy; the buffer without a copy."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", leave, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Region, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A counted reference to a region of shared memory; a buffer.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_repr, reinterpret_cast<void*>(repr)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {Py_sq_length, reinterpret_cast<void*>(length)},
                       {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                       {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Region", sizeof(Region), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

void Region::finish() {
  if (handle == nullptr) return;
  make_unfindable(this);
  shmb_region* const ended = std::exchange(handle, nullptr);
  if (shmb_region_length(ended) < (1 << 20)) {
    (void)shmb_release(ended, release_flags, nullptr);
    return;
  }
  const Unlocked unlocked;  // the kernel takes large mappings apart page by page
  (void)shmb_release(ended, release_flags, nullptr);
}

PyObject* make_region(Session* session, shmb_region* handle, PyObject* name) {
  shmb_region_info facts{};
  facts.size = sizeof(facts);
  const bool readonly = shmb_region_get_info(handle, &facts, nullptr) != SHMB_OK ||
                        (facts.rights & SHMB_RIGHT_WRITE) == 0 || facts.state == SHMB_REGION_PUBLISHED;
  return make_region(session, handle, name, readonly);
}

PyObject* make_region(Session* session, shmb_region* handle, PyObject* name, bool readonly) {
  auto* const made = make_object<Region>(types.region);
  if (made == nullptr) {
    (void)shmb_release(handle, 0, nullptr);
    return nullptr;
  }
  made->handle = handle;
  made->session = as<Session>(Py_NewRef(as_object(session)));
  made->name = Py_NewRef(name != nullptr ? name : Py_None);
  made->readonly = readonly;
  return as_object(made);
}

bool add_region(PyObject* module) { return add_type(module, spec, types.region); }

}  // namespace shmb::python
