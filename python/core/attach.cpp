// SPDX-License-Identifier: Apache-2.0
// Attaching regions: by address, by identity or by ticket, one or many.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "python/core/objects.hpp"
#include "python/core/place.hpp"

namespace shmb::python {

bool Place::read(PyObject* where) {
  if (is_region_id(where)) return to_region_id(where, id);
  if (PyUnicode_Check(where) != 0) return to_text(where, "the address", address);
  if (PyBytes_Check(where) == 0) return raise_type("where", "an address (str), a RegionId or a Ticket", where), false;
  if (PyBytes_Size(where) != 16)
    return raise(SHMB_E_INVALID, "a ticket has 16 bytes, not %zd", PyBytes_Size(where)), false;
  ticket = reinterpret_cast<const std::uint8_t*>(PyBytes_AsString(where));
  return true;
}

void Place::explain(shmb_error& failure) const {
  std::uint8_t token[16];
  if (failure.status != SHMB_E_NOT_FOUND || address == nullptr || shmb_token_parse(address, token) != SHMB_OK) return;
  const std::size_t said = ::strnlen(failure.sentence, sizeof failure.sentence);
  std::snprintf(failure.sentence + said, sizeof failure.sentence - said,
                "; if it is the text of a ticket, give shmbroker.Ticket(text)");
}

namespace {

std::uint32_t rights_of(bool write, bool share, bool release) {
  return SHMB_RIGHT_READ | (write ? unsigned{SHMB_RIGHT_WRITE} : 0U) | (share ? unsigned{SHMB_RIGHT_SHARE} : 0U) |
         (release ? unsigned{SHMB_RIGHT_RELEASE} : 0U);
}

Signature<7> attach_names =
    signature("attach", 1, 1, {"where", "write", "share", "release", "wait", "populate", "timeout"});

}  // namespace

PyObject* session_attach(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const Arguments arguments(attach_names, given, count, names);
  bool write = false, share = false, release = false, populate = true;
  std::int64_t wait = 0;
  shmb_attach_options options{};
  options.size = sizeof(options);
  Place place;
  if (!arguments || !place.read(arguments[0]) || !to_flag(arguments[1], write) || !to_flag(arguments[2], share) ||
      !to_flag(arguments[3], release) || !to_name_wait(arguments[4], wait) || !to_flag(arguments[5], populate) ||
      !to_wait(arguments[6], Wait::broker, options.timeout_ns))
    return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  options.rights = rights_of(write, share, release);
  options.flags = populate ? 0U : unsigned{SHMB_ATTACH_NO_POPULATE};
  shmb_region* region = nullptr;
  shmb_error error;  // filled in where a call fails
  const int status = wait_in(as<Session>(self), wait > 0 ? wait : SHMB_FOREVER, [&](std::int64_t left) {
    options.wait_ns = wait > 0 ? left : wait;
    if (place.address != nullptr) return shmb_attach(session, place.address, &options, &region, &error);
    if (place.ticket != nullptr) return shmb_attach_ticket(session, place.ticket, &options, &region, &error);
    return shmb_attach_id(session, &place.id, &options, &region, &error);
  });
  if (status == kRaised) return nullptr;
  if (status != SHMB_OK) return place.explain(error), raise(error);
  return make_region(as<Session>(self), region, place.address != nullptr ? arguments[0] : nullptr, !write);
}

PyObject* regions_or_error(Session* session, std::vector<shmb_region*>& regions, const std::vector<int>& statuses,
                           int status, const shmb_error& error, bool return_errors, PyObject* names) {
  const auto drop_rest = [&](std::size_t from) {
    const KeptException kept;
    for (std::size_t i = from; i < regions.size(); ++i)
      if (regions[i] != nullptr) (void)shmb_release(regions[i], 0, nullptr);
  };
  if (status != SHMB_OK && !return_errors) {
    drop_rest(0);
    return raise(error);
  }
  Ref list(PyList_New(static_cast<Py_ssize_t>(regions.size())));
  if (!list) return drop_rest(0), nullptr;
  bool told = false;  // the first failure is the one whose sentence is there
  for (std::size_t i = 0; i < regions.size(); ++i) {
    PyObject* one = nullptr;
    if (regions[i] == nullptr) {
      one = (std::exchange(told, true) ? make_error(statuses[i]) : make_error(error)).release();
    } else {
      PyObject* const name = names != nullptr ? PySequence_GetItem(names, static_cast<Py_ssize_t>(i)) : nullptr;
      const Ref owned(name);
      one = make_region(session, regions[i], name != nullptr && PyUnicode_Check(name) != 0 ? name : nullptr);
    }
    if (one == nullptr) return drop_rest(i + 1), nullptr;
    (void)PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), one);
  }
  return list.release();
}

PyObject* session_attach_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<6> many_names =
      signature("attach_many", 1, 1, {"wheres", "write", "share", "populate", "timeout", "return_errors"});
  const Arguments arguments(many_names, given, count, names);
  bool write = false, share = false, populate = true, return_errors = false;
  std::int64_t timeout = 0;
  if (!arguments || !to_flag(arguments[1], write) || !to_flag(arguments[2], share) ||
      !to_flag(arguments[3], populate) || !to_wait(arguments[4], Wait::broker, timeout) ||
      !to_flag(arguments[5], return_errors))
    return nullptr;
  const Ref wheres(to_items(arguments[0], "wheres",
                            "a list or tuple of addresses, RegionIds and Tickets"));  // keeps what the places point to
  if (!wheres) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  const auto wanted = static_cast<std::size_t>(PyTuple_Size(wheres.get()));
  std::vector<Place> places(wanted);
  std::vector<shmb_attach_item> items(wanted);
  for (std::size_t i = 0; i < wanted; ++i) {
    if (!places[i].read(PyTuple_GetItem(wheres.get(), static_cast<Py_ssize_t>(i)))) return nullptr;
    items[i].address = places[i].address;
    items[i].ticket = places[i].ticket;
    if (places[i].address == nullptr && places[i].ticket == nullptr) items[i].id = &places[i].id;
    items[i].rights = rights_of(write, share, false);
    items[i].flags = populate ? 0U : unsigned{SHMB_ATTACH_NO_POPULATE};
  }
  std::vector<shmb_region*> regions(wanted);
  std::vector<int> statuses(wanted);
  shmb_error error{};
  const int status = wait_in(as<Session>(self), timeout, [&](std::int64_t left) {
    for (shmb_region*& one : regions)  // of a call that a signal has ended
      if (one != nullptr) (void)shmb_release(std::exchange(one, nullptr), 0, nullptr);
    return shmb_attach_many(session, items.data(), wanted, left, regions.data(), statuses.data(), &error);
  });
  if (status == kRaised) {
    for (shmb_region* one : regions)
      if (one != nullptr) (void)shmb_release(one, 0, nullptr);
    return nullptr;
  }
  const auto failed = std::ranges::find_if(statuses, [](int one) { return one != SHMB_OK; });
  if (failed != statuses.end()) places[static_cast<std::size_t>(failed - statuses.begin())].explain(error);
  return regions_or_error(as<Session>(self), regions, statuses, status, error, return_errors, wheres.get());
}

PyObject* session_adopt(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  static Signature<2> adopt_names = signature("adopt", 1, 1, {"fd", "write"});
  const Arguments arguments(adopt_names, given, count, names);
  bool write = false;
  std::uint32_t fd = 0;
  if (!arguments || !to_number(arguments[0], "fd", fd) || !to_flag(arguments[1], write)) return nullptr;
  shmb_session* const session = session_of(self);
  if (session == nullptr) return nullptr;
  shmb_region* region = nullptr;
  shmb_error error{};
  if (shmb_adopt_fd(session, static_cast<int>(fd), rights_of(write, false, false), &region, &error) != SHMB_OK)
    return raise(error);
  return make_region(as<Session>(self), region, nullptr);
}

}  // namespace shmb::python
