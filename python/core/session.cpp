// SPDX-License-Identifier: Apache-2.0
// Session: one connection to a broker. Its methods on regions, groups and pools are in their own files.
#include <cstddef>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

void deallocate(PyObject* self) {
  const KeptException kept;
  auto* const session = as<Session>(self);
  if (session->weak != nullptr) PyObject_ClearWeakRefs(self);
  close_handle(session);
  free_object(self);
}

PyObject* info(PyObject* self, PyObject*) {
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_session_info facts{};
  facts.size = sizeof(facts);
  shmb_error error{};
  // A forked child's first call asks the broker.
  const int status = wait_in(as<Session>(self), SHMB_FOREVER,
                             [&](std::int64_t) { return shmb_session_get_info(session, &facts, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  const char* const mode = facts.mode == SHMB_MODE_LOCAL    ? "local"
                           : facts.mode == SHMB_MODE_SYSTEM ? "system"
                                                            : "private";
  return Row(Value::session_info)
      .text(mode)
      .truth(facts.started_by_us != 0)
      .number(facts.uid)
      .number(facts.broker_uid)
      .truth(facts.lost != 0)
      .number(facts.protocol)
      .number(facts.epoch)
      .number(facts.session)
      .number(facts.group)
      .text(facts.socket)
      .text(facts.broker)
      .text(facts.how)
      .done();
}

PyObject* ping(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> ping_names = signature("ping", 0, 0, {"timeout"});
  const Arguments arguments(ping_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[0], Wait::broker, timeout)) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_error error{};
  const int status =
      wait_in(as<Session>(self), timeout, [&](std::int64_t left) { return shmb_ping(session, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* stat(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> stat_names = signature("stat", 1, 1, {"where", "timeout"});
  const Arguments arguments(stat_names, given, count, names);
  std::int64_t timeout = 0;
  const char* address = nullptr;
  shmb_region_id id{};
  if (!arguments || !to_wait(arguments[1], Wait::broker, timeout)) return nullptr;
  if (is_region_id(arguments[0])) {
    if (!to_region_id(arguments[0], id)) return nullptr;
  } else if (!to_text(arguments[0], "the address", address)) {
    return nullptr;
  }
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_region_stat facts{};
  facts.size = sizeof(facts);
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    return address != nullptr ? shmb_stat(session, address, left, &facts, &error)
                              : shmb_stat_id(session, &id, left, &facts, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? make_region_stat(facts) : raise(error);
}

PyObject* unname(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> unname_names = signature("unname", 1, 1, {"address", "timeout"});
  const Arguments arguments(unname_names, given, count, names);
  std::int64_t timeout = 0;
  const char* address = nullptr;
  if (!arguments || !to_text(arguments[0], "the address", address) || !to_wait(arguments[1], Wait::broker, timeout))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout,
                             [&](std::int64_t left) { return shmb_unname(session, address, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* revoke(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> revoke_names = signature("revoke", 1, 1, {"ticket", "timeout"});
  const Arguments arguments(revoke_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[1], Wait::broker, timeout)) return nullptr;
  if (PyBytes_Check(arguments[0]) == 0)
    return raise_type("ticket", "a Ticket (shmbroker.Ticket(text) makes one of its text)", arguments[0]);
  if (PyBytes_Size(arguments[0]) != 16)
    return raise(SHMB_E_INVALID, "a ticket has 16 bytes, not %zd", PyBytes_Size(arguments[0]));
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  const auto* const token = reinterpret_cast<const std::uint8_t*>(PyBytes_AsString(arguments[0]));
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout,
                             [&](std::int64_t left) { return shmb_ticket_revoke(session, token, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* fileno(PyObject* self, PyObject*) {
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  int fd = -1;
  shmb_error error{};
  if (shmb_event_descriptor(session, &fd, &error) != SHMB_OK) return raise(error);
  return PyLong_FromLong(fd);
}

PyObject* next_event_async(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_python("shmbroker.aio", "next_event", self, given, count, names);
}

PyObject* close(PyObject* self, PyObject*) {
  close_handle(as<Session>(self));
  Py_RETURN_NONE;
}
PyObject* enter(PyObject* self, PyObject*) { return session_of(self) == nullptr ? nullptr : Py_NewRef(self); }

PyObject* get_closed(PyObject* self, void*) { return PyBool_FromLong(as<Session>(self)->calls.closed); }

PyObject* get_names_with_holders(PyObject* self, void*) {
  return PyBool_FromLong(as<Session>(self)->names_with_holders);
}
int set_names_with_holders(PyObject* self, PyObject* value, void*) {
  bool on = false;
  if (value == nullptr || !to_flag(value, on)) {
    if (value == nullptr) PyErr_SetString(PyExc_AttributeError, "names_with_holders cannot be deleted");
    return -1;
  }
  as<Session>(self)->names_with_holders = on;
  return 0;
}

PyGetSetDef properties[] = {{"closed", get_closed, nullptr, nullptr, nullptr},
                            {"names_with_holders", get_names_with_holders, set_names_with_holders, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;
PyMethodDef methods[] = {
    {"create", as_function(session_create), kFast, "Makes a region and maps it for writing."},
    {"create_many", as_function(session_create_many), kFast, "Makes many regions, of these sizes."},
    {"attach", as_function(session_attach), kFast, "A region by address, identity or ticket."},
    {"open", as_function(session_attach), kFast, "A region by its name."},
    {"attach_many", as_function(session_attach_many), kFast, "Many regions by address, identity or ticket."},
    {"gpu_import", as_function(session_gpu_import), kFast, "GPU memory by address, identity or ticket."},
    {"adopt", as_function(session_adopt), kFast, "Local sessions: a region of a memfd."},
    {"stat", as_function(stat), kFast, "The broker's facts about a region."},
    {"unname", as_function(unname), kFast, "Takes a region's name away; it goes with its last reference."},
    {"revoke", as_function(revoke), kFast, "Ends a ticket."},
    {"create_group", as_function(session_create_group), kFast, "Makes a group, without joining it."},
    {"join", as_function(session_join), kFast, "Becomes a member of a group, and leaves the one before."},
    {"leave", as_function(session_leave), kFast, "Leaves a group."},
    {"end_group", as_function(session_end_group), kFast, "Ends a group: its members leave it, its names go."},
    {"wait_group", as_function(session_wait_group), kFast, "Waits until a group has ended."},
    {"watch", as_function(session_watch), kFast, "Subscribes to events of a region, a name, a group or of reclaims."},
    {"unwatch", as_function(session_unwatch), kFast, "Ends a subscription."},
    {"next_event", as_function(session_next_event), kFast, "Takes the next event."},
    {"next_event_async", as_function(next_event_async), kFast, "Takes the next event, in an event loop of asyncio."},
    {"fileno", fileno, METH_NOARGS, "The descriptor that is readable when there may be an event."},
    {"create_pool", as_function(session_create_pool), kFast, "Makes a pool of slots and joins it."},
    {"open_pool", as_function(session_open_pool), kFast, "Joins a pool by its address or id."},
    {"queue", as_function(session_queue), kFast, "Opens a queue in a pool of its own, without slots."},
    {"info", info, METH_NOARGS, "How this session was made, and with which broker."},
    {"ping", as_function(ping), kFast, "A round trip to the broker."},
    {"close", close, METH_NOARGS, "Ends the session. Regions and pools that are open go on."},
    {"__reduce_ex__", cannot_pickle, METH_O, nullptr},
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", close, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(Session, weak), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>("A connection to the broker. Any threads may use it at once.")},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_members, members},
                       {0, nullptr}};
PyType_Spec spec = {"shmbroker._core.Session", sizeof(Session), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};

PyObject* connect(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<8> connect_names =
      signature("connect", 1, 0, {"socket", "group", "program", "local", "start", "admin", "no_group", "timeout"});
  static constexpr const char* local_names[] = {"never", "ok", "only"};
  const Arguments arguments(connect_names, given, count, names);
  std::uint32_t local = 0;
  bool start = true, admin = false, no_group = false;
  shmb_connect_options options{};
  options.size = sizeof(options);
  if (!arguments || !to_text(arguments[0], "socket", options.socket) ||
      !to_text(arguments[1], "group", options.group) || !to_text(arguments[2], "program", options.program) ||
      !to_choice(arguments[3], "local", local_names, 3, local) || !to_flag(arguments[4], start) ||
      !to_flag(arguments[5], admin) || !to_flag(arguments[6], no_group) ||
      !to_wait(arguments[7], Wait::broker, options.timeout_ns))
    return nullptr;
  options.flags = (local == 1 ? unsigned{SHMB_CONNECT_LOCAL_OK} : 0U) |
                  (local == 2 ? unsigned{SHMB_CONNECT_LOCAL_ONLY} : 0U) |
                  (start ? 0U : unsigned{SHMB_CONNECT_NO_START}) | (admin ? unsigned{SHMB_CONNECT_ADMIN} : 0U) |
                  (no_group ? unsigned{SHMB_CONNECT_NO_GROUP} : 0U);
  shmb_session* handle = nullptr;
  shmb_error error{};
  const int status = wait_for(
      options.timeout_ns,
      [&](std::int64_t left) {
        options.timeout_ns = left;
        return shmb_connect(&options, &handle, &error);
      },
      [] { return false; });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  auto* const session = make_object<Session>(types.session);
  if (session == nullptr) {
    shmb_disconnect(handle);
    return nullptr;
  }
  session->handle = handle;
  return as_object(session);
}

PyMethodDef functions[] = {{"connect", as_function(connect), METH_FASTCALL | METH_KEYWORDS, "Opens a session."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

void Session::finish() {
  shmb_session* const ended = std::exchange(handle, nullptr);
  if (ended != nullptr) shmb_disconnect(ended);
}

bool to_name_with_holders(Session* session, PyObject* said, const char* name, bool keep, std::uint64_t group,
                          bool& with_holders) {
  with_holders = session->names_with_holders && name != nullptr && !keep && group == 0;
  return said == Py_None || to_flag(said, with_holders);
}

bool add_session(PyObject* module) {
  return add_type(module, spec, types.session) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace shmb::python
