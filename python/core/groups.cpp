// SPDX-License-Identifier: Apache-2.0
// A session's methods on groups and events.
#include <cstring>
#include <iterator>

#include "python/core/objects.hpp"

namespace shmb::python {

namespace {

// A group that an argument names: its id, its name, or its token.
struct Named {
  std::uint64_t id = 0;
  const char* name = nullptr;
  std::uint8_t token[16];
  bool has_token = false;

  bool read(PyObject* group) {
    if (PyLong_Check(group) != 0) return to_number(group, "group", id);
    PyObject* text = group;
    if (Py_IS_TYPE(group, value_type(Value::group))) {
      text = PyStructSequence_GetItem(group, 1);
      if (!to_number(PyStructSequence_GetItem(group, 0), "group", id)) return false;
    }
    if (PyUnicode_Check(text) == 0) return raise_type("group", "a name (str), an id (int) or a Group", group), false;
    if (!to_text(text, "group", name)) return false;
    const char* const colon = std::strrchr(name, ':');
    has_token =
        shmb_token_parse(colon != nullptr ? colon + 1 : name, token) == SHMB_OK && (colon != nullptr || text != group);
    return true;
  }
};

}  // namespace

PyObject* session_create_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<6> group_names =
      signature("create_group", 1, 0, {"name", "limit_bytes", "limit_regions", "keep", "adopt_existing", "timeout"});
  const Arguments arguments(group_names, given, count, names);
  shmb_group_options options{};
  options.size = sizeof(options);
  bool keep = false, adopt = false;
  if (!arguments || !to_text(arguments[0], "name", options.name) ||
      !to_number(arguments[1], "limit_bytes", options.limit_bytes) ||
      !to_number(arguments[2], "limit_regions", options.limit_regions) ||
      !to_keep(arguments[3], keep, options.keep_ns) || !to_flag(arguments[4], adopt) ||
      !to_wait(arguments[5], Wait::broker, options.timeout_ns))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  if (adopt) options.flags |= SHMB_GROUP_ADOPT_EXISTING;
  shmb_group made{};
  shmb_error error{};
  const int status = wait_in(as<Session>(self), options.timeout_ns, [&](std::int64_t left) {
    options.timeout_ns = left;
    return shmb_group_create(session, &options, &made, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  char token[SHMB_TOKEN_TEXT];
  shmb_token_format(made.token, token);
  PyObject* const name = arguments[0] != nullptr ? arguments[0] : Py_None;
  return Row(Value::group).number(made.id).text(token).add(Py_NewRef(name)).done();
}

PyObject* session_join(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> join_names = signature("join", 1, 1, {"group", "timeout"});
  const Arguments arguments(join_names, given, count, names);
  Named group;
  std::int64_t timeout = 0;
  if (!arguments || !group.read(arguments[0]) || !to_wait(arguments[1], Wait::broker, timeout)) return nullptr;
  if (group.name == nullptr) return raise(SHMB_E_INVALID, "a session joins a group by its name, \"@ID\", or token");
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  std::uint64_t id = 0;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    return group.has_token ? shmb_group_join_token(session, group.token, 0, left, &id, &error)
                           : shmb_group_join(session, group.name, 0, left, &id, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  as<Session>(self)->names_with_holders = false;  // another group has its own lifetimes
  return PyLong_FromUnsignedLongLong(id);
}

PyObject* session_leave(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> leave_names = signature("leave", 1, 0, {"group", "timeout"});
  const Arguments arguments(leave_names, given, count, names);
  std::uint64_t group = 0;
  std::int64_t timeout = 0;
  if (!arguments || !to_number(arguments[0], "group", group) || !to_wait(arguments[1], Wait::broker, timeout))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout,
                             [&](std::int64_t left) { return shmb_group_leave(session, group, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* session_end_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<4> end_names = signature("end_group", 1, 1, {"group", "release_kept", "kept_only", "timeout"});
  const Arguments arguments(end_names, given, count, names);
  Named group;
  bool release_kept = false, kept_only = false;
  std::int64_t timeout = 0;
  if (!arguments || !group.read(arguments[0]) || !to_flag(arguments[1], release_kept) ||
      !to_flag(arguments[2], kept_only) || !to_wait(arguments[3], Wait::broker, timeout))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  const std::uint32_t flags =
      (release_kept ? unsigned{SHMB_END_RELEASE_KEPT} : 0U) | (kept_only ? unsigned{SHMB_END_KEPT_ONLY} : 0U);
  shmb_group_ending ending{};
  shmb_error error{};
  const char* const name = group.id == 0 ? group.name : nullptr;
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    return shmb_group_end(session, group.id, name, flags, left, &ending, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  return Row(Value::group_ending).number(ending.members).number(ending.regions).number(ending.bytes_freed).done();
}

PyObject* session_wait_group(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> wait_names = signature("wait_group", 1, 0, {"group", "timeout"});
  const Arguments arguments(wait_names, given, count, names);
  std::uint64_t group = 0;
  std::int64_t timeout = 0;
  if (!arguments || !to_number(arguments[0], "group", group) || !to_wait(arguments[1], Wait::others, timeout))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  if (timeout == SHMB_NO_WAIT) timeout = 1;  // the broker answers at once whether it has ended
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout,
                             [&](std::int64_t left) { return shmb_group_wait(session, group, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* group_variable(PyObject*, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> variable_names = signature("group_variable", 2, 2, {"name", "token"});
  const Arguments arguments(variable_names, given, count, names);
  const char *name = nullptr, *digits = nullptr;
  if (!arguments || !to_text(arguments[0], "name", name) || !to_text(arguments[1], "token", digits)) return nullptr;
  std::uint8_t token[16];
  if (digits == nullptr || shmb_token_parse(digits, token) != SHMB_OK)
    return raise(SHMB_E_INVALID, "the token of a group has 32 hex digits");
  char text[SHMB_VARIABLE_TEXT];
  shmb_error error{};
  if (shmb_group_variable(name, token, text, &error) != SHMB_OK) return raise(error);
  return PyUnicode_FromString(text);
}

PyObject* session_watch(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<6> watch_names =
      signature("watch", 0, 0, {"region", "name", "group", "reclaim", "events", "timeout"});
  const Arguments arguments(watch_names, given, count, names);
  shmb_watch_options options{};
  options.size = sizeof(options);
  if (!arguments || !to_number(arguments[4], "events", options.events) ||
      !to_wait(arguments[5], Wait::broker, options.timeout_ns))
    return nullptr;
  int kinds = 0;
  const auto chosen = [&](std::size_t place) {
    const bool here = arguments[place] != nullptr && arguments[place] != Py_None;
    kinds += here ? 1 : 0;
    return here;
  };
  Named group;
  if (chosen(0)) {
    options.kind = SHMB_WATCH_REGION;
    if (!is_region_id(arguments[0])) return raise_type("region", "a RegionId", arguments[0]);
    if (!to_region_id(arguments[0], options.region)) return nullptr;
  }
  if (chosen(1)) {
    options.kind = SHMB_WATCH_NAME;
    if (!to_text(arguments[1], "name", options.address)) return nullptr;
  }
  if (chosen(2)) {
    options.kind = SHMB_WATCH_GROUP;
    if (!group.read(arguments[2])) return nullptr;
    options.group = group.id;
    if (group.id == 0) options.address = group.name;
  }
  if (chosen(3)) {
    options.kind = SHMB_WATCH_RECLAIM;
    if (!to_number(arguments[3], "reclaim", options.group)) return nullptr;
  }
  if (kinds != 1) return raise(SHMB_E_INVALID, "watch() takes one of region, name, group and reclaim, not %d", kinds);
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  std::uint64_t watch = 0;
  std::uint32_t state = 0;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), options.timeout_ns, [&](std::int64_t left) {
    options.timeout_ns = left;
    return shmb_watch(session, &options, &watch, &state, &error);
  });
  if (status == kRaised) return nullptr;
  return status == SHMB_OK ? Row(Value::watch).number(watch).number(state).done() : raise(error);
}

PyObject* session_unwatch(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> unwatch_names = signature("unwatch", 1, 1, {"watch", "timeout"});
  const Arguments arguments(unwatch_names, given, count, names);
  std::uint64_t watch = 0;
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[1], Wait::broker, timeout)) return nullptr;
  PyObject* const number =
      Py_IS_TYPE(arguments[0], value_type(Value::watch)) ? PyStructSequence_GetItem(arguments[0], 0) : arguments[0];
  if (!to_number(number, "watch", watch)) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout,
                             [&](std::int64_t left) { return shmb_unwatch(session, watch, left, &error); });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  Py_RETURN_NONE;
}

PyObject* session_next_event(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<1> event_names = signature("next_event", 0, 0, {"timeout"});
  const Arguments arguments(event_names, given, count, names);
  std::int64_t timeout = 0;
  if (!arguments || !to_wait(arguments[0], Wait::others, timeout)) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_event event{};
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    event.size = sizeof(event);
    return shmb_next_event(session, left, &event, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return raise(error);
  static constexpr const char* kinds[] = {"region_ready", "region_published", "region_gone", "name_appeared",
                                          "group_ended",  "reclaim",          "gap",         "broker_away"};
  const char* const kind = event.kind == SHMB_EVENT_GPU_STATE                              ? "gpu_state"
                           : event.kind - 1 < static_cast<std::uint32_t>(std::size(kinds)) ? kinds[event.kind - 1]
                                                                                           : "unknown";
  return Row(Value::event)
      .text(kind)
      .number(event.how)
      .number(event.sequence)
      .number(event.watch)
      .region(event.region)
      .number(event.group)
      .number(event.bytes)
      .number(event.lost)
      .number(event.uid)
      .number(event.pid)
      .number(event.regions)
      .signed_number(event.code)
      .text(event.text)
      .done();
}

}  // namespace shmb::python
